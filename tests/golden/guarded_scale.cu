using i64 = long long;

extern "C" __global__ void __launch_bounds__(256)
guarded_scale(const float* __restrict__ x, float* __restrict__ y, i64 N) {
  float r;
  const int b = blockIdx.x;
  const int t = threadIdx.x;
  const i64 x_at = (i64)b * 256 + t;
  const bool load_in = x_at < N;

  // %5 <- Move<<<[].block, [].thread>>>(%8)
  if (load_in) {
    asm volatile("ld.global.b32 %0, [%1];"
                 : "=f"(r)
                 : "l"(&x[x_at]));
  } else {
    r = 0.0f;
  }
  // %5 <- BinaryPointwise<*><<<[].block, [].thread>>>(%5, 2.0)
  r = __fmul_rn(r, 2.0f);
  // %11 <- Move<<<[].block, [].thread>>>(%5)
  if (load_in) {
    asm volatile("st.global.b32 [%0], %1;"
                 :
                 : "l"(&y[x_at]), "f"(r)
                 : "memory");
  }
}
