using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;
using half = u16;  // the bits of an IEEE binary16

// The 32-bit address of shared memory that instructions take.
static __device__ __forceinline__ u32 gr_shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// A tensor map, as the driver encodes it.
struct alignas(64) gr_map {
  u64 words[16];
};

extern "C" __global__ void __launch_bounds__(32)
tma_copy(const half* __restrict__ x, half* __restrict__ y, i64 M, i64 N, const __grid_constant__ gr_map map_x,
         const __grid_constant__ gr_map map_y) {
  __shared__ __align__(1024) u8 gr_smem[24600];
  half* const s = (half*)gr_smem;
  u64* const full = (u64*)(gr_smem + 24576);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;"
                 :
                 : "r"(gr_shared(&full[0]))
                 : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;"
                 :
                 : "r"(gr_shared(&full[1]))
                 : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;"
                 :
                 : "r"(gr_shared(&full[2]))
                 : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  const int b = blockIdx.x;
  const int tid = threadIdx.x;
  const i64 cond_x = (N + 56) / 64;

  // barrier()
  __syncthreads();
  if (tid == 0) {
    int put = 0;
    int get_phase = 0;
    int get = 0;
    if (0 < cond_x) {
      // arrive(%11, expect=(%12))
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 8192;"
                   :
                   : "r"(gr_shared(&full[put]))
                   : "memory");
      // %13 <- Move<<<[].block, [].thread>>>(%14) atom="tma.load" done=%15
      asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%3, "
                   "{%1, %2}], [%4];"
                   :
                   : "r"(gr_shared(&s[put * 4096])), "r"(0), "r"((int)((i64)b * 64)), "l"(&map_x),
                     "r"(gr_shared(&full[put]))
                   : "memory");
      put = put + 1 < 3 ? put + 1 : put - 2;
    }
    if (1 < cond_x) {
      // arrive(%16, expect=(%17))
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 8192;"
                   :
                   : "r"(gr_shared(&full[put]))
                   : "memory");
      // %18 <- Move<<<[].block, [].thread>>>(%19) atom="tma.load" done=%20
      asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%3, "
                   "{%1, %2}], [%4];"
                   :
                   : "r"(gr_shared(&s[put * 4096])), "r"(64), "r"((int)((i64)b * 64)), "l"(&map_x),
                     "r"(gr_shared(&full[put]))
                   : "memory");
      put = put + 1 < 3 ? put + 1 : put - 2;
    }
    #pragma unroll 1
    for (i64 n = 0; n < cond_x; ++n) {
      // wait_phase(%21, phase=get_phase)
      asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again;}"
                   :
                   : "r"(gr_shared(&full[get])), "r"(get_phase)
                   : "memory");
      // %22 <- Move<<<[].block, [].thread>>>(%23) atom="tma.store"
      asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%2, {%0, %1}], [%3];"
                   :
                   : "r"((int)(n * 64)), "r"((int)((i64)b * 64)), "l"(&map_y), "r"(gr_shared(&s[get * 4096]))
                   : "memory");
      // commit("tma.store")
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      get_phase = get_phase ^ (get + 1 >= 3);
      get = get + 1 < 3 ? get + 1 : get - 2;
      // wait("tma.store", pending=1)
      asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
      if (n + 2 < cond_x) {
        // arrive(%24, expect=(%25))
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 8192;"
                     :
                     : "r"(gr_shared(&full[put]))
                     : "memory");
        // %26 <- Move<<<[].block, [].thread>>>(%27) atom="tma.load" done=%28
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%3, "
                     "{%1, %2}], [%4];"
                     :
                     : "r"(gr_shared(&s[put * 4096])), "r"((int)(n * 64 + 128)), "r"((int)((i64)b * 64)), "l"(&map_x),
                       "r"(gr_shared(&full[put]))
                     : "memory");
        put = put + 1 < 3 ? put + 1 : put - 2;
      }
    }
    // wait("tma.store", pending=0)
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}
