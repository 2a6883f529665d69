#include "sim/matmul.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "sim/tensor_core.h"

namespace graphene::sim {

namespace {

int exponent_of(double x) { return static_cast<int>(std::bit_cast<std::uint64_t>(x) >> 52 & 0x7ff) - 1023; }
double power_of_two(int e) { return std::bit_cast<double>(static_cast<std::uint64_t>(e + 1023) << 52); }

// Subnormal operands have the exponent of the smallest normal number.
int smallest_exponent(ir::ScalarType t) {
  switch (t) {
    case ir::ScalarType::fp16:
    case ir::ScalarType::fp8e5m2:
      return -14;
    case ir::ScalarType::fp8e4m3:
      return -6;
    case ir::ScalarType::fp64:
      return -1022;
    default:
      return -126;
  }
}

// Every lane of every value as a double.
void widen(const TileVectors& t, std::vector<double>& out) {
  out.resize(t.values.size() * kLanes);
  for (std::size_t v = 0; v < t.values.size(); ++v) {
    double* to = &out[v * kLanes];
    if (t.dtype == ir::ScalarType::fp64) {
      load_doubles(t.dtype, t.values[v], to);
      continue;
    }
    float f[kLanes];
    load_floats(t.dtype, t.values[v], f);
    for (int l = 0; l < kLanes; ++l) {
      // Of tf32 the low bits are not read.
      const auto bits = std::bit_cast<std::uint32_t>(f[l]) & ~0x1fffU;
      to[l] = static_cast<double>(t.dtype == ir::ScalarType::tf32 ? std::bit_cast<float>(bits) : f[l]);
    }
  }
}

// The `bits` leading ones of a sum, as far as fp32 has them.
double cut_to_bits(double x, int bits) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int last = std::max(exponent_of(x), -126) - (bits - 1);
  return std::trunc(x * power_of_two(-last)) * power_of_two(last);
}

float cut_to_float(double x, bool truncate) {
  const auto nearest = static_cast<float>(x);
  if (!truncate || !std::isfinite(nearest)) {
    if (truncate && std::isfinite(x)) return std::copysign(std::numeric_limits<float>::max(), nearest);
    return nearest;
  }
  return std::fabs(static_cast<double>(nearest)) > std::fabs(x) ? std::nextafterf(nearest, 0.0F) : nearest;
}

// Integers by thread-value layout, one after the other.
void gather_ints(const TileVectors& t, const std::vector<int>& group, const Holder* holders, std::size_t count,
                 std::vector<std::int64_t>& lanes, std::vector<std::int64_t>& out) {
  const int bytes = bytes_of(t.dtype);
  lanes.resize(t.values.size() * kLanes);
  for (std::size_t v = 0; v < t.values.size(); ++v) {
    for (int l = 0; l < kLanes; ++l) {
      lanes[v * kLanes + static_cast<std::size_t>(l)] =
          decode_int(t.dtype, load_bits(t.values[v] + std::ptrdiff_t{l} * bytes, bytes));
    }
  }
  out.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Holder h = holders[i];
    out[i] = lanes[static_cast<std::size_t>(h.value) * kLanes +
                   static_cast<std::size_t>(group[static_cast<std::size_t>(h.rank)])];
  }
}

void multiply_ints(const Einsum& e, const std::vector<int>& group, const TileVectors& a, const TileVectors& b,
                   const TileVectors& c, const std::vector<char*>& d, TileScratch& s) {
  const int bytes = bytes_of(c.dtype);
  const auto m = static_cast<std::size_t>(e.m);
  const auto n = static_cast<std::size_t>(e.n);
  const auto k = static_cast<std::size_t>(e.k);
  for (std::size_t i = 0; i < static_cast<std::size_t>(e.batch); ++i) {
    gather_ints(a, group, e.a.data() + i * m * k, m * k, s.int_lanes, s.int_a);
    gather_ints(b, group, e.b.data() + i * k * n, k * n, s.int_lanes, s.int_b);
    s.int_c.assign(m * n, 0);
    if (!c.values.empty()) gather_ints(c, group, e.first_d.data() + i * m * n, m * n, s.int_lanes, s.int_c);
    for (std::size_t x = 0; x < m; ++x) {
      for (std::size_t z = 0; z < k; ++z) {
        const std::int64_t factor = s.int_a[x * k + z];
        for (std::size_t y = 0; y < n; ++y) s.int_c[x * n + y] += factor * s.int_b[z * n + y];
      }
    }
    for (std::size_t at = 0; at < m * n; ++at) {
      std::int64_t sum = s.int_c[at];
      if (e.saturate) {
        const std::int64_t half = std::int64_t{1} << (8 * bytes - 1);
        sum = std::clamp(sum, -half, half - 1);
      }
      for (const Holder h : e.d[i * m * n + at]) {
        store_bits(d[static_cast<std::size_t>(h.value)] + group[static_cast<std::size_t>(h.rank)] * bytes, bytes,
                   static_cast<std::uint64_t>(sum));
      }
    }
  }
}

}  // namespace

