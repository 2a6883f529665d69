"""Every error code can be raised, and some test provokes it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODES = re.findall(r"^GR_ERROR\((\w+),", (ROOT / "csrc/base/codes.def").read_text(), re.MULTILINE)

# Code -> why no test can provoke it from outside.
NOT_PROVOKED: dict[str, str] = {
    "SIM_MISALIGNED": "alignment is proven, or a call is refused before it runs (LAUNCH_FACT)",
}
LISTS = ("test_codes.py", "test_causes.py")  # which name codes without provoking them


def words(folder: str, suffixes: tuple[str, ...]) -> set[str]:
    files = [p for p in (ROOT / folder).rglob("*") if p.suffix in suffixes and p.name not in LISTS]
    return {w for p in files for w in re.findall(r"\b[A-Z][A-Z0-9_]+\b", p.read_text())}


def test_every_code_is_raised_somewhere() -> None:
    used = words("csrc", (".cpp", ".h")) | words("graphene", (".py",))
    assert [c for c in CODES if c not in used] == []


def test_every_code_is_provoked_by_a_test() -> None:
    tested = words("tests", (".py", ".cpp", ".json"))
    assert [c for c in CODES if c not in tested and c not in NOT_PROVOKED] == []
    assert [c for c in NOT_PROVOKED if c not in CODES or c in tested] == []
