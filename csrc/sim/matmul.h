// MatMul of a collective: gather by thread-value layout, an einsum with the rounding of Einsum's numerics, scatter to
// every holder.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/bytecode.h"

namespace graphene::sim {

// 32-lane vectors of raw bits, one per value.
struct TileVectors {
  ir::ScalarType dtype;
  const std::vector<const char*>& values;
};

struct TileScratch {
  std::vector<double> a, b, c, lanes;
  std::vector<int> exponent_a, exponent_b;
  std::vector<std::int64_t> int_a, int_b, int_c, int_lanes;
};

// Lane of rank r: group[r]. `c` is added where it has values; `d` is written where `group` holds it.
void multiply_tile(const Einsum& e, const std::vector<int>& group, const TileVectors& a, const TileVectors& b,
                   const TileVectors& c, const std::vector<char*>& d, TileScratch& scratch);

// c plus the products, all aligned to the largest with `guard_bits` kept below its 24th bit, the rest cut off, and the
// sum cut to its bits (or rounded to a float). Exponents are those of the operands: products are not normalised
// before. Exposed for tests.
[[nodiscard]] float aligned_sum(float c, const double* products, const int* exponents, int n, int guard_bits,
                                bool truncate, int bits = 24);

}  // namespace graphene::sim
