"""What a forward kernel of attention for sm_90a computes, and by which tiles."""

from __future__ import annotations

from dataclasses import dataclass, fields

from graphene import _core
from graphene.kernels.arguments import flags, instance, size
from graphene.kernels.attention.problem import Attention
from graphene.kernels.tma import SHARED_BYTES

__all__ = ["ForwardSm90"]


@dataclass(frozen=True)
class ForwardSm90:
    """The problem, and how it is computed: `consumers` with 64 queries each, BN keys a step.

    `stages`: of the rings of keys and of values; `queries`: of that of queries. `apart`: results leave from a place of
    their own, else from that of the queries. `turns`: consumers take turns at the tensor cores. `lazy`: sums shrink
    only where a maximum has grown by more than 2^8. `lse`, `training`: as in ``ForwardConfig``. `persistent`: a block
    goes through many tiles of queries; else each tile has a block of its own, whose producer is a warp, without turns,
    and several such blocks share a multiprocessor. `copier`: False leaves the copies of such a block to a thread of its
    first consumer, so that more blocks have registers. `uneven`: tiles have the queries of all consumers or of all but
    one, as blocks have equal work; all rows see the same keys. `q_in_registers`: narrow products read half as much of
    shared memory. `longest_first`: blocks take packed sequences in falling order of their keys, so that those which
    start last have the least to do, or members of a batch in that of the tiles that a mask of keys leaves. `bits`: the
    lists also say which keys of a tile are seen, so that no mask is loaded. Raises VerifyError KERNEL_ARGUMENT.
    """

    what: Attention
    BN: int = 128
    consumers: int = 2
    stages: int = 2
    queries: int = 2
    apart: bool = True
    turns: bool = True
    lazy: bool = True
    lse: bool = False
    training: bool = False
    persistent: bool = True
    uneven: bool = False
    q_in_registers: bool = False
    copier: bool = True
    longest_first: bool = False
    bits: bool = False

    def __post_init__(self) -> None:
        instance("ForwardSm90", "what", self.what, Attention)
        for f in fields(self):
            if isinstance(f.default, bool):
                flags("ForwardSm90", f.name, (getattr(self, f.name),), 1)
        size("ForwardSm90", "BN", self.BN, multiple_of=16, most=256)
        size("ForwardSm90", "consumers", self.consumers, most=3)
        size("ForwardSm90", "stages", self.stages, least=2)
        size("ForwardSm90", "queries", self.queries)
        a = self.what
        if a.varlen and (a.mask is not None or a.bias is not None):
            want = "want: no mask and no bias of packed sequences"
            _core.fail("KERNEL_ARGUMENT", "ForwardSm90: no kernel of this problem", [want], "take ForwardConfig")
        if a.varlen and self.persistent:
            got = ["want: persistent=False", "got: persistent=True"]
            _core.fail("KERNEL_ARGUMENT", "ForwardSm90: each tile of packed sequences has a block of its own", got)
        of_keys = a.mask is not None and not (a.mask.rows or a.left or a.right or self.persistent)
        if self.longest_first and not (a.varlen or of_keys):
            got = ["want: packed sequences, or a mask of keys without a window and persistent=False",
                   "got: longest_first=True"]  # fmt: skip
            _core.fail("KERNEL_ARGUMENT", "ForwardSm90: tiles have no order of work", got, "take longest_first=False")
        if self.bits and not of_keys:
            got = ["want: a mask of keys without a window and persistent=False", "got: bits=True"]
            _core.fail("KERNEL_ARGUMENT", "ForwardSm90: keys have no bits", got, "take bits=False")
        if not self.persistent and self.queries > 1:
            got = ["want: queries=1, or persistent=True", f"got: queries={self.queries}"]
            _core.fail("KERNEL_ARGUMENT", "ForwardSm90: a block of one tile has one tile of queries", got)
        if not self.copier and self.persistent:
            got = ["want: copier=True, or persistent=False", "got: copier=False"]
            _core.fail("KERNEL_ARGUMENT", "ForwardSm90: persistent blocks need a producer", got)
        if self.uneven and (self.differ or not self.persistent or self.consumers < 2):
            got = ["want: persistent=True, two consumers or more, no window, packed sequences or mask of queries"]
            _core.fail("KERNEL_ARGUMENT", "ForwardSm90: uneven tiles do not fit", got, "take uneven=False")
        if self.training and not self.lse:
            _core.fail("KERNEL_ARGUMENT", "ForwardSm90: training does not fit", ["want: lse=True", "got: lse=False"])
        if a.fp8 is not None:
            self._check_fp8()
        held, most = self.BN // 2 + self.BN // (4 if a.fp8 is None else 8) + a.depth // 2, self.registers[1]
        held += a.depth // 4 * self.q_in_registers
        if held > most:
            got = [
                f"want: at most {most} of a thread's registers",
                f"got: {held} for scores, weights, sums and queries",
            ]
            _core.fail("KERNEL_ARGUMENT", "ForwardSm90: the tile does not fit into registers", got, "take a smaller BN")
        if self.shared_bytes > SHARED_BYTES:
            got = [f"want: at most {SHARED_BYTES}", f"got: {self.shared_bytes}"]
            _core.fail("KERNEL_ARGUMENT", "ForwardSm90: tiles do not fit into shared memory", got,
                       "take fewer stages or a smaller tile")  # fmt: skip

    def _check_fp8(self) -> None:
        """Raises KERNEL_ARGUMENT unless the tile takes numbers of 8 bits."""
        size("ForwardSm90", "BN", self.BN, multiple_of=32, most=256)  # keys of an instruction
        for name, want in (("apart", True), ("training", False), ("q_in_registers", False)):
            if getattr(self, name) is not want:
                got = [f"want: {name}={want}", f"got: {name}={not want}"]
                _core.fail("KERNEL_ARGUMENT", f"ForwardSm90: {name} does not fit fp8", got)
        if self.what.varlen:
            _core.fail("KERNEL_ARGUMENT", "ForwardSm90: packed sequences do not fit fp8", ["want: varlen=False"],
                       "take ForwardSm90 of fp16 or bf16")  # fmt: skip

    @property
    def BM(self) -> int:  # noqa: N802
        """Queries of a tile."""
        return 64 * self.consumers

    @property
    def differ(self) -> bool:
        """Whether tiles of queries differ in the tiles of keys that they see."""
        a = self.what
        return a.left or a.right or a.varlen or (a.mask is not None and a.mask.rows)

    @property
    def late(self) -> bool:
        """Whether the exponentials stand before the wait for the product of values. Beside two consumers it is faster
        to leave that to the compiler, which waits first (H200: 3 to 7%, heads of 64 to 256); beside three it is slower.
        """
        return self.lazy and self.consumers == 3

    @property
    def few_registers(self) -> bool:
        """Whether consumers compute or read again what a loop needs, rather than keep it in registers."""
        return self.persistent and self.consumers == 3

    @property
    def moves_registers(self) -> bool:
        """Whether the producer gives registers to consumers. A single one has as many as it can use."""
        return self.persistent and self.consumers > 1

    @property
    def registers(self) -> tuple[int, int]:
        """Those of the producer's threads, which divide and count, and of the consumers'."""
        if not self.moves_registers:
            return 255, 255
        if self.consumers == 3:
            return (56, 152) if self.BN < 128 else (32, 160)
        return 40, 232

    @property
    def listed(self) -> bool:
        """Whether there is a list of tiles, as ``attention_tiles_kernel`` makes it."""
        return self.what.mask is not None

    @property
    def noted(self) -> int:
        """Tiles with noted numbers: more than are on their way. Places of a power of two take no register."""
        return 1 << self.queries.bit_length() if self.few_registers else self.queries + 1

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        read, written = self.queries * self.BM + 2 * self.stages * self.BN, self.apart * self.BM
        rows = read * (2 if self.what.fp8 is None else 1) + written * 2
        return rows * self.what.depth + 16 * (2 * self.stages + self.queries) + 40 * self.noted
