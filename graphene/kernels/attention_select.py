"""Which tile attention runs on: chosen from the head size and the problem's sizes."""

from __future__ import annotations

from dataclasses import replace

from graphene.kernels._attention import Attention
from graphene.kernels.attention_backward import BackwardConfig
from graphene.kernels.attention_forward import ForwardConfig

SHORT = 16  # queries up to which the heads of a group are rows of one block


def select_forward(what: Attention, *, lse: bool = False, shared_bytes: int = 227 * 1024) -> ForwardConfig:
    """The forward kernel for a problem: measured on an H200, within what a block may have of shared memory."""
    depth, masked = what.depth, what.left or what.right or what.mask is not None
    if depth <= 32:
        return ForwardConfig(what, 64, 64, 4, lse=lse)
    if depth <= 64:
        return ForwardConfig(what, 128, 64, 4, lse=lse)
    if depth <= 128 and masked:  # masks take registers
        return ForwardConfig(what, 64, 64, 4, lse=lse)
    wide = ForwardConfig(what, 128, 64, 8 if depth > 128 else 4, piece=16, q_in_registers=False, lse=lse)
    if depth <= 128:
        return wide if depth <= 96 else replace(wide, BN=48)
    if (wide.BM + 4 * wide.BN) * depth * 2 <= shared_bytes:
        return wide
    return replace(wide, BM=64, BN=32, WARPS=4)


def select_short(
    what: Attention, batch: int, sq: int, sk: int, kv_heads: int, *, lse: bool = False, sms: int = 132
) -> tuple[ForwardConfig, int]:
    """The forward kernel for at most ``SHORT`` queries, and among how many blocks the keys of a row are shared.

    Every query reads all keys, so that time is what loading them takes: as many blocks as the card holds load at once.
    """
    rows = sq * what.group
    warps = min(4, -(-rows // 16))
    BN = 64 if what.depth <= 64 else 32 if what.depth <= 128 else 16  # as much as a warp copies at once
    blocks = -(-rows // (16 * warps)) * kv_heads * batch
    splits = max(1, min(-(-sk // (2 * BN)), 3 * sms // max(blocks, 1)))
    config = ForwardConfig(
        what, 16 * warps, BN, warps, 3, q_in_registers=what.depth <= 128, lse=lse, packed=True, split=splits > 1
    )
    return config, splits


def select_backward(what: Attention) -> tuple[BackwardConfig, BackwardConfig]:
    """The kernels of the gradients of keys and of queries."""
    depth = what.depth
    if depth <= 64:
        queries = BackwardConfig(what, 64, 64, 4, keep=True) if what.softcap else BackwardConfig(what, 128, 64, 4)
        return BackwardConfig(what, 128, 32, 4), queries
    if depth <= 128:
        queries = BackwardConfig(what, 64, 64, 4) if what.softcap else BackwardConfig(what, 128, 32, 4)
        return replace(BackwardConfig(what, 64, 32, 4), piece=16), replace(queries, piece=16)
    keys = BackwardConfig(what, 64, 16, 4, piece=16)
    return keys, replace(keys, other=32) if depth <= 192 else keys
