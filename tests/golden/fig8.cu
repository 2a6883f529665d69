using u16 = unsigned short;
using half = u16;  // the bits of an IEEE binary16

static __device__ __forceinline__ half __hfma(half a, half b, half c) {
  half d;
  asm("fma.rn.f16 %0, %1, %2, %3;" : "=h"(d) : "h"(a), "h"(b), "h"(c));
  return d;
}

extern "C" __global__ void __launch_bounds__(256)
simple_gemm(const half* __restrict__ A, const half* __restrict__ B, half* __restrict__ C) {
  const int bid_m = blockIdx.x;
  const int bid_n = blockIdx.y;
  const int tid_m = threadIdx.x % 16;
  const int tid_n = threadIdx.x / 16;
  const int C_at = bid_m * 128 + bid_n * 131072 + tid_m * 8 + tid_n * 8192;
  const int A_at = bid_m * 128 + tid_m * 8;
  const int B_at = bid_n * 131072 + tid_n * 8192;

  // %3 <- Spec<<<#4, #5>>>(%1, %2)
  #pragma unroll 1
  for (int k = 0; k < 1024; ++k) {
    #pragma unroll 1
    for (int m = 0; m < 8; ++m) {
      #pragma unroll 1
      for (int n = 0; n < 8; ++n) {
        // %20 <- MatMul<<<#21, #22>>>(%10, %15)
        C[C_at + m + n * 1024] = __hfma(A[A_at + k * 1024 + m], B[B_at + k + n * 1024], C[C_at + m + n * 1024]);
      }
    }
  }
}
