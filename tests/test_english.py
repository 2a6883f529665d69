"""Pages, docstrings, comments and messages avoid phrases that readers stumbled over: each was found, and mended."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Phrase, as a regular expression without case -> what to write.
REFUSED = {
    r"^(<<<<<<<|>>>>>>>) ": "settle the conflict",
    r"\bso and so\b": "name the thing",
    r"\bso manieth\b": "every N-th",
    r"\bso many\b(?!.* that\b)": "name the number",
    r"\bdoes the like\b": "name it",
    r"\b(what|whatever) (is|are) no\b": "say what it is",
    r"\b(that|which) (is|are) no\b": "that is not a ...",
    r"(argument '[a-z_]+'|\}) (is|are) no [a-z]+": "is not a ..., in messages",
    r"and the like\b": "name one, after 'such as'",
    r"\bdecompose this\b": "say what to write instead",
    r"\beverybody's\b": "say who sees it: all warps, all threads",
    r"\bwhat is what\b": "name both",
    r"\bwhich \w+ (is|are) none\b": "which ... is not one",
    r"\bthat not both\b": "that one of them lacks",
    r"\bit is no such\b": "it is not one",
    r"\b(runs|stays|stand|stands|graph is|left) as it is\b": "unchanged",
}
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
WRITTEN = [p for p in PAGES if p.name not in ("mutants.md",)]
SOURCES = [
    p
    for folder in ("graphene", "tools", "benchmarks", "examples")
    for kind in ("*.py", "*.pyi", "*.ipynb")
    for p in (ROOT / folder).rglob(kind)
]
CORE = [p for p in (ROOT / "csrc").rglob("*") if p.suffix in (".h", ".cpp", ".def")]
FILES = sorted([*WRITTEN, *SOURCES, *CORE])


@pytest.mark.parametrize("phrase", REFUSED)
def test_a_phrase_that_is_hard_to_read_is_not_used(phrase: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(phrase, line, re.IGNORECASE)
    ]
    assert not wrong, f"write instead: {REFUSED[phrase]}\n" + "\n".join(wrong)


def test_the_phrases_are_found() -> None:
    found = [p for p in REFUSED if re.search(p, "A share for Block So And So", re.IGNORECASE)]
    assert found == [r"\bso and so\b"]
