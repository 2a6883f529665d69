"""Calls are chosen in which a division that is off by one turns out otherwise."""

from __future__ import annotations

import ast
from typing import Any

from graphene.judge.trees import Trees
from graphene.judge.turning import turning


def loop(var: str, start: Any, stop: Any, *body: Any) -> dict[str, Any]:
    return {"stmt": "for", "var": var, "start": start, "stop": stop, "step": 1, "body": list(body)}


def told(data: dict[str, Any], **call: int) -> set[tuple[int, int]]:
    """Which divisions decide something in a call, and in which direction."""
    (features,) = turning(data, set(call)).features([call])
    return {f[1:3] for f in features if len(f) == 4}


def test_of_a_minimum_the_smaller_quotient_decides() -> None:
    data = {"body": [loop("i", 0, "min(n // 16, (n - left + 3) // 16)")]}
    assert told(data, n=47, left=0) == {(0, 1)}  # 2 of 2 and 3: one key more would be another tile
    assert told(data, n=40, left=3) == set()
    assert told(data, n=48, left=4) == {(1, 1)}
    assert told(data, n=48, left=3) == {(0, -1), (1, -1)}


def test_loops_are_followed_from_where_they_begin_to_where_they_end() -> None:
    def inside(stop: int) -> dict[str, Any]:
        return {"body": [loop("i", "n // 16", stop, {"stmt": "if", "condition": "i < (n + 40) // 16", "then": []})]}

    assert told(inside(9), n=24) == {(0, -1)}  # i is 1, 2, 3, which is below 4 and would not be below 3
    assert told(inside(3), n=24) == set()  # it does not come to 3
    assert told(inside(9), n=23) == {(0, 1)}  # 3, which would be below 4


def test_a_second_block_is_one_that_the_grid_has() -> None:
    data = {
        "grid": {"id": 9, "levels": [{"shape": "(n + 31)//32"}, {"shape": [3, "(heads + 31)//32"]}]},
        "body": [
            {"stmt": "indices", "of": 9, "vars": [[{"name": n} for n in ("bm", "i", "h")]]},
            {"stmt": "if", "condition": "0 < (n - @bm*32 + 7)//16", "then": []},
        ],
    }
    assert told(data, n=41, heads=1) == {(0, -1)}  # the second block's 16 // 16, which would be 0
    assert told(data, n=9, heads=1) == {(0, -1)}
    assert told(data, n=25, heads=1) == set()  # the second's 0 // 16 would be one less, but there is none


def test_of_an_address_its_minimum_decides_whatever_is_added() -> None:
    data = {"body": [{"stmt": "view", "index": ["lines*min(n // 16, 9) + @t", "min(n // 16, 9)"]}]}
    (features,) = turning(data, {"n", "lines"}).features([{"n": 48, "lines": 3}])
    assert {f[:3] for f in features} == {(0, 0, -1)}


def test_whether_a_condition_holds_is_told_in_each_block() -> None:
    data = {"body": [{"stmt": "if", "condition": "@b < n", "then": []}]}
    held = [{f[1:] for f in features} for features in turning(data, {"n"}).features([{"n": 1}, {"n": 2}])]
    assert {(True, 0), (False, 2)} <= held[0]  # the first block and the second
    assert {(True, 0), (True, 2)} <= held[1]


def test_a_division_within_a_conjunction_decides_where_it_ends() -> None:
    data = {"body": [{"stmt": "if", "condition": "0 < n // 16 and n < 40", "then": []}]}
    assert told(data, n=15) == {(0, 1)}
    assert told(data, n=47) == set()  # the other condition does not hold


def test_equal_parts_of_a_text_are_one_object() -> None:
    trees = Trees()
    one, other = trees.tree("min((@b + 3) // 16, n)"), trees.tree("2*((@b + 3) // 16)")
    assert isinstance(one, ast.Call)
    assert isinstance(other, ast.BinOp)
    assert one.args[0] is other.right
    assert trees.names(one) == {"min", "_at_b", "n"}
    assert len(trees.text(one)) >= trees.length(one) == 8
    assert trees.value(one, {"_at_b": 30, "n": 9}, {"min": min}, {id(other.right): -2}) == 1
    assert trees.tree("1 +") is None
