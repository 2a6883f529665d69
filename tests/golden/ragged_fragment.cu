using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using half = u16;  // the bits of an IEEE binary16

// The 32-bit address of shared memory that instructions take.
static __device__ __forceinline__ u32 gr_shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }

extern "C" __global__ void __launch_bounds__(32)
ragged_fragment(const half* __restrict__ x, half* __restrict__ y) {
  __shared__ __align__(16) u8 gr_smem[656];
  half* const s = (half*)gr_smem;
  u64* const outside = (u64*)(gr_smem + 640);
  u32 r0, r1, r2, r3, r4, r5, r6, r7;
  u32 staged0, staged1, staged2, staged3, staged4, staged5, staged6, staged7;
  // The fill, for lanes outside of partial tiles.
  if (threadIdx.x == 0) {
    outside[0] = 0u; outside[1] = 0u;
  }
  __syncthreads();
  const int lane = threadIdx.x;
  const bool load_in = lane / 2 < 4;
  const int s_at = lane / 16 * 8 + lane % 16 * 16;
  const int y_at = lane / 4 * 16 + lane % 4 * 2;

  // %5 <- Move<<<#3, #4>>>(%1) atom="ld.global.v4.b32,st.shared.v4.b32"
  // %12 <- Move<<<#3, [].thread>>>(%11) atom="ld.global.v4.b32"
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(staged0), "=r"(staged1), "=r"(staged2), "=r"(staged3)
               : "l"(&x[lane * 8]));
  if (lane < 8) {
    // %12 <- Move<<<#3, [].thread>>>(%11) atom="ld.global.v4.b32"
    if (load_in) {
      asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(staged4), "=r"(staged5), "=r"(staged6), "=r"(staged7)
                   : "l"(&x[lane * 8 + 256]));
    } else {
      staged4 = 0;
      staged5 = 0;
      staged6 = 0;
      staged7 = 0;
    }
  }
  // %14 <- Move<<<#3, [].thread>>>(%13) atom="st.shared.v4.b32"
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "r"(gr_shared(&s[lane * 8])), "r"(staged0), "r"(staged1), "r"(staged2), "r"(staged3)
               : "memory");
  if (lane < 8) {
    // %14 <- Move<<<#3, [].thread>>>(%13) atom="st.shared.v4.b32"
    if (load_in) {
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                   :
                   : "r"(gr_shared(&s[lane * 8 + 256])), "r"(staged4), "r"(staged5), "r"(staged6), "r"(staged7)
                   : "memory");
    }
  }
  // barrier()
  __syncthreads();
  // %6 <- Move<<<#3, #4>>>(%16) atom="ldmatrix.x4"
  // %20 <- Move<<<#3, #4>>>(%21) atom="ldmatrix.x4"
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
               : "r"(gr_shared(&s[s_at]))
               : "memory");
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r4), "=r"(r5), "=r"(r6), "=r"(r7)
               : "r"(lane % 16 < 4 ? gr_shared(&s[s_at + 256]) : gr_shared(outside))
               : "memory");
  // %2 <- Move<<<#3, #4>>>(%6) atom="st.global.b32"
  // %26 <- Move<<<#3, [].thread>>>(%25) atom="st.global.b32"
  asm volatile("st.global.b32 [%0], %1;"
               :
               : "l"(&y[y_at]), "r"(r0)
               : "memory");
  asm volatile("st.global.b32 [%0], %1;"
               :
               : "l"(&y[y_at + 128]), "r"(r1)
               : "memory");
  asm volatile("st.global.b32 [%0], %1;"
               :
               : "l"(&y[y_at + 8]), "r"(r2)
               : "memory");
  asm volatile("st.global.b32 [%0], %1;"
               :
               : "l"(&y[y_at + 136]), "r"(r3)
               : "memory");
  asm volatile("st.global.b32 [%0], %1;"
               :
               : "l"(&y[y_at + 256]), "r"(r4)
               : "memory");
  asm volatile("st.global.b32 [%0], %1;"
               :
               : "l"(&y[y_at + 384]), "r"(r5)
               : "memory");
  asm volatile("st.global.b32 [%0], %1;"
               :
               : "l"(&y[y_at + 264]), "r"(r6)
               : "memory");
  asm volatile("st.global.b32 [%0], %1;"
               :
               : "l"(&y[y_at + 392]), "r"(r7)
               : "memory");
}
