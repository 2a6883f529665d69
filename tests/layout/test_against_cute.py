"""Every operation against CuTe's algorithms, written down again here over ints and tuples, on generated layouts.

Where CuTe has an answer that obeys the operation's law, ours is the same answer, shape and stride; where it has none,
or one that breaks its law, ours is a LayoutError or another lawful answer. The laws are tried at every coordinate.
`python tests/layout/test_against_cute.py N [SEED]` tries N cases of each operation.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import graphene as gr

Shape = Any  # an int or a tuple of Shapes
Pair = tuple[Shape, Shape]  # shape, stride


class UndefinedError(Exception):
    """CuTe's algorithm has no answer."""


def require(condition: bool) -> None:
    if not condition:
        raise UndefinedError


# ---- the reference: what CuTe computes


def flat(t: Shape) -> list[int]:
    return [x for m in t for x in flat(m)] if isinstance(t, tuple) else [t]


def leaves(a: Pair) -> list[tuple[int, int]]:
    return list(zip(flat(a[0]), flat(a[1]), strict=True))


def size(a: Pair) -> int:
    return math.prod(flat(a[0]))


def span(a: Pair) -> int:
    return 1 + sum((s - 1) * abs(d) for s, d in leaves(a))


def rank(a: Pair) -> int:
    return len(a[0]) if isinstance(a[0], tuple) else 1


def mode(a: Pair, i: int) -> Pair:
    return (a[0][i], a[1][i]) if isinstance(a[0], tuple) else a


def join(*modes: Pair) -> Pair:
    return tuple(m[0] for m in modes), tuple(m[1] for m in modes)


def unflatten(modes: list[tuple[int, int]]) -> Pair:
    if not modes:
        return 1, 0
    if len(modes) == 1:
        return modes[0]
    return tuple(s for s, _ in modes), tuple(d for _, d in modes)


