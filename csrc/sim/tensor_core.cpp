#include "sim/tensor_core.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "sim/simd.h"

namespace graphene::sim {

namespace {

// Eight columns at once; element-wise in every operation.
using Doubles = double __attribute__((vector_size(kColumns * sizeof(double))));
using Bits = std::int64_t __attribute__((vector_size(kColumns * sizeof(std::int64_t))));
using Ints = std::int32_t __attribute__((vector_size(kColumns * sizeof(std::int32_t))));

template <class T>
GR_SIM_INLINE void load(T& v, const void* from) {
  std::memcpy(&v, from, sizeof(T));
}

constexpr double kMaxFloat = 0x1.fffffep+127;
constexpr double kInteger = 0x1.8p+52;  // added and subtracted: rounds to an integer, below 2^51
constexpr std::int64_t kBias = 1023;
constexpr int kMantissaBits = 52;

// Rows x to x + R - 1, eight columns from `first` on: several rows hide each other's latencies.
template <int R>
GR_SIM_INLINE void aligned_block(const TileSums& t, int x, std::size_t first, int guard_bits, bool truncate, int bits) {
  Doubles c[R];
  for (int r = 0; r < R; ++r) load(c[r], t.c + static_cast<std::size_t>(x + r) * t.stride + first);
  for (int k0 = 0; k0 < t.k; k0 += t.step) {
    const int end = std::min(t.k, k0 + t.step);
    const double* a = t.a + x * t.k;
    const int* exponent_a = t.exponent_a + x * t.k;
    const Ints none = Ints{} + kNoExponent;
    Ints top[R];
    for (int r = 0; r < R; ++r) {
      const Ints own = __builtin_convertvector((((Bits)c[r] >> kMantissaBits) & 0x7ff) - kBias, Ints);
      top[r] = __builtin_convertvector(c[r] == 0, Ints) ? none : own;
    }
    for (int z = k0; z < end; ++z) {
      Ints e;
      load(e, t.exponent_b + static_cast<std::size_t>(z) * t.stride + first);
      for (int r = 0; r < R; ++r) {
        const Ints product = e + exponent_a[r * t.k + z];
        top[r] = product > top[r] ? product : top[r];
      }
    }
    Doubles scale[R];
    Doubles back[R];
    Doubles sum[R];
    Ints nothing = Ints{};
    for (int r = 0; r < R; ++r) {
      const Ints normal = top[r] < -126 ? Ints{} - 126 : top[r];
      const Bits unit = __builtin_convertvector(normal - (23 + guard_bits), Bits);
      scale[r] = (Doubles)((kBias - unit) << kMantissaBits);
      back[r] = (Doubles)((kBias + unit) << kMantissaBits);
      sum[r] = __builtin_convertvector(__builtin_convertvector(c[r] * scale[r], Ints), Doubles);
      nothing |= top[r] <= kNoExponent / 2;
    }
    for (int z = k0; z < end; ++z) {
      Doubles b;
      load(b, t.b + static_cast<std::size_t>(z) * t.stride + first);
      for (int r = 0; r < R; ++r) {
        const Doubles term = a[r * t.k + z] * b * scale[r];
        sum[r] += __builtin_convertvector(__builtin_convertvector(term, Ints), Doubles);
      }
    }
    int any_nothing = 0;
    for (int y = 0; y < kColumns; ++y) any_nothing |= nothing[y];
    for (int r = 0; r < R; ++r) {
      const Doubles exact = sum[r] * back[r];
      Doubles result = exact;
      if (truncate) {
        const Bits exponent = (((Bits)exact >> kMantissaBits) & 0x7ff) - (kBias + bits - 1);
        const Bits lowest = Bits{} - (125 + bits);
        const Bits last = exponent < lowest ? lowest : exponent;
        const Doubles up = (Doubles)((kBias - last) << kMantissaBits);
        const Doubles down = (Doubles)((kBias + last) << kMantissaBits);
        result = __builtin_convertvector(__builtin_convertvector(exact * up, Ints), Doubles) * down;
        result = result > kMaxFloat ? Doubles{} + kMaxFloat : result;
        result = result < -kMaxFloat ? Doubles{} - kMaxFloat : result;
      } else {
        for (int y = 0; y < kColumns; ++y) result[y] = static_cast<double>(static_cast<float>(exact[y]));
      }
      for (int y = 0; y < kColumns && any_nothing != 0; ++y) {
        if (top[r][y] > kNoExponent / 2) continue;
        result[y] = c[r][y];  // zeros: their signs
        for (int z = k0; z < end; ++z) {
          result[y] +=
              a[r * t.k + z] * t.b[static_cast<std::size_t>(z) * t.stride + first + static_cast<std::size_t>(y)];
        }
      }
      c[r] = c[r] - c[r] == 0 ? result : c[r];  // a step before may have overflowed
    }
  }
  for (int r = 0; r < R; ++r)
    std::memcpy(t.c + static_cast<std::size_t>(x + r) * t.stride + first, &c[r], sizeof(Doubles));
}

GR_SIM_CLONES
void aligned_rows(const TileSums& t, int guard_bits, bool truncate, int bits) {
  for (std::size_t first = 0; first < t.stride; first += kColumns) {
    int x = 0;
    for (; x + 4 <= t.m; x += 4) aligned_block<4>(t, x, first, guard_bits, truncate, bits);
    for (; x + 2 <= t.m; x += 2) aligned_block<2>(t, x, first, guard_bits, truncate, bits);
    for (; x < t.m; ++x) aligned_block<1>(t, x, first, guard_bits, truncate, bits);
  }
}

GR_SIM_CLONES
void exact_half_rows(const TileSums& t, int k0, int end) {
  for (int x = 0; x < t.m; ++x) {
    for (std::size_t first = 0; first < t.stride; first += kColumns) {
      Doubles c;
      load(c, t.c + static_cast<std::size_t>(x) * t.stride + first);
      const double* a = t.a + x * t.k;
      // In units of 2^-10: integers, and what is left of them, a multiple of 2^-38. Both sums are exact.
      c *= 0x1p10;
      Doubles zeros = c;  // -0 only where every term is
      Doubles whole = (c + kInteger) - kInteger;
      Doubles rest = c - whole;
      for (int z = k0; z < end; ++z) {
        Doubles b;
        load(b, t.b + static_cast<std::size_t>(z) * t.stride + first);
        const Doubles p = a[z] * b * 0x1p10;
        const Doubles w = (p + kInteger) - kInteger;
        whole += w;
        rest += p - w;
        zeros += p;
      }
      const Doubles s = whole + rest;
      const Doubles back = s - whole;
      const Doubles error = (whole - (s - back)) + (rest - back);
      // To odd: an inexact sum whose last bit is even moves one step towards what is missing.
      const Bits bits = (Bits)s;
      const Bits step = ((error > 0) == (s > 0)) ? Bits{} + 1 : Bits{} - 1;
      const Bits odd = ((error != 0) & ((bits & 1) == 0)) ? bits + step : bits;
      const Doubles sum = s == 0 ? zeros : (Doubles)odd;
      c = (c - c == 0 ? sum : c) * 0x1p-10;  // a step before may have overflowed
      std::memcpy(t.c + static_cast<std::size_t>(x) * t.stride + first, &c, sizeof c);
    }
  }
}

GR_SIM_CLONES
bool exponents(const double* x, std::size_t n, int smallest, int* out) {
  std::int64_t top = 0;
  for (std::size_t i = 0; i < n; ++i) {
    std::int64_t bits = 0;
    std::memcpy(&bits, x + i, sizeof bits);
    const std::int64_t e = (bits >> kMantissaBits & 0x7ff) - kBias;
    top = std::max(top, e);
    const auto at_least = static_cast<int>(std::max<std::int64_t>(e, smallest));
    out[i] = (bits << 1) == 0 ? kNoExponent : at_least;
  }
  return top <= kBias;
}

}  // namespace

bool all_finite(const double* x, std::size_t n) {
  double zero = 0;  // NaN as soon as one is not
  for (std::size_t i = 0; i < n; ++i) zero += x[i] * 0;
  return zero == 0;
}

bool multiplier_exponents(const double* x, std::size_t n, int smallest, int* out) {
  return exponents(x, n, smallest, out);
}

void aligned_tile(const TileSums& t, int guard_bits, bool truncate, int bits) {
  aligned_rows(t, guard_bits, truncate, bits);
}

void exact_half_step(const TileSums& t, int k0, int end) { exact_half_rows(t, k0, end); }

}  // namespace graphene::sim
