"""What every kernel for sm_90a knows: shared memory, lines that TMA swizzles, tiles in 32 bits, clusters, products."""

from typing import Any

import graphene as gr

__all__ = [
    "ALIGNED_BYTES",
    "LINE_BYTES",
    "MOST_TILES",
    "SHARED_BYTES",
    "clusters_at_once",
    "declare_clusters",
    "wgmma",
    "wgmma_fp8",
]

SHARED_BYTES = 227 * 1024  # of a block
LINE_BYTES = 128  # of a tile in shared memory, which TMA swizzles
ALIGNED_BYTES = 1024  # of swizzled tiles
MOST_TILES = 2**31 - 2**16  # no sum of a tile and a grid is larger than 32 bits hold
# Clusters of one to eight blocks that run at once on 132 multiprocessors, if each has room for one block: as the driver
# of an H200 says. Blocks of a cluster lie on neighbouring multiprocessors, so that some are left over.
AT_ONCE = (132, 66, 39, 30, 22, 17, 15, 15)


def clusters_at_once(sms: Any, blocks: int) -> Any:
    """How many clusters of `blocks` blocks run at once on `sms` multiprocessors, a number or what a launch says."""
    return sms // blocks if blocks <= 2 else sms * AT_ONCE[blocks - 1] // AT_ONCE[0]


def declare_clusters(count: Any, blocks: int) -> tuple[Any, Any, Any]:
    """Declares `count` clusters of `blocks` blocks; a cluster of one is a block that launches as if there were none.

    Returns the number of this block's cluster, the cluster (None for one block), and the block's rank in it.
    """
    if blocks == 1:
        (block,) = gr.blocks(count).indices()
        return block, None, 0
    grid = gr.blocks(blocks * count, cluster=blocks)
    block, rank = grid.indices()
    return block, grid[block], rank


def wgmma(dtype: gr.DType, columns: int) -> Any:
    """The product of 64 rows and a number of columns by a warpgroup, of fp16 or bf16 with sums of fp32."""
    return gr.atom(f"wgmma.m64n{columns}k16.f32.{'f16' if dtype == gr.fp16 else 'bf16'}")


def wgmma_fp8(a: gr.DType, b: gr.DType, columns: int) -> Any:
    """The same of two types of fp8, both in lines along k, of which one instruction takes 32."""
    names = [t.name.removeprefix("fp8") for t in (a, b)]
    return gr.atom(f"wgmma.m64n{columns}k32.f32.{'.'.join(dict.fromkeys(names))}")
