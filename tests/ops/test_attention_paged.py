"""graphene.ops.attention_paged on CPU tensors: values, what it says, errors, compiled graphs, other GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402
from graphene.ops.attention import paged as attention_paged  # noqa: E402
from graphene.select import attention as attention_choice  # noqa: E402
from graphene.select import of_arch  # noqa: E402
from tests.ops.cpu_cases import quiet, r  # noqa: E402

__all__ = ["quiet"]

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


def cache(lengths: list[int], page: int, heads: int, dim: int, dtype: Any = F16) -> tuple[Any, ...]:
    """Pages in any order. Behind a sequence's keys there is no number, and behind its pages no page."""
    most = max(-(-max(lengths) // page), 1)
    count = len(lengths) * most + 1
    k, v = (r(count, page, heads, dim, dtype=dtype) for _ in range(2))
    table = torch.randperm(count)[: len(lengths) * most].view(len(lengths), most).int()
    for row, n in zip(table, lengths, strict=True):
        row[-(-n // page) :] = -1
        if n % page:
            k[row[n // page], n % page :] = v[row[n // page], n % page :] = torch.nan
    return k, v, table, torch.tensor(lengths).int()


def joined(t: Any, table: Any, n: int) -> Any:
    """The keys of a sequence, one after the other."""
    return t[table[: -(-n // t.shape[1])].long()].flatten(0, 1)[None, :n]


def check(q: Any, k: Any, v: Any, table: Any, lengths: Any, said: str = "the simulator runs", **named: Any) -> None:
    """As `attention` of each sequence, by PyTorch in fp64."""
    args = (q, k, v, table, lengths)
    out, lse = ops.attention_paged(*args, return_lse=True, **named)
    off = {F16: 2e-3, BF16: 2e-2, F32: 1e-5}[q.dtype]
    for i, n in enumerate(lengths.tolist()):
        keys, values = (joined(t, table[i], n).double() for t in (k, v))
        want, want_lse = ops.attention(q[i : i + 1].double(), keys, values, return_lse=True, **named)
        torch.testing.assert_close(out[i : i + 1].double(), want, rtol=off, atol=off)
        torch.testing.assert_close(lse[i : i + 1], want_lse, rtol=1e-3, atol=1e-3)
    assert torch.equal(ops.attention_paged(*args, **named), out)
    assert said in ops.explain(ops.attention_paged, *args, **named)


@pytest.mark.parametrize("named", [{}, {"causal": True}, {"window": (9, 3), "softcap": 2.0}, {"scale": -0.3}], ids=str)
@pytest.mark.parametrize(
    ("lengths", "page", "sq"), [([40, 0, 7], 16, 3), ([50], 32, 1), ([9, 30], 8, 5), ([0], 16, 1)], ids=str
)
def test_values(lengths: list[int], page: int, sq: int, named: dict[str, Any]) -> None:
    check(r(len(lengths), sq, 4, 24), *cache(lengths, page, 2, 24), **named)


def test_many_queries_and_other_types() -> None:
    check(r(1, 40, 2, 16, dtype=BF16), *cache([60], 24, 2, 16, BF16), causal=True)
    check(r(2, 3, 2, 6, dtype=F32), *cache([9, 4], 5, 1, 6, F32), causal=True, said="PyTorch's operators")
    check(r(1, 3, 2, 16), *cache([9], 5, 1, 16), said="no kernel for pages of 5 keys, not a multiple of 8")


def test_a_cache_of_both_is_read_in_place() -> None:
    """Keys and values beside each other, heads before the keys of a page."""
    k, v, table, lengths = cache([40], 16, 2, 32)
    both = torch.stack([k, v], 1).transpose(2, 3).contiguous().transpose(2, 3)
    check(r(1, 2, 4, 32), *both.unbind(1), table, lengths, causal=True)
    assert "copied" not in ops.explain(ops.attention_paged, r(1, 2, 4, 32), *both.unbind(1), table, lengths)


def test_parts_and_other_gpus(monkeypatch: Any) -> None:
    """Where clusters would be too few, parts of the keys have results of their own; before sm_90 PyTorch computes."""
    choose = attention_choice.select_decode

    def parts(*args: Any, **named: Any) -> Any:
        config, _ = choose(*args, **named)
        return gr.kernels.DecodeConfig(config.what, 8, 32, 1, 2, cluster=2, split=True, page=config.page), 2

    monkeypatch.setattr(attention_choice, "select_decode", parts)
    check(r(2, 1, 2, 56), *cache([70, 9], 16, 1, 56))
    configure = attention_paged.PAGED.definition.configure
    of = gr.ops.core.define.Arg
    q, k = of((1, 1, 8, 64), (512, 512, 64, 1), "float16", "cuda:0", 128), (99, 16, 8, 64)
    pages = of(k, (16 * 512, 512, 64, 1), "float16", "cuda:0", 128)
    table, lengths = of((1, 9), (9, 1), "int32", "cuda:0", 128), of((1,), (1,), "int32", "cuda:0", 128)
    for arch, reason in (("sm_80", "no kernel that reads pages for sm_80"), ("sm_90a", "")):
        monkeypatch.setattr(attention_paged, "target_device", lambda _, arch=arch: of_arch(arch))
        assert configure(q, pages, pages, table, lengths, True, -1, -1, None, 0.0).reason == reason


def test_compiled_graphs() -> None:
    q, rest = r(1, 2, 2, 16), cache([20], 16, 1, 16)
    compiled = torch.compile(lambda *t: ops.attention_paged(*t, causal=True) * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, *rest), ops.attention_paged(q, *rest, causal=True) * 2)


def opcheck_cases() -> list[tuple[Any, ...]]:
    plain = False, -1, -1, None, 0.0
    lies = cache([9, 4], 8, 2, 16)
    return [
        (r(1, 2, 2, 16), *cache([20], 16, 1, 16), True, -1, -1, 0.1, 0.0),
        (r(2, 4, 3, 16).transpose(1, 2), *(t.transpose(1, 2).contiguous().transpose(1, 2) for t in lies[:2]),
         *lies[2:], False, 2, 1, None, 3.0),
        (r(1, 2, 2, 6, dtype=F32), *cache([20], 5, 1, 6, F32), *plain),
        (r(0, 2, 2, 8), r(3, 8, 1, 8), r(3, 8, 1, 8), torch.zeros(0, 2).int(), torch.zeros(0).int(), *plain),
        (r(1, 2, 2, 8), r(0, 8, 1, 8), r(0, 8, 1, 8), torch.zeros(1, 2).int(), torch.zeros(1).int(), *plain),
        (r(1, 2, 2, 8), r(3, 8, 1, 8), r(3, 8, 1, 8), torch.zeros(1, 0).int(), torch.zeros(1).int(), *plain),
    ]  # fmt: skip


OPCHECK = {"attention_paged": opcheck_cases, "attention_paged_lse": opcheck_cases}

Q, K = torch.zeros(2, 1, 4, 16, dtype=F16), torch.zeros(5, 16, 2, 16, dtype=F16)
T, N = torch.tensor([[0, 3], [4, -1]]).int(), torch.tensor([20, 16]).int()
ERRORS: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: ops.attention_paged(Q, K, K, T, N + 17), "OP_ARGUMENT",
     "attention_paged: argument 'cache_seqlens' has a length that the table has no pages for   [OP_ARGUMENT]\n"
     "  want: from 0 to 2 pages of 16 keys, 32\n  got:  [37, 33]\n  fix: pass how many keys each sequence has"),
    (lambda: ops.attention_paged(Q, K, K, T, N + 1), "OP_ARGUMENT",
     "attention_paged: argument 'block_table' names a page that does not exist   [OP_ARGUMENT]\n"
     "  want: from 0 to 4, for sequence 1 of 17 keys\n  got:  -1 at [1, 1]\n"
     "  fix: pass the pages of each sequence in order"),
    (lambda: ops.attention_paged(Q, K, K, T + 2, N), "OP_ARGUMENT", "for sequence 0 of 20 keys\n  got:  5 at [0, 1]"),
    (lambda: ops.attention_paged(Q, K, K, T.long(), N), "OP_DTYPE", "argument 'block_table' has another dtype"),
    (lambda: ops.attention_paged(Q, K, K, T, N.long()), "OP_DTYPE", "argument 'cache_seqlens' has another dtype"),
    (lambda: ops.attention_paged(Q, K, K, T[:1], N), "OP_SHAPE", "want: [batch,most] for the 2 sequences of q"),
    (lambda: ops.attention_paged(Q, K, K, T, N[:1]), "OP_SHAPE", "want: [batch] for the 2 sequences of q"),
    (lambda: ops.attention_paged(Q, K[0], K, T, N), "OP_SHAPE", "want: [pages,page_size,kv_heads,dim]"),
    (lambda: ops.attention_paged(Q, K, K[:4], T, N), "OP_SHAPE", "argument 'v_cache' has the wrong shape"),
    (lambda: ops.attention_paged(Q, K[..., :8], K, T, N), "OP_SHAPE", "want: [5,16,2,16]\n  got:  [5,16,2,8]"),
    (lambda: ops.attention_paged(Q, K[:, :0], K[:, :0], T, N), "OP_SHAPE", "with a page_size of 1 or more"),
    (lambda: ops.attention_paged(Q[:, :, :3], K, K, T, N), "OP_SHAPE", "want: kv heads that divide the 3 heads of q"),
    (lambda: ops.attention_paged(Q, K.float(), K, T, N), "OP_DTYPE", "argument 'k_cache' has another dtype"),
    (lambda: ops.attention_paged(Q, K, K, T, N, window=3), "OP_ARGUMENT", "argument 'window' means nothing"),
    (lambda: ops.attention_paged(Q.clone().requires_grad_(), K, K, T, N), "OP_ARGUMENT",
     "attention_paged: there is no gradient of the q   [OP_ARGUMENT]\n  fix: pass q.detach()"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "code", "text"), ERRORS, ids=[f"{i}-{e[1]}" for i, e in enumerate(ERRORS)])
def test_errors(call: Callable[[], Any], code: str, text: str) -> None:
    with pytest.raises(gr.LaunchError) as e:
        call()
    assert e.value.code == code
    assert text in str(e.value)
