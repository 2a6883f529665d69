"""The functions of docs/errors.md: each causes its error, and does not where it is right."""

from __future__ import annotations

import builtins
import dis
import importlib
import re
import sys
import types
from pathlib import Path

import pytest

import graphene as gr
from graphene import _core

ROOT = Path(__file__).parents[1]
TOOLS = ROOT / "tools"
sys.path.insert(0, str(TOOLS))
MODULES = [importlib.import_module(p.stem) for p in sorted(TOOLS.glob("causes*.py"))]
CODES = {c.name for c in _core.error_codes()}
FUNCTIONS = {
    n: f for m in MODULES for n, f in vars(m).items() if callable(f) and "right" in getattr(f, "__annotations__", {})
}
ON_A_GPU = {n for n, f in FUNCTIONS.items() if f.__module__ == "causes_gpu"}

# Code -> why no function of the page causes it.
WITHOUT_A_CAUSE = {
    "INTERNAL": "a mistake of Graphene's own, which nobody is to cause",
    "SIM_MISALIGNED": "alignment is proven, or a call is refused before it runs (LAUNCH_ALIGN, LAUNCH_FACT)",
    "SIM_DIVERGENT_COLLECTIVE": "the verifier proves that all threads come, or refuses (VERIFY_COLLECTIVE_DIVERGENT)",
    "COMPILE_REMARK": "the verifier refuses what the assembler is known to remark on (SIM_IN_FLIGHT, VERIFY_WAIT)",
    "LAUNCH_SYMBOL": "a kernel with a size that no argument tells is refused when it is verified (VERIFY_SYMBOL)",
}
# Code -> the test that causes it: of these a moment is the cause, between threads or processes, and no call.
MOMENTS = {
    "COMPILE_CANCELLED": "tests/runtime/test_interrupt.py: Ctrl-C, while another thread compiles, too",
    "COMPILE_FORK": "tests/runtime/test_fork.py: a fork, while another thread compiles",
}


def test_each_is_called_after_its_code() -> None:
    assert [n for n in FUNCTIONS if n.upper() not in CODES] == []


def test_every_code_has_a_cause_and_a_cure() -> None:
    shown = {n.upper() for n in FUNCTIONS}
    assert sorted(CODES - shown) == sorted(WITHOUT_A_CAUSE | MOMENTS)
    page = (ROOT / "docs/errors.md").read_text()
    assert set(re.findall(r"^### (\w+)$", page, re.MULTILINE)) == shown
    for code, where in MOMENTS.items():
        assert code in (ROOT / where.split(":")[0]).read_text()


def test_the_page_brings_the_names_that_its_functions_use() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/errors.md").read_text(), re.DOTALL)
    page: dict[str, object] = {}
    exec("\n".join(blocks), page)
    used = {n for f in FUNCTIONS if callable(g := page.get(f)) for n in _globals(g.__code__)}
    assert sorted(used - set(page) - set(dir(builtins))) == []


def _globals(body: types.CodeType) -> set[str]:
    """The names that code takes from its module."""
    own = {i.argval for i in dis.get_instructions(body) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return own.union(*(_globals(c) for c in body.co_consts if isinstance(c, types.CodeType)))


def code(name: str, right: bool) -> str | None:
    """The code of the error that a function raises, or that the check which it returns has found."""
    try:
        result = FUNCTIONS[name](right=right)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        pytest.skip("torch is not installed")
    except gr.GrapheneError as error:
        if error.code == "COMPILE_NVRTC" and (right or name != "compile_nvrtc"):
            pytest.skip("no NVRTC")
        if error.code == "OP_TORCH" and right:
            pytest.skip("torch is not installed")
        return error.code
    return result.errors[0].code if result is not None and result.errors else None


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - ON_A_GPU))
def test_causes_and_cures(name: str) -> None:
    assert (code(name, False), code(name, True)) == (name.upper(), None)


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(ON_A_GPU))
def test_causes_and_cures_on_a_gpu(name: str) -> None:
    assert (code(name, False), code(name, True)) == (name.upper(), None)
