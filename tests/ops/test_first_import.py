"""What a new process reads for a call of an operator, and when PyTorch gets to know operators."""

import compileall
import importlib
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import graphene as gr
from graphene import _lazily

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


def test_a_function_reads_its_own_file_and_no_kernel() -> None:
    read = fresh("""
        import sys, torch
        import graphene as gr
        for function in ("matmul", "softmax", "layer_norm", "cross_entropy", "attention"):
            before = set(sys.modules)
            getattr(gr.ops, function)
            print(function, *(m for m in sys.modules if m not in before), sep=",")
    """)
    files = {}
    for line in read:
        function, *modules = line.split(",")
        assert not [m for m in modules if m.startswith(HEAVY)]
        assert len(modules) < 40, modules  # each file costs half a millisecond
        files[function] = [m for m in modules if m.startswith("graphene.ops.") and ".core" not in m]
        assert not [m for m in modules if m.startswith(CHOICE)]
    assert {f: m for f, m in files.items() if f != "attention"} == {
        "matmul": ["graphene.ops.matmul"],
        "softmax": ["graphene.ops.softmax"],
        "layer_norm": ["graphene.ops.norms"],
        "cross_entropy": ["graphene.ops.cross_entropy"],
    }
    assert all(m.startswith("graphene.ops.attention") for m in files["attention"])


@pytest.mark.parametrize("package", ["graphene.ops", "graphene.kernels", "graphene.kernels.gemm", "graphene.select"])
def test_names_are_found_without_source(package: str) -> None:
    """Programs that are bundled with their Python bring compiled files alone."""
    loader: Any = importlib.import_module(package).__loader__
    assert _lazily._compiled_imports(loader.get_code(package)) == _lazily.homes(package) != {}


def test_compiled_files_alone_are_enough(tmp_path: Path) -> None:
    there = tmp_path / "graphene"
    shutil.copytree(Path(gr.__file__).parent, there, ignore=shutil.ignore_patterns("__pycache__"))
    assert compileall.compile_dir(there, quiet=1, legacy=True)
    for file in there.rglob("*.py"):
        file.unlink()
    body = """
        import torch
        import graphene as gr
        from graphene.kernels import softmax_kernel
        print(gr.__file__.endswith("pyc"), gr.ops.softmax(torch.zeros(2, 4), -1).sum().item(), softmax_kernel.__name__)
    """
    run = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(body)]
    done = subprocess.run(run, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True,
                          text=True, timeout=120)  # fmt: skip
    assert done.stdout.split() == ["True", "2.0", "softmax_kernel"], done.stderr


def test_what_is_no_name_is_no_attribute() -> None:
    """Also where the import system would look for a file of a package that there is not."""
    from graphene import ops

    for name in ("", ".", "..", "a.b", "matmul.x", "../x", "a/b", "core.define", "a\0", " ", "\ud800", "no_such_name"):
        assert not hasattr(ops, name), name
    assert not any("." in name for name in vars(ops))


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


def test_pytorch_finds_operators_by_name_and_all_are_registered_at_once() -> None:
    assert fresh("""
        import torch
        import graphene.ops
        print(torch._C._jit_get_operation("graphene::softmax_forward")[0] is not None)
        print(torch.ops.graphene.softmax_forward.default)
        print(torch._C._jit_get_operation("graphene::softmax_forward")[0] is not None)
        graphene.ops.register()
        graphene.ops.register()
        print(hasattr(torch.ops.graphene, "no_such"))
        names = torch._C._dispatch_get_all_op_names()
        print(*(f"graphene::{n}_forward" in names for n in ("matmul", "attention_varlen_backward", "planned")))
    """) == ["False", "graphene.softmax_forward.default", "True", "False", *["True"] * 3]


def test_an_operator_is_registered_once_and_counters_are_told() -> None:
    assert fresh("""
        import threading, warnings
        warnings.simplefilter("ignore")
        import torch
        from torch.utils.flop_counter import FlopCounterMode
        import graphene as gr
        with FlopCounterMode(display=False) as counter:  # it has copied the formulas that there were
            gr.ops.matmul(torch.ones(32, 16), torch.ones(16, 64))
        print(counter.get_total_flops() == 2 * 32 * 16 * 64)
        seen = []
        threads = [threading.Thread(target=lambda: seen.append(torch.ops.graphene.gated.default)) for _ in range(8)]
        [t.start() for t in threads], [t.join() for t in threads]
        print(len(seen), len(set(map(id, seen))))
    """) == ["True", "8", "1"]
