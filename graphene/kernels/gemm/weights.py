"""Products of activations and weights of 4 or 8 bits, which are unpacked in registers, next to the tensor cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import graphene as gr
from graphene import _core
from graphene.kernels.arguments import choice, element, flags, instance, size
from graphene.kernels.tma import SHARED_BYTES

__all__ = ["CHUNK", "PACKED_ROWS", "WeightsConfig", "unpacked", "weights_kernel"]

PACKED_ROWS = 16  # rows of the weights that are packed together: those of a matrix instruction
CHUNK = 64  # k that are packed together
STEP = 128  # k of a warp in a stage
TOKENS = 8  # columns of the matrix instruction
# What stands above an integer of few bits to make a floating-point number of it, and that number.
ABOVE = {"fp16": 0x6400, "bf16": 0x4300}
INSERTED = 0xEA  # of lop3: the masked bits, with others above them
COPY = "cp.async.cg.16"
MOST = 2**31 - 1  # tokens, or elements of a line: coordinates have 32 bits
LOAD = "ld.global.nc.no_allocate.v4.b32"  # four words of a lane, past the multiprocessor's cache: they are read once


@dataclass(frozen=True)
class WeightsConfig:
    """What is multiplied, and how.

    `dtype`: of activations, scales, bias and result. `bits`: 4, integers less 8 or less their zero points, or 8,
    numbers of type fp8e4m3. `group`: neighbours along k that share a scale and a zero point. `zeros`, `bias`: whether
    there are zero points, a bias. `tokens`: activations of a block, in eights. `tiles`: groups of 16 rows of a warp.
    `warps`: those that divide a block's rows, and those that divide k of a stage. `stages` of 128 k for each of the
    latter. `cluster`: blocks that divide k and add their sums up (above 1: sm_90). `ahead`: stages whose weights are on
    their way to a warp's registers; with 0 weights go through shared memory, as activations and scales always do.
    `whole`: N is a multiple of a block's rows, and K of a stage's depth, which spares conditions. Raises VerifyError
    KERNEL_ARGUMENT.
    """

    dtype: gr.DType = gr.fp16
    bits: int = 4
    group: int = 128
    zeros: bool = False
    bias: bool = False
    tokens: int = 1
    tiles: int = 2
    warps: tuple[int, int] = (2, 4)
    stages: int = 3
    cluster: int = 1
    ahead: int = 0
    whole: bool = False

    def __post_init__(self) -> None:
        n = "WeightsConfig"
        element(n, "dtype", self.dtype, tuple(ABOVE))
        choice(n, "bits", self.bits, (4, 8))
        choice(n, "group", self.group, (128, 64, 32))
        flags(n, "zeros, bias, whole", (self.zeros, self.bias, self.whole), 3)
        size(n, "tokens", self.tokens, most=16)
        size(n, "tiles", self.tiles, most=8)
        for i, value in enumerate(self.warps):
            size(n, f"warps[{i}]", value, most=16)
        size(n, "warps[0] * warps[1]", self.warps[0] * self.warps[1], most=32)
        size(n, "stages", self.stages, least=2)
        size(n, "cluster", self.cluster, most=8)
        size(n, "ahead", self.ahead, least=0, most=8)
        if self.zeros and self.bits == 8:
            _core.fail("KERNEL_ARGUMENT", f"{n}: only integers have zero points", ["want: zeros=False, or bits=4"])
        if self.shared_bytes > SHARED_BYTES:
            _core.fail("KERNEL_ARGUMENT", f"{n}: the stages do not fit into shared memory",
                       [f"want: at most {SHARED_BYTES} bytes", f"got: {self.shared_bytes}"],
                       "take fewer stages, warps or tokens")  # fmt: skip

    @property
    def rows(self) -> int:
        """Rows of the weights that a block multiplies."""
        return PACKED_ROWS * self.tiles * self.warps[0]

    @property
    def depth(self) -> int:
        """K of a stage."""
        return STEP * self.warps[1]

    @property
    def words(self) -> int:
        """Words of 32 bits that a lane has of 16 rows and 64 k."""
        return CHUNK * PACKED_ROWS * self.bits // (32 * 32)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: the stages, or the sums in their place."""
        groups = self.depth // self.group
        stage = TOKENS * self.tokens * self.depth * 2
        stage += 0 if self.ahead else self.rows * self.depth * self.bits // 8
        stage += groups * self.rows * (2 + self.zeros)
        return max(self.stages * stage, 4 * self.warps[1] * TOKENS * self.tokens * (self.rows + 4))


