"""A product whose tile the compiler in use spills is computed by another tile, and its plan keeps that one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from graphene.kernels.gemm.whole import product_of
from graphene.ops.core import plans, warm
from graphene.select import avoided, records

ARCH = "sm_90a"
PRODUCT = "matmul(fp16[256, 128], fp16[128, 256], fp16[256], 'relu')"


class Binary:
    """A compiled kernel that says it spills."""

    spill_bytes = 16

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("GRAPHENE_CACHE", "GRAPHENE_PLANS", "GRAPHENE_TUNE", "GRAPHENE_TUNE_DIR", "GRAPHENE_RECORD_CALLS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRAPHENE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(plans, "package_stamp", lambda: "this package")
    plans.forget()
    records.forget()
    avoided.forget()
    yield
    avoided.forget()
    records.forget()


def compiler(spills: Callable[[Any], bool]) -> Callable[..., Any]:
    """Compiles kernels, and says which products' tiles spill."""
    compiled = plans.compiled

    def of(kernels: Any, arch: str) -> Any:
        for k in kernels:
            k._binaries.clear()  # one of an earlier test is in that test's cache
        binaries = compiled(kernels, arch)
        return [Binary(b) if spills(product_of(k)) else b for k, b in zip(kernels, binaries, strict=True)]

    return of


def kernel_of_the_call() -> Any:
    call = warm.spelled(PRODUCT)
    [launch] = call.operator.configure(warm.placed(call.arguments, ARCH)).launches
    return launch.kernel


def tile_of_the_call() -> Any:
    kernel = kernel_of_the_call()
    of = product_of(getattr(kernel, "kernel", kernel))  # of a plan, or made for it
    assert of is not None
    return of[1]


def test_the_next_tile_is_taken_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usual = tile_of_the_call()
    monkeypatch.setenv("GRAPHENE_CACHE_DIR", str(tmp_path / "another"))
    plans.forget()
    monkeypatch.setattr(plans, "compiled", compiler(lambda of: of[1].tile == usual.tile))
    other = tile_of_the_call()
    assert other.tile != usual.tile
    cubin = kernel_of_the_call().binary(ARCH).key
    avoided.forget()  # as a new process, which finds the plan
    plans.forget()
    with plans.asked() as found:
        kernel = kernel_of_the_call()
    assert found.planned
    assert kernel.binary(ARCH).key == cubin
    assert product_of(kernel.kernel)[1] == other  # type: ignore[index]  # made for somebody who asks for its text


def test_a_product_that_always_spills_is_computed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def spills(of: Any) -> bool:
        seen.append(of[1])
        return True

    monkeypatch.setattr(plans, "compiled", compiler(spills))
    tile_of_the_call()
    assert 1 < len({(t.tile, t.warps, t.cluster, t.turns) for t in seen}) <= plans.TRIES + 1


def test_other_sizes_of_the_form_leave_the_tile_out() -> None:
    from graphene.kernels import GemmProblem, gemm_launches
    from graphene.select.device import H200
    from graphene.select.gemm import choose

    p, q = (GemmProblem(n, n, n, bias=True, activation="gelu") for n in (4096, 4224))
    first, alone = choose(p, H200), choose(p.plain, H200)
    [launch] = gemm_launches(p, first)
    assert avoided.avoid(launch.kernel)
    assert not avoided.avoid(launch.kernel)  # it is known
    for other in (choose(p, H200), choose(q, H200)):
        assert (other.tile, other.cluster, other.turns) != (first.tile, first.cluster, first.turns)
    assert choose(p.plain, H200) == alone  # which does not spill
