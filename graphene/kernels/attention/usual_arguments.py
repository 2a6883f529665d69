"""Sensible arguments for attention's kernels: where sequences lie, masks, lists, LSE and delta."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.attention import reference as means
from graphene.kernels.attention import reference_saved as saved
from graphene.kernels.attention import reference_tiles as tiles
from graphene.kernels.attention.reference import LOG2E
from graphene.kernels.attention.workspace import TOGETHER

if TYPE_CHECKING:
    from graphene.kernels.attention.problem import Attention

FINITE = ("normal", "positive", "rising", "falling", "constant", "whole", "tiny", "large", "spike",
          "uneven")  # fmt: skip
_MOST_TILED = 8  # packed sequences are as long as tiles if they then have at most this many times the rows of all
MOST_WIDE = 160  # keys before a query, for which checks need sizes of their own
SIZES = {  # sizes that no tile divides; the last ones are the usual
    "batch": (1, 2, 3), "kv_heads": (1, 2, 3), "splits": (1, 2, 35, 5, 3), "pages": (7, 5, 12), "most": (2, 1, 3, 24),
    "left": (0, 1, 15, 16, 300, -1, 30, 31, -17, 46, 300, 62, 100, 17),
    "right": (1, -1, 14, 15, 300, 16, 31, 46, 62, -20, 100, 0),
}  # fmt: skip


def arguments(
    a: Attention, tile: int = 0, block: int = 0, far: bool = False, packed: bool = False, saves: bool = False
) -> gr.Arguments:
    """Those of any kernel. `tile`: its keys, where saved gradients or listed tiles are read; `block`: its queries.

    `far`: scores may be as large as fp32 holds them. `packed`: a group's heads have one mask and bias.
    `saves`: there is a work space, whose heads are counted in groups of ``TOGETHER``.
    """

    def prepare(args: Any, rng: Any) -> None:
        if "M" in args:
            masks(args["M"], rng)
            if "Q" not in args and a.mask is not None and not a.mask.rows:
                args["M"][...] = args["M"][..., :1, :]
        if "B" in args:
            biases(args["B"], rng)
        for name in ("M", "B") if packed else ():
            if name in args:
                t = args[name]
                t[...] = t[:, :: a.group].repeat(a.group, 1)
        if "starts_q" in args:
            starts(args, rng, block, tile)
        if "table" in args:
            pages(args, rng)
        if "T" in args and "Q" in args:
            lists(a, block, tile, args)
        if "delta" in args and "Q" in args:
            statistics(a, args, rng)
        if "rows" in args and "Q" in args:
            numbers(a, args)
        if "saved" in args and "Q" not in args:
            if args["saved"].ndim == 4:
                tiles.prepare(args)
            else:
                saved.prepare(tile, args)
        if "L" in args:
            logarithms(args, rng)
        for name in ("scale_q", "scale_k", "scale_v") if a.fp8 is not None else ():
            args[name][...] = 2.0 ** rng.integers(-2, 3, args[name].shape) * (1 + rng.random(args[name].shape) / 2)
        if "Q" in args and "G" not in args and a.fp8 is None and not rng.integers(4):
            below(a, args, rng)

    def sizes(s: dict[str, int]) -> None:
        if "left" in few and s.get("left") == wide:
            s["sq"] = max(s["sq"], block)
            s["sk"] = max(s["sk"], -(-(s["sq"] + wide) // tile) * tile)
        if "panels" in s:
            saved.sizes(s)
        elif "saved_heads" in s:
            tiles.sizes(a, s)

    scales = [0.18, 0.02, 1.0, 3.0, 0.5] + ([7e4, 6e8, 1.1e9] if far else [])
    scales = [-0.18, -1.0, 0.0] if a.scaled else scales
    scales += [20.0] if a.wide else []
    caps = (200.0, 3000.0, 2.0**100) if a.wide else (3.0, 20.0, 0.5)
    few: dict[str, tuple[int, ...]] = {"sq": (1, 2, 5, 7, 16, 11)} if packed else {}
    if saves:
        few["kv_heads"] = (1, TOGETHER + 3, 2, 3)
    # All queries of a block see some tile whole, and some of them a part of the one before.
    wide = block + 2 * tile if a.left and block and tile and not (a.varlen or packed) else 0
    if 0 < wide <= MOST_WIDE:
        few["left"] = (*SIZES["left"][:-1], wide, SIZES["left"][-1])
    values = {**SIZES, **few, "scale_log2": scales, "scale": (0.125, 0.7), "cap_log2": caps}
    return gr.Arguments(prepare, sizes, values, FINITE)


def masks(M: Any, rng: Any) -> None:
    """A mask with tiles that all heads or some see whole, in part, or not at all, and rows that see no key."""
    import numpy as np

    M[...] = rng.integers(0, 2, M.shape)
    for member in np.ndindex(M.shape[:-2]):
        kind, m = rng.integers(5), M[member]
        if kind == 0:
            m[...] = 1
        elif kind == 1:
            m[:: max(1, m.shape[0] // 3)] = 0
        elif kind == 2:
            m[:, : m.shape[1] // 2] = 1
        elif kind == 3:
            m[:, :70], m[:, 96:128], m[:, 128:160] = 1, 0, rng.integers(2)
        else:
            m[:, m.shape[1] // 2 :] = 1
    M[...] = np.where(M != 0, rng.choice([1, 1, 255]), 0)
    if M.ndim > 3 and rng.integers(2):
        M[:, rng.integers(M.shape[1]), :, : max(1, M.shape[-1] // 2)] = 0


def below(a: Attention, args: Any, rng: Any) -> None:
    """Scores of about -1e5 for every key: of one size, or up to two and a half times as much."""
    import numpy as np

    alike, scale = rng.integers(2), abs(float(args["scale_log2"]))
    each = 2.0 ** round(np.log2(2**17 / (scale * a.D)) / 2) if scale else 1.0
    for name, sign in (("Q", 1), ("K", -1)):
        t = args[name]
        size = np.ones_like(t) if alike else 1 + np.minimum(np.abs(t), 8) / 16
        t[...] = np.where(np.isnan(t), t, sign * each * size)


def biases(B: Any, rng: Any) -> None:
    """Biases, some of which rule a key out; all are so large that fp32 cannot hold their exponentials."""
    kind = rng.integers(4)
    if kind < 2:
        B[..., rng.integers(4) :: 5] = -gr.inf
    elif kind == 2:
        B += 200


def starts(args: Any, rng: Any, block: int = 0, tile: int = 0) -> None:
    """Sequences one after the other, some empty, with rows before and after them; and the longest one's length.

    Some are as long as tiles of `block` queries and `tile` keys, or by one longer or shorter. What lies before and
    after all of them is not a number in what a forward pass reads.
    """
    import numpy as np

    rows = {"starts_q": args["Q" if "Q" in args else "dQ"].shape[0], "starts_k": args["K"].shape[0]}
    around, most = rng.integers(3), {}  # no rows around them, a few, or any number
    for name, total in rows.items():
        at = np.sort(rng.integers(0, total + 1, args[name].size))
        if around < 2:
            few = min(3, total // 4) * around
            at[0], at[-1] = rng.integers(few + 1), total - rng.integers(few + 1)
            at = np.clip(at, at[0], at[-1])
        unit = block if name == "starts_q" else tile
        if unit * (len(at) - 1) > _MOST_TILED * total:
            unit = 0  # long sequences would leave nothing to the last of many
        for i in range(1, len(at) if unit else 0):
            length = at[i] - at[i - 1]
            if rng.integers(2):
                length = max((length // unit + rng.integers(2)) * unit + rng.integers(-1, 2), 0)
            at[i:] = np.maximum(at[i:], min(at[i - 1] + length, total))
            at[i] = min(at[i - 1] + length, total)
        args[name][...], most[name] = at, int(np.diff(at).max(initial=1))
    args["longest"] = most["starts_k" if "dK" in args else "starts_q"]
    for tensor, name in (("Q", "starts_q"), ("K", "starts_k"), ("V", "starts_k")) if "G" not in args else ():
        if tensor in args:
            args[tensor][: args[name][0]] = args[tensor][args[name][-1] :] = np.nan


def pages(args: Any, rng: Any) -> None:
    """Sequences of any lengths, some without keys, in pages of which no two need be neighbours.

    Entries of the table that no sequence needs name no page. Where each page is one sequence's, the rows behind its
    last key are not numbers.
    """
    import numpy as np

    table, lengths, (count, page) = args["table"], args["lengths"], args["K"].shape[:2]
    lengths[...] = rng.integers(0, table.shape[1] * page + 1, lengths.shape)
    if rng.integers(2):
        lengths[...] = lengths // page * page
    if count == 0:
        lengths[...] = 0
    needed, apart = -(-lengths // page), count >= table.size
    table[...] = (
        rng.permutation(count)[: table.size].reshape(table.shape)
        if apart
        else rng.integers(0, max(count, 1), table.shape)
    )
    table[np.arange(table.shape[1])[None] >= needed[:, None]] = -1
    for i, n in enumerate(needed) if apart else ():
        if n:
            for t in (args["K"], args["V"]):
                t[table[i, n - 1], (lengths[i] - 1) % page + 1 :] = np.nan
    if count and not rng.integers(3):  # some pages do not exist
        table[rng.integers(4, size=table.shape) == 0] = rng.choice([-1, -7, count, count + 3])
    most = table.shape[1] * page
    full = (lengths == most) & (most > 0)
    lengths[full] = most + rng.choice([0, 1, page, 1000])  # more keys than the table has places for


def lists(a: Attention, block: int, tile: int, args: Any) -> None:
    """The tiles that the mask lets queries see."""
    import numpy as np

    M, rows = args["M"], (a.mask is not None and a.mask.rows) or a.left or a.right
    sq = args["Q"].shape[1] if rows else 1
    wide = np.broadcast_to(M, (*M.shape[:2], sq, M.shape[3]))
    args["T"][...] = 0
    bits = args["T"].shape[3] > -(-M.shape[3] // tile) + 2
    args["T"][...] = means.tiles(a, block, tile, bits, wide, args["T"], args.get("left"), args.get("right"))


def statistics(a: Attention, args: Any, rng: Any) -> None:
    """The LSE and delta that a forward pass leaves; any LSE goes with the rest that belongs to it."""
    import numpy as np

    with np.errstate(divide="ignore"):  # rows that see no key
        made = means.forward(a, True, **args)
    args["LSE"][...] = made["LSE"]
    if "rest" in args:
        there = ~np.isneginf(made["LSE"])
        args["LSE"][...] += rng.standard_normal(there.shape)
        args["rest"][there] = (made["LSE"][there] - args["LSE"][there]) * LOG2E
        args["rest"][~there] = 0
    args["delta"][...] = means.delta(args["G"], made["O"])


def numbers(a: Attention, args: Any) -> None:
    """The numbers of rows that a forward pass and ``attention_rows_kernel`` leave."""
    import numpy as np

    with np.errstate(divide="ignore"):  # rows that see no key
        made = means.forward(a, True, **args)
    args["rows"][...] = tiles.tiled(made["LSE"], means.delta(args["G"], made["O"]))


def logarithms(args: Any, rng: Any) -> None:
    """Parts without keys, rows with only such parts, a part far above the others."""
    import numpy as np

    L, P, top = args["L"], args["P"], args["top"]
    L[...], top[...] = L % 20, top % 20
    if rng.integers(2):
        top[rng.choice([0, -1, rng.integers(len(L))])] += 200
    if not rng.integers(3):
        L -= 104  # sums that fp32 holds, also of parts whose maximum is 20 below, though a product of two is zero
    if rng.integers(2):
        top += rng.choice([-(2.0**30), 2.0**30])  # beside which the digits of L count as long as nobody adds both
    L[..., ::7] = L[:: 1 + rng.integers(3), ..., 1::5] = -gr.inf
    top[np.isneginf(L)] = -gr.inf
    P[np.isneginf(L)] = 0
