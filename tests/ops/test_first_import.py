"""What a new process reads for a call of an operator, and when PyTorch gets to know operators."""

import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

# Only choosing and building a kernel need these; a plan on disk needs neither.
CHOICE = ("graphene.kernels.gemm", "graphene.kernels.attention.", "graphene.kernels.rows", "graphene.select.gemm",
          "graphene.select.rows", "graphene.select.attention", "graphene.select.model")  # fmt: skip
HEAVY = ("torch._dynamo", "torch._inductor", "torch.utils.flop_counter", "torch.onnx", "triton", "sympy.plotting")


def fresh(body: str) -> list[str]:
    """The lines that a new process prints."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(body)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("function", "files"),
    [
        ("matmul", ["graphene.ops.matmul"]),
        ("softmax", ["graphene.ops.softmax"]),
        ("layer_norm", ["graphene.ops.norms"]),
        ("cross_entropy", ["graphene.ops.cross_entropy"]),
        ("fused_mlp", ["graphene.ops.fused_mlp", "graphene.ops.matmul"]),
    ],
)
def test_a_function_reads_its_own_file(function: str, files: list[str]) -> None:
    read = fresh(f"""
        import sys, torch
        import graphene as gr
        before = set(sys.modules)
        gr.ops.{function}
        print(*(m for m in sys.modules if m not in before))
    """)
    of_operators = [m for m in read if m.startswith("graphene.ops.") and not m.startswith("graphene.ops.core")]
    assert sorted(of_operators) == files
    assert not [m for m in read if m.startswith(CHOICE)]
    assert not [m for m in read if m.startswith(HEAVY)]
    assert len(read) < 40, read  # each file costs half a millisecond


def test_attention_reads_no_kernel() -> None:
    read = fresh("""
        import sys, torch
        import graphene as gr
        gr.ops.attention
        print(*sys.modules)
    """)
    # the class of problems is how recipes of attention are written
    assert [m for m in read if m.startswith(CHOICE)] == ["graphene.kernels.attention.problem"]


def test_names_of_operators_are_functions_whatever_is_imported_first() -> None:
    read = fresh("""
        import graphene.ops.fused_mlp, graphene.ops.attention.paged
        import graphene as gr
        import graphene.ops.core.checks
        print(*(type(getattr(gr.ops, name)).__name__ for name in gr.ops.__all__ if name.islower()))
    """)
    assert set(read) == {"function"}


def test_the_names_are_those_that_type_checkers_read() -> None:
    assert (
        fresh("""
        import graphene as gr
        from graphene import _lazily
        for package in (gr.ops, gr.select, __import__("graphene.kernels").kernels):
            homes = _lazily.homes(package.__name__)
            print(sorted(set(package.__all__) - set(homes)) or "all")
            assert all(getattr(package, name) is not None for name in homes)
    """)
        == ["all"] * 3
    )


def test_pytorch_finds_operators_by_name_before_they_are_called() -> None:
    assert fresh("""
        import torch
        import graphene.ops
        print(torch._C._jit_get_operation("graphene::softmax_forward")[0] is not None)
        print(torch.ops.graphene.softmax_forward.default, hasattr(torch.ops.graphene, "no_such"))
        print(torch._C._jit_get_operation("graphene::softmax_forward")[0] is not None)
    """) == ["False", "graphene.softmax_forward.default", "False", "True"]


def test_all_operators_are_registered_at_once() -> None:
    assert (
        fresh("""
        import torch
        import graphene.ops
        graphene.ops.register()
        graphene.ops.register()
        names = torch._C._dispatch_get_all_op_names()
        print(*(f"graphene::{n}_forward" in names for n in ("matmul", "attention_varlen_backward", "planned")))
    """)
        == ["True"] * 3
    )


def test_a_counter_that_counts_already_is_told_of_an_operator() -> None:
    assert fresh("""
        import warnings
        warnings.simplefilter("ignore")
        import torch
        from torch.utils.flop_counter import FlopCounterMode
        import graphene as gr
        with FlopCounterMode(display=False) as counter:
            gr.ops.matmul(torch.ones(32, 16), torch.ones(16, 64))
        print(counter.get_total_flops())
    """) == [str(2 * 32 * 16 * 64)]


def test_threads_register_an_operator_once() -> None:
    assert fresh("""
        import threading, torch
        import graphene.ops
        seen = []
        threads = [threading.Thread(target=lambda: seen.append(torch.ops.graphene.gated.default)) for _ in range(8)]
        [t.start() for t in threads], [t.join() for t in threads]
        print(len(seen), len(set(map(id, seen))))
    """) == ["8", "1"]
