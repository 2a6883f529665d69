using u32 = unsigned int;

// The 32-bit address of shared memory that instructions take.
static __device__ __forceinline__ u32 gr_shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }

extern "C" __global__ void __launch_bounds__(128)
warp_roles(const float* __restrict__ x, float* __restrict__ y) {
  __shared__ __align__(16) float part[4];
  float v;
  float o;
  const int w = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int tid = threadIdx.x;

  // %6 <- Move<<<#3, [].thread>>>(%9)
  asm volatile("ld.global.b32 %0, [%1];"
               : "=f"(v)
               : "l"(&x[lane + w * 32]));
  // %7 <- Shfl<<<#3, #10>>>(%6, arg=16, mode="bfly")
  asm volatile("shfl.sync.bfly.b32 %0, %1, 16, 31, 0xffffffff;"
               : "=f"(o)
               : "f"(v));
  // %6 <- BinaryPointwise<+><<<#3, [].thread>>>(%6, %7)
  v = __fadd_rn(v, o);
  // %7 <- Shfl<<<#3, #11>>>(%6, arg=8, mode="bfly")
  asm volatile("shfl.sync.bfly.b32 %0, %1, 8, 31, 0xffffffff;"
               : "=f"(o)
               : "f"(v));
  // %6 <- BinaryPointwise<+><<<#3, [].thread>>>(%6, %7)
  v = __fadd_rn(v, o);
  // %7 <- Shfl<<<#3, #12>>>(%6, arg=4, mode="bfly")
  asm volatile("shfl.sync.bfly.b32 %0, %1, 4, 31, 0xffffffff;"
               : "=f"(o)
               : "f"(v));
  // %6 <- BinaryPointwise<+><<<#3, [].thread>>>(%6, %7)
  v = __fadd_rn(v, o);
  // %7 <- Shfl<<<#3, #13>>>(%6, arg=2, mode="bfly")
  asm volatile("shfl.sync.bfly.b32 %0, %1, 2, 31, 0xffffffff;"
               : "=f"(o)
               : "f"(v));
  // %6 <- BinaryPointwise<+><<<#3, [].thread>>>(%6, %7)
  v = __fadd_rn(v, o);
  // %7 <- Shfl<<<#3, #14>>>(%6, arg=1, mode="bfly")
  asm volatile("shfl.sync.bfly.b32 %0, %1, 1, 31, 0xffffffff;"
               : "=f"(o)
               : "f"(v));
  // %6 <- BinaryPointwise<+><<<#3, [].thread>>>(%6, %7)
  v = __fadd_rn(v, o);
  if (lane == 0) {
    // %17 <- Move<<<#3, [].thread>>>(%6)
    asm volatile("st.shared.b32 [%0], %1;"
                 :
                 : "r"(gr_shared(&part[w])), "f"(v)
                 : "memory");
  }
  // barrier()
  __syncthreads();
  if (tid < 32) {
    // barrier(#19)
    asm volatile("bar.warp.sync 4294967295;" ::: "memory");
    if (lane < 4) {
      // %6 <- Move<<<#3, [].thread>>>(%20)
      asm volatile("ld.shared.b32 %0, [%1];"
                   : "=f"(v)
                   : "r"(gr_shared(&part[lane]))
                   : "memory");
      // %21 <- Move<<<#3, [].thread>>>(%6)
      asm volatile("st.global.b32 [%0], %1;"
                   :
                   : "l"(&y[lane]), "f"(v)
                   : "memory");
    }
  }
}
