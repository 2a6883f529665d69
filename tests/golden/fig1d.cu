using u16 = unsigned short;
using u32 = unsigned int;
using half = u16;  // the bits of an IEEE binary16

// The 32-bit address of shared memory that instructions take.
static __device__ __forceinline__ u32 gr_shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }

extern "C" __global__ void __launch_bounds__(32)
ldmatrix_tile(const half* __restrict__ src, half* __restrict__ out) {
  __shared__ __align__(16) half smem[256];
  u32 regs0, regs1, regs2, regs3;
  u32 stage0, stage1, stage2, stage3;
  const int lane = threadIdx.x;
  const int thr_grp_m = threadIdx.x / 16;
  const int thr_grp_n = threadIdx.x / 8 % 2;
  const int grp_local_idx = threadIdx.x % 8;

  // %7 <- Move<<<#3, [].thread>>>(%9)
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(stage0), "=r"(stage1), "=r"(stage2), "=r"(stage3)
               : "l"(&src[lane * 8]));
  // %11 <- Move<<<#3, [].thread>>>(%7)
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "r"(gr_shared(&smem[lane * 8])), "r"(stage0), "r"(stage1), "r"(stage2), "r"(stage3)
               : "memory");
  // barrier()
  __syncthreads();
  // %6 <- Move<<<#3, #4>>>(%5)
  // %18 <- Move<<<#3, #4>>>(%17)
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(regs0), "=r"(regs1), "=r"(regs2), "=r"(regs3)
               : "r"(gr_shared(&smem[grp_local_idx * 16 + thr_grp_m * 128 + thr_grp_n * 8]))
               : "memory");
  // %19 <- Move<<<#3, [].thread>>>(%20)
  asm volatile("st.global.v2.b32 [%0], {%1, %2};"
               :
               : "l"(&out[lane * 8]), "r"(regs0), "r"(regs1)
               : "memory");
  // %21 <- Move<<<#3, [].thread>>>(%22)
  asm volatile("st.global.v2.b32 [%0], {%1, %2};"
               :
               : "l"(&out[lane * 8 + 4]), "r"(regs2), "r"(regs3)
               : "memory");
}
