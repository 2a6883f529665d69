"""Two things that the PTX documents leave open and kernels for sm_90a rely on, as kernels that count what goes wrong.

`one_arrival`: one thread arrives at a barrier for its warpgroup behind its own wait for a product, while the other
warps are late by `delay` ns at one of four `place`s: before the fence, before the product, the commit, the wait.
Another warpgroup then overwrites A and B. If products of a warpgroup complete together, every result is right.

`PLAIN_ARRIVAL`: threads of both blocks of a cluster read a buffer by ordinary loads and arrive at the first one's
barrier without `.release.cluster`; behind its wait a multicast overwrites the buffer in both.
"""

from __future__ import annotations

HEAD = """
using u8 = unsigned char; using u16 = unsigned short; using u32 = unsigned int; using u64 = unsigned long long;
struct alignas(64) gr_map { u64 w[16]; };
static __device__ __forceinline__ void gr_init(u32 bar, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(arrivals) : "memory");
}
static __device__ __forceinline__ void gr_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
}
static __device__ __forceinline__ void gr_wait(u32 bar, u32 parity) {
  asm volatile("{.reg .pred p; gr_again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;"
               " @p bra gr_done; bra gr_again; gr_done: }" :: "r"(bar), "r"(parity) : "memory");
}
"""


def one_arrival() -> str:
    """k(bad, rounds, delay, lead, place) with 256 threads."""
    kept = ", ".join(f'"+f"(d[{i}])' for i in range(128))
    product = 'asm volatile("{.reg .pred p; setp.ne.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16'
    product += f' {{{", ".join(f"%{i}" for i in range(128))}}}, %128, %129, p, 1, 1, 0, 0;}}" : {kept}'
    product += ' : "l"(K_MAJOR | (pa & 0x3ffff) >> 4), "l"(K_MAJOR | (pb & 0x3ffff) >> 4) : "memory");'
    late = 'asm volatile("nanosleep.u32 %0;" :: "r"(place == {} && t / 32 != lead ? delay : 0));'.format
    return f"""{HEAD}
#define K_MAJOR ((u64)16 << 32 | (u64)8 << 16)
extern "C" __global__ void __launch_bounds__(256, 1) k(int* bad, int rounds, int delay, int lead, int place) {{
__shared__ __align__(1024) u16 sa[64 * 16], sb[256 * 16]; __shared__ __align__(8) u64 bars[2];
const int t = threadIdx.x; const u32 full = (u32)__cvta_generic_to_shared(bars), empty = full + 8;
const u32 pa = (u32)__cvta_generic_to_shared(sa), pb = (u32)__cvta_generic_to_shared(sb);
if (t == 0) {{ gr_init(full, 128); gr_init(empty, 1); }}
__syncthreads();
if (t >= 128) {{
for (int n = 0; n < rounds; ++n) {{
gr_wait(empty, (n + 1) & 1);
const u16 value = n % 2 ? 0x4000 : 0x3c00;  // 2 or 1 everywhere
for (int i = t - 128; i < 64 * 16; i += 128) ((volatile u16*)sa)[i] = value;
for (int i = t - 128; i < 256 * 16; i += 128) ((volatile u16*)sb)[i] = value;
asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
gr_arrive(full); }}
}} else {{
int wrong = 0;
for (int n = 0; n < rounds; ++n) {{
gr_wait(full, n & 1);
float d[128];
#pragma unroll
for (int i = 0; i < 128; ++i) d[i] = 0.f;
{late(0)}
asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
{late(1)}
{product}
{late(2)}
asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
{late(3)}
asm volatile("wgmma.wait_group.sync.aligned 0;" : {kept} :: "memory");
if (t == 32 * lead) gr_arrive(empty);
#pragma unroll
for (int i = 0; i < 128; ++i) wrong += d[i] != (n % 2 ? 64.f : 16.f); }}
if (wrong) atomicAdd(bad, wrong); }} }}
"""


PLAIN_ARRIVAL = (
    HEAD
    + """
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(256, 1)
k(const __grid_constant__ gr_map X, int* bad, int rounds) {
  extern __shared__ __align__(1024) u8 gr_smem[]; __shared__ __align__(8) u64 bars[2];
  const int t = threadIdx.x; const u32 full = (u32)__cvta_generic_to_shared(bars), empty = full + 8;
  const u32 buffer = (u32)__cvta_generic_to_shared(gr_smem);
  u32 rank; asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
  if (t == 0) {
    gr_init(full, 1); gr_init(empty, 256);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (t == 128) {
    for (int n = 0; n < rounds; ++n) {
      if (rank == 0) gr_wait(empty, (n + 1) & 1);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 16384;" :: "r"(full) : "memory");
      if (rank == 0)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                     ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                     :: "r"(buffer), "l"(&X), "r"(0), "r"(n % 64 * 128), "r"(full), "h"((u16)3) : "memory");
      else
        gr_wait(full, n & 1);
    }
  } else if (t < 128) {
    int wrong = 0;
    for (int n = 0; n < rounds; ++n) {
      gr_wait(full, n & 1);
      u32 v[8];
      #pragma unroll
      for (int i = 0; i < 8; ++i) {
        const u32 from = buffer + t * 128 + (i * 16 ^ t % 8 * 16);
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v[i]) : "r"(from) : "memory");
      }
      asm volatile("{.reg .b32 r; mapa.shared::cluster.u32 r, %0, 0; mbarrier.arrive.shared::cluster.b64 _, [r];}"
                   :: "r"(empty) : "memory");
      #pragma unroll
      for (int i = 0; i < 8; ++i) wrong += v[i] != (u32)(n % 64);
    }
    if (wrong) atomicAdd(bad, wrong);
  }
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
"""
)