namespace {

// Before the sum is cut or rounded to a type.
double aligned(float c, const double* products, const int* exponents, int n, int guard_bits) {
  int top = c != 0 ? exponent_of(static_cast<double>(c)) : kNoExponent;
  bool finite = std::isfinite(c);
  for (int i = 0; i < n; ++i) {
    top = std::max(top, exponents[i]);
    finite = finite && std::isfinite(products[i]);
  }
  if (!finite || top == kNoExponent) {  // of zeros: their signs
    double sum = static_cast<double>(c);
    for (int i = 0; i < n; ++i) sum += products[i];
    return sum;
  }
  const int unit = std::max(top, -126) - 23 - guard_bits;
  const double scale = power_of_two(-unit);
  auto sum = static_cast<std::int64_t>(static_cast<double>(c) * scale);
  for (int i = 0; i < n; ++i) sum += static_cast<std::int64_t>(products[i] * scale);
  return static_cast<double>(sum) * power_of_two(unit);
}

}  // namespace

float aligned_sum(float c, const double* products, const int* exponents, int n, int guard_bits, bool truncate,
                  int bits) {
  const double sum = aligned(c, products, exponents, n, guard_bits);
  return cut_to_float(truncate ? cut_to_bits(sum, bits) : sum, truncate);
}

namespace {

// Elements by thread-value layout as doubles, `columns` to a row of `stride`; exponents as the multiplier sees them.
// False: one is infinite or NaN.
bool gather(const TileVectors& t, const std::vector<int>& group, const Holder* holders, std::size_t rows,
            std::size_t columns, std::size_t stride, std::vector<double>& lanes, std::vector<double>& out,
            std::vector<int>* exponents) {
  widen(t, lanes);
  out.resize(rows * stride);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = columns; c < stride; ++c) out[r * stride + c] = 0;
    for (std::size_t c = 0; c < columns; ++c) {
      const Holder h = holders[r * columns + c];
      out[r * stride + c] = lanes[static_cast<std::size_t>(h.value) * kLanes +
                                  static_cast<std::size_t>(group[static_cast<std::size_t>(h.rank)])];
    }
  }
  if (exponents == nullptr) return all_finite(out.data(), out.size());
  exponents->resize(out.size());
  return multiplier_exponents(out.data(), out.size(), smallest_exponent(t.dtype), exponents->data());
}

// One output after the other: NaNs and infinities, and numerics that no faster way knows.
void sum_one_by_one(const Einsum& e, ir::ScalarType dtype, const TileSums& t) {
  std::vector<double> products(static_cast<std::size_t>(t.step));
  std::vector<int> exponents(static_cast<std::size_t>(t.step));
  for (int x = 0; x < e.m; ++x) {
    for (int y = 0; y < e.n; ++y) {
      double& sum = t.c[static_cast<std::size_t>(x) * t.stride + static_cast<std::size_t>(y)];
      for (int k0 = 0; k0 < e.k; k0 += t.step) {
        const int n = std::min(t.step, e.k - k0);
        for (int z = 0; z < n; ++z) {
          const auto ia = static_cast<std::size_t>(x * e.k + k0 + z);
          const std::size_t ib = static_cast<std::size_t>(k0 + z) * t.stride + static_cast<std::size_t>(y);
          products[static_cast<std::size_t>(z)] = t.a[ia] * t.b[ib];
          exponents[static_cast<std::size_t>(z)] = t.exponent_a[ia] == kNoExponent || t.exponent_b[ib] == kNoExponent
                                                       ? kNoExponent
                                                       : t.exponent_a[ia] + t.exponent_b[ib];
          if (dtype == ir::ScalarType::fp64) sum = std::fma(t.a[ia], t.b[ib], sum);
        }
        if (dtype == ir::ScalarType::fp64) continue;
        if (e.chain) {
          float part = 0;
          for (int z = 0; z < n; ++z) {
            part = static_cast<float>(static_cast<double>(part) + products[static_cast<std::size_t>(z)]);
          }
          sum = static_cast<double>(static_cast<float>(sum + static_cast<double>(part)));
          continue;
        }
        if (e.guard_bits != -1 && dtype == ir::ScalarType::fp16) {
          sum = aligned(static_cast<float>(sum), products.data(), exponents.data(), n, e.guard_bits);
          sum = decode(dtype, encode(dtype, sum));
          continue;
        }
        if (e.guard_bits != -1) {
          sum = aligned_sum(static_cast<float>(sum), products.data(), exponents.data(), n, e.guard_bits, e.truncate,
                            e.bits);
          continue;
        }
        for (int z = 0; z < n; ++z) sum += products[static_cast<std::size_t>(z)];
        sum = dtype == ir::ScalarType::fp16 ? decode(dtype, encode(dtype, sum))
                                            : static_cast<double>(cut_to_float(sum, e.truncate));
      }
    }
  }
}

}  // namespace

