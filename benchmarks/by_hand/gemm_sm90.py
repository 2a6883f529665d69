"""Products for sm_90a: a TMA producer and wgmma consumers, C = A @ B.T in fp16, as a plan for a kernel in the IR.

A (M, K), B (N, K), C (M, N) are row-major. Tiles are loaded 64 columns of k at a time, in lines of 128 bytes that TMA
swizzles. What is tried: consumers that share a tile or take turns with a tile each (ping-pong), clusters of two that
load one operand for both blocks, k cut over the blocks of a cluster, a result that is stored transposed (weights are
then the rows of a tile, which suits a few rows of A), and a start before the kernel in front has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SHARED_BYTES = 232448
REGISTERS = {1: (40, 232), 2: (40, 232), 3: (32, 160)}  # producer's and consumers', by the number of consumers
HEAD = """
using u8 = unsigned char; using u16 = unsigned short; using u32 = unsigned int; using u64 = unsigned long long;
struct alignas(64) gr_map { u64 w[16]; };
#define K_MAJOR 0x4000004000010000ull  // lines of 128 bytes, swizzled; 1024 bytes between groups of eight rows
static __device__ __forceinline__ u32 gr_shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }
static __device__ __forceinline__ int gr_min(int a, int b) { return a < b ? a : b; }
static __device__ __forceinline__ void gr_init(u32 bar, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(arrivals) : "memory");
}
static __device__ __forceinline__ void gr_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
}
static __device__ __forceinline__ void gr_arrive_at(u32 bar, u32 block) {
  asm volatile("{.reg .b32 r; mapa.shared::cluster.u32 r, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [r];}"
               :: "r"(bar), "r"(block) : "memory");
}
static __device__ __forceinline__ void gr_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void gr_wait(u32 bar, u32 parity) {
  asm volatile("{.reg .pred p; gr_again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;"
               " @p bra gr_done; bra gr_again; gr_done: }" :: "r"(bar), "r"(parity) : "memory");
}
static __device__ __forceinline__ void gr_load(u32 to, const gr_map* map, int x, int y, u32 bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%2, %3}], [%4];" :: "r"(to), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
static __device__ __forceinline__ void gr_load_both(u32 to, const gr_map* map, int x, int y, u32 bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
               " [%0], [%1, {%2, %3}], [%4], %5;"
               :: "r"(to), "l"(map), "r"(x), "r"(y), "r"(bar), "h"((u16)3) : "memory");
}
static __device__ __forceinline__ void gr_store(const gr_map* map, int x, int y, u32 from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
               :: "l"(map), "r"(x), "r"(y), "r"(from) : "memory");
}
static __device__ __forceinline__ u32 gr_pair(float a, float b) {
  u32 r; asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(r) : "f"(a), "f"(b)); return r;
}
#define CLUSTER_SYNC(aligned) \\
  asm volatile("barrier.cluster.arrive.release" aligned ";" ::: "memory"); \\
  asm volatile("barrier.cluster.wait.acquire" aligned ";" ::: "memory")
