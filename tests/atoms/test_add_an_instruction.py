"""The page on adding an instruction does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import graphene as gr

PAGE = Path(__file__).parents[2] / "docs/add_an_instruction.md"


def test_its_code_runs(tmp_path: Path) -> None:
    """In a process of its own: it defines an entry that others would meet."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    assert code.count("gr.define_atom(") == 9
    (tmp_path / "page.py").write_text(code + "\nassert gr.svg(transpose.d).startswith('<svg')\nprint('done')\n")
    env = os.environ | {"PYTHONPATH": str(Path(gr.__file__).parents[1])}  # the tree under test, installed or not
    done = subprocess.run(
        [sys.executable, str(tmp_path / "page.py")], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "done\n", done.stderr