void multiply_tile(const Einsum& e, const std::vector<int>& group, const TileVectors& a, const TileVectors& b,
                   const TileVectors& c, const std::vector<char*>& d, TileScratch& s) {
  if (!is_float(a.dtype)) return multiply_ints(e, group, a, b, c, d, s);
  const auto m = static_cast<std::size_t>(e.m);
  const auto n = static_cast<std::size_t>(e.n);
  const auto k = static_cast<std::size_t>(e.k);
  const std::size_t stride = (n + kColumns - 1) / kColumns * kColumns;
  const int bytes = bytes_of(c.dtype);
  for (int i = 0; i < e.batch; ++i) {
    const auto batch = static_cast<std::size_t>(i);
    const Holder* to = e.first_d.data() + batch * m * n;
    bool finite = gather(a, group, e.a.data() + batch * m * k, m, k, k, s.lanes, s.a, &s.exponent_a);
    finite = gather(b, group, e.b.data() + batch * k * n, k, n, stride, s.lanes, s.b, &s.exponent_b) && finite;
    if (!c.values.empty()) {
      finite = gather(c, group, to, m, n, stride, s.lanes, s.c, nullptr) && finite;
    } else {
      s.c.assign(m * stride, 0.0);
    }
    const TileSums t{.m = e.m,
                     .k = e.k,
                     .step = e.group > 0 ? std::min(e.group, e.k) : e.k,
                     .stride = stride,
                     .a = s.a.data(),
                     .b = s.b.data(),
                     .exponent_a = s.exponent_a.data(),
                     .exponent_b = s.exponent_b.data(),
                     .c = s.c.data()};
    const bool halves = c.dtype == ir::ScalarType::fp16;
    if (finite && c.dtype == ir::ScalarType::fp32 && e.guard_bits != -1 && e.guard_bits <= kMaxFastGuardBits) {
      aligned_tile(t, e.guard_bits, e.truncate, e.bits);
    } else if (finite && halves && a.dtype == c.dtype && b.dtype == c.dtype && e.guard_bits == -1 && !e.chain) {
      for (int k0 = 0; k0 < e.k; k0 += t.step) {
        exact_half_step(t, k0, std::min(e.k, k0 + t.step));
        for (double& x : s.c) x = decode(c.dtype, encode(c.dtype, x));
      }
    } else {
      sum_one_by_one(e, c.dtype, t);
    }
    if (c.dtype == ir::ScalarType::fp32 && finite && !e.copies) {
      for (std::size_t x = 0; x < m; ++x) {
        for (std::size_t y = 0; y < n; ++y) {
          const Holder h = to[x * n + y];
          const auto v = static_cast<float>(s.c[x * stride + y]);
          std::memcpy(d[static_cast<std::size_t>(h.value)] + group[static_cast<std::size_t>(h.rank)] * 4, &v, sizeof v);
        }
      }
      continue;
    }
    for (std::size_t x = 0; x < m; ++x) {
      for (std::size_t y = 0; y < n; ++y) {
        const double sum = s.c[x * stride + y];
        const std::uint64_t bits = c.dtype == ir::ScalarType::fp32 && !std::isnan(sum)
                                       ? std::bit_cast<std::uint32_t>(static_cast<float>(sum))
                                       : encode(c.dtype, sum);
        const auto put = [&](Holder h) {
          store_bits(d[static_cast<std::size_t>(h.value)] + group[static_cast<std::size_t>(h.rank)] * bytes, bytes,
                     bits);
        };
        put(to[x * n + y]);
        if (!e.copies) continue;
        const auto& all = e.d[(batch * m + x) * n + y];
        for (std::size_t h = 1; h < all.size(); ++h) put(all[h]);
      }
    }
  }
}

}  // namespace graphene::sim