"""


@dataclass(frozen=True)
class Gemm:
    """A configuration.

    `blocks_of_64`: rows of a consumer / 64. `turns`: each consumer has a tile of its own. `share`: "B", clusters of two
    lie along M and share B's tile; "A", along N; "", none. `cut`: how many blocks of a cluster cut k, one tile each.
    `transposed`: A and B change places and C is stored transposed. `early`: the kernel waits for those before it by
    itself. `buffers`: of 64 columns of C, for each consumer. `group`: rows of tiles side by side.
    """

    bn: int = 256
    stages: int = 4
    blocks_of_64: int = 1
    consumers: int = 2
    turns: bool = False
    share: str = ""
    cut: int = 1
    transposed: bool = False
    early: bool = False
    buffers: int = 1
    group: int = 8
    bk: int = 64

    @property
    def rows(self) -> int:
        return 64 * self.blocks_of_64

    @property
    def bm(self) -> int:
        return self.rows * (1 if self.turns else self.consumers)

    @property
    def cluster(self) -> int:
        return 2 if self.share else self.cut

    @property
    def threads(self) -> int:
        return 128 * (self.consumers + 1)

    @property
    def whole(self) -> bool:
        """C leaves as one box without swizzle: its width is no multiple of 64."""
        return self.bn % 64 != 0 and not self.transposed

    @property
    def stage_bytes(self) -> int:
        return (self.bm + self.bn) * self.bk * 2

    @property
    def c_bytes(self) -> int:
        """Of one consumer."""
        columns = self.bn if self.whole or self.transposed else 64 * self.buffers
        return columns * self.rows * 2

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.stage_bytes + 16) + self.consumers * self.c_bytes

    @property
    def boxes(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Of A, B, C: columns, rows."""
        c = (64, self.bn) if self.transposed else (self.bn if self.whole else 64, self.rows)
        return (64, self.bm // (1 + (self.share == "A"))), (64, self.bn // (1 + (self.share == "B"))), c

    def fits(self, m: int, n: int) -> bool:
        """Each block of a cluster that cuts k has one tile."""
        return self.cut == 1 or self.tiles(m, n) * self.cut <= 132

    def tiles(self, m: int, n: int) -> int:
        """Tiles of C, or pairs of them where clusters share an operand."""
        if self.transposed:
            m, n = n, m
        return -(-m // (self.bm * (1 + (self.share == "B")))) * -(-n // (self.bn * (1 + (self.share == "A"))))

    def __str__(self) -> str:
        said = [f"{self.bm}x{self.bn}x{self.bk}", f"{self.stages} stages"]
        said += [f"{self.consumers} consumers"] * (self.consumers != 2) + ["ping-pong"] * self.turns
        said += [f"clusters share {self.share}"] * bool(self.share) + [f"k over {self.cut}"] * (self.cut > 1)
        said += ["transposed"] * self.transposed + ["early start"] * self.early
        return ", ".join(said)

    def source(self) -> str:
        c, both = self, bool(self.share)
        producer, consumer = REGISTERS[c.consumers]
        arrivals = (1 if c.turns else c.consumers) * (2 if both else 1)
        sync = 'CLUSTER_SYNC("")' if c.cluster > 1 else "__syncthreads()"
        k = ("kt * (int)rank / {0}", "kt * ((int)rank + 1) / {0}") if c.cut > 1 else ("0", "kt")
        first_k, last_k = (x.format(c.cut) for x in k)
        shared_m, shared_n = c.bm * (1 + (c.share == "B")), c.bn * (1 + (c.share == "A"))
        m, n = (f"{1 + (c.share == s)} * {e}{' + (int)rank' if c.share == s else ''}" for s, e in (
            ("B", "(first + t % (G * tn) % rows)"), ("A", "(t % (G * tn) / rows)")))  # fmt: skip
        loop = "for (int t = c0; t < tm * tn; t += step)"
        place = f"const int first = t / (G * tn) * G, rows = gr_min(G, tm - first), m = {m}, n = {n};"
        skip = begin = hand_on = start = ""
        if c.turns:
            pass_over = f"const int x = st + kt; ph ^= x / {c.stages} & 1; st = x % {c.stages}; continue;"
            skip = f"if (it++ % {c.consumers} != w) {{ {pass_over} }}"
            begin = 'asm volatile("barrier.sync.aligned %0, 256;" :: "r"(4 + w) : "memory");'
            hand_on = f'asm volatile("barrier.arrive.aligned %0, 256;" :: "r"(4 + (w + 1) % {c.consumers}) : "memory");'
            start = f'if (w == {c.consumers - 1}) asm volatile("barrier.arrive.aligned 4, 256;" ::: "memory");'
        rank = 'asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));' if c.cluster > 1 else ""
        let_start, wait = (
            f'asm volatile("griddepcontrol.{x};" ::: "memory");' if c.early else ""
            for x in ("launch_dependents", "wait")
        )
        meet = '__syncwarp(); CLUSTER_SYNC("");' if c.cut > 1 else ""
        last = f"__syncwarp(); {sync};" if c.cluster > 1 else ""
        cluster = f"__cluster_dims__({c.cluster}, 1, 1) " if c.cluster > 1 else ""
        return f"""{HEAD}
#define G {c.group}
static __device__ __forceinline__ void gr_mma(float (&d)[{c.bn // 2}], u64 a, u64 b, int more) {{
{self._wgmma()}
}}
extern "C" __global__ void {cluster}__launch_bounds__(\
{c.threads}, 1)
k(const __grid_constant__ gr_map A, const __grid_constant__ gr_map B, const __grid_constant__ gr_map C, int M, int N, \
int K) {{
  extern __shared__ __align__(1024) u8 gr_smem[];
  const u32 aA = gr_shared(gr_smem), aB = aA + {c.stages * c.bm * c.bk * 2};
  const u32 full = aA + {c.stages * c.stage_bytes + c.consumers * c.c_bytes}, empty = full + {8 * c.stages};
  u32 rank = 0;
  {rank}
  const int tid = threadIdx.x, wg = __shfl_sync(0xffffffff, tid / 128, 0);
  {let_start}
  if (tid == 0) {{
    for (const gr_map* x : {{&A, &B, &C}}) asm volatile("prefetch.tensormap [%0];" :: "l"(x) : "memory");
    for (int i = 0; i < {c.stages}; ++i) {{ gr_init(full + 8 * i, 1); gr_init(empty + 8 * i, {arrivals}); }}
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }}
  __syncwarp();
  {sync};
  const int tm = (M + {shared_m - 1}) / {shared_m}, tn = (N + {shared_n - 1}) / {shared_n};
  const int kt = (K + {c.bk - 1}) / {c.bk};
  const int k0 = {first_k}, k1 = {last_k}, c0 = blockIdx.x / {c.cluster}, step = gridDim.x / {c.cluster};
  if (wg == 0) {{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 {producer};");
    if (tid == 0) {{
      {wait}
      int st = 0; u32 ph = 1;
      {loop} {{
        {place}
        for (int k = k0; k < k1; ++k) {{
          const u32 bar = full + 8 * st;
          gr_wait(empty + 8 * st, ph);
          gr_expect(bar, {c.stage_bytes});
{self._loads()}
          if (++st == {c.stages}) {{ st = 0; ph ^= 1; }}
        }}
      }}
    }}
    {meet}
  }} else {{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 {consumer};");
    const int w = wg - 1;
    const u32 aC = aA + {c.stages * c.stage_bytes} + w * {c.c_bytes};
    float acc[{c.blocks_of_64}][{c.bn // 2}];
    int st = 0, it = 0; u32 ph = 0;
    {start}
    {loop} {{
      {skip}
      {place}
      {begin}
      int old = -1;
      for (int k = k0; k < k1; ++k) {{
        gr_wait(full + 8 * st, ph);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
{self._products()}
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (old >= 0) {{ {self._release()} }}
        old = st;
        if (++st == {c.stages}) {{ st = 0; ph ^= 1; }}
      }}
      {hand_on}
      asm volatile("wgmma.wait_group.sync.aligned 0;" : {self._registers()} :: "memory");
      {self._release()}
{self._result()}
    }}
    if (tid % 128 == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }}
  {last}
}}
"""

    def _wgmma(self) -> str:
        r = self.bn // 2
        operands = ", ".join(f'"+f"(d[{i}])' for i in range(r))
        return (
            f'  asm volatile("{{.reg .pred p; setp.ne.b32 p, %{r + 2}, 0; wgmma.mma_async.sync.aligned.m64n{self.bn}k16'
            f'.f32.f16.f16 {{{", ".join(f"%{i}" for i in range(r))}}}, %{r}, %{r + 1}, p, 1, 1, 0, 0;}}"\n'
            f'               : {operands} : "l"(a), "l"(b), "r"(more) : "memory");'
        )

    def _loads(self) -> str:
        c, out = self, []
        for panel in range(c.bk // 64):
            for x, rows, tile in (("A", c.bm, "m"), ("B", c.bn, "n")):
                half = rows // 2 if c.share == x else 0
                to = f"a{x} + st * {rows * c.bk * 2} + {panel * rows * 128}" + (f" + {half * 128} * rank" * bool(half))
                at = f"{rows} * ({tile})" + f" + {half} * (int)rank" * bool(half)
                load = "gr_load_both" if half else "gr_load"
                out.append(f"          {load}({to}, &{x}, {c.bk} * k + {64 * panel}, {at}, bar);")
        return "\n".join(out)

    def _products(self) -> str:
        c, out = self, []
        for j in range(c.bk // 16):
            for i in range(c.blocks_of_64):
                a, b = (
                    f"a{x} + st * {rows * c.bk * 2} + {j // 4 * rows * 128 + j % 4 * 32 + more}"
                    for x, rows, more in (("A", c.bm, i * 8192), ("B", c.bn, 0))
                )
                a += "" if c.turns else f" + w * {c.rows * 128}"
                descriptors = (f"K_MAJOR | ((({x}) & 0x3ffff) >> 4)" for x in (a, b))
                out.append(f"        gr_mma(acc[{i}], {', '.join(descriptors)}, {'1' if j else 'k > k0'});")
        return "\n".join(out)

    def _release(self) -> str:
        if self.share:
            return "if (tid % 128 < 2) gr_arrive_at(empty + 8 * old, tid % 128);"
        return "if (tid % 128 == 0) gr_arrive(empty + 8 * old);"

    def _registers(self) -> str:
        return ", ".join(f'"+f"(acc[{i}][{r}])' for i in range(self.blocks_of_64) for r in range(self.bn // 2))

    def _result(self) -> str:
        c, barrier = self, '      asm volatile("barrier.sync.aligned %0, 128;" :: "r"(wg) : "memory");'
        one = "      if (tid % 128 == 0) "
        out: list[str] = []
        if c.cut > 1:  # the first block adds up what the others leave in their shared memory
            words = [(i, r) for i in range(c.blocks_of_64) for r in range(c.bn // 2)]
            out.append(f"      const u32 mine = aA + (w * {len(words) * 128} + tid % 128) * 4;")
            out.append("      if (rank != 0) {")
            out += [f'        asm volatile("st.shared.f32 [%0], %1;" :: "r"(mine + {512 * x}), "f"(acc[{i}][{r}]));'
                    for x, (i, r) in enumerate(words)]  # fmt: skip
            out.append('      }\n      CLUSTER_SYNC(".aligned");\n      if (rank == 0) {')
            out.append(f"      for (u32 o = 1; o < {c.cut}; ++o) {{ u32 at; float x;")
            out.append('        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(mine), "r"(o));')
            out += [f'        asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(at + {512 * x})); '
                    f"acc[{i}][{r}] += x;" for x, (i, r) in enumerate(words)]  # fmt: skip
            out.append("      }")
        width = c.bn if c.whole or c.transposed else 64
        for piece in range(c.bn // width):
            place = piece % c.buffers * c.rows * 128
            pending = 0 if width == c.bn else c.buffers - 1
            out += [f'{one}asm volatile("cp.async.bulk.wait_group.read {pending};" ::: "memory");', barrier]
            for i in range(c.blocks_of_64):
                out += [self._stmatrix(i, piece * width + 16 * q, q, place) for q in range(width // 16)]
            out += ['      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");', barrier, one + "{"]
            w = "" if c.turns else f" + {c.rows} * w"
            if c.transposed:
                out += [f"        gr_store(&C, {c.bm} * (m) + {64 * i}{w}, {c.bn} * (n), aC + {i * c.bn * 128});"
                        for i in range(c.blocks_of_64)]  # fmt: skip
            else:
                out.append(f"        gr_store(&C, {c.bn} * (n) + {width * piece}, {c.bm} * (m){w}, aC + {place});")
            out.append('        asm volatile("cp.async.bulk.commit_group;" ::: "memory");\n      }')
        return "\n".join(out + ["      }"] * (c.cut > 1))

    def _stmatrix(self, i: int, column: int, q: int, place: int) -> str:
        """16 columns of a consumer's 64 rows, as they lie in the registers of wgmma's result."""
        c, r = self, column // 2
        values = ", ".join(f'"r"(gr_pair(acc[{i}][{r + 2 * x}], acc[{i}][{r + 2 * x + 1}]))' for x in range(4))
        if c.transposed:
            row, chunk, pitch = f"{16 * q} + tid % 32 / 16 * 8 + tid % 8", "tid % 128 / 32 * 2 + tid % 16 / 8", 128
            place += i * c.bn * 128
        else:
            row, chunk = f"{64 * i} + tid % 128 / 32 * 16 + tid % 16", f"{2 * q} + tid % 32 / 16"
            pitch = c.bn * 2 if c.whole else 128
        chunk = chunk if c.whole else f"({chunk}) ^ tid % 8"
        return (
            f'      asm volatile("stmatrix.sync.aligned.m8n8.x4{".trans" * c.transposed}.shared.b16 [%0], '
            f'{{%1, %2, %3, %4}};"\n'
            f'                   :: "r"(aC + {place} + ({row}) * {pitch} + ({chunk}) * 16), {values} : "memory");'
        )


_TURNS = Gemm(bn=128, stages=6, blocks_of_64=2, turns=True)
_WIDE = Gemm(bn=192, stages=4, blocks_of_64=2, turns=True)
_PAIRS = replace(_WIDE, share="B")
_LARGE = Gemm(bn=256, stages=4, buffers=2)
_FEW = Gemm(consumers=1, transposed=True, early=True, group=1)
# What is tried for products of one kind; the best of them is what a kernel in the IR has to reach.
LARGE = (_TURNS, replace(_TURNS, early=True), replace(_TURNS, share="B", group=16), _WIDE, _PAIRS, _LARGE,
         replace(_LARGE, share="B"), Gemm(bn=128, stages=4, blocks_of_64=2, share="B"))  # fmt: skip
ONE_ROUND = tuple(replace(c, early=True) for c in (
    _TURNS, _LARGE, Gemm(bn=128, stages=6, buffers=2), Gemm(bn=144, stages=5), Gemm(bn=64, stages=8),
    Gemm(bn=128, stages=7, turns=True), Gemm(bn=64, stages=10, turns=True)))  # fmt: skip
FEW_ROWS = (
    *(replace(_FEW, bn=n, stages=16, cut=cut) for n in (16, 32) for cut in (1, 2)),
    *(replace(_FEW, bn=n, stages=8, bk=128, cut=2) for n in (16, 32)),
    *(replace(_FEW, bn=64, stages=10, cut=cut) for cut in (1, 2)),
    replace(_FEW, bn=64, stages=6, bk=128), replace(_FEW, bn=32, stages=8, bk=128),
    *(replace(_FEW, bn=128, stages=8, cut=cut) for cut in (1, 2)),
)  # fmt: skip


def tried(m: int, n: int, k: int) -> tuple[Gemm, ...]:
    """The configurations for a shape."""
    if m <= 128:
        return tuple(c for c in (*FEW_ROWS, *ONE_ROUND) if c.fits(m, n))
    return ONE_ROUND if m <= 512 or m * n * k <= 1536**3 else (*LARGE, *ONE_ROUND[:4])
