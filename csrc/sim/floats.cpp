#include "sim/floats.h"

#include <bit>
#include <cmath>
#include <limits>

#include "sim/clocks.h"
#include "sim/simd.h"

#ifdef GR_SIM_F16C
#include <immintrin.h>
#endif

namespace graphene::sim {

namespace {

GR_SIM_INLINE float half_to_float(std::uint16_t h) {
  const std::uint32_t em = static_cast<std::uint32_t>(h & 0x7fff) << 13;
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(std::bit_cast<float>(em) * 0x1p112F);
  const std::uint32_t bits = em >= 0x0f800000U ? em | 0x7f800000U : finite;
  return std::bit_cast<float>(bits | static_cast<std::uint32_t>(h & 0x8000) << 16);
}

// To nearest even; NaN becomes the canonical 0x7fff.
GR_SIM_INLINE std::uint16_t float_to_half(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t a = u & 0x7fffffffU;
  const std::uint32_t normal = (a + 0xc8000fffU + (a >> 13 & 1)) >> 13;
  const std::uint32_t small =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(a) + 0.5F) - std::bit_cast<std::uint32_t>(0.5F);
  std::uint32_t r = a < 0x38800000U ? small : normal;
  r = a >= 0x477ff000U ? 0x7c00U : r;
  r |= u >> 16 & 0x8000U;
  return static_cast<std::uint16_t>(a > 0x7f800000U ? 0x7fffU : r);
}

GR_SIM_INLINE std::uint16_t float_to_bfloat(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t r = (u + 0x7fffU + (u >> 16 & 1)) >> 16;
  return static_cast<std::uint16_t>((u & 0x7fffffffU) > 0x7f800000U ? 0x7fffU : r);
}

// a + b rounded to odd: rounding it again to 11 bits or fewer equals rounding the exact sum once.
GR_SIM_INLINE float add_to_odd(float a, float b) {
  const float s = a + b;
  const float bb = s - a;
  const float error = (a - (s - bb)) + (b - bb);
  std::uint32_t u = std::bit_cast<std::uint32_t>(s);
  const std::uint32_t away = static_cast<std::uint32_t>((error > 0) == (s > 0));
  const std::uint32_t adjusted = away != 0 ? u | 1 : u - 1;
  u = (error != 0 && (u & 1) == 0) ? adjusted : u;
  return std::bit_cast<float>(u);
}

#ifdef GR_SIM_F16C
GR_SIM_F16C inline __m256 load_halves(const std::uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

GR_SIM_F16C void fma_half_f16c(const std::uint16_t* a, const std::uint16_t* b, const std::uint16_t* c,
                               std::uint16_t* d) {
  const __m256i one = _mm256_set1_epi32(1);
  const __m256 zero = _mm256_setzero_ps();
  const __m256 inf = _mm256_set1_ps(std::numeric_limits<float>::infinity());
  const __m256 sign = _mm256_set1_ps(-0.0F);
  for (int l = 0; l < kLanes; l += 8) {
    const __m256 p = _mm256_mul_ps(load_halves(a + l), load_halves(b + l));
    const __m256 z = load_halves(c + l);
    const __m256 s = _mm256_add_ps(p, z);
    const __m256 bb = _mm256_sub_ps(s, p);
    const __m256 error = _mm256_add_ps(_mm256_sub_ps(p, _mm256_sub_ps(s, bb)), _mm256_sub_ps(z, bb));
    // To odd, as add_to_odd.
    const __m256i u = _mm256_castps_si256(s);
    const __m256i away =
        _mm256_castps_si256(_mm256_xor_ps(_mm256_cmp_ps(error, zero, _CMP_GT_OQ), _mm256_cmp_ps(s, zero, _CMP_GT_OQ)));
    const __m256i adjusted = _mm256_blendv_epi8(_mm256_or_si256(u, one), _mm256_sub_epi32(u, one), away);
    const __m256i even = _mm256_cmpeq_epi32(_mm256_and_si256(u, one), _mm256_setzero_si256());
    const __m256 finite = _mm256_cmp_ps(_mm256_andnot_ps(sign, s), inf, _CMP_LT_OQ);
    const __m256 inexact = _mm256_and_ps(_mm256_cmp_ps(error, zero, _CMP_NEQ_OQ), finite);
    const __m256i odd = _mm256_blendv_epi8(u, adjusted, _mm256_and_si256(_mm256_castps_si256(inexact), even));
    __m128i h = _mm256_cvtps_ph(_mm256_castsi256_ps(odd), _MM_FROUND_TO_NEAREST_INT);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(s, s, _CMP_UNORD_Q));
    const __m128i nan16 = _mm_packs_epi32(_mm256_castsi256_si128(nan), _mm256_extracti128_si256(nan, 1));
    h = _mm_blendv_epi8(h, _mm_set1_epi16(0x7fff), nan16);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(d + l), h);
  }
}
#endif

// A product of two halves is exact in a float.
GR_SIM_CLONES void fma_half_plain(const std::uint16_t* a, const std::uint16_t* b, const std::uint16_t* c,
                                  std::uint16_t* d) {
  for (int l = 0; l < kLanes; ++l) {
    const float p = half_to_float(a[l]) * half_to_float(b[l]);
    const float z = half_to_float(c[l]);
    const float plain = p + z;
    const float s = add_to_odd(p, z);
    const bool special = !(std::fabs(plain) <= std::numeric_limits<float>::max());
    d[l] = float_to_half(special ? plain : s);
  }
}

}  // namespace

void fma_half(const std::uint16_t* a, const std::uint16_t* b, const std::uint16_t* c, std::uint16_t* d) {
#ifdef GR_SIM_F16C
  if (has_f16c()) return fma_half_f16c(a, b, c, d);
#endif
  fma_half_plain(a, b, c, d);
}

GR_SIM_CLONES void halves_to_floats(const std::uint16_t* in, float* out) {
  for (int l = 0; l < kLanes; ++l) out[l] = half_to_float(in[l]);
}
GR_SIM_CLONES void floats_to_halves(const float* in, std::uint16_t* out) {
  for (int l = 0; l < kLanes; ++l) out[l] = float_to_half(in[l]);
}
GR_SIM_CLONES void bfloats_to_floats(const std::uint16_t* in, float* out) {
  for (int l = 0; l < kLanes; ++l) out[l] = std::bit_cast<float>(static_cast<std::uint32_t>(in[l]) << 16);
}
GR_SIM_CLONES void floats_to_bfloats(const float* in, std::uint16_t* out) {
  for (int l = 0; l < kLanes; ++l) out[l] = float_to_bfloat(in[l]);
}
GR_SIM_CLONES void canonical_floats(const float* in, float* out) {
  for (int l = 0; l < kLanes; ++l) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(in[l]);
    out[l] = std::bit_cast<float>((u & 0x7fffffffU) > 0x7f800000U ? 0x7fffffffU : u);
  }
}
GR_SIM_CLONES void fma_floats(const float* a, const float* b, const float* c, float* d) {
  for (int l = 0; l < kLanes; ++l) d[l] = __builtin_fmaf(a[l], b[l], c[l]);
}

}  // namespace graphene::sim
