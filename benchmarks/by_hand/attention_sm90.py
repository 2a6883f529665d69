"""Attention forward for sm_90a: a TMA producer, consumers of 64 queries that take turns at the tensor cores.

fp16 (batch, seq, heads, D) tensors without gaps; seq is a multiple of the tile of queries and of the tile of keys. Each
block goes through (batch, head, tile of queries) in order, the longest causal rows first. A consumer issues the scores
of a tile of keys and the values of the tile before, hands its turn on, and computes its softmax beside the products of
the others. The order of waits is that of FlashAttention-3; the code is the project's own.
"""

from __future__ import annotations

from dataclasses import dataclass

REGISTERS = {2: (24, 240), 3: (32, 160)}  # producer's and consumers', by the number of consumers
HEAD = """
using u8 = unsigned char; using u32 = unsigned int; using u64 = unsigned long long;
struct alignas(64) gr_map { u64 w[16]; };
#define K_MAJOR 0x4000004000010000ull  // lines of 128 bytes, swizzled; 1024 bytes between groups of eight rows
static __device__ __forceinline__ float gr_ex2(float x) { asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x)); return x; }
static __device__ __forceinline__ int gr_min(int a, int b) { return a < b ? a : b; }
static __device__ __forceinline__ void gr_init(u32 bar, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(arrivals) : "memory");
}
static __device__ __forceinline__ void gr_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
}
static __device__ __forceinline__ void gr_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void gr_wait(u32 bar, u32 parity) {
  asm volatile("{.reg .pred p; gr_again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;"
               " @p bra gr_done; bra gr_again; gr_done: }" :: "r"(bar), "r"(parity) : "memory");
}
static __device__ __forceinline__ void gr_load(u32 to, const gr_map* map, int c, int h, int row, int b, u32 bar) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%2, %3, %4, %5}], [%6];"
               :: "r"(to), "l"(map), "r"(c), "r"(h), "r"(row), "r"(b), "r"(bar) : "memory");
}
static __device__ __forceinline__ void gr_store(const gr_map* map, int c, int h, int row, int b, u32 from) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];"
               :: "l"(map), "r"(c), "r"(h), "r"(row), "r"(b), "r"(from) : "memory");
}
"""


def numbered(first: int, n: int) -> str:
    return ", ".join(f"%{i}" for i in range(first, first + n))


def inout(registers: list[str]) -> str:
    return ", ".join(f'"+f"({r})' for r in registers)


@dataclass(frozen=True)
class Attention:
    """A configuration. `lazy`: sums shrink only where a maximum has grown by more than 2^lazy; 0: always."""

    D: int = 128
    BN: int = 128
    consumers: int = 2
    stages: int = 2
    causal: bool = False
    lazy: int = 0
    turns: bool = True

    @property
    def BM(self) -> int:  # noqa: N802
        return 64 * self.consumers

    @property
    def threads(self) -> int:
        return 128 * (self.consumers + 1)

    def places(self) -> dict[str, int]:
        """Bytes from the start of shared memory: two Q, O, the stages of K and V, barriers; `end` is the size."""
        rows, out, at = self.D * 2, {}, 0
        sizes = {"Q": 2 * self.BM * rows, "O": self.BM * rows, "K": self.stages * self.BN * rows}
        sizes |= {"V": sizes["K"], **{f"q_{s}": 16 for s in ("full", "empty")}}
        sizes |= {f"{x}_{s}": 8 * self.stages for x in "kv" for s in ("full", "empty")}
        for name, size in sizes.items():
            out[name], at = at, at + size
        return out | {"end": at}

    def source(self) -> str:
        return Writer(self).source()


