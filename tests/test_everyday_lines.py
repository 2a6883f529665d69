"""The eight everyday kernels take at most half as many lines again as their versions in Triton."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def lines(path: Path, names: set[str]) -> int:
    """Lines of code of some functions: without blank lines, comments and docstrings."""
    text = path.read_text()
    count = 0
    for node in ast.parse(text).body:
        if not isinstance(node, ast.FunctionDef) or node.name not in names:
            continue
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        body = text.splitlines()[first - 1 : node.end_lineno]
        if ast.get_docstring(node):
            doc = node.body[0]
            del body[doc.lineno - first : (doc.end_lineno or doc.lineno) - first + 1]
        count += sum(bool(line.strip()) and not line.strip().startswith("#") for line in body)
    return count


KERNELS = ("rotary", "histogram", "row_scan", "int4_product", "convolution", "cross_entropy", "top_k", "transpose")


@pytest.mark.parametrize("name", KERNELS)
def test_lines_beside_triton(name: str) -> None:
    ours = lines(ROOT / "examples/14_everyday.py", {name})
    theirs = lines(ROOT / "benchmarks/everyday_triton.py", {name, f"_{name}"})
    assert 0 < ours <= 1.5 * theirs, (ours, theirs)


def test_the_page_tells_the_lines() -> None:
    page = (ROOT / "docs/everyday.md").read_text()
    for name in KERNELS:
        ours = lines(ROOT / "examples/14_everyday.py", {name})
        theirs = lines(ROOT / "benchmarks/everyday_triton.py", {name, f"_{name}"})
        row = next(row for row in page.splitlines() if row.startswith(f"| `{name}` |"))  # of the first table
        assert row.endswith(f"| {ours} | {theirs} |")
