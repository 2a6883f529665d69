using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using i64 = long long;
using half = u16;  // the bits of an IEEE binary16

// The 32-bit address of shared memory that instructions take.
static __device__ __forceinline__ u32 gr_shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }

extern "C" __global__ void __launch_bounds__(128)
tensor_core_tile(const half* __restrict__ A, const half* __restrict__ B, float* __restrict__ C, i64 M, i64 K,
                 i64 N) {
  __shared__ __align__(1024) u8 gr_smem[8192];
  half* const sA = (half*)gr_smem;
  half* const sB = (half*)(gr_smem + 4096);
  u32 ra0, ra1, ra2, ra3, ra4, ra5, ra6, ra7;
  u32 rb0, rb1, rb2, rb3, rb4, rb5, rb6, rb7;
  float acc0, acc1, acc2, acc3, acc4, acc5, acc6, acc7, acc8, acc9, acc10, acc11, acc12, acc13, acc14, acc15,
      acc16, acc17, acc18, acc19, acc20, acc21, acc22, acc23, acc24, acc25, acc26, acc27, acc28, acc29,
      acc30, acc31;
  u32 staged0, staged1, staged2, staged3, staged4, staged5, staged6, staged7;
  u32 staged_1_0, staged_1_1, staged_1_2, staged_1_3, staged_1_4, staged_1_5, staged_1_6, staged_1_7;
  const int wm = threadIdx.x / 32 % 2;
  const int wn = threadIdx.x / 64;
  const int t2 = threadIdx.x % 32;
  const int lane = threadIdx.x;
  const i64 A_at = K * (lane / 4) + lane % 4 * 8;
  const int sA_at = (lane ^ (lane / 8 % 4)) * 8;
  const int sA_x = t2 / 2 % 4;
  const int sA_at_2 = wm * 1024 + t2 % 16 * 32 + ((t2 / 16) ^ sA_x) * 8;
  const int sB_x = t2 / 8 % 2;
  const int sB_at = wn * 1024 + t2 / 16 * 256 + t2 % 8 * 32 + (sA_x ^ sB_x) * 8;
  const int sA_at_3 = wm * 1024 + t2 % 16 * 32 + (2 ^ (t2 / 16) ^ sA_x) * 8;
  const int sB_at_2 = wn * 1024 + t2 / 16 * 256 + t2 % 8 * 32 + (2 ^ sA_x ^ sB_x) * 8;
  const i64 C_at = wn * 32 + N * (t2 / 4) + N * wm * 32 + t2 % 4 * 2;

  #pragma unroll 1
  for (i64 m = 0; m < M / 64; ++m) {
    const i64 A_at_2 = A_at + K * m * 64;
    const i64 A_at_3 = A_at_2 + K * 32;
    const i64 C_at_2 = C_at + N * m * 64;
    const i64 C_at_3 = C_at_2 + N * 8;
    const i64 C_at_4 = C_at_3 + N * 8;
    const i64 C_at_5 = C_at_4 + N * 8;
    #pragma unroll 1
    for (i64 n = 0; n < N / 64; ++n) {
      const i64 B_at = A_at + K * n * 64;
      const i64 B_at_2 = B_at + K * 32;
      // %13 <- Init<<<#4, #7>>>(value=0.0)
      // %19 <- Init<<<#4, [].thread>>>(value=0.0)
      acc0 = 0.0f; acc1 = 0.0f; acc2 = 0.0f; acc3 = 0.0f; acc4 = 0.0f; acc5 = 0.0f; acc6 = 0.0f; acc7 = 0.0f;
      acc8 = 0.0f; acc9 = 0.0f; acc10 = 0.0f; acc11 = 0.0f; acc12 = 0.0f; acc13 = 0.0f; acc14 = 0.0f; acc15 = 0.0f;
      acc16 = 0.0f; acc17 = 0.0f; acc18 = 0.0f; acc19 = 0.0f; acc20 = 0.0f; acc21 = 0.0f; acc22 = 0.0f;
      acc23 = 0.0f; acc24 = 0.0f; acc25 = 0.0f; acc26 = 0.0f; acc27 = 0.0f; acc28 = 0.0f; acc29 = 0.0f;
      acc30 = 0.0f; acc31 = 0.0f;
      // %13 <- MatMul<<<#4, #7>>>(%15, %20)
      #pragma unroll 1
      for (i64 k = 0; k < K / 32; ++k) {
        // %9 <- Move<<<#4, #5>>>(%22) atom="ld.global.v4.b32,st.shared.v4.b32"
        // %28 <- Move<<<#4, [].thread>>>(%27) atom="ld.global.v4.b32"
        asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(staged0), "=r"(staged1), "=r"(staged2), "=r"(staged3)
                     : "l"(&A[A_at_2 + k * 32]));
        asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(staged4), "=r"(staged5), "=r"(staged6), "=r"(staged7)
                     : "l"(&A[A_at_3 + k * 32]));
        // %30 <- Move<<<#4, [].thread>>>(%29) atom="st.shared.v4.b32"
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                     :
                     : "r"(gr_shared(&sA[sA_at])), "r"(staged0), "r"(staged1), "r"(staged2), "r"(staged3)
                     : "memory");
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                     :
                     : "r"(gr_shared(&sA[sA_at + 1024])), "r"(staged4), "r"(staged5), "r"(staged6), "r"(staged7)
                     : "memory");
        // %10 <- Move<<<#4, #5>>>(%32) atom="ld.global.v4.b32,st.shared.v4.b32"
        // %38 <- Move<<<#4, [].thread>>>(%37) atom="ld.global.v4.b32"
        asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(staged_1_0), "=r"(staged_1_1), "=r"(staged_1_2), "=r"(staged_1_3)
                     : "l"(&B[B_at + k * 32]));
        asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(staged_1_4), "=r"(staged_1_5), "=r"(staged_1_6), "=r"(staged_1_7)
                     : "l"(&B[B_at_2 + k * 32]));
        // %40 <- Move<<<#4, [].thread>>>(%39) atom="st.shared.v4.b32"
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                     :
                     : "r"(gr_shared(&sB[sA_at])), "r"(staged_1_0), "r"(staged_1_1), "r"(staged_1_2), "r"(staged_1_3)
                     : "memory");
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                     :
                     : "r"(gr_shared(&sB[sA_at + 1024])), "r"(staged_1_4), "r"(staged_1_5), "r"(staged_1_6),
                       "r"(staged_1_7)
                     : "memory");
        // barrier()
        __syncthreads();
        // %13 <- MatMul<<<#4, #7>>>(%9, %41)
        // %11 <- Move<<<#4, #8>>>(%43) atom="ldmatrix.x4"
        // %47 <- Move<<<#4, #8>>>(%48) atom="ldmatrix.x4"
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(ra0), "=r"(ra1), "=r"(ra2), "=r"(ra3)
                     : "r"(gr_shared(&sA[sA_at_2]))
                     : "memory");
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(ra4), "=r"(ra5), "=r"(ra6), "=r"(ra7)
                     : "r"(gr_shared(&sA[sA_at_2 + 512]))
                     : "memory");
        // %12 <- Move<<<#4, #8>>>(%50) atom="ldmatrix.x4"
        // %54 <- Move<<<#4, #8>>>(%55) atom="ldmatrix.x4"
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(rb0), "=r"(rb1), "=r"(rb2), "=r"(rb3)
                     : "r"(gr_shared(&sB[sB_at]))
                     : "memory");
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(rb4), "=r"(rb5), "=r"(rb6), "=r"(rb7)
                     : "r"(gr_shared(&sB[sB_at + 512]))
                     : "memory");
        // %56 <- MatMul<<<#4, #8>>>(%11, %57) atom="mma.m16n8k16.f32.f16"
        // %60 <- MatMul<<<#4, #8>>>(%58, %59) atom="mma.m16n8k16.f32.f16"
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc0), "+f"(acc1), "+f"(acc2), "+f"(acc3)
                     : "r"(ra0), "r"(ra1), "r"(ra2), "r"(ra3), "r"(rb0), "r"(rb1));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc8), "+f"(acc9), "+f"(acc10), "+f"(acc11)
                     : "r"(ra0), "r"(ra1), "r"(ra2), "r"(ra3), "r"(rb2), "r"(rb3));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc16), "+f"(acc17), "+f"(acc18), "+f"(acc19)
                     : "r"(ra0), "r"(ra1), "r"(ra2), "r"(ra3), "r"(rb4), "r"(rb5));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc24), "+f"(acc25), "+f"(acc26), "+f"(acc27)
                     : "r"(ra0), "r"(ra1), "r"(ra2), "r"(ra3), "r"(rb6), "r"(rb7));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc4), "+f"(acc5), "+f"(acc6), "+f"(acc7)
                     : "r"(ra4), "r"(ra5), "r"(ra6), "r"(ra7), "r"(rb0), "r"(rb1));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc12), "+f"(acc13), "+f"(acc14), "+f"(acc15)
                     : "r"(ra4), "r"(ra5), "r"(ra6), "r"(ra7), "r"(rb2), "r"(rb3));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc20), "+f"(acc21), "+f"(acc22), "+f"(acc23)
                     : "r"(ra4), "r"(ra5), "r"(ra6), "r"(ra7), "r"(rb4), "r"(rb5));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc28), "+f"(acc29), "+f"(acc30), "+f"(acc31)
                     : "r"(ra4), "r"(ra5), "r"(ra6), "r"(ra7), "r"(rb6), "r"(rb7));
        // %11 <- Move<<<#4, #8>>>(%62) atom="ldmatrix.x4"
        // %66 <- Move<<<#4, #8>>>(%67) atom="ldmatrix.x4"
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(ra0), "=r"(ra1), "=r"(ra2), "=r"(ra3)
                     : "r"(gr_shared(&sA[sA_at_3]))
                     : "memory");
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(ra4), "=r"(ra5), "=r"(ra6), "=r"(ra7)
                     : "r"(gr_shared(&sA[sA_at_3 + 512]))
                     : "memory");
        // %12 <- Move<<<#4, #8>>>(%69) atom="ldmatrix.x4"
        // %73 <- Move<<<#4, #8>>>(%74) atom="ldmatrix.x4"
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(rb0), "=r"(rb1), "=r"(rb2), "=r"(rb3)
                     : "r"(gr_shared(&sB[sB_at_2]))
                     : "memory");
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(rb4), "=r"(rb5), "=r"(rb6), "=r"(rb7)
                     : "r"(gr_shared(&sB[sB_at_2 + 512]))
                     : "memory");
        // %75 <- MatMul<<<#4, #8>>>(%11, %76) atom="mma.m16n8k16.f32.f16"
        // %79 <- MatMul<<<#4, #8>>>(%77, %78) atom="mma.m16n8k16.f32.f16"
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc0), "+f"(acc1), "+f"(acc2), "+f"(acc3)
                     : "r"(ra0), "r"(ra1), "r"(ra2), "r"(ra3), "r"(rb0), "r"(rb1));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc8), "+f"(acc9), "+f"(acc10), "+f"(acc11)
                     : "r"(ra0), "r"(ra1), "r"(ra2), "r"(ra3), "r"(rb2), "r"(rb3));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc16), "+f"(acc17), "+f"(acc18), "+f"(acc19)
                     : "r"(ra0), "r"(ra1), "r"(ra2), "r"(ra3), "r"(rb4), "r"(rb5));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc24), "+f"(acc25), "+f"(acc26), "+f"(acc27)
                     : "r"(ra0), "r"(ra1), "r"(ra2), "r"(ra3), "r"(rb6), "r"(rb7));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc4), "+f"(acc5), "+f"(acc6), "+f"(acc7)
                     : "r"(ra4), "r"(ra5), "r"(ra6), "r"(ra7), "r"(rb0), "r"(rb1));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc12), "+f"(acc13), "+f"(acc14), "+f"(acc15)
                     : "r"(ra4), "r"(ra5), "r"(ra6), "r"(ra7), "r"(rb2), "r"(rb3));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc20), "+f"(acc21), "+f"(acc22), "+f"(acc23)
                     : "r"(ra4), "r"(ra5), "r"(ra6), "r"(ra7), "r"(rb4), "r"(rb5));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc28), "+f"(acc29), "+f"(acc30), "+f"(acc31)
                     : "r"(ra4), "r"(ra5), "r"(ra6), "r"(ra7), "r"(rb6), "r"(rb7));
        // barrier()
        __syncthreads();
      }
      // %81 <- Move<<<#4, #7>>>(%13) atom="st.global.v2.b32"
      // %86 <- Move<<<#4, [].thread>>>(%85) atom="st.global.v2.b32"
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_2 + n * 64]), "f"(acc0), "f"(acc1)
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_3 + n * 64]), "f"(acc2), "f"(acc3)
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_4 + n * 64]), "f"(acc4), "f"(acc5)
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_5 + n * 64]), "f"(acc6), "f"(acc7)
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_2 + n * 64 + 8]), "f"(acc8), "f"(acc9)
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_3 + n * 64 + 8]), "f"(acc10), "f"(acc11)
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_4 + n * 64 + 8]), "f"(acc12), "f"(acc13)
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_5 + n * 64 + 8]), "f"(acc14), "f"(acc15)
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_2 + n * 64 + 16]), "f"(acc16), "f"(acc17)
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_3 + n * 64 + 16]), "f"(acc18), "f"(acc19)
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_4 + n * 64 + 16]), "f"(acc20), "f"(acc21)
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_5 + n * 64 + 16]), "f"(acc22), "f"(acc23)
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_2 + n * 64 + 24]), "f"(acc24), "f"(acc25)
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_3 + n * 64 + 24]), "f"(acc26), "f"(acc27)
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_4 + n * 64 + 24]), "f"(acc28), "f"(acc29)
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_5 + n * 64 + 24]), "f"(acc30), "f"(acc31)
                   : "memory");
    }
  }
}
