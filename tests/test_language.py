"""The language reference: its code runs, in order, as one program, and it leaves out no public name that it lists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import graphene as gr

PAGE = (Path(__file__).parents[1] / "docs/language.md").read_text()


def test_the_code_runs() -> None:
    names: dict[str, Any] = {"__name__": "language"}
    for block in re.finditer(r"```python\n(.*?)```", PAGE, re.DOTALL):
        line = PAGE[: block.start(1)].count("\n")
        exec(compile("\n" * line + block[1], "language.md", "exec"), names)


def test_every_name_it_uses_exists_and_everything_that_records_is_there() -> None:
    used = set(re.findall(r"\bgr\.(\w+)", PAGE))
    assert [n for n in sorted(used) if not hasattr(gr, n)] == []
    modules = ("graphene.barriers", "graphene.control", "graphene.declare", "graphene.specs")
    recording = {n for n in gr.__all__ if getattr(getattr(gr, n), "__module__", "") in modules and n[0].islower()}
    assert sorted(recording - used - {"fence"}) == []