def unpacked(packed: Any, bits: int) -> Any:
    """The numbers (N,K) of packed words (N / 16, K / 64, words of 32 lanes): integers from 0 to 15, or of fp8.

    A lane of a warp finds what it multiplies in its own words, four of each 128. Lane l has the rows l / 4 and
    l / 4 + 8 of 16, and of 16 k the pairs from 2 * (l % 4) and from 2 * (l % 4) + 8 on. Words follow one another along
    k. Of 4 bits, a word has the first numbers of four pairs in its lower half, and the second ones in its upper half.
    Of 8 bits, it has two pairs.
    """
    import numpy as np

    words = np.asarray(packed, np.int64).astype(np.uint32)
    tiles, chunks = words.shape[:2]
    lanes = words.reshape(tiles, chunks, -1, 8, 4, 4).transpose(0, 1, 3, 4, 2, 5)
    lanes = lanes.reshape(tiles, chunks, 8, 4, -1)  # row, pair of k, word
    if bits == 4:
        part = (lanes[..., None, None] >> (4 * np.arange(8, dtype=np.uint32)).reshape(2, 4)) & 15
        part = part.transpose(0, 1, 2, 3, 4, 6, 5)  # row, pair, word, which pair, which of it
        part = part.reshape(tiles, chunks, 8, 4, 4, 2, 2, 2)  # row, pair, 16 k, upper k, lower row, which of the pair
    else:
        part = (lanes[..., None] >> (8 * np.arange(4, dtype=np.uint32))) & 255
        part = part.reshape(tiles, chunks, 8, 4, 4, 2, 2, 2)
    part = part.transpose(0, 6, 2, 1, 4, 5, 3, 7)
    numbers = part.reshape(tiles * PACKED_ROWS, chunks * CHUNK)
    return numbers if bits == 4 else _of_fp8(numbers)


def _of_fp8(bits: Any) -> Any:
    """The numbers that bytes are as fp8e4m3."""
    import numpy as np

    exponent, fraction = bits >> 3 & 15, bits & 7
    size_ = np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent.astype(np.float64) - 10))
    return np.where(bits & 127 == 127, np.nan, np.where(bits & 128, -size_, size_))


def weights_kernel(c: WeightsConfig) -> gr.Kernel:
    """Y = X @ (scale * (W - zero)).T + bias, in fp32, rounded once.

    Arguments: X (M,K) with lines of any stride, `weight` (N / 16, K / 64, 128 or 256 words) as ``unpacked`` reads it,
    `scale` (K / group, N) with lines of any stride, perhaps 0, `zero` of the same shape in bytes of which seven bits
    count (without them it is 8, and 0 for fp8), `bias` (N,), Y (M,N). N is a multiple of 16. Integers and fp8 become
    numbers of the activations' type exactly, and those of a group are added up before they are scaled. fp8 needs sm_89.
    """
    instance("weights_kernel", "c", c, WeightsConfig)
    return _Weights(c).kernel()