def merged(modes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for s, d in modes:
        if s == 1:
            continue
        if out and out[-1][0] * out[-1][1] == d:
            out[-1] = (out[-1][0] * s, out[-1][1])
        else:
            out.append((s, d))
    return out or [(1, 0)]


def coalesce(a: Pair, profile: Any = None) -> Pair:
    if isinstance(profile, tuple):
        require(len(profile) <= rank(a))
        return join(*(coalesce(mode(a, i), profile[i]) if i < len(profile) else mode(a, i) for i in range(rank(a))))
    return unflatten(merged(leaves(a)))


def filtered(a: Pair, profile: Any = None) -> Pair:
    if isinstance(profile, tuple):
        require(len(profile) <= rank(a))
        return join(*(filtered(mode(a, i), profile[i]) if i < len(profile) else mode(a, i) for i in range(rank(a))))
    return unflatten(merged([(s, d) for s, d in leaves(a) if d != 0]))


def open_ended(a: Pair) -> list[tuple[int, int]]:
    """Coalesced with the same function past the size, where it continues along the last mode."""
    modes = leaves(a)
    if modes[-1][0] != 1:
        return merged(modes)
    out = merged([*modes[:-1], (2, modes[-1][1])])
    return [*out[:-1], (out[-1][0] // 2, out[-1][1])]


def composition(a: Pair, b: Any) -> Pair:
    if b is None:
        return a
    if isinstance(b, list):  # a tuple of tilers
        require(len(b) <= rank(a))
        return join(*(composition(mode(a, i), t) for i, t in enumerate(b)))
    if isinstance(b[0], tuple):
        return join(*(composition(a, mode(b, i)) for i in range(rank(b))))
    rest, step = b
    if step == 0:
        return rest, 0
    modes = open_ended(a)
    sign, step = (1 if step > 0 else -1), abs(step)
    out: list[tuple[int, int]] = []
    for s, d in modes[:-1]:
        require(step % s == 0 or step < s)
        here = min(-(-s // step), rest)
        if here != 1:
            require(rest % here == 0)
            out.append((here, sign * step * d))
            rest //= here
        step = -(-step // s)
    if rest != 1 or not out:
        out.append((rest, sign * step * modes[-1][1]))
    return unflatten(out)


def complement(a: Pair, n: int) -> Pair:
    out, current = [], 1
    for d, s in sorted((d, s) for s, d in leaves(a) if s != 1 and d != 0):
        require(0 < current <= d)
        out.append((d // current, current))
        current = s * d
    return unflatten(merged([*out, (-(-n // current), current)]))


def right_inverse(a: Pair) -> Pair:
    modes = merged(leaves(a))
    below = [math.prod(s for s, _ in modes[:i]) for i in range(len(modes))]
    out, current = [], 1
    for i in sorted(range(len(modes)), key=lambda i: modes[i][1]):
        if modes[i][1] == current:
            out.append((modes[i][0], below[i]))
            current *= modes[i][0]
    return unflatten(merged(out))


def left_inverse(a: Pair) -> Pair:
    modes = merged(leaves(a))
    below = [math.prod(s for s, _ in modes[:i]) for i in range(len(modes))]
    order = [i for i in sorted(range(len(modes)), key=lambda i: modes[i][1]) if modes[i][1] != 0]
    out, current, weight = [], 1, 0
    for i in order:
        d = modes[i][1]
        require(d > 0 and d % current == 0)
        out.append((d // current, weight))
        current, weight = d, below[i]
    return unflatten(merged([*out, (modes[order[-1]][0], weight)] if order else []))


def logical_divide(a: Pair, t: Any) -> Pair:
    if t is None:
        return a
    if isinstance(t, list):
        require(len(t) <= rank(a))
        return join(*(logical_divide(mode(a, i), t[i]) if i < len(t) else mode(a, i) for i in range(rank(a))))
    return composition(a, join(t, complement(t, size(a))))


def logical_product(a: Pair, t: Any) -> Pair:
    if t is None:
        return a
    if isinstance(t, list):
        require(len(t) <= rank(a))
        return join(*(logical_product(mode(a, i), t[i]) if i < len(t) else mode(a, i) for i in range(rank(a))))
    return join(a, composition(complement(a, size(a) * span(t)), t))


def zipped(split: Callable[[Pair, Any], Pair], a: Pair, t: Any) -> Pair:
    if t is None:
        return join((1, 0), a)
    if isinstance(t, list):
        require(len(t) <= rank(a))
        parts = [zipped(split, mode(a, i), x) for i, x in enumerate(t)]
        rest = [mode(a, i) for i in range(len(t), rank(a))]
        return join(join(*(mode(p, 0) for p in parts)), join(*(mode(p, 1) for p in parts), *rest))
    return split(a, t)


def tiled(split: Callable[[Pair, Any], Pair], a: Pair, t: Any) -> Pair:
    z = zipped(split, a, t)
    rest = mode(z, 1)
    return join(mode(z, 0), *(mode(rest, i) for i in range(rank(rest))))


def by_rank(a: Pair, t: Pair, raked: bool) -> Pair:
    n = max(rank(a), rank(t))
    a, t = (join(*(mode(x, i) if i < rank(x) else (1, 0) for i in range(n))) for x in (a, t))
    both = logical_product(a, t)
    pairs = [(mode(mode(both, 0), i), mode(mode(both, 1), i)) for i in range(n)]
    return join(*(join(o, i) if raked else join(i, o) for i, o in pairs))


def max_common_vector(a: Pair, b: Pair) -> int:
    s, d = leaves(coalesce(composition(a, right_inverse(b))))[0]
    return s if d == 1 else 1


def idx2crd(i: Any, shape: Shape, stride: Shape | None = None) -> Any:
    if stride is None:
        if isinstance(i, tuple):
            return tuple(idx2crd(x, s) for x, s in zip(i, shape, strict=True))
        return idx2crd(i, shape, prefix(shape))
    if isinstance(shape, tuple):
        parts = i if isinstance(i, tuple) else (i,) * len(shape)
        return tuple(idx2crd(x, s, d) for x, s, d in zip(parts, shape, stride, strict=True))
    return 0 if stride == 0 or shape == 1 else i // stride % shape


def prefix(shape: Shape, below: int = 1) -> Shape:
    if not isinstance(shape, tuple):
        return below
    out = []
    for s in shape:
        out.append(prefix(s, below))
        below *= math.prod(flat(s))
    return tuple(out)


# ---- the laws: what an answer must be as a function


def at(a: Pair, i: int) -> int:
    """Past the size, and below 0, a layout continues along its last mode."""
    modes, total = leaves(a), 0
    for s, d in modes[:-1]:
        total += i % s * d
        i //= s
    return total + i * modes[-1][1]


def mirrored(a: Pair, i: int) -> int:
    return at(a, i) if i >= 0 else -at(a, -i)


def offsets(a: Pair) -> list[int]:
    out = [0]
    for s, d in leaves(a):
        out = [x + i * d for i in range(s) for x in out]
    return out


def composes(a: Pair, b: Pair, r: Pair) -> bool:
    index, result = offsets(b), offsets(r)
    return any([f(a, i) for i in index] == result for f in (at, mirrored))


# ---- the cases


class Cases:
    """Random layouts and tilers of at most a few hundred elements."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def leaf(self, sizes: tuple[int, ...] = (1, 2, 2, 3, 4, 4, 6, 8)) -> int:
        return self.rng.choice(sizes)

    def group(self, modes: list[tuple[int, int]], depth: int = 2) -> Pair:
        """Random hierarchy over flat modes."""
        if len(modes) == 1 and (depth == 0 or self.rng.random() < 0.6):
            return modes[0]
        out, i = [], 0
        while i < len(modes):
            n = self.rng.randint(1, len(modes) - i) if depth > 0 else 1
            part = modes[i : i + n]
            out.append(self.group(part, depth - 1) if n > 1 and n < len(modes) else part[0])
            i += n if n > 1 and n < len(modes) else 1
        return join(*out)

    def layout(self) -> Pair:
        """Compact in any order, with holes, broadcasts, ones, reversed modes, or with any strides."""
        n = self.rng.randint(1, 4)
        shape = [self.leaf() for _ in range(n)]
        kind = self.rng.choice(["compact", "holes", "zeros", "negative", "any", "any negative"])
        stride, below = [0] * n, 1
        for i in self.rng.sample(range(n), n) if self.rng.random() < 0.7 else range(n):
            if kind != "compact":
                below *= self.rng.choice([1, 1, 2, 3])
            stride[i] = below
            below *= shape[i]
        for i in range(n):
            if kind in ("zeros", "holes") and self.rng.random() < 0.3:
                stride[i] = 0
            if kind == "negative" and self.rng.random() < 0.5:
                stride[i] = -stride[i]
            if kind.startswith("any"):
                stride[i] = self.rng.randint(-8 if "negative" in kind else 0, 16)
        return self.group(list(zip(shape, stride, strict=True)))

    def tile(self, a: Pair) -> Pair:
        """A layout into the indices of a: parts of its sizes."""
        n, out, below = size(a), [], 1
        for _ in range(self.rng.randint(1, 3)):
            below *= self.leaf((1, 1, 2, 2, 3, 4))
            s = self.leaf((1, 2, 2, 3, 4))
            out.append((s, below if self.rng.random() < 0.9 else 0))
            below *= s
            if below > 4 * n:
                break
        self.rng.shuffle(out)
        if self.rng.random() < 0.25:
            out = [(s, -d if self.rng.random() < 0.6 else d) for s, d in out]
        return self.group(out)

    def tiler(self, a: Pair, depth: int = 2) -> Any:
        """None, a layout, or a list of one of these per mode."""
        if depth < 2 and self.rng.random() < 0.25:
            return None
        if depth > 0 and rank(a) > 0 and self.rng.random() < (0.8 if isinstance(a[0], tuple) else 0.1):
            return [self.tiler(mode(a, i), depth - 1) for i in range(self.rng.randint(1, rank(a)))]
        return self.tile(a) if self.rng.random() < 0.6 else (self.leaf((1, 2, 3, 4, 5)), 1)

    def profile(self, a: Pair, depth: int = 2) -> Any:
        if depth == 0 or self.rng.random() < 0.3:
            return self.rng.choice([None, 1, 7])
        return tuple(self.profile(mode(a, i), depth - 1) for i in range(self.rng.randint(1, rank(a))))

    def inside(self, shape: Shape) -> Any:
        """An index of a shape, to any level."""
        if not isinstance(shape, tuple) or self.rng.random() < 0.3:
            return self.rng.randrange(math.prod(flat(shape)))
        return tuple(self.inside(s) for s in shape)


def ours(a: Pair) -> gr.Layout:
    return gr.Layout(*a)


def our_tiler(t: Any) -> Any:
    if t is None:
        return None
    return tuple(our_tiler(x) for x in t) if isinstance(t, list) else ours(t)


def pair(layout: gr.Layout) -> Pair:
    return layout.shape, layout.stride


def whole(t: Any) -> bool:
    return t is not None and not isinstance(t, list)


def injective(a: Pair) -> bool:
    return len(set(offsets(a))) == size(a)


def divides(a: Pair, t: Pair, r: Pair) -> bool:
    index = join(t, complement(t, size(a)))
    return composes(a, index, r) and set(range(size(a))) <= set(offsets(index))


def multiplies(a: Pair, t: Pair, r: Pair) -> bool:
    rest = mode(r, 1)
    distinct = [(x, y) for x in set(offsets(a)) for y in set(offsets(rest))]
    starts = complement(a, size(a) * span(t))
    return composes(starts, t, rest) and len({x + y for x, y in distinct}) == len(distinct)


def every_part(law: Callable[[Pair, Pair, Pair], bool], split: Callable[[Pair, Pair], Pair], a: Pair, t: Any) -> bool:
    """Whether the law holds wherever a tiler of the tree divides or multiplies a mode."""
    if t is None:
        return True
    if isinstance(t, list):
        return all(every_part(law, split, mode(a, i), x) for i, x in enumerate(t))
    return law(a, t, split(a, t))


def composes_by_mode(a: Pair, t: Any) -> bool:
    return every_part(composes, composition, a, t)


Case = tuple[Callable[[], Any], Callable[[], Any], Callable[[Any], bool], str]


def case(operation: str, cases: Cases) -> Case:
    """(the reference, ours, whether the reference's answer obeys the law, the operands)."""
    a = cases.layout()
    la = ours(a)
    if operation in ("coalesce", "filter"):
        p = cases.profile(a)
        if operation == "coalesce":
            return lambda: coalesce(a, p), lambda: gr.coalesce(la, p), lambda r: offsets(r) == offsets(a), f"{a} {p}"
        law = lambda r: set(offsets(r)) == set(offsets(a))  # noqa: E731
        return lambda: filtered(a, p), lambda: gr.filter(la, p), law, f"{a} {p}"
    if operation == "idx2crd":
        i = cases.inside(a[0])
        return lambda: idx2crd(i, a[0]), lambda: gr.idx2crd(i, a[0]), lambda r: True, f"{i} {a[0]}"
    if operation == "idx2crd of an offset":
        i = cases.rng.choice(offsets(a))
        return lambda: idx2crd(i, *a), lambda: gr.idx2crd(i, *a), lambda r: True, f"{i} {a}"
    if operation == "complement":
        n = cases.rng.randint(1, 200)
        law = lambda r: all(d > 0 for s, d in leaves(a) if s > 1 and d != 0)  # noqa: E731
        return lambda: complement(a, n), lambda: gr.complement(la, n), law, f"{a} {n}"
    if operation == "right_inverse":
        law = lambda r: [at(a, i) for i in offsets(r)] == list(range(size(r)))  # noqa: E731
        return lambda: right_inverse(a), lambda: gr.right_inverse(la), law, str(a)
    if operation == "left_inverse":
        law = lambda r: all(0 <= at(r, x) < size(a) and at(a, at(r, x)) == x for x in offsets(a))  # noqa: E731
        return lambda: left_inverse(a), lambda: gr.left_inverse(la), law, str(a)
    if operation in ("composition", "max_common_vector"):
        b = cases.tile(a) if cases.rng.random() < 0.7 else cases.layout()
        if operation == "composition":
            return (
                lambda: composition(a, b),
                lambda: gr.composition(la, ours(b)),
                lambda r: composes(a, b, r),
                f"{a} {b}",
            )
        common = lambda: gr._core.max_common_vector(la, ours(b))  # noqa: E731
        law = lambda r: r <= size(a) and composes(a, right_inverse(b), composition(a, right_inverse(b)))  # noqa: E731
        return lambda: max_common_vector(a, b), common, law, f"{a} {b}"
    if operation in ("blocked_product", "raked_product"):
        t = cases.layout() if cases.rng.random() < 0.5 else cases.tile(a)
        raked = operation == "raked_product"
        n = max(rank(a), rank(t))
        padded = [join(*(mode(x, i) if i < rank(x) else (1, 0) for i in range(n))) for x in (a, t)]
        law = lambda r: multiplies(*padded, logical_product(*padded))  # noqa: E731
        return lambda: by_rank(a, t, raked), lambda: getattr(gr, operation)(la, ours(t)), law, f"{a} {t}"
    t = cases.tiler(a)
    name = operation.removesuffix(" by mode")
    ours_now = lambda: getattr(gr, name)(la, our_tiler(t))  # noqa: E731
    if name == "composition":
        return lambda: composition(a, t), ours_now, lambda r: composes_by_mode(a, t), f"{a} {t}"
    split, law3 = (logical_divide, divides) if name.endswith("divide") else (logical_product, multiplies)
    shape = {"l": lambda s, a, t: s(a, t), "z": zipped, "t": tiled}[name[0]]
    return lambda: shape(split, a, t), ours_now, lambda r: every_part(law3, split, a, t), f"{a} {t}"


OPERATIONS = [
    "coalesce",
    "filter",
    "idx2crd",
    "idx2crd of an offset",
    "complement",
    "right_inverse",
    "left_inverse",
    "composition",
    "max_common_vector",
    "blocked_product",
    "raked_product",
    "composition by mode",
    "logical_divide",
    "zipped_divide",
    "tiled_divide",
    "logical_product",
    "zipped_product",
    "tiled_product",
]


def compare(operation: str, count: int, seed: int = 1) -> Counter[str]:
    """How many answers are equal, and how many have no lawful answer and are refused; raises where it is otherwise."""
    cases, tally = Cases(seed), Counter[str]()
    for _ in range(count):
        reference, mine, lawful, text = case(operation, cases)
        try:
            want = reference()
            if not lawful(want):
                want = None
        except UndefinedError:
            want = None
        try:
            got, refusal = mine(), None
        except gr.LayoutError as e:
            got, refusal = None, str(e)
        if refusal is not None:
            assert want is None, f"{operation}: CuTe says {want}, ours refuses\n{text}\n{refusal}"
            tally["refused"] += 1
            continue
        got = pair(got) if isinstance(got, gr.Layout) else got
        if want is None:
            if operation in ("composition", "right_inverse", "left_inverse"):
                assert lawful(got), f"{operation}: CuTe has no answer, ours is {got}\n{text}"
            tally["ours alone"] += 1
            continue
        assert got == want, f"{operation}: CuTe says {want}, ours {got}\n{text}"
        tally["equal"] += 1
    return tally


@pytest.mark.parametrize("operation", OPERATIONS)
def test_as_cute(operation: str) -> None:
    tally = compare(operation, 400)
    assert tally["equal"] >= 80, tally


if __name__ == "__main__":
    for name in OPERATIONS:
        print(name, dict(compare(name, int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)))
