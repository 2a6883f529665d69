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
  u32 ra[8];
  u32 rb[8];
  float acc[32];
  u32 staged[8];
  u32 staged_1[8];
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
      acc[0] = 0.0f; acc[1] = 0.0f; acc[2] = 0.0f; acc[3] = 0.0f; acc[4] = 0.0f; acc[5] = 0.0f; acc[6] = 0.0f;
      acc[7] = 0.0f; acc[8] = 0.0f; acc[9] = 0.0f; acc[10] = 0.0f; acc[11] = 0.0f; acc[12] = 0.0f; acc[13] = 0.0f;
      acc[14] = 0.0f; acc[15] = 0.0f; acc[16] = 0.0f; acc[17] = 0.0f; acc[18] = 0.0f; acc[19] = 0.0f;
      acc[20] = 0.0f; acc[21] = 0.0f; acc[22] = 0.0f; acc[23] = 0.0f; acc[24] = 0.0f; acc[25] = 0.0f;
      acc[26] = 0.0f; acc[27] = 0.0f; acc[28] = 0.0f; acc[29] = 0.0f; acc[30] = 0.0f; acc[31] = 0.0f;
      // %13 <- MatMul<<<#4, #7>>>(%15, %20)
      #pragma unroll 1
      for (i64 k = 0; k < K / 32; ++k) {
        // %9 <- Move<<<#4, #5>>>(%22) atom="ld.global.v4.b32,st.shared.v4.b32"
        // %28 <- Move<<<#4, [].thread>>>(%27) atom="ld.global.v4.b32"
        asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(staged[0]), "=r"(staged[1]), "=r"(staged[2]), "=r"(staged[3])
                     : "l"(&A[A_at_2 + k * 32]));
        asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(staged[4]), "=r"(staged[5]), "=r"(staged[6]), "=r"(staged[7])
                     : "l"(&A[A_at_3 + k * 32]));
        // %30 <- Move<<<#4, [].thread>>>(%29) atom="st.shared.v4.b32"
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                     :
                     : "r"(gr_shared(&sA[sA_at])), "r"(staged[0]), "r"(staged[1]), "r"(staged[2]), "r"(staged[3])
                     : "memory");
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                     :
                     : "r"(gr_shared(&sA[sA_at + 1024])), "r"(staged[4]), "r"(staged[5]), "r"(staged[6]),
                       "r"(staged[7])
                     : "memory");
        // %10 <- Move<<<#4, #5>>>(%32) atom="ld.global.v4.b32,st.shared.v4.b32"
        // %38 <- Move<<<#4, [].thread>>>(%37) atom="ld.global.v4.b32"
        asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(staged_1[0]), "=r"(staged_1[1]), "=r"(staged_1[2]), "=r"(staged_1[3])
                     : "l"(&B[B_at + k * 32]));
        asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(staged_1[4]), "=r"(staged_1[5]), "=r"(staged_1[6]), "=r"(staged_1[7])
                     : "l"(&B[B_at_2 + k * 32]));
        // %40 <- Move<<<#4, [].thread>>>(%39) atom="st.shared.v4.b32"
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                     :
                     : "r"(gr_shared(&sB[sA_at])), "r"(staged_1[0]), "r"(staged_1[1]), "r"(staged_1[2]),
                       "r"(staged_1[3])
                     : "memory");
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                     :
                     : "r"(gr_shared(&sB[sA_at + 1024])), "r"(staged_1[4]), "r"(staged_1[5]), "r"(staged_1[6]),
                       "r"(staged_1[7])
                     : "memory");
        // barrier()
        __syncthreads();
        // %13 <- MatMul<<<#4, #7>>>(%9, %41)
        // %11 <- Move<<<#4, #8>>>(%43) atom="ldmatrix.x4"
        // %47 <- Move<<<#4, #8>>>(%48) atom="ldmatrix.x4"
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3])
                     : "r"(gr_shared(&sA[sA_at_2]))
                     : "memory");
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(ra[4]), "=r"(ra[5]), "=r"(ra[6]), "=r"(ra[7])
                     : "r"(gr_shared(&sA[sA_at_2 + 512]))
                     : "memory");
        // %12 <- Move<<<#4, #8>>>(%50) atom="ldmatrix.x4"
        // %54 <- Move<<<#4, #8>>>(%55) atom="ldmatrix.x4"
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(rb[0]), "=r"(rb[1]), "=r"(rb[2]), "=r"(rb[3])
                     : "r"(gr_shared(&sB[sB_at]))
                     : "memory");
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(rb[4]), "=r"(rb[5]), "=r"(rb[6]), "=r"(rb[7])
                     : "r"(gr_shared(&sB[sB_at + 512]))
                     : "memory");
        // %56 <- MatMul<<<#4, #8>>>(%11, %57) atom="mma.m16n8k16.f32.f16"
        // %60 <- MatMul<<<#4, #8>>>(%58, %59) atom="mma.m16n8k16.f32.f16"
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                     : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc[8]), "+f"(acc[9]), "+f"(acc[10]), "+f"(acc[11])
                     : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[2]), "r"(rb[3]));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc[16]), "+f"(acc[17]), "+f"(acc[18]), "+f"(acc[19])
                     : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[4]), "r"(rb[5]));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc[24]), "+f"(acc[25]), "+f"(acc[26]), "+f"(acc[27])
                     : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[6]), "r"(rb[7]));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc[4]), "+f"(acc[5]), "+f"(acc[6]), "+f"(acc[7])
                     : "r"(ra[4]), "r"(ra[5]), "r"(ra[6]), "r"(ra[7]), "r"(rb[0]), "r"(rb[1]));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc[12]), "+f"(acc[13]), "+f"(acc[14]), "+f"(acc[15])
                     : "r"(ra[4]), "r"(ra[5]), "r"(ra[6]), "r"(ra[7]), "r"(rb[2]), "r"(rb[3]));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc[20]), "+f"(acc[21]), "+f"(acc[22]), "+f"(acc[23])
                     : "r"(ra[4]), "r"(ra[5]), "r"(ra[6]), "r"(ra[7]), "r"(rb[4]), "r"(rb[5]));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc[28]), "+f"(acc[29]), "+f"(acc[30]), "+f"(acc[31])
                     : "r"(ra[4]), "r"(ra[5]), "r"(ra[6]), "r"(ra[7]), "r"(rb[6]), "r"(rb[7]));
        // %11 <- Move<<<#4, #8>>>(%62) atom="ldmatrix.x4"
        // %66 <- Move<<<#4, #8>>>(%67) atom="ldmatrix.x4"
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3])
                     : "r"(gr_shared(&sA[sA_at_3]))
                     : "memory");
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(ra[4]), "=r"(ra[5]), "=r"(ra[6]), "=r"(ra[7])
                     : "r"(gr_shared(&sA[sA_at_3 + 512]))
                     : "memory");
        // %12 <- Move<<<#4, #8>>>(%69) atom="ldmatrix.x4"
        // %73 <- Move<<<#4, #8>>>(%74) atom="ldmatrix.x4"
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(rb[0]), "=r"(rb[1]), "=r"(rb[2]), "=r"(rb[3])
                     : "r"(gr_shared(&sB[sB_at_2]))
                     : "memory");
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(rb[4]), "=r"(rb[5]), "=r"(rb[6]), "=r"(rb[7])
                     : "r"(gr_shared(&sB[sB_at_2 + 512]))
                     : "memory");
        // %75 <- MatMul<<<#4, #8>>>(%11, %76) atom="mma.m16n8k16.f32.f16"
        // %79 <- MatMul<<<#4, #8>>>(%77, %78) atom="mma.m16n8k16.f32.f16"
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                     : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc[8]), "+f"(acc[9]), "+f"(acc[10]), "+f"(acc[11])
                     : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[2]), "r"(rb[3]));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc[16]), "+f"(acc[17]), "+f"(acc[18]), "+f"(acc[19])
                     : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[4]), "r"(rb[5]));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc[24]), "+f"(acc[25]), "+f"(acc[26]), "+f"(acc[27])
                     : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[6]), "r"(rb[7]));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc[4]), "+f"(acc[5]), "+f"(acc[6]), "+f"(acc[7])
                     : "r"(ra[4]), "r"(ra[5]), "r"(ra[6]), "r"(ra[7]), "r"(rb[0]), "r"(rb[1]));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc[12]), "+f"(acc[13]), "+f"(acc[14]), "+f"(acc[15])
                     : "r"(ra[4]), "r"(ra[5]), "r"(ra[6]), "r"(ra[7]), "r"(rb[2]), "r"(rb[3]));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc[20]), "+f"(acc[21]), "+f"(acc[22]), "+f"(acc[23])
                     : "r"(ra[4]), "r"(ra[5]), "r"(ra[6]), "r"(ra[7]), "r"(rb[4]), "r"(rb[5]));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(acc[28]), "+f"(acc[29]), "+f"(acc[30]), "+f"(acc[31])
                     : "r"(ra[4]), "r"(ra[5]), "r"(ra[6]), "r"(ra[7]), "r"(rb[6]), "r"(rb[7]));
        // barrier()
        __syncthreads();
      }
      // %81 <- Move<<<#4, #7>>>(%13) atom="st.global.v2.b32"
      // %86 <- Move<<<#4, [].thread>>>(%85) atom="st.global.v2.b32"
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_2 + n * 64]), "f"(acc[0]), "f"(acc[1])
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_3 + n * 64]), "f"(acc[2]), "f"(acc[3])
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_4 + n * 64]), "f"(acc[4]), "f"(acc[5])
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_5 + n * 64]), "f"(acc[6]), "f"(acc[7])
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_2 + n * 64 + 8]), "f"(acc[8]), "f"(acc[9])
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_3 + n * 64 + 8]), "f"(acc[10]), "f"(acc[11])
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_4 + n * 64 + 8]), "f"(acc[12]), "f"(acc[13])
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_5 + n * 64 + 8]), "f"(acc[14]), "f"(acc[15])
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_2 + n * 64 + 16]), "f"(acc[16]), "f"(acc[17])
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_3 + n * 64 + 16]), "f"(acc[18]), "f"(acc[19])
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_4 + n * 64 + 16]), "f"(acc[20]), "f"(acc[21])
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_5 + n * 64 + 16]), "f"(acc[22]), "f"(acc[23])
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_2 + n * 64 + 24]), "f"(acc[24]), "f"(acc[25])
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_3 + n * 64 + 24]), "f"(acc[26]), "f"(acc[27])
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_4 + n * 64 + 24]), "f"(acc[28]), "f"(acc[29])
                   : "memory");
      asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                   :
                   : "l"(&C[C_at_5 + n * 64 + 24]), "f"(acc[30]), "f"(acc[31])
                   : "memory");
    }
  }
}
