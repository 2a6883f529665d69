using u16 = unsigned short;
using u32 = unsigned int;
using i64 = long long;
using half = u16;  // the bits of an IEEE binary16

// The 32-bit address of shared memory that instructions take.
static __device__ __forceinline__ u32 gr_shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }
template <class A, class B>
static __device__ __forceinline__ auto gr_min(A a, B b) -> decltype(a + b) { return a < b ? a : b; }

extern "C" __global__ void __launch_bounds__(128)
async_copy(const half* __restrict__ A, half* __restrict__ C, i64 M, int K, int pitch) {
  __shared__ __align__(16) half s[2048];
  half v;
  const int bm = blockIdx.x;
  const int t = threadIdx.x;
  const int k_x = (K + 63) / 64;
  const i64 A_at = pitch * (t / 8) + (i64)bm * pitch * 16 + t % 8 * 8;
  const int A_at_2 = K - t % 8 * 8;
  const bool A_in = (i64)bm * 16 + t / 8 < M;
  const int A_at_3 = t % 8 * 8;
  const i64 C_at = (i64)bm * k_x * 16 + t * k_x;
  const bool store_in = (i64)bm * 16 + t < M;

  #pragma unroll 1
  for (int k = 0; k < k_x; ++k) {
    // %7 <- Move<<<[].block, #4>>>(%9) atom="cp.async.cg.16"
    // %13 <- Move<<<[].block, [].thread>>>(%12) atom="cp.async.cg.16"
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(gr_shared(&s[t * 8 + k % 2 * 1024])), "l"(&A[A_at + k * 64]),
                   "r"(A_in && A_at_3 + k * 64 < K ? gr_min(8, A_at_2 - k * 64) * 2 : 0)
                 : "memory");
    // commit("cp.async.cg.16")
    asm volatile("cp.async.commit_group;" ::: "memory");
    // wait("cp.async.cg.16", pending=0)
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    // barrier()
    __syncthreads();
    if (t < 16) {
      // %6 <- Move<<<[].block, [].thread>>>(%15)
      asm volatile("ld.shared.b16 %0, [%1];"
                   : "=h"(v)
                   : "r"(gr_shared(&s[t * 64 + k % 2 * 1024]))
                   : "memory");
      // %18 <- Move<<<[].block, [].thread>>>(%6)
      if (store_in) {
        asm volatile("st.global.b16 [%0], %1;"
                     :
                     : "l"(&C[C_at + k]), "h"(v)
                     : "memory");
      }
    }
  }
}