class _Weights:
    """One kernel in the making."""

    def __init__(self, c: WeightsConfig) -> None:
        self.c = c
        self.type = str(c.dtype)
        self.multiple = c.depth if c.whole else max(c.group, CHUNK)  # of which K is one

    def means(self) -> Any:
        """The kernel's meaning."""
        c = self.c

        def product(X: Any, weight: Any, scale: Any, Y: Any, zero: Any = None, bias: Any = None) -> dict[str, Any]:
            import numpy as np

            W, y = unpacked(weight, c.bits).astype(np.float64), 0.0
            for g in range(len(scale)):
                k = slice(g * c.group, (g + 1) * c.group)
                part = W[:, k]
                if c.bits == 4:  # rounded to what it is
                    less = np.full(len(W), 8) if zero is None else np.asarray(zero[g], np.int64) & 127
                    part = gr.rounded("a", part - less[:, None])
                y = X[:, k] @ part.T * scale[g] + y
            return {"Y": y if bias is None else y + bias}

        def prepare(args: Any, rng: Any) -> None:
            words = rng.integers(-(2**31), 2**31, args["weight"].shape)  # drawn ones are small
            args["weight"][...] = words if c.bits == 4 else words & ~0x01010101  # no NaN
            if c.zeros:
                args["zero"][...] &= 127

        multiple, whole = self.multiple, c.depth * c.cluster
        depths = (multiple, c.depth + multiple, whole * c.stages + multiple)  # blocks have no stage, one, or all
        return {"means": product, "arguments": gr.Arguments(prepare, values={"K": depths})}

    def kernel(self) -> gr.Kernel:
        """The kernel."""
        with gr.Kernel("weights", **self.means()) as kernel:
            self.declare()
            self.allocate()
            self.run()
        return kernel

    def declare(self) -> None:
        """Declares arguments, blocks and threads, and finds what a block computes."""
        c = self.c
        M, N = gr.sym("M", max=MOST), gr.sym("N", multiple_of=c.rows if c.whole else PACKED_ROWS, max=MOST)
        K = gr.sym("K", multiple_of=self.multiple, min=self.multiple, max=MOST)
        line, line_y, line_s = (
            gr.sym("line_x", multiple_of=8),
            gr.sym("line_y", multiple_of=8),
            gr.sym("line_scale", multiple_of=8),
        )
        self.X = gr.input("X", gr.Layout((M, K), (line, 1)), c.dtype, align_bytes=16)
        self.W = gr.input("weight", [N // PACKED_ROWS, K // CHUNK, 32 * c.words], gr.i32, align_bytes=16)
        lines = gr.Layout((K // c.group, N), (line_s, 1))
        self.S = gr.input("scale", lines, c.dtype, align_bytes=16)
        self.Z = gr.input("zero", [K // c.group, N], gr.u8, align_bytes=16) if c.zeros else None
        self.bias = gr.input("bias", [N], c.dtype, align_bytes=8) if c.bias else None
        self.Y = gr.output("Y", gr.Layout((M, N), (line_y, 1)), c.dtype, align_bytes=8)
        self.M, self.N = M, N
        rows, tokens = gr.ceil_div(N, c.rows), gr.ceil_div(M, TOKENS * c.tokens)
        self.threads = gr.threads(32 * c.warps[0] * c.warps[1])
        self.warps = self.threads.tile(32)
        self.rank, self.cluster = 0, None
        if c.cluster == 1:
            self.bn, self.bm = gr.blocks(rows, tokens).indices()
        else:
            blocks = gr.blocks(c.cluster * rows, tokens, cluster=c.cluster)
            (self.bn, self.bm), (self.rank, _) = blocks.indices()
            self.cluster = blocks[self.bn, self.bm]
        w, self.lane = self.warps.indices()
        self.warp, self.wn, self.wk = self.warps[w], w % c.warps[0], w // c.warps[0]
        self.each = gr.ceil_div(gr.ceil_div(K, c.depth), c.cluster)  # stages of a block

    def allocate(self) -> None:
        """Allocates stages and registers."""
        c = self.c
        groups = c.depth // c.group
        self.sX = gr.alloc("sX", [TOKENS * c.tokens, c.depth], c.dtype, gr.SH, stages=c.stages,
                           swizzle=gr.swizzle(c.depth, c.dtype))  # fmt: skip
        shape, pieces = [c.rows // PACKED_ROWS, c.depth // CHUNK, 32 * c.words], c.words // 4 * (STEP // CHUNK)
        self.sW = None if c.ahead else gr.alloc("sW", shape, gr.i32, gr.SH, stages=c.stages)
        self.coming = [[[gr.alloc(f"w{slot}_{tile}_{piece}", [4], gr.i32, gr.RF) for piece in range(pieces)]
                        for tile in range(c.tiles)] for slot in range(c.ahead)]  # fmt: skip
        self.sS = gr.alloc("sS", [groups, c.rows], c.dtype, gr.SH, stages=c.stages)
        self.sZ = gr.alloc("sZ", [groups, c.rows], gr.u8, gr.SH, stages=c.stages) if c.zeros else None
        sums = gr.Layout(
            (c.warps[1], TOKENS * c.tokens, c.rows), (TOKENS * c.tokens * (c.rows + 4), c.rows + 4, 1)
        )  # without bank conflicts
        stages = [t for t in (self.sX, self.sW, self.sS, self.sZ) if t is not None]
        self.sums = gr.alloc("sums", sums, gr.fp32, gr.SH, over=stages if c.ahead else stages[:2])
        mma = self.mma = gr.atom(f"mma.m16n8k16.f32.{'f16' if self.type == 'fp16' else 'bf16'}")
        rows, tokens = PACKED_ROWS * c.tiles, TOKENS * c.tokens
        self.a = gr.fragment("a", [rows, 16], c.dtype, mma.a, on=self.warp)
        self.b = gr.fragment("b", [tokens, 16], c.dtype, mma.b, on=self.warp)
        self.part = gr.fragment("part", [rows, tokens], gr.fp32, mma.c, on=self.warp)
        self.total = gr.fragment("total", [rows, tokens], gr.fp32, mma.c, on=self.warp)

    def copy(self, i: Any) -> None:
        """Starts the copies of the block's stage number i; past the last one there are zeros."""
        c, stage = self.c, i % self.c.stages
        at, groups = self.rank * self.each + i, c.depth // c.group
        with gr.if_(i < self.each):
            if self.sW is not None:
                gr.move(self.sW[stage], self.weights(i), on=self.threads, atom=COPY)
            gr.move(self.sX[stage], self.X.tile([TOKENS * c.tokens, c.depth])[self.bm, at], on=self.threads, atom=COPY)
            for to, source in ((self.sS, self.S), (self.sZ, self.Z)):
                if source is not None and to is not None:
                    scales = source.tile([groups, c.rows])[at, self.bn]
                    gr.move(to[stage], scales, on=self.threads, atom=COPY)
        gr.commit(COPY)

    def weights(self, i: Any) -> Any:
        """The weights of the block's stage number i."""
        c = self.c
        tiles = self.W.tile([c.rows // PACKED_ROWS, c.depth // CHUNK, None])
        return tiles[self.bn, self.rank * self.each + i, 0]

    def load(self, slot: int, i: Any) -> None:
        """Starts the loads of the warp's weights of stage number i."""
        with gr.if_(i < self.each):
            for tile, pieces in enumerate(self.coming[slot]):
                for piece, words in enumerate(pieces):
                    gr.move(words, self.piece(self.weights(i), tile, piece), atom=gr.atom(LOAD))

    def piece(self, stage: Any, tile: int, piece: int) -> Any:
        """Four words of the executing lane, of a tile of the warp's weights of a stage."""
        a_chunk = self.c.words // 4
        chunk = stage[self.wn * self.c.tiles + tile, self.wk * (STEP // CHUNK) + piece // a_chunk, :]
        return chunk.tile([4])[piece % a_chunk * 32 + self.lane]

    def run(self) -> None:
        """The kernel's body."""
        c = self.c
        gr.init(self.total, 0)
        self.sixteenth = self.pair("sixteenth", 0x2C00) if self.shifted else None
        for i in range(c.ahead):
            self.load(i, i)
        for i in range(c.stages - 1):
            self.copy(i)
        if c.ahead == 0:
            for i in gr.loop("i", self.each):
                self.add_stage(i, 0)
        else:
            for several in gr.loop("several", gr.ceil_div(self.each, c.ahead)):
                for slot in range(c.ahead):
                    i = several * c.ahead + slot
                    with gr.if_(i < self.each):
                        self.add_stage(i, slot)
                        self.load(slot, i + c.ahead)
        gr.wait(COPY, pending=0)
        gr.barrier()
        self.meet()

    def add_stage(self, i: Any, slot: int) -> None:
        """Adds the product of the block's stage number i, when its activations have come."""
        c = self.c
        gr.wait(COPY, pending=c.stages - 2)
        gr.barrier()  # the stage has come, and the one before has been read
        self.copy(i + c.stages - 1)
        for group in range(STEP // c.group):
            self.add_group(i % c.stages, group, slot)

    def add_group(self, stage: Any, group: int, slot: int) -> None:
        """Adds the product of a group of k, scaled, to the sums."""
        c = self.c
        gr.init(self.part, 0)
        row = self.wk * (STEP // c.group) + group
        less = self.subtrahends(stage, row)
        for j in range(group * c.group // 16, (group + 1) * c.group // 16):
            gr.move(self.b, self.sX[stage].tile([None, 16])[0, self.wk * (STEP // 16) + j], atom=self.ldmatrix)
            if j % (16 // c.bits) == 0:
                self.words = [self.load_words(stage, tile, j, slot) for tile in range(c.tiles)]
            for tile in range(c.tiles):
                self.unpack(tile, j, less[tile])
            gr.matmul(self.part, self.a, self.b.T, atom=self.mma)
        scale = self.part.reduced(1, "scales", c.dtype)
        mine = (
            self.sS[stage]
            .tile([1, PACKED_ROWS * c.tiles])[row, self.wn]
            .reshape(0, gr.Layout((PACKED_ROWS * c.tiles, 1)))
        )
        gr.move(scale, mine, atom=gr.atom("ld.shared.b16"))
        self.total[:] = gr.fma(self.part, scale, self.total)

    @property
    def ldmatrix(self) -> Any:
        """The atom that loads activations."""
        return gr.atom("ldmatrix.x2" if self.c.tokens % 2 else "ldmatrix.x4")

    def subtrahends(self, stage: Any, row: Any) -> list[list[Any]]:
        """For each tile what is subtracted from the numbers of a lane's two rows, in pairs.

        Of fp16 the second row's are multiplied by a 16th first, and what is subtracted has the other sign.
        """
        c, above = self.c, ABOVE[self.type]
        if c.bits == 8:
            return [[None, None]] * c.tiles
        if self.sZ is None:
            first = self.pair("eight", above + 8)
            return [[first, self.pair("less72", 0xD480) if self.shifted else first]] * c.tiles
        made = []
        for tile in range(c.tiles):
            line = (self.wn * c.tiles + tile) * PACKED_ROWS + self.lane // 4
            zeros = [gr.cast(gr.load(self.sZ[stage][row, line + h]), gr.u32) & 127 for h in (0, 8)]
            # The bits of -(64 + zero), which has another exponent from 128 on: the lines cross there.
            second = gr.min(0xD400 + zeros[1] * 16, 0xD600 + zeros[1] * 8) if self.shifted else zeros[1] | above
            made.append([self.pair(f"zero{tile}_{h}", z) for h, z in enumerate((zeros[0] | above, second))])
        return made

    @property
    def shifted(self) -> bool:
        """Whether a number may stand four bits higher above 1024, where bf16 has no bits left."""
        return self.c.bits == 4 and self.type == "fp16"

    def pair(self, name: str, bits: Any) -> Any:
        """Two equal numbers of the activations' type, of which these are the bits."""
        return gr.bitcast(gr.let(name, bits * 0x10001, gr.u32), self.c.dtype)

    def load_words(self, stage: Any, tile: int, j: int, slot: int) -> Any:
        """Four words of the executing lane, which begin with those of slice j."""
        piece = j * self.c.bits // 16
        if self.sW is None:
            return self.coming[slot][tile][piece]
        return gr.load(self.piece(self.sW[stage], tile, piece))

    def unpack(self, tile: int, j: int, less: list[Any]) -> None:
        """Slice j of a tile's weights, in registers of the matrix instruction."""
        c = self.c
        pairs = self.a.values.tile([2])
        if c.bits == 8:
            for half in range(2):
                numbers = gr.bitcast(self.words[tile].tile([1])[j % 2 * 2 + half], gr.fp8e4m3)
                for pair in range(2):
                    pairs[4 * tile + 2 * half + pair][:] = gr.cast(numbers.tile([2])[pair], c.dtype)
            return
        word, above = self.words[tile][j % 4], ABOVE[self.type] * 0x10001
        for i in range(4):
            if self.shifted:  # 1024 + n, and 1024 + 16 n: one shift serves two
                shifted, mask = word >> (i // 2 * 8), 0x000F000F << (i % 2 * 4)
                bits = gr.let("bits", gr.lop3(shifted, mask, above, INSERTED), gr.i32)
            else:
                bits = gr.let("bits", word >> (4 * i) & 0x000F000F | above, gr.i32)
            number = gr.bitcast(bits, c.dtype)
            if self.shifted and i % 2:
                gr.ternary("fma", pairs[4 * tile + i], number, self.sixteenth, less[1])
            else:
                gr.binary("sub", pairs[4 * tile + i], number, less[i % 2])

    def meet(self) -> None:
        """Adds the warps' sums up, then those of the cluster's blocks, and stores the result."""
        c = self.c
        rows, tokens = PACKED_ROWS * c.tiles, TOKENS * c.tokens
        mine = self.sums[self.wk, :, :].tile([None, rows])[0, self.wn]
        gr.move(mine.T, self.total, on=self.warp, atom=gr.atom("st.shared.b32"))
        (t,) = self.threads.indices()
        quads = c.rows // 4
        of_block = -(-tokens * quads // c.cluster)
        gr.barrier() if self.cluster is None else gr.barrier(on=self.cluster)
        for i in range(-(-of_block // self.threads.size)):
            local = i * self.threads.size + t
            at = self.rank * of_block + local
            with gr.if_((local < of_block) & (at < tokens * quads)):
                token, quad = at // quads, at % quads
                self.store(token, quad)
        if self.cluster is not None:
            gr.barrier(on=self.cluster)  # no block ends while others read its sums

    def store(self, token: Any, quad: Any) -> None:
        """Stores four neighbours of a token."""
        c = self.c
        total = gr.let("sum", 0.0, gr.fp32, [4])
        for rank in range(c.cluster):
            sums = self.sums if self.cluster is None else self.sums.of(rank)
            for k in range(c.warps[1]):
                part = gr.load(sums[k, token, :].tile([4])[quad])
                total[:] = total + part
        row, column = self.bm * TOKENS * c.tokens + token, self.bn * (c.rows // 4) + quad
        with gr.if_(row < self.M):
            if self.bias is not None:
                extra = gr.load(self.bias.tile([4])[column])
                total[:] = total + extra
            self.Y[row, :].tile([4])[column] = total
