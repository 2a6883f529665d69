"""Numbers in texts are the same whatever decimal point the locale of the process has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import graphene as gr

CODE = """
import locale
from test_locale import texts
locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
assert locale.localeconv()["decimal_point"] == ","
print(texts())
"""


def kernel() -> gr.Kernel:
    with gr.Kernel("halves") as k:
        y = gr.output("y", [1], gr.fp32)
        (t,) = gr.threads(32).indices()
        y[0] = gr.cast(t, gr.fp32) * 0.5
    return k


def texts() -> str:
    """The kernel's source, and what is wrong with it."""
    return f"{kernel().cuda_source('sm_80')}\n{kernel().check()}"


def test_a_comma_for_the_decimal_point_changes_no_text(tmp_path: Path) -> None:
    if shutil.which("localedef") is None:
        pytest.skip("no localedef, which makes locales")
    made = subprocess.run(
        ["localedef", "-i", "de_DE", "-f", "UTF-8", "--no-archive", tmp_path / "de_DE.UTF-8"], capture_output=True
    )
    if made.returncode:
        pytest.skip("no description of a locale with another decimal point")
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "LOCPATH": str(tmp_path), "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=environment)
    assert done.stdout == texts() + "\n", done.stderr
    assert "0.5 by thread 1 " in done.stdout
