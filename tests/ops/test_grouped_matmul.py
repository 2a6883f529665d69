"""graphene.ops.grouped_matmul: values over sizes of groups and orders, gradients, refusals, PyTorch's rules."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="pip install torch brings it")

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402
from graphene.kernels.gemm.grouped import GroupedConfig, grouped_kernel  # noqa: E402
from graphene.select.device import of_arch  # noqa: E402
from graphene.select.group_tiles import select_grouped  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::graphene.ops.CpuWarning")
HALF, BF16 = torch.float16, torch.bfloat16


def ends(*offsets: int) -> Any:
    return torch.tensor(offsets, dtype=torch.int32)


def exact(a: Any, b: Any, offsets: Any) -> Any:
    """In fp64; rows behind the last group are 0."""
    bounds = [0, *offsets.tolist()]
    pairs = list(itertools.pairwise(bounds))
    a, b = a.double(), b.double()
    if b.dim() == 2:
        return torch.stack([a[:, i:j] @ b[i:j] for i, j in pairs])
    rest = torch.zeros(a.shape[0] - bounds[-1], b.shape[2], dtype=torch.float64)
    return torch.cat([*(a[i:j] @ b[e] for e, (i, j) in enumerate(pairs)), rest])


@pytest.mark.parametrize("offsets", [(40,), (0, 3, 3, 36, 40), (7, 33)], ids=str)
@pytest.mark.parametrize("dtype", [HALF, BF16], ids=str)
@pytest.mark.parametrize("kind", ["rows", "rows, b along k", "along k"])
def test_values(offsets: tuple[int, ...], dtype: Any, kind: str) -> None:
    groups, (t, k, n) = len(offsets), (40, 24, 16)
    if kind == "along k":
        a, b = torch.randn(t, k).to(dtype).T, torch.randn(t, n).to(dtype)
    elif kind == "rows":
        a, b = torch.randn(t, k).to(dtype), torch.randn(groups, k, n).to(dtype)
    else:
        a, b = torch.randn(t, k).to(dtype), torch.randn(groups, n, k).to(dtype).transpose(1, 2)
    o = ends(*offsets)
    assert "the simulator runs" in ops.explain(ops.grouped_matmul, a, b, o)
    got, want = ops.grouped_matmul(a, b, o), exact(a, b, o)
    ulp = 2.0**-10 if dtype == HALF else 2.0**-7
    assert got.dtype == dtype
    assert ((got.double() - want).abs() <= ulp * want.abs() + 1e-5).all()
    reference = torch.ops.graphene.grouped_matmul_reference(a, b, o)
    assert ((reference.double() - want).abs() <= ulp * want.abs() + 1e-5).all()


def test_odd_sizes_copies_and_what_no_kernel_takes() -> None:
    o = ends(1, 9)
    a, b = torch.randn(13, 9).half(), torch.randn(2, 13, 5).half()
    assert torch.allclose(ops.grouped_matmul(a.T, b, o).double(), exact(a.T, b, o), atol=1e-2)
    assert "copied first" in ops.explain(ops.grouped_matmul, a.T, b, o)
    c = torch.randn(9, 5).half()
    assert "columns of a that lie contiguous" in ops.explain(ops.grouped_matmul, a, c, o)
    assert torch.allclose(ops.grouped_matmul(a, c, o).double(), exact(a, c, o), atol=1e-2)
    assert ops.grouped_matmul(a.T[:0], b, ends(0, 0)).shape == (0, 5)
    wide = torch.randn(9, 13), torch.randn(2, 13, 5)
    assert torch.allclose(ops.grouped_matmul(*wide, o).double(), exact(*wide, o), atol=1e-5)


@pytest.mark.parametrize("along_k", [False, True])
def test_gradients(along_k: bool) -> None:
    o = ends(3, 3, 17)
    a = torch.randn(20, 16).half().requires_grad_()
    b = (torch.randn(20, 8) if along_k else torch.randn(3, 16, 8)).half().requires_grad_()
    y = ops.grouped_matmul(a.T if along_k else a, b, o)
    g = torch.randn(y.shape).half()
    wide = [t.detach().double().requires_grad_() for t in (a, b)]
    want = torch.autograd.grad(exact(wide[0].T if along_k else wide[0], wide[1], o), wide, g.double())
    for got, w in zip(torch.autograd.grad(y, (a, b), g), want, strict=True):
        assert torch.allclose(got.double(), w, rtol=2e-3, atol=2e-3)


def test_errors() -> None:
    a, b, o = torch.randn(4, 8).half(), torch.randn(2, 8, 8).half(), ends(1, 4)
    for call, code, text in (
        (lambda: ops.grouped_matmul(a, b, o.long()), "OP_DTYPE", "convert it: offsets.to(torch.int32)"),
        (lambda: ops.grouped_matmul(a, b[:1], o), "OP_SHAPE", "want: [1], the end of each group"),
        (lambda: ops.grouped_matmul(a, b[0].T[:3], o), "OP_SHAPE", "a and b are not matrices of one k"),
        (lambda: ops.grouped_matmul(a.T, a, o[:0]), "OP_SHAPE", "want: [E, 1 or more]"),
        (lambda: ops.grouped_matmul(a, b.float(), o), "OP_DTYPE", "'b'"),
    ):
        with pytest.raises(gr.LaunchError) as e:
            call()
        assert e.value.code == code
        assert text in str(e.value)


@pytest.mark.parametrize("offsets", [(2, 9), (4, 2), (-2, 4)], ids=str)
@pytest.mark.parametrize("large", [1, 64])
def test_offsets_that_leave_the_rows_or_decrease(offsets: tuple[int, ...], large: int) -> None:
    a, b = torch.randn(4 * large, 8 * large).half(), torch.randn(2, 8 * large, 8).half()
    with pytest.raises(gr.GrapheneError) as e:
        ops.grouped_matmul(a, b, ends(*(large * x for x in offsets)))
    assert str(e.value).splitlines() == [
        "grouped_matmul: argument 'offsets' does not say where groups end   [OP_ARGUMENT]",
        f"  want: places from 0 to {4 * large} that do not decrease",
        f"  got:  {[large * x for x in offsets]}",
        "  fix: pass torch.cumsum of the groups' sizes",
    ]


@pytest.mark.parametrize(
    ("rows", "columns", "groups", "tile"),
    [(65536, 2048, 64, (128, 256, 64)), (1024, 1536, 128, (64, 256, 64)), (100, 40, 3, (64, 64, 64))],
)
def test_wgmma_is_chosen_where_it_fits(rows: int, columns: int, groups: int, tile: tuple[int, int, int]) -> None:
    hopper = of_arch("sm_90a")
    config = select_grouped(rows, columns, groups, device=hopper)
    assert (config.kernel, config.tile) == ("gemm_sm90", tile)
    for more in ({"along_k": True}, {"align": (8, 16, 16)}, {"device": of_arch("sm_80")}):
        assert select_grouped(rows, columns, groups, **({"device": hopper} | more)).kernel == "gemm_sm80"
    assert select_grouped(rows, columns, 511, device=hopper).kernel == "gemm_sm80"


@pytest.mark.gpu
@pytest.mark.parametrize("wgmma", [False, True])
def test_values_on_a_gpu(wgmma: bool) -> None:
    for t, k, n, groups in ((1000, 128, 264, 5), (300, 64, 72, 9), (4096, 1024, 512, 64)):
        a, b = torch.randn(t, k).half(), torch.randn(groups, k, n).half()
        o = torch.randint(0, t + 1, (groups,)).sort().values.to(torch.int32)
        config = select_grouped(t, n, groups)
        if wgmma:
            config = GroupedConfig(tile=(128, 128, 64), warps=(8, 1), stages=4, kernel="gemm_sm90")
        c = torch.full((t, n), 7.0).half().cuda()
        grouped_kernel(config)(a.cuda(), b.cuda(), o.cuda(), c)
        want = exact(a, b, o)
        assert ((c.cpu().double() - want).abs() <= 2.0**-10 * want.abs() + 1e-3).all()
    x, y = torch.randn(4096, 128).half(), torch.randn(4096, 64).half()
    got = ops.grouped_matmul(x.cuda().T, y.cuda(), ends(1, 1000, 1000, 4095).cuda()).cpu()
    assert torch.allclose(got.double(), exact(x.T, y, ends(1, 1000, 1000, 4095)), rtol=2e-3, atol=2e-2)


OPCHECK = {"grouped_matmul": lambda: [(torch.randn(6, 8).half(), torch.randn(2, 8, 8).half(), ends(1, 4))]}
