"""Results of the core with named fields: what the stub says of them is what they are."""

from __future__ import annotations

import ast
import copy
import pickle
from pathlib import Path

import pytest

from graphene import _core

STUB = [ast.parse(p.read_text()) for p in sorted((Path(__file__).parents[1] / "graphene/_stub").glob("*.pyi"))]
RECORDS = {
    c.name: tuple(ast.unparse(f.target) for f in c.body if isinstance(f, ast.AnnAssign))
    for stub in STUB
    for c in stub.body
    if isinstance(c, ast.ClassDef) and [ast.unparse(b) for b in c.bases] == ["_Record"]
}


def test_there_are_some() -> None:
    assert {"TraceEvent", "CheckRun", "Sync"} <= set(RECORDS)


@pytest.mark.parametrize("name", RECORDS)
def test_the_stub_has_the_fields_of_a_record_in_their_order(name: str) -> None:
    record = getattr(_core, name)
    assert record.__match_args__ == RECORDS[name]
    assert record.__doc__


def test_a_record_is_compared_printed_and_pickled_by_its_values() -> None:
    rest = ("wait", "wait(cp.async)", "k.py:7", False, True)
    sync = _core.Sync(id=3, op="wait", text="wait(cp.async)", where="k.py:7", releases=False, expects=True)
    assert repr(sync) == ("Sync(id=3, op='wait', text='wait(cp.async)', where='k.py:7', releases=False, expects=True)")
    assert sync == _core.Sync(3, *rest) != _core.Sync(4, *rest)
    assert sync != (3, *rest)
    assert pickle.loads(pickle.dumps(sync)) == copy.deepcopy(sync) == sync
    assert len({sync, copy.copy(sync)}) == 1
    with pytest.raises(AttributeError):
        sync.id = 4  # type: ignore[misc]
