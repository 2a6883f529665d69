"""The choice of attention's tile, from the head size and the problem's sizes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from graphene.kernels.attention.backward import BackwardConfig
from graphene.kernels.attention.backward_sm90 import KEYS, GradientSm90
from graphene.kernels.attention.decode import DecodeConfig
from graphene.kernels.attention.forward import ForwardConfig
from graphene.kernels.attention.key_tiles import CAPACITY
from graphene.kernels.attention.keys_sm90 import KeysSm90
from graphene.kernels.attention.problem import MOST, Attention
from graphene.kernels.attention.product import ProductConfig
from graphene.kernels.attention.product_sm90 import ProductSm90
from graphene.kernels.attention.sm90 import ForwardSm90
from graphene.kernels.tma import MOST_TILES
from graphene.select.device import H200
from graphene.select.sm90_time import has_wgmma

if TYPE_CHECKING:
    from graphene.select.device import Device

# The factor of a tile's time where several blocks share the keys of a head, compared with one block that has them all.
IN_STEP = 1.03
# Up to this number of steps, consumers of dK take no turns (heads of 64), and blocks of dQ have several tiles.
FEW_STEPS = 16
# Keys of a step of small blocks. WIDER: where registers still leave room for four blocks, which they do for heads of up
# to 64 without a gradient. NARROWER: for packed sequences, whose last tiles are then less empty; five blocks have room.
ONE_TILE, WIDER, NARROWER = 64, 80, 48
# From this number of keys on, wgmma computes forward passes for a gradient with masks of keys, for heads of up to 64.
LONG_MASKS = 1024

# The time of forward passes by wgmma, in ns, fitted to 11 sizes with heads of 64 on an H200, most within 6%.
# A pair is the time of a tile of queries without keys, and what each key adds.
PERSISTENT_NS = {2: (690.0, 9.11), 3: (920.0, 11.62)}  # by the number of consumers
UNEVEN_NS = (350.0, 4.23)  # of 64 queries, where consumers have uneven tiles
SMALL_NS = {48: (200.0, 4.86), 64: (250.0, 4.63), 80: (250.0, 4.38)}  # of 64 queries, by the keys of a step
START_NS, SMALL_START_NS = 9000.0, 8000.0  # from a launch to the first products, and from the last ones to the end
IN_LINE_NS, BESIDE = 500.0, 4  # BESIDE small blocks share a multiprocessor, and each adds IN_LINE_NS
# By consumers, the factor of causal rows' time: tiles cross the diagonal, and work does not even out.
ENDS = {2: 1.1, 3: 1.15}
SHORT = 16  # with at most this many queries, the heads of a group are rows of one block

# The kernel for few queries on sm_90a, as measured on an H200.
RING_BYTES = 96 << 10  # of the ring of tiles, so that two blocks run on a multiprocessor
FILLED, MOST_FILLED = 0.9, 1.1  # blocks for each multiprocessor: more of them at once are slower
LONG = 32  # from this number of steps of a block on, each step takes twice as long
BLOCK_RATE = 60.0  # the most bytes that a block loads in a nanosecond
PARTS_NS, PART_NS = 2000.0, 100.0  # the kernel that puts parts together takes this, and this for each part
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 32)


def select_forward(
    what: Attention,
    *,
    lse: bool = False,
    training: bool = False,
    device: Device = H200,
    longest: int | None = None,
    keys: int | None = None,
) -> ForwardConfig:
    """The forward kernel for a problem: measured on an H200, within what a block may have of shared memory.

    `training`: for a gradient. `longest`: of packed sequences. `keys`: how many keys there are. If tiles divide them,
    the kernel is for such numbers of keys alone.
    """
    config = replace(_forward(what, lse or training, device.shared_bytes, longest), training=training)
    even = keys is not None and keys % config.BN == 0
    return replace(config, even=True) if even and config.may_be_even else config


def select_forward_sm90(
    what: Attention,
    batch: int,
    heads: int,
    sq: int,
    sk: int,
    *,
    lse: bool = False,
    training: bool = False,
    device: Device = H200,
) -> ForwardSm90 | None:
    """The forward kernel of wgmma for a problem, or None if that has no kernel or the device no such instruction.

    `batch`: of packed sequences, how many there are. `heads`: of queries. `sq`, `sk`: queries and keys; of packed
    sequences, the longest one's queries and the keys of all.
    """
    depth, lse = what.depth, lse or training
    served = sk > 0 and has_wgmma(device)
    served = served and (depth <= 128 or not what.prescaled)  # scores that change one by one take registers
    # Masks that differ between queries hide little of most tiles, and are faster to apply by small warps.
    if not served or (what.mask is not None and (what.mask.rows or -(-sk // ONE_TILE) > CAPACITY)):
        return None
    if what.varlen and depth > 128 and training:  # there are no registers for two blocks
        return None
    tiles = MOST // 64 + batch if what.varlen else batch * -(-sq // 64)
    BN = ONE_TILE if depth <= 128 else ONE_TILE // 2
    one = ForwardSm90(what, BN, 1, 2, 1, False, lse=lse, training=training, persistent=False, copier=False)
    small = [one] if heads * tiles <= MOST_TILES else []
    if depth <= 64 and not (training or what.prescaled or what.mask is not None):
        small += [replace(one, BN=n) for n in (WIDER, NARROWER)[: 1 + what.varlen] for _ in small]

    def time_ns(c: ForwardSm90) -> float:
        return _sm90_time_ns(c, batch, heads, sq, sk, device)

    # Small blocks even out their work where it differs and nobody knows by how much, and hide each other's waits.
    if what.varlen or what.bias is not None:
        best = min(small, key=time_ns, default=None)
        waits = heads * (sk + 32 * batch) / 64 > (BESIDE + 1) * device.sm_count  # blocks: not all start at once
        return replace(best, longest_first=waits) if best is not None and what.varlen and depth <= 64 else best
    if depth <= 64 and what.mask is not None and not (training or what.prescaled):
        return replace(one, bits=not (what.left or what.right)) if small else None
    if depth <= 64 and what.mask is not None and sk < LONG_MASKS:
        return None
    if depth <= 64:
        two = ForwardSm90(what, 128, 2, 3, lse=lse, training=training)
        if what.prescaled or what.mask is not None:  # these take registers
            return two
        three = replace(two, consumers=3)
        ways = [two, *small] if training else [two, three, *small]
        if not (training or three.differ or depth <= 32) and sq > three.BM:
            ways.append(replace(three, uneven=True))
        return min(ways, key=time_ns)
    if depth <= 128:
        return ForwardSm90(what, lse=lse, training=training)
    BN = 112 if depth <= 160 else 96 if depth <= 192 else 64
    return ForwardSm90(what, BN, queries=1, apart=False, lse=lse, training=training)


def _sm90_time_ns(c: ForwardSm90, batch: int, heads: int, sq: int, sk: int, device: Device) -> float:
    """The time of a forward pass with heads of up to 64; arguments are those of ``select_forward_sm90``.

    Work is a time for each tile of queries and one for each of its keys. It comes in rounds, or for small blocks in no
    order, and takes at least as long as memory moves queries, keys, values and results. Packed sequences count as all
    of one length.
    """
    a, sms = c.what, device.sm_count
    if a.varlen:
        keys, tiles = (sk / max(batch, 1) + n / 2 for n in (c.BN, 64))  # a sequence's last tile is half full
        tiles *= batch * heads / 64
        batch, sq = 1, sk
    else:
        keys, tiles = -(-sk // c.BN) * c.BN, batch * heads * -(-sq // c.BM)
    if a.right and not a.varlen:  # the mean of the least and the most keys that rows see
        seen = [min(keys, -(-max(at + sk - sq, 1) // c.BN) * c.BN) for at in (c.BM, -(-sq // c.BM) * c.BM)]
        keys = sum(seen) / 2
    load_ns = 4 * a.depth * batch * heads * (sq + sk / a.group) / device.memory_rate
    if not c.persistent:
        tile_ns, key_ns = SMALL_NS.get(c.BN, SMALL_NS[ONE_TILE])
        each = tiles / sms
        start_ns = SMALL_START_NS + IN_LINE_NS * min(each, BESIDE)
        return start_ns + max(max(each, 1.0) * (tile_ns + keys * key_ns), load_ns)
    rounds = max(tiles / sms, 1.0) if a.right else math.ceil(tiles / sms)
    tile_ns, key_ns = PERSISTENT_NS[c.consumers]
    if c.uneven:
        (tile_ns, key_ns), rounds = UNEVEN_NS, math.ceil(-(-sq // 64) * batch * heads / sms)
    return START_NS + max(rounds * (tile_ns + keys * key_ns) * (ENDS[c.consumers] if a.right else 1), load_ns)


def _forward(what: Attention, lse: bool, shared_bytes: int, longest: int | None) -> ForwardConfig:
    depth, masked = what.depth, what.left or what.right or what.mask is not None
    if depth <= 32:
        return ForwardConfig(what, 64, 64, 4, lse=lse)
    if depth <= 64 and longest is not None and longest <= 512:  # small blocks, four of which share a multiprocessor
        return ForwardConfig(what, 64, 64, 4, q_in_registers=False, lse=lse)
    if depth <= 64:
        return ForwardConfig(what, 128, 64, 4, lse=lse)
    if depth <= 128 and masked:  # masks take registers
        return ForwardConfig(what, 64, 64, 4, lse=lse)
    wide = ForwardConfig(what, 128, 64, 8 if depth > 128 else 4, piece=16, q_in_registers=False, lse=lse)
    if depth <= 128:
        # Its step printed once is as fast (H200), spills less, and takes the compiler half of the time.
        return wide if depth <= 96 else replace(wide, BN=48, one_loop=not what.varlen)
    if (wide.BM + 4 * wide.BN) * depth * 2 <= shared_bytes:
        return wide
    return replace(wide, BM=64, BN=32, WARPS=4)


def select_short(
    what: Attention, batch: int, sq: int, sk: int, kv_heads: int, *, lse: bool = False, device: Device = H200
) -> tuple[ForwardConfig, int]:
    """The forward kernel for at most ``SHORT`` queries, and how many blocks share the keys of a row.

    Every query reads all keys, so that time is what loading them takes: as many blocks as the card holds load at once.
    """
    rows = sq * what.group
    warps = min(4, -(-rows // 16))
    BN = 64 if what.depth <= 64 else 32 if what.depth <= 128 else 16  # as much as a warp copies at once
    blocks = -(-rows // (16 * warps)) * kv_heads * batch
    splits = max(1, min(-(-sk // (2 * BN)), 3 * device.sm_count // max(blocks, 1)))
    config = ForwardConfig(
        what, 16 * warps, BN, warps, 3, q_in_registers=what.depth <= 128, lse=lse, packed=True, split=splits > 1
    )
    return config, splits


def select_decode(
    what: Attention, batch: int, sq: int, sk: int, kv_heads: int, *, lse: bool = False, page: int | None = None,
    device: Device = H200,
) -> tuple[DecodeConfig, int]:  # fmt: skip
    """The kernel for few queries on sm_90a, and how many clusters share the keys of a row.

    `sk`: the most keys of a sequence. `page`: of a cache in pages. A cluster is as large as fills the device with a
    block on each multiprocessor. If the largest does not, more parts of the keys may be worth a second kernel.
    """
    rows = sq * what.group
    wide = what.depth > 128
    BM = next((n for n in (8, 16, 32) if rows <= n), 64 if wide else 32)
    BN = 32 if wide else 64
    warps = max(1, BN // max(BM, 16))
    stage_bytes = 4 * BN * what.depth
    stages = max(2, min(8, RING_BYTES // stage_bytes))
    config = DecodeConfig(what, BM, BN, warps, stages, lse=lse, page=page)
    groups, steps, sms = -(-rows // BM) * kv_heads * batch, max(1, -(-sk // BN)), device.sm_count
    sizes = [c for c in (1, 2, 4, 8) if c <= steps]
    cluster = next((c for c in sizes if groups * c >= FILLED * sms), sizes[-1])
    load_bytes = groups * steps * stage_bytes

    def time_ns(parts: int) -> float:
        rate = min(device.memory_rate, groups * cluster * parts * BLOCK_RATE)
        return load_bytes / rate + (PARTS_NS + parts * PART_NS if parts > 1 else 0)

    most = min(steps // cluster, int(MOST_FILLED * sms) // (groups * cluster))
    parts = min((p for p in PARTS if p <= max(most, 1)), key=time_ns)
    if what.depth <= 64 and steps >= LONG * cluster * parts:  # a step of narrow heads waits more than it computes
        config = replace(config, BN=2 * BN, stages=max(2, stages // 2))
    return replace(config, cluster=cluster, split=parts > 1, lse=lse and parts == 1), parts


def select_backward(what: Attention, *, device: Device = H200) -> tuple[BackwardConfig, BackwardConfig]:
    """The kernels of the gradients of keys and of queries, without a work space."""
    depth = what.depth
    keys = _keys(what, device.shared_bytes)
    if depth <= 64:
        return keys, BackwardConfig(what, 64, 64, 4, keep=True) if what.softcap else BackwardConfig(what, 128, 64, 4)
    if depth <= 128:
        queries = BackwardConfig(what, 64, 64, 4) if what.softcap else BackwardConfig(what, 128, 32, 4)
        return keys, replace(queries, piece=16)
    return keys, BackwardConfig(what, 64, 32 if depth <= 192 else 16, 4, piece=16)


def select_backward_sm90(
    what: Attention, batch: int, sk: int, kv_heads: int, *, device: Device = H200
) -> GradientSm90 | None:
    """The gradients' kernel of wgmma, or None if it does not take the problem or the device has no such instruction.

    As many blocks share the keys of a head, with sums of their own, as make the longest run of tiles of keys of a block
    short.
    """
    served = not (what.mask is not None or what.prescaled or what.varlen or what.left) and what.D <= 128 and sk > 0
    if not (served and has_wgmma(device)):
        return None
    tiles, units = -(-sk // KEYS), batch * kv_heads

    def run(n: int) -> float:
        return -(-units // max(1, device.sm_count // n)) * -(-tiles // n) * (1.0 if n == 1 else IN_STEP)

    blocks = min((1, 2, 4, 8, 16), key=run)
    return GradientSm90(what, *((2, 3) if what.D <= 64 else (1, 2)), blocks)


def select_saving_sm90(
    what: Attention, sq: int, sk: int, *, device: Device = H200
) -> tuple[KeysSm90, ProductSm90] | None:
    """The kernels of wgmma that pass the scores' gradients on, or None if they do not take the problem or the device
    has no such instruction. `sq`, `sk`: queries and keys.
    """
    a = what
    served = not (a.mask is not None or a.prescaled or a.varlen) and a.D <= 128 and min(sq, sk) > 0
    if not (served and has_wgmma(device)):
        return None
    tiles = -(-sq // 64)
    if a.D <= 64:  # to take turns was faster for 64 steps, by 1% without a causal mask
        keys = KeysSm90(a, 2, 4, held=2, turns=tiles * a.group > FEW_STEPS)
    else:
        keys = KeysSm90(a, direct=False, turns=True)
    consumers = -(-tiles // -(-tiles // 4))
    return keys, ProductSm90(a, consumers, 4 if a.D <= 64 else 3, persistent=tiles <= FEW_STEPS)


def select_backward_saving(what: Attention, *, device: Device = H200) -> tuple[BackwardConfig, ProductConfig] | None:
    """The kernel of the keys' gradient that saves scores' gradients, and the kernel that computes the queries' from
    them.

    None if it is faster to compute keys' and queries' gradients by a kernel each.
    """
    a, depth = what, what.depth
    keys = _keys(a, device.shared_bytes)
    if keys.other < 32:
        return None
    product = ProductConfig(Attention(a.D, a.dtype, a.left, a.right, group=a.group, varlen=a.varlen))
    if depth > 64:
        product = replace(product, BN=32, piece=16, parts=2 if depth > 128 and depth % 32 == 0 else 1)
    return replace(keys, saves=True), product


def _keys(a: Attention, shared_bytes: int) -> BackwardConfig:
    """The kernel of the gradient of keys."""
    if a.depth <= 64:
        return BackwardConfig(a, 128, 32, 4)
    alone = BackwardConfig(a, 64, 32 if a.depth <= 128 else 16, 4, piece=16)
    if a.softcap:  # the cap's slope needs scores, which the second warp of a pair lacks
        return alone
    pairs = BackwardConfig(a, 64, 32, 8, 3, piece=16, paired=True)
    if a.depth <= 128:
        tiles = [replace(pairs, own=128, other=64), replace(pairs, own=128), replace(pairs, WARPS=4)]
        tiles = tiles[a.bias is not None :]  # a bias takes registers
    else:
        tiles = [pairs]
    return next((c for c in tiles if c.shared_bytes <= shared_bytes), alone)
