"""Data flows one way through the layers: csrc/ includes prove it."""

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[1] / "csrc"
ORDER = ["base", "sym", "layout", "ir", "atoms", "build", "verify", "lower", "emit", "sim", "runtime", "torch", "bind"]
# Two readers of the lowered tree that know nothing of each other, and a runtime that gets source text and a manifest.
REFUSED = {("emit", "sim"), ("sim", "emit")} | {
    (reader, layer) for reader in ("runtime", "torch") for layer in ORDER[2:10]
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
SOURCES = sorted(p for p in CSRC.rglob("*") if p.suffix in (".h", ".cpp"))


def layer_of(path: Path) -> str:
    return path.relative_to(CSRC).parts[0]


def test_every_folder_is_a_layer() -> None:
    assert {layer_of(p) for p in SOURCES} <= set(ORDER)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(CSRC)))
def test_includes_follow_the_order_of_the_layers(path: Path) -> None:
    layer = layer_of(path)
    wrong = []
    for include in INCLUDE.findall(path.read_text()):
        if include == "base/codes.def":
            continue
        assert "/" in include, f'write "{layer}/{include}", as everywhere'
        other = include.split("/")[0]
        assert other in ORDER, f"{include} is in no layer"
        if ORDER.index(other) > ORDER.index(layer) or (layer, other) in REFUSED:
            wrong.append(include)
    assert not wrong


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(CSRC)))
def test_included_files_exist(path: Path) -> None:
    assert not [i for i in INCLUDE.findall(path.read_text()) if not (CSRC / i).exists()]
