"""Sizes of 0, below 0, huge and missing, wherever something is declared or tiled; who may hold a fragment's element."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import graphene as gr


@pytest.fixture
def threads() -> Iterator[Any]:
    with gr.Kernel("k"):
        gr.blocks(1)
        yield gr.threads(32)


@pytest.mark.parametrize(
    ("thread", "value", "said"),
    [
        (gr.Layout(32, 1), gr.Layout((1, 0), (0, 1)), "gr.tv gives a thread no values"),
        (gr.Layout(32, 1), gr.Layout(0, 1), "gr.tv gives a thread no values"),
        (gr.Layout((32, 0), (1, 1)), gr.Layout(1, 0), "gr.tv is for no threads"),
    ],
)
def test_an_empty_mode_is_no_thread_value_layout(thread: gr.Layout, value: gr.Layout, said: str) -> None:
    with pytest.raises(gr.LayoutError) as e:
        gr.tv(thread, value)
    assert e.value.code == "LAYOUT_TV"
    assert str(e.value).startswith(f"{said}   [LAYOUT_TV]\n")
    with gr.Kernel("k"):
        gr.blocks(1)
        threads = gr.threads(32)
        with pytest.raises(gr.LayoutError, match="fragment f "):
            gr.fragment("f", [32], gr.fp32, gr.make_layout(thread, value), on=threads)


def test_one_place_for_every_element(threads: Any) -> None:
    cases: list[tuple[gr.Layout, list[int], str, str]] = [
        # two values of a thread
        (gr.tv(gr.Layout(32, 1), gr.Layout(2, 0)), [32], "LAYOUT_INJECTIVE", "element 0 has two places"),
        # two threads, in different values
        (gr.tv(gr.Layout(32, 1), gr.Layout(2, 1)), [33], "LAYOUT_INJECTIVE", "element 1 has two places"),
        # two threads, in the same value, by strides that meet
        (gr.tv(gr.Layout((8, 4), (1, 4)), 1), [20], "LAYOUT_INJECTIVE", "element 4 has two places"),
        (gr.tv(gr.Layout(32, 2), 1), [64], "LAYOUT_TV", "no thread holds element 1 of its 64"),
        (gr.tv(gr.Layout(32, -1), 1), [32], "LAYOUT_TV", "a TV layout has elements before the first"),
    ]
    for i, (tv, shape, code, said) in enumerate(cases):
        with pytest.raises(gr.LayoutError) as e:
            gr.fragment(f"f{i}", shape, gr.fp32, tv, on=threads)
        assert e.value.code == code
        assert f"fragment f{i}: {said}" in str(e.value)
    # Copies: threads along a mode of stride 0, all of whose values are the same elements.
    gr.fragment("copies", [8, 2], gr.fp32, gr.tv(gr.Layout((8, 4), (1, 0)), gr.Layout(2, 8)), on=threads)
    gr.fragment("past", [5], gr.fp32, gr.tv(gr.Layout(32, 1), 1), on=threads)  # reaches past the end


def test_two_places_name_their_holders(threads: Any) -> None:
    with pytest.raises(gr.LayoutError) as e:
        gr.fragment("f", [20], gr.fp32, gr.tv(gr.Layout((8, 4), (1, 4)), 1), on=threads)
    where, *details = str(e.value).splitlines()
    assert where.startswith("test_declared_sizes.py:")
    assert [where.partition(" ")[2], *(line.strip() for line in details)] == [
        "fragment f: element 4 has two places   [LAYOUT_INJECTIVE]",
        "tv: ((8,4),1):((1,4),1)",
        "thread 4, value 0",
        "thread 8, value 0",
        "fix: give each element one place; threads that hold copies differ along a thread mode of stride 0",
    ]


def test_the_same_rules_in_text_and_json() -> None:
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        gr.fragment("f", [32], gr.fp32, gr.tv(gr.Layout(32, 1), gr.Layout(1, 0)), on=gr.threads(32))
    text = str(kernel)
    assert "tv=[32,1:1,0]" in text
    for tv, code in (
        ("[32,0:1,0]", "LAYOUT_TV"), ("[32,(1,0):1,(0,1)]", "LAYOUT_TV"), ("[32,2:1,0]", "LAYOUT_INJECTIVE"),
        ("[32,1:2,0]", "LAYOUT_TV"), ("[32,1:-1,0]", "LAYOUT_TV"),
    ):  # fmt: skip
        with pytest.raises(gr.LayoutError) as e:
            gr.parse(text.replace("tv=[32,1:1,0]", f"tv={tv}"))
        assert e.value.code == code
    document = kernel.to_json()
    assert gr.Kernel.from_json(document) == kernel

    def emptied(x: Any) -> Any:
        if isinstance(x, dict):
            return {k: [[32, 0], [1, 0]] if k == "tv" and v else emptied(v) for k, v in x.items()}
        return [emptied(v) for v in x] if isinstance(x, list) else x

    changed = json.dumps(emptied(json.loads(document)))
    assert changed != json.dumps(json.loads(document))
    with pytest.raises(gr.GrapheneError):
        gr.Kernel.from_json(changed)


@pytest.mark.parametrize(
    ("declare", "code", "said"),
    [
        (lambda: gr.input("x", [0], gr.fp32), "TENSOR_TYPE", "a size must be positive"),
        (lambda: gr.input("x", [()], gr.fp32), "TENSOR_TYPE", "a mode without sizes"),
        (lambda: gr.alloc("x", [()], gr.fp32, gr.SH), "TENSOR_TYPE", "a mode without sizes"),
        (lambda: gr.alloc("x", [8], gr.fp32, gr.SH).tile([gr.Layout(())]), "TENSOR_TILE", "a tile without sizes"),
        (lambda: gr.alloc("x", [1], gr.fp32, gr.SH).reshape(0, ()), "TENSOR_RESHAPE", "a shape without sizes"),
        (lambda: gr.threads(32).tile([gr.Layout(())]), "THREAD_TILE", "a tile without sizes"),
        (lambda: gr.threads(1).reshape(0, ()), "THREAD_RESHAPE", "a shape without sizes"),
    ],
)
def test_sizes_are_there_and_positive(declare: Callable[[], object], code: str, said: str) -> None:
    with gr.Kernel("k"), pytest.raises(gr.LayoutError) as e:
        declare()
    assert e.value.code == code
    assert said in str(e.value)


def test_a_reduction_of_staged_registers_is_refused() -> None:
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        gr.threads(32)
        r = gr.alloc("r", [4, 4], gr.fp32, gr.RF, stages=3)
        gr.reduce("max", r, r, axis=0)
    with pytest.raises(gr.LayoutError) as e:
        kernel.cuda_source("sm_80")
    assert e.value.code == "TENSOR_RANK"


def test_a_view_that_names_registers_without_end() -> None:
    with gr.Kernel("k"):
        gr.blocks(1)
        gr.threads(32)
        r = gr.alloc("r", gr.Layout(2**31, 0), gr.fp32, gr.RF)
        with pytest.raises(gr.LayoutError) as e:
            r[:] = r + 1
        assert e.value.code == "TENSOR_SIZE"
        assert "a view of more elements than a thread has registers" in str(e.value)


SIZES = st.sampled_from([0, 1, 2, 3, 4, 8, 16, 32, -1, 2**31, 2**63 - 1, -(2**63)])
SHAPES: st.SearchStrategy[Any] = st.recursive(SIZES, lambda s: st.lists(s, max_size=3).map(tuple), max_leaves=4)
STRIDES = st.sampled_from([0, 1, 2, 4, 8, 32, -1, 2**40])


@st.composite
def layouts(draw: st.DrawFn) -> Any:
    shape = draw(SHAPES)

    def strides(s: Any) -> Any:
        return tuple(strides(x) for x in s) if isinstance(s, tuple) else draw(STRIDES)

    return (shape, strides(shape)) if draw(st.booleans()) else (shape, None)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(layouts(), min_size=8, max_size=8), st.lists(SIZES, max_size=3), st.randoms(use_true_random=False))
def test_whatever_is_declared_is_built_or_refused(shapes: list[Any], sizes: list[int], choose: Any) -> None:
    """And what is built is read back from its text and its document, equal."""
    built: list[Any] = []

    def attempt(make: Callable[[], Any]) -> Any:
        try:
            made = make()
        except gr.GrapheneError as e:
            if e.code == "INTERNAL":
                raise
            return None
        if made is not None:
            built.append(made)
        return made

    def layout(i: int) -> Any:
        shape, stride = shapes[i]
        return gr.Layout(shape) if stride is None else gr.Layout(shape, stride)

    usual = gr.Layout(32, 1)
    load = gr.atom("ld.global.b32")
    with gr.Kernel("k") as kernel:
        attempt(lambda: gr.input("x", sizes, gr.fp32))
        attempt(lambda: gr.input("y", layout(0), gr.fp32))
        attempt(lambda: gr.blocks(1))
        threads = gr.threads(32)
        tiled = attempt(lambda: threads.tile(layout(1)))
        attempt(lambda: threads.reshape(0, layout(2)))
        for name, memory in (("s", gr.SH), ("r", gr.RF)):
            attempt(lambda name=name, memory=memory: gr.alloc(name, layout(3), gr.fp32, memory))  # type: ignore[misc]
        for i, (on, at) in enumerate(((threads, 0), (threads, 4), (tiled or threads, 4))):
            attempt(
                lambda i=i, on=on, at=at: gr.fragment(  # type: ignore[misc]
                    f"f{i}", sizes or [32], gr.fp32, gr.tv(layout(at) if at else usual, layout(5)), on=on
                )
            )
        for _ in range(4):
            one, other = choose.choice(built), choose.choice(built)
            if isinstance(one, gr.Tensor):
                attempt(lambda one=one: one.tile([layout(6)]))  # type: ignore[misc]
                attempt(lambda one=one: one.reshape(0, layout(7)))  # type: ignore[misc]
                attempt(lambda one=one: one.reduced(0, kernel_name(built)))  # type: ignore[misc]
                if isinstance(other, gr.Tensor):
                    attempt(lambda one=one, other=other: gr.move(one, other, atom=load))  # type: ignore[misc]
                    attempt(lambda one=one, other=other: gr.move(other, one))  # type: ignore[misc]
    assert gr.parse(str(kernel)) == kernel
    assert gr.Kernel.from_json(kernel.to_json()) == kernel


def kernel_name(built: list[Any]) -> str:
    """A name that nothing has yet."""
    return f"reduced{len(built)}"