class Writer:
    """The text of one configuration."""

    def __init__(self, c: Attention) -> None:
        self.c, self.at = c, c.places()
        self.S = [f"s{i}" for i in range(c.BN // 2)]  # scores: 64 x BN over 128 threads
        self.acc = [f"o{i}" for i in range(c.D // 2)]
        self.P = [f"p{i}" for i in range(c.BN // 4)]  # pairs of fp16, as the next product's left operand has them

    def bar(self, name: str, stage: str) -> str:
        return f"smem + {self.at[name]} + 8 * {stage}"

    def advance(self, ring: str, stages: int) -> str:
        return f"if (++{ring}s == {stages}) {{ {ring}s = 0; {ring}ph ^= 1; }}"

    def release(self, ring: str) -> str:
        stages = 2 if ring == "q" else self.c.stages
        return f"if (lane == 0) gr_arrive({self.bar(f'{ring}_empty', f'{ring}s')}); {self.advance(ring, stages)}"

    def wait_products(self, pending: int, registers: list[str]) -> str:
        return f'asm volatile("wgmma.wait_group.sync.aligned {pending};" : {inout(registers)} :: "memory");'

    def scores(self) -> str:
        c, n = self.c, len(self.S)
        out = f"{{ const u32 q = smem + {self.at['Q']} + qs * {c.BM * c.D * 2} + w * 8192;\n"
        out += f"  const u32 key = smem + {self.at['K']} + ks * {c.BN * c.D * 2};\n"
        for k in range(c.D // 16):
            panel, part = divmod(k, 4)  # a line of 128 bytes holds four steps along k
            a, b = (f"K_MAJOR | (({x} + {panel * rows * 128 + part * 32} & 0x3ffff) >> 4)"
                    for x, rows in (("q", c.BM), ("key", c.BN)))  # fmt: skip
            out += f'  asm volatile("wgmma.mma_async.sync.aligned.m64n{c.BN}k16.f32.f16.f16 {{{numbered(0, n)}}},'
            out += f' %{n}, %{n + 1}, {int(k > 0)}, 1, 1, 0, 0;" : {inout(self.S)} : "l"({a}), "l"({b}) : "memory");\n'
        return out + "}" + COMMIT

    def values(self) -> str:
        c, n = self.c, len(self.acc)
        v_major = (1 << 62) | (64 << 32) | ((c.BN * 128 >> 4) << 16)  # BN * 128 bytes between panels of 64 columns
        out = f"{{ const u32 v = smem + {self.at['V']} + vs * {c.BN * c.D * 2};\n"
        for k in range(c.BN // 16):
            a = ", ".join(f'"r"({r})' for r in self.P[4 * k : 4 * k + 4])
            more = "more" if k == 0 else "1"
            out += f'  asm volatile("{{.reg .pred p; setp.ne.b32 p, %{n + 5}, 0; wgmma.mma_async.sync.aligned'
            out += f".m64n{c.D}k16.f32.f16.f16 {{{numbered(0, n)}}}, {{{numbered(n, 4)}}}, %{n + 4}, p, 1, 1, 1;}}"
            out += f'" : {inout(self.acc)} : {a}, "l"({v_major}ull | ((v + {k * 2048} & 0x3ffff) >> 4)), "r"({more})'
            out += ' : "memory");\n'
        return out + "}" + COMMIT

    def masks(self) -> str:
        out = ""
        for i, s in enumerate(self.S):
            column, row = f"n * {self.c.BN} + {8 * (i // 4) + i % 2} + 2 * (lane % 4)", f"row + {8 * (i % 4 // 2)}"
            out += f"if ({column} > {row}) {s} = -gr_inf;\n"
        return out

    def softmax(self, masked: bool) -> str:
        """`row` and `row + 8` are a thread's rows; four threads share them."""
        out = self.masks() if masked and self.c.causal else ""
        out += "{ float a0 = s0, a1 = s2;\n"
        out += " ".join(f"a{i % 4 // 2} = fmaxf(a{i % 4 // 2}, {s});" for i, s in enumerate(self.S) if i not in (0, 2))
        for i in (0, 1):
            out += f"\nfor (int d = 1; d <= 2; d *= 2) a{i} = fmaxf(a{i}, __shfl_xor_sync(0xffffffffu, a{i}, d));"
        grow = " ".join(f"{{ const float n = fmaxf(a{i}, m{i}); al{i} = gr_ex2((m{i} - n) * scale); m{i} = n; }}"
                        for i in (0, 1))  # fmt: skip
        if self.c.lazy:
            over = " || ".join(f"a{i} > m{i} + {self.c.lazy}.f / scale" for i in (0, 1))
            grow = f"al0 = al1 = 1.f; grown = 0; if ({over}) {{ {grow} grown = 1; }}"
        out += f"\n{grow}\nconst float b0 = -m0 * scale, b1 = -m1 * scale;\n"
        out += "\n".join(f"{s} = gr_ex2(fmaf({s}, scale, b{i % 4 // 2}));" for i, s in enumerate(self.S))
        out += "\nfloat t0 = s0 + s1, t1 = s2 + s3;\n"
        out += " ".join(f"t{i % 4 // 2} += {s};" for i, s in enumerate(self.S) if i >= 4)
        return out + "\nl0 = l0 * al0 + t0; l1 = l1 * al1 + t1; }\n"

    def narrow(self) -> str:
        return "\n".join(
            f'asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"({p}) : "f"({self.S[2 * i]}), "f"({self.S[2 * i + 1]}));'
            for i, p in enumerate(self.P)
        )

    def rescale(self) -> str:
        out = " ".join(f"{o} *= al{i % 4 // 2};" for i, o in enumerate(self.acc))
        return f"if (__any_sync(0xffffffffu, grown)) {{ {out} }}" if self.c.lazy else out

    def turn(self, op: str, which: str) -> str:
        if not self.c.turns:
            return ""
        return f'asm volatile("barrier.{op}.aligned %0, 256;" :: "r"({which}) : "memory");'

    def step(self, masked: bool) -> str:
        return f"""{{ const int n = hi - 1 - i; (void)n;
gr_wait({self.bar("k_full", "ks")}, kph);
{self.turn("sync", "w + 2")}
{FENCE}
{self.scores()}
gr_wait({self.bar("v_full", "vs")}, vph);
{{ const int more = i > 1;
{self.values()} }}
{self.turn("arrive", f"(w + 1) % {self.c.consumers} + 2")}
{self.wait_products(1, self.S)}
{self.release("k")}
{self.softmax(masked)}
{self.wait_products(0, self.acc)}
{self.release("v")}
{self.narrow()}
{self.rescale()} }}"""

    def tile(self) -> str:
        c = self.c
        hi = f"(gr_min((m + 1) * {c.BM}, seq) - 1) / {c.BN} + 1" if c.causal else f"seq / {c.BN}"
        whole = f"m * {c.BM} / {c.BN}" if c.causal else "hi"
        return f"""const int m = tm - 1 - t % tm, h = t / tm % heads, b = t / (tm * heads);
const int hi = {hi}, whole = {whole}; (void)whole;"""

    def load(self, ring: str, rows: int, row: str) -> str:
        stages, size = (2 if ring == "q" else self.c.stages), rows * self.c.D * 2
        name = ring.upper()
        out = f"gr_wait({self.bar(f'{ring}_empty', f'{ring}s')}, {ring}ph);\n"
        out += f"gr_expect({self.bar(f'{ring}_full', f'{ring}s')}, {size});\n"
        for panel in range(self.c.D // 64):
            to = f"smem + {self.at[name]} + {ring}s * {size} + {panel * rows * 128}"
            out += f"gr_load({to}, &M{name}, {64 * panel}, h, {row}, b, {self.bar(f'{ring}_full', f'{ring}s')});\n"
        return out + self.advance(ring, stages)

    def results(self) -> str:
        c, out = self.c, ""
        for j in range(c.D // 16):
            for i in range(4):
                x, y = self.acc[8 * j + 2 * i : 8 * j + 2 * i + 2]
                out += f'u32 r{j}_{i}; asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(r{j}_{i})'
                out += f' : "f"({x} * i{i % 2}), "f"({y} * i{i % 2}));\n'
            chunk = f"({2 * (j % 4)} + lane % 32 / 16 ^ at % 8) * 16"
            out += 'asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" :: "r"(smem +'
            out += f" {self.at['O'] + j // 4 * c.BM * 128} + at * 128 + {chunk}), "
            out += ", ".join(f'"r"(r{j}_{i})' for i in range(4)) + ' : "memory");\n'
        return out

    def source(self) -> str:
        c = self.c
        dec, inc = REGISTERS[c.consumers]
        bars = [("q_full", 2, 1), ("q_empty", 2, c.consumers)]
        bars += [(f"{x}_{s}", c.stages, n) for x in "kv" for s, n in (("full", 1), ("empty", c.consumers))]
        init = "\n".join(f"gr_init({self.bar(n, str(i))}, {count});" for n, k, count in bars for i in range(k))
        masked_steps = f"for (; i < hi - whole; ++i) {self.step(True)}" if c.causal else ""
        first = f"if (w == {c.consumers - 1}) {self.turn('arrive', '2')}" if c.turns else ""
        stores = "\n".join(
            f"gr_store(&MO, {64 * p}, h, m * {c.BM} + w * 64, b, smem + {self.at['O'] + p * c.BM * 128} + w * 8192);"
            for p in range(c.D // 64)
        )
        together = 'asm volatile("barrier.sync.aligned %0, 128;" :: "r"(w + 6) : "memory");'
        maps = ", ".join(f"const __grid_constant__ gr_map M{x}" for x in "QKVO")
        return f"""{HEAD}
extern "C" __global__ void __launch_bounds__({c.threads}, 1)
k({maps}, int batch, int heads, int seq, float scale) {{
extern __shared__ __align__(1024) u8 gr_smem[];
const u32 smem = (u32)__cvta_generic_to_shared(gr_smem);
const float gr_inf = __int_as_float(0x7f800000);
const int tm = seq / {c.BM}, tiles = tm * heads * batch;
if (threadIdx.x == 0) {{
{init}
asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }}
__syncthreads();
const int wg = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
int qs = 0, ks = 0, vs = 0;
if (wg == 0) {{
asm volatile("setmaxnreg.dec.sync.aligned.u32 {dec};");
if (threadIdx.x == 0) {{
u32 qph = 1, kph = 1, vph = 1;
for (int t = blockIdx.x; t < tiles; t += gridDim.x) {{
{self.tile()}
{self.load("q", c.BM, f"m * {c.BM}")}
for (int i = 0; i < hi; ++i) {{
{self.load("k", c.BN, f"(hi - 1 - i) * {c.BN}")}
{self.load("v", c.BN, f"(hi - 1 - i) * {c.BN}")} }} }} }}
}} else {{
asm volatile("setmaxnreg.inc.sync.aligned.u32 {inc};");
const int w = wg - 1, lane = threadIdx.x % 128, at = w * 64 + lane / 32 * 16 + lane % 16;
u32 qph = 0, kph = 0, vph = 0, {", ".join(self.P)};
float {", ".join(self.S)};
float {", ".join(self.acc)};
float m0, m1, l0, l1, al0, al1; int grown = 0; (void)grown;
{first}
for (int t = blockIdx.x; t < tiles; t += gridDim.x) {{
{self.tile()}
const int row = m * {c.BM} + w * 64 + lane / 32 * 16 + lane % 32 / 4; (void)row;
m0 = m1 = -gr_inf; l0 = l1 = 0.f;
gr_wait({self.bar("q_full", "qs")}, qph);
gr_wait({self.bar("k_full", "ks")}, kph);
{FENCE}
{self.scores()}
{self.wait_products(0, self.S)}
{self.release("k")}
{{ const int n = hi - 1; (void)n;
{self.softmax(True)} }}
{self.narrow()}
int i = 1;
{masked_steps}
for (; i < hi; ++i) {self.step(False)}
{self.release("q")}
{FENCE}
gr_wait({self.bar("v_full", "vs")}, vph);
{{ const int more = hi > 1;
{self.values()} }}
for (int d = 1; d <= 2; d *= 2) {{
l0 += __shfl_xor_sync(0xffffffffu, l0, d); l1 += __shfl_xor_sync(0xffffffffu, l1, d); }}
const float i0 = 1.f / l0, i1 = 1.f / l1;
{self.wait_products(0, self.acc)}
{self.release("v")}
if (lane == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
{together}
{self.results()}
asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
{together}
if (lane == 0) {{
{stores}
asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }} }}
if (lane == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}} }}
"""


FENCE = 'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");'
COMMIT = '\nasm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");'
