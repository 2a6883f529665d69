from collections.abc import Sequence

from graphene._stub.base import _Record
from graphene._stub.layout import Layout, Swizzle

class AccessCount(_Record):
    """What the memory system makes of one access of a tile, by the rules of ``kernel.report()``.

    ``requests``: instructions of warps, each of one vector a lane; ``bytes``: that all lanes move; ``vector_bytes``: of
    the widest vector. Shared memory: ``wavefronts``, of which ``conflicts`` are more than the fewest, and ``ways``, the
    most different words of one bank. Global memory: ``sectors`` of 32 bytes, and the fewest, ``ideal_sectors``.
    """

    requests: int
    bytes: int
    vector_bytes: int
    wavefronts: int
    conflicts: int
    ways: int
    sectors: int
    ideal_sectors: int

class PlannedSwizzle(_Record):
    swizzle: Swizzle
    row_elems: int
    bytes: int
    wavefronts: int
    conflicts: int

class PlannedSlots(_Record):
    barriers: int
    slot: list[int]

class PlannedPacking(_Record):
    bytes: int
    bound: int
    at: list[int]
    optimal: bool

class PlannedChoice(_Record):
    cost: float
    values: list[int]
    largest_table: int

def count_access(tile: Layout, tv: Layout, element_bits: int, swizzle: Swizzle) -> AccessCount: ...
def plan_swizzles(
    rows: int,
    columns: int,
    element_bits: int,
    accesses: Sequence[tuple[int, Sequence[Sequence[tuple[int, int, int]]]]],
    most_padding: int,
) -> list[PlannedSwizzle]: ...
def plan_slots(operations: int, edges: Sequence[tuple[int, int, int, int]], early: Sequence[int]) -> PlannedSlots: ...
def plan_pack(objects: Sequence[tuple[int, int, int, int]], most_nodes: int) -> PlannedPacking: ...
def plan_eliminate(
    sizes: Sequence[int], factors: Sequence[tuple[Sequence[int], Sequence[float]]], most_entries: int
) -> PlannedChoice: ...
