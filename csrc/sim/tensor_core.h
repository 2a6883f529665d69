// The sums of a matrix instruction on a whole tile at once, for finite operands. Rows are padded to kColumns.
#pragma once

#include <cstddef>
#include <limits>

namespace graphene::sim {

inline constexpr int kColumns = 8;
inline constexpr int kNoExponent = std::numeric_limits<int>::min() / 4;  // of zero
inline constexpr int kMaxFastGuardBits = 5;                              // terms then fit 32 bits

// c[m, stride] plus a[m, k] times b[k, stride], in rounding steps of `step` products.
struct TileSums {
  int m = 1, k = 1, step = 1;
  std::size_t stride = kColumns;
  const double* a = nullptr;
  const double* b = nullptr;
  const int* exponent_a = nullptr;  // as the multiplier sees them: matmul.h
  const int* exponent_b = nullptr;
  double* c = nullptr;  // floats or halves
};

// Whether all are finite; and of each the exponent as the multiplier sees it: at least `smallest`, of zeros
// kNoExponent.
[[nodiscard]] bool all_finite(const double* x, std::size_t n);
bool multiplier_exponents(const double* x, std::size_t n, int smallest, int* out);

// As aligned_sum (matmul.h), guard_bits <= kMaxFastGuardBits; c holds floats.
void aligned_tile(const TileSums& t, int guard_bits, bool truncate, int bits);

// Adds the products of halves k0 to end - 1, exactly; the sum is rounded to odd, so that one more rounding to a half is
// right. c holds halves.
void exact_half_step(const TileSums& t, int k0, int end);

}  // namespace graphene::sim
