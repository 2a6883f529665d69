"""What no call can reach, as the text alone shows, is not missed; what few blocks do not reach is reached by more."""

from __future__ import annotations

from typing import Any

import pytest

from graphene.judge.dead import unreachable
from graphene.judge.numbers import blocks_of, counted_by_lanes, extents_of, residues_of_blocks, strings
from graphene.judge.trees import Trees


def repeated(start: str, stop: str) -> bool:
    """Whether a loop that no call repeated could be repeated."""
    body = [{"stmt": "for", "var": "i", "start": start, "stop": stop, "step": 1, "body": []}]
    return not unreachable({"body": body}, {0: [5]})


def test_a_loop_of_partial_tiles_goes_round_once_at_most() -> None:
    assert not repeated("n//64", "(n + 63)//64")
    assert repeated("n//64", "(n + 65)//64")  # of 63 elements it would go round twice
    assert repeated("0", "(n + 63)//64")
    assert repeated("n//64", "(m + 63)//64")


def branches(*conditions: str) -> dict[str, Any]:
    """A statement that writes %7, within branches, in blocks b of 32 threads t."""
    inner: list[Any] = [{"stmt": "spec", "kind": "Move", "outs": [7]}]
    for c in reversed(conditions):
        inner = [{"stmt": "if", "condition": c, "then": inner}]
    return {
        "grid": {"id": 1, "levels": [{"shape": ["M"]}]},
        "block": {"id": 2, "levels": [{"shape": 32}]},
        "body": [{"stmt": "indices", "of": 1, "vars": [[{"name": "b"}]]}, *inner],
    }


def dead(*conditions: str) -> bool:
    """Whether what stands within these conditions is dead."""
    return unreachable(branches(*conditions), {1 + len(conditions): [3]}) == {3}


def test_branches_that_exclude_one_another_are_dead() -> None:
    """In the blocks 0, 4, 8, ... nothing lies before the first vector."""
    assert dead("(@b + 3)%4 == 3", "(@b + 3)%4*2 + @t < 6")
    assert not dead("(@b + 3)%4 == 2", "(@b + 3)%4*2 + @t < 6")
    assert not dead("(@b + 3)%4 == 3", "(@b + 3)%4*2 + @t < 7")
    assert not dead("(@b + 3)%4 == 3", "(@b + 3)%4*2 + @t < M")  # that depends on the size
    assert not dead("@b < 4", "@b%4 == 3")


def test_as_many_blocks_are_wanted_as_their_number_modulo_some_number_decides() -> None:
    data = branches("@b%8 == 5")
    (second, eighth) = blocks_of(data, residues_of_blocks(data, Trees(), strings(data)))
    assert (second.least, eighth.least) == (2, 8)
    assert [m for m in (1, 2, 7, 8) if eighth.repeats({"M": m})] == [8]


def test_more_blocks_are_wanted_than_a_number_that_theirs_is_compared_with() -> None:
    """The number of block 5 is the first one that min(b, 4) changes."""
    data = branches("min(@b, 4) == @t")
    (second, sixth) = blocks_of(data, residues_of_blocks(data, Trees(), strings(data)))
    assert (second.least, sixth.least) == (2, 6)


@pytest.mark.parametrize("condition", ["before + 2*@lane < batch", "32 < batch", "min(batch, 32) == 1"])
def test_one_more_is_counted_than_threads_count_or_than_a_number_says(condition: str) -> None:
    data = branches(condition)
    data["symbols"] = [{"name": "batch"}]
    data["body"][:0] = [{"stmt": "threads", "id": 3, "levels": [{"shape": 32}]},
                        {"stmt": "indices", "of": 3, "vars": [[{"name": "lane"}]]}]  # fmt: skip
    assert set(counted_by_lanes(data, Trees(), strings(data))) == {("batch", 32)}


@pytest.mark.parametrize("condition", ["@b*32 + @lane < batch", "1 < batch", "2000 < batch", "32 < batch//8"])
def test_blocks_count_more_than_threads(condition: str) -> None:
    data = branches(condition)
    data["symbols"] = [{"name": "batch"}]
    data["body"][:0] = [{"stmt": "threads", "id": 3, "levels": [{"shape": 32}]},
                        {"stmt": "indices", "of": 3, "vars": [[{"name": "lane"}]]}]  # fmt: skip
    assert not set(counted_by_lanes(data, Trees(), strings(data)))


def test_blocks_of_clusters_have_coordinates() -> None:
    """Two blocks of a cluster, of which there are ceil(M / 8): more clusters are wanted than the 2 that min names."""
    data = branches("min(@c, 2) == @t")
    data["grid"] = {"id": 7, "levels": [{"shape": ["(M + 7)//8*2", 3], "stride": [1, 1]}], "cluster": 2}
    names = [[{"name": "c", "value": "bid.x//2"}, {"name": "h", "value": "bid.y"}], [{"name": "r", "value": "bid.x%2"}]]
    data["body"][:0] = [{"stmt": "indices", "of": 8, "vars": names}]
    clusters = "((M + 7)//8*2 + 1)//2"
    assert extents_of(data) == {"_at_c": clusters, "_at_h": 3, "_at_r": 2}
    assert set(residues_of_blocks(data, Trees(), strings(data))) == {(clusters, 4)}
    assert [t.least for t in blocks_of(data, [])] == [2, 2]  # a second block, and a second cluster
