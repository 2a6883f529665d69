#include "sim/matmul.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace graphene::sim {

namespace {

constexpr int kNoExponent = std::numeric_limits<int>::min() / 4;

int exponent_of(double x) { return static_cast<int>(std::bit_cast<std::uint64_t>(x) >> 52 & 0x7ff) - 1023; }
double power_of_two(int e) { return std::bit_cast<double>(static_cast<std::uint64_t>(e + 1023) << 52); }

// Exponent as the multiplier sees it: subnormals have that of the smallest normal number.
int operand_exponent(double x, int smallest) {
  if (x == 0 || !std::isfinite(x)) return kNoExponent;
  return std::max(exponent_of(x), smallest);
}

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

double element(const TileVectors& t, const std::vector<int>& group, Holder h) {
  const int bytes = bytes_of(t.dtype);
  const char* v = t.values[static_cast<std::size_t>(h.value)];
  return decode(t.dtype, load_bits(v + group[static_cast<std::size_t>(h.rank)] * bytes, bytes));
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

double lane_value(const std::vector<double>& lanes, const std::vector<int>& group, Holder h) {
  return lanes[static_cast<std::size_t>(h.value) * kLanes +
               static_cast<std::size_t>(group[static_cast<std::size_t>(h.rank)])];
}

float cut_to_float(double x, bool truncate) {
  const auto nearest = static_cast<float>(x);
  if (!truncate || !std::isfinite(nearest)) {
    if (truncate && std::isfinite(x)) return std::copysign(std::numeric_limits<float>::max(), nearest);
    return nearest;
  }
  return std::fabs(static_cast<double>(nearest)) > std::fabs(x) ? std::nextafterf(nearest, 0.0F) : nearest;
}

// Exact for halves: every product is a multiple of 2^-48 below 2^33.
double sum_halves(double c, const double* products, int n) {
  __int128 sum = static_cast<__int128>(std::ldexp(c, 48));
  for (int i = 0; i < n; ++i) sum += static_cast<__int128>(std::ldexp(products[i], 48));
  const bool negative = sum < 0;
  unsigned __int128 u = negative ? -static_cast<unsigned __int128>(sum) : static_cast<unsigned __int128>(sum);
  int scale = -48;
  bool sticky = false;  // kept in the last bit: rounding again to 11 bits stays right
  while (u >> 53 != 0) {
    sticky = sticky || (u & 1) != 0;
    u >>= 1;
    ++scale;
  }
  if (sticky) u |= 1;
  const double v = std::ldexp(static_cast<double>(static_cast<std::uint64_t>(u)), scale);
  return negative ? -v : v;
}

void multiply_ints(const Einsum& e, const std::vector<int>& group, const TileVectors& a, const TileVectors& b,
                   const TileVectors& c, const std::vector<char*>& d) {
  const auto integer = [&](const TileVectors& t, Holder h) {
    const int bytes = bytes_of(t.dtype);
    const char* v = t.values[static_cast<std::size_t>(h.value)];
    return static_cast<std::uint64_t>(
        decode_int(t.dtype, load_bits(v + group[static_cast<std::size_t>(h.rank)] * bytes, bytes)));
  };
  const int bytes = bytes_of(c.dtype);
  for (int i = 0; i < e.batch; ++i) {
    for (int x = 0; x < e.m; ++x) {
      for (int y = 0; y < e.n; ++y) {
        const auto& to = e.d[static_cast<std::size_t>((i * e.m + x) * e.n + y)];
        std::uint64_t sum = e.accumulate ? integer(c, to.front()) : 0;
        for (int z = 0; z < e.k; ++z) {
          sum += integer(a, e.a[static_cast<std::size_t>((i * e.m + x) * e.k + z)]) *
                 integer(b, e.b[static_cast<std::size_t>((i * e.k + z) * e.n + y)]);
        }
        for (const Holder h : to) {
          store_bits(d[static_cast<std::size_t>(h.value)] + group[static_cast<std::size_t>(h.rank)] * bytes, bytes,
                     sum);
        }
      }
    }
  }
}

}  // namespace

float aligned_sum(float c, const double* products, const int* exponents, int n, int guard_bits, bool truncate) {
  int top = c != 0 ? exponent_of(static_cast<double>(c)) : kNoExponent;
  bool finite = std::isfinite(c);
  for (int i = 0; i < n; ++i) {
    top = std::max(top, exponents[i]);
    finite = finite && std::isfinite(products[i]);
  }
  if (!finite) {
    double sum = static_cast<double>(c);
    for (int i = 0; i < n; ++i) sum += products[i];
    return static_cast<float>(sum);
  }
  if (top == kNoExponent) {
    double sum = static_cast<double>(c);  // zeros: their signs
    for (int i = 0; i < n; ++i) sum += products[i];
    return static_cast<float>(sum);
  }
  const int unit = std::max(top, -126) - 23 - guard_bits;
  const double scale = power_of_two(-unit);
  auto sum = static_cast<std::int64_t>(static_cast<double>(c) * scale);
  for (int i = 0; i < n; ++i) sum += static_cast<std::int64_t>(products[i] * scale);
  return cut_to_float(static_cast<double>(sum) * power_of_two(unit), truncate);
}

void multiply_tile(const Einsum& e, const std::vector<int>& group, const TileVectors& a, const TileVectors& b,
                   const TileVectors& c, const std::vector<char*>& d, TileScratch& s) {
  if (!is_float(a.dtype)) return multiply_ints(e, group, a, b, c, d);
  const auto size = [](int x, int y, int z) { return static_cast<std::size_t>(x) * static_cast<std::size_t>(y * z); };
  s.a.resize(size(e.batch, e.m, e.k));
  s.b.resize(size(e.batch, e.k, e.n));
  s.exponent_a.resize(s.a.size());
  s.exponent_b.resize(s.b.size());
  widen(a, s.lanes);
  for (std::size_t i = 0; i < s.a.size(); ++i) {
    s.a[i] = lane_value(s.lanes, group, e.a[i]);
    s.exponent_a[i] = operand_exponent(s.a[i], smallest_exponent(a.dtype));
  }
  widen(b, s.lanes);
  for (std::size_t i = 0; i < s.b.size(); ++i) {
    s.b[i] = lane_value(s.lanes, group, e.b[i]);
    s.exponent_b[i] = operand_exponent(s.b[i], smallest_exponent(b.dtype));
  }
  const int step = e.group > 0 ? std::min(e.group, e.k) : e.k;
  const int bytes = bytes_of(c.dtype);
  std::vector<double> products(static_cast<std::size_t>(step));
  std::vector<int> exponents(static_cast<std::size_t>(step));
  for (int i = 0; i < e.batch; ++i) {
    for (int x = 0; x < e.m; ++x) {
      for (int y = 0; y < e.n; ++y) {
        const auto& to = e.d[static_cast<std::size_t>((i * e.m + x) * e.n + y)];
        double sum = e.accumulate ? element(c, group, to.front()) : 0.0;
        for (int k0 = 0; k0 < e.k; k0 += step) {
          const int n = std::min(step, e.k - k0);
          for (int z = 0; z < n; ++z) {
            const auto ia = static_cast<std::size_t>((i * e.m + x) * e.k + k0 + z);
            const auto ib = static_cast<std::size_t>((i * e.k + k0 + z) * e.n + y);
            products[static_cast<std::size_t>(z)] = s.a[ia] * s.b[ib];
            exponents[static_cast<std::size_t>(z)] = s.exponent_a[ia] == kNoExponent || s.exponent_b[ib] == kNoExponent
                                                         ? kNoExponent
                                                         : s.exponent_a[ia] + s.exponent_b[ib];
          }
          if (c.dtype == ir::ScalarType::fp64) {
            for (int z = 0; z < n; ++z) {
              const auto ia = static_cast<std::size_t>((i * e.m + x) * e.k + k0 + z);
              const auto ib = static_cast<std::size_t>((i * e.k + k0 + z) * e.n + y);
              sum = std::fma(s.a[ia], s.b[ib], sum);
            }
          } else if (e.guard_bits >= 0) {
            sum = aligned_sum(static_cast<float>(sum), products.data(), exponents.data(), n, e.guard_bits, e.truncate);
          } else {
            const bool finite = std::isfinite(sum) && std::all_of(products.begin(), products.begin() + n,
                                                                  [](double p) { return std::fabs(p) < 0x1p40; });
            if (c.dtype == ir::ScalarType::fp16 && finite) {
              sum = sum_halves(sum, products.data(), n);
            } else {
              for (int z = 0; z < n; ++z) sum += products[static_cast<std::size_t>(z)];
            }
            sum = c.dtype == ir::ScalarType::fp16 ? decode(c.dtype, encode(c.dtype, sum))
                                                  : static_cast<double>(cut_to_float(sum, e.truncate));
          }
        }
        const std::uint64_t bits = c.dtype == ir::ScalarType::fp32 && !std::isnan(sum)
                                       ? std::bit_cast<std::uint32_t>(static_cast<float>(sum))
                                       : encode(c.dtype, sum);
        for (const Holder h : to) {
          store_bits(d[static_cast<std::size_t>(h.value)] + group[static_cast<std::size_t>(h.rank)] * bytes, bytes,
                     bits);
        }
      }
    }
  }
}

}  // namespace graphene::sim
