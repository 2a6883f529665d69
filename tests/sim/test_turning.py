"""Calls are chosen in which a division that is off by one turns out otherwise."""

from __future__ import annotations

from typing import Any

from graphene.judge.turning import turning


def loop(var: str, start: Any, stop: Any, *body: Any) -> dict[str, Any]:
    return {"stmt": "for", "var": var, "start": start, "stop": stop, "step": 1, "body": list(body)}


def told(data: dict[str, Any], **call: int) -> set[tuple[int, int]]:
    """Which divisions decide something in a call, and in which direction."""
    (features,) = turning(data, set(call)).features([call])
    return {(k, sign) for _, k, sign, _ in features}


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
        "grid": {"levels": [{"shape": "(n + 31)//32"}, {"shape": [3, "heads"]}]},
        "body": [{"stmt": "if", "condition": "0 < (n - @bm*32 + 7)//16", "then": []}],
    }
    assert told(data, n=41, heads=1) == {(0, -1)}  # the second block's 16 // 16, which would be 0
    assert told(data, n=9, heads=1) == {(0, -1)}
    assert told(data, n=25, heads=1) == set()  # the second's 0 // 16 would be one less, but there is none


def test_what_was_decided_twice_is_not_asked_for_again() -> None:
    t = turning({"body": [loop("i", 0, "min(n // 16, 9)")]}, {"n"})
    for wanted in (True, True, False):
        (features,) = t.features([{"n": 48}])
        assert bool(features) == wanted
        t.count(features)
