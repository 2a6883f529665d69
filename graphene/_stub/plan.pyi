from collections.abc import Sequence

from graphene._stub.layout import Layout, Swizzle

def count_access(
    tile: Layout, tv: Layout, element_bits: int, swizzle: Swizzle
) -> tuple[int, int, int, int, int, int, int, int]: ...
def plan_swizzles(
    rows: int,
    columns: int,
    element_bits: int,
    accesses: Sequence[tuple[int, Sequence[Sequence[tuple[int, int, int]]]]],
    most_padding: int,
) -> list[tuple[Swizzle, int, int, int, int]]: ...
def plan_slots(
    operations: int, edges: Sequence[tuple[int, int, int, int]], early: Sequence[int]
) -> tuple[int, list[int]]: ...
def plan_pack(objects: Sequence[tuple[int, int, int, int]], most_nodes: int) -> tuple[int, int, list[int], bool]: ...
def plan_eliminate(
    sizes: Sequence[int], factors: Sequence[tuple[Sequence[int], Sequence[float]]], most_entries: int
) -> tuple[float, list[int], int]: ...
