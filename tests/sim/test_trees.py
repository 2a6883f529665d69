"""Trees of a kernel's expressions, which threads share and Ctrl-C leaves whole."""

from __future__ import annotations

import ast
import gc
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import graphene
from graphene._syntax import parsed
from graphene.judge.trees import Trees


class Interrupted(dict[Any, Any]):
    """Ctrl-C comes where the n-th entry is written."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.left = n

    def __setitem__(self, key: Any, value: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        super().__setitem__(key, value)


@pytest.mark.parametrize("table", ["_names", "_sizes", "_of_texts"])
@pytest.mark.parametrize("n", range(1, 5))
def test_what_ctrl_c_left_is_found(table: str, n: int) -> None:
    trees = Trees()
    setattr(trees, table, Interrupted(n))
    text = "a + b * 2"
    try:
        trees.tree(text)
    except KeyboardInterrupt:
        pass
    else:
        assert table == "_of_texts"
        assert n > 1
    tree = trees.tree(text)
    assert tree is not None
    assert trees.names(tree) == {"a", "b"}
    assert trees.length(tree) == 5


def test_threads_share_trees() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        trees, wrong = Trees(), []

        def work() -> None:
            try:
                for i in range(300):
                    tree = trees.tree(f"(a{i} + b{i}) * (a{i} + b{i} + c)")
                    assert tree is not None
                    assert trees.names(tree) == {f"a{i}", f"b{i}", "c"}
            except BaseException as e:
                wrong.append(e)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not wrong
    finally:
        sys.setswitchinterval(interval)


def test_threads_parse_while_others_collect_garbage() -> None:
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            for i in range(10):
                assert ast.unparse(parsed(f"a{i}" + " + x" * 30, "eval")) == f"a{i}" + " + x" * 30
                with pytest.raises(SyntaxError):
                    parsed(f"a{i})", "eval")
        except BaseException as e:
            wrong.append(e)

    def others_run(*_: object) -> None:
        time.sleep(1e-5)

    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.callbacks.append(others_run)
    gc.set_threshold(20)
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            threads = [threading.Thread(target=work) for _ in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*threshold)
        gc.callbacks.remove(others_run)
    assert not wrong


def test_no_module_parses_by_itself() -> None:
    package = Path(graphene.__file__).parent
    assert [p.name for p in package.rglob("*.py") if "ast.parse(" in p.read_text()] == ["_syntax.py"]
