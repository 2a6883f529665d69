"""graphene.ops.rotary against fp64: pairs, norms, views, dtypes; refusals; gradients; compiled, mapped."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402
from graphene.kernels.rotary import RotaryConfig  # noqa: E402
from graphene.ops.rotary import reference  # noqa: E402
from tests.ops.cpu_cases import close, quiet, r, simulated  # noqa: E402

__all__ = ["quiet"]


def given(
    batch: int, seq: int, heads: tuple[int, int], dim: int, dtype: Any = torch.float16, angle: Any = None,
    one: bool = False, norm: bool = False, offset: float = 0.0, interleaved: bool = False, grad: bool = False,
    device: str = "cpu",
) -> list[Any]:  # fmt: skip
    """Arguments. q and k are parts of one tensor, as of a product for q, k and v."""
    joined = r(batch, seq, (heads[0] + 2 * heads[1]) * dim, dtype=dtype).to(device)
    q, k, _ = joined.split([heads[0] * dim, heads[1] * dim, heads[1] * dim], -1)
    q, k = (x.unflatten(-1, (-1, dim)).requires_grad_(grad) for x in (q.detach(), k.detach()))
    cos, sin = (r(1 if one else batch, seq, dim, dtype=angle or dtype).to(device) for _ in range(2))
    weights = [r(dim, dtype=dtype, grad=grad).to(device) if norm else None for _ in range(2)]
    return [q, k, cos, sin, *weights, 1e-5, offset, interleaved]


def cases() -> list[tuple[Any, ...]]:
    return [
        tuple(given(2, 3, (2, 1), 16, grad=True)),
        tuple(given(1, 3, (2, 2), 8, norm=True, offset=1.0, interleaved=True)),
        tuple(given(2, 3, (1, 1), 6, dtype=torch.float64, one=True, norm=True, grad=True)),
        tuple(given(0, 3, (2, 1), 16)),
    ]


OPCHECK = {"rotary": cases}


def right(args: list[Any]) -> None:
    want = reference(*(x.double() if isinstance(x, torch.Tensor) else x for x in args))
    for got, ref in zip(ops.rotary(*args), want, strict=True):
        assert got.is_contiguous()
        close(got, ref)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    "how",
    [dict(heads=(4, 2), dim=32), dict(heads=(4, 2), dim=32, norm=True, offset=1.0),
     dict(heads=(3, 1), dim=20, one=True), dict(heads=(2, 1), dim=48, norm=True, angle=torch.float32),
     dict(heads=(2, 2), dim=6, dtype=torch.bfloat16), dict(heads=(1, 1), dim=2),
     dict(heads=(2, 1), dim=80, one=True, norm=True),
     dict(heads=(2, 1), dim=256, angle=torch.float32, norm=True), dict(heads=(1, 1), dim=66, norm=True),
     dict(heads=(2, 1), dim=512)],
    ids=str,
)  # fmt: skip
def test_values(how: dict[str, Any], interleaved: bool) -> None:
    args = given(2, 5, **how, interleaved=interleaved)
    right(args)
    assert simulated(ops.rotary, *args)


def test_views() -> None:
    """Heads before the sequence, as attention of transformers has them, are read there; pairs apart are not."""
    args = given(2, 5, (4, 2), 16)
    before = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in args[:2]]
    right([*before, *args[2:]])
    assert "copied" not in ops.explain(ops.rotary, *before, *args[2:])
    strided = r(2, 5, 4, 32)[..., ::2]
    right([strided, *args[1:]])
    assert "q is copied first" in ops.explain(ops.rotary, strided, *args[1:])
    for dim in (16, 128):  # begins at no multiple of a vector
        odd, args = r(2 * 5 * 4 * dim + 1)[1:].view(2, 5, 4, dim), given(2, 5, (4, 2), dim)
        for interleaved in (False, True):
            right([odd, *args[1:-1], interleaved])


@pytest.mark.gpu
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    "sizes", [(2, 700, (16, 8), 128), (3, 1, (32, 8), 64), (1, 2000, (6, 2), 80), (1, 33, (4, 1), 256)]
)
def test_values_on_a_gpu(sizes: tuple[Any, ...], norm: bool, dtype: Any, interleaved: bool) -> None:
    right(given(*sizes, dtype, norm=norm, interleaved=interleaved, device="cuda"))
    right(given(*sizes, dtype, angle=torch.float32, one=True, norm=norm, interleaved=interleaved, device="cuda"))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_gradients(norm: bool, interleaved: bool) -> None:
    args = given(1, 2, (2, 1), 4, torch.float64, norm=norm, offset=0.5, interleaved=interleaved, grad=True)
    of = [i for i, x in enumerate(args[:6]) if x is not None and x.requires_grad]

    def call(*tensors: Any) -> Any:
        put = dict(zip(of, tensors, strict=True))
        return ops.rotary(*(put.get(i, x) for i, x in enumerate(args)))

    assert torch.autograd.gradcheck(call, [args[i] for i in of])
    assert torch.autograd.gradgradcheck(call, [args[i] for i in of])
    half = [x.detach().half().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in args]
    made = ops.rotary(*half)
    g = [r(*x.shape) for x in made]
    got = torch.autograd.grad(made, [half[i] for i in of], g)
    wide = [x.detach().double().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in half]
    want = torch.autograd.grad(reference(*wide), [wide[i] for i in of], [x.double() for x in g])
    for one, ref in zip(got, want, strict=True):
        assert (one.double() - ref).norm() <= 1e-3 * ref.norm()


def test_compiled_and_mapped() -> None:
    args = given(2, 5, (2, 1), 16, norm=True)
    want = ops.rotary(*args)
    compiled = torch.compile(lambda q: ops.rotary(q, *args[1:])[0] * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(args[0]), want[0] * 2)
    mapped = torch.vmap(lambda q, k, c, s: ops.rotary(q[None], k[None], c[None], s[None], *args[4:]))(*args[:4])
    assert torch.equal(mapped[0][:, 0], want[0])


def test_refusals() -> None:
    args = given(2, 3, (2, 1), 16, norm=True)

    def refused(code: str, *texts: str, **other: Any) -> None:
        names = ("q", "k", "cos", "sin", "q_weight", "k_weight", "eps", "weight_offset", "interleaved")
        with pytest.raises(gr.LaunchError) as e:
            ops.rotary(**(dict(zip(names, args, strict=True)) | other))
        assert e.value.code == code
        assert all(t in str(e.value) for t in texts), str(e.value)

    refused("OP_SHAPE", "argument 'q' has the wrong shape", "want: (batch, seq, heads, dim), dim even\n  got:  [3,16]",
            q=r(3, 16))  # fmt: skip
    refused("OP_SHAPE", "'q' and 'k' differ in more than their heads", "want: [2,3,any,16], as 'q'\n  got:  [2,4,1,16]",
            k=r(2, 4, 1, 16))  # fmt: skip
    refused("OP_SHAPE", "argument 'cos' has the wrong shape", "want: [2,3,16], or 1 in place of the batch",
            cos=r(2, 3, 8))  # fmt: skip
    refused("OP_SHAPE", "argument 'sin' has the wrong shape", sin=r(1, 3, 16))
    refused("OP_SHAPE", "argument 'k_weight' has the wrong shape", "want: [16]", k_weight=r(8))
    refused("OP_ARGUMENT", "one of the weights is missing", q_weight=None)
    refused("OP_DTYPE", "argument 'k' has another dtype", k=r(2, 3, 1, 16, dtype=torch.float32))
    refused("OP_DEVICE", "argument 'cos' is on another device", cos=r(2, 3, 16).to("meta"))
    refused("OP_ARGUMENT", "there is no gradient of the sin", sin=r(2, 3, 16, grad=True))


@pytest.mark.parametrize(
    ("change", "text"),
    [(dict(heads=(3, 2), each=2), "heads[0]"), (dict(width=24), "width"), (dict(pairs="all"), "pairs"),
     (dict(dtype=gr.fp32), "dtype"), (dict(pairs="neighbours", vector=1), "vector"), (dict(norm=1), "norm"),
     (dict(width=2048, vector=2), "width"), (dict(threads=40), "threads")],
    ids=str,
)  # fmt: skip
def test_configurations_that_no_kernel_has(change: dict[str, Any], text: str) -> None:
    with pytest.raises(gr.VerifyError, match="KERNEL_ARGUMENT") as e:
        RotaryConfig(**(dict(heads=(4, 2), width=32) | change))
    assert text in str(e.value)
