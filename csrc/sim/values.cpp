#include "sim/values.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/diag.h"
#include "sim/clocks.h"
#include "sim/floats.h"
#include "sim/integer_ops.h"

namespace graphene::sim {

namespace {

using ir::ScalarType;

// ---- formats with one sign bit, `exponent` bits and `mantissa` bits

struct Format {
  int exponent, mantissa;
  bool has_inf;       // false: e4m3, whose largest exponent holds numbers and one NaN
  std::uint64_t nan;  // the canonical one
  bool saturate;      // conversions to it never overflow to infinity
  bool has_nan = true;
};

constexpr Format kHalf{5, 10, true, 0x7fff, false};
constexpr Format kBfloat{8, 7, true, 0x7fff, false};
constexpr Format kFloat{8, 23, true, 0x7fffffff, false};
constexpr Format kE4M3{4, 3, false, 0x7f, true};
constexpr Format kE5M2{5, 2, true, 0x7f, true};
// PTX ISA, cvt: a NaN becomes the largest number.
constexpr Format kE2M3{2, 3, false, 0x1f, true, false};
constexpr Format kE3M2{3, 2, false, 0x1f, true, false};
constexpr Format kE2M1{2, 1, false, 0x7, true, false};

const Format& format_of(ScalarType t) {
  switch (t) {
    case ScalarType::fp16:
      return kHalf;
    case ScalarType::bf16:
      return kBfloat;
    case ScalarType::fp8e4m3:
      return kE4M3;
    case ScalarType::fp8e5m2:
      return kE5M2;
    case ScalarType::fp6e2m3:
      return kE2M3;
    case ScalarType::fp6e3m2:
      return kE3M2;
    case ScalarType::fp4e2m1:
      return kE2M1;
    default:
      return kFloat;
  }
}

double decode_float(const Format& f, std::uint64_t bits) {
  const int bias = (1 << (f.exponent - 1)) - 1;
  const auto m = static_cast<double>(bits & ((std::uint64_t{1} << f.mantissa) - 1));
  const int e = static_cast<int>(bits >> f.mantissa) & ((1 << f.exponent) - 1);
  const bool negative = (bits >> (f.exponent + f.mantissa) & 1) != 0;
  double v = 0;
  if (e == (1 << f.exponent) - 1 && (f.has_inf || (f.has_nan && m == (1 << f.mantissa) - 1))) {
    v = f.has_inf && m == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else {
    v = e == 0 ? std::ldexp(m, 1 - bias - f.mantissa)
               : std::ldexp(m + std::ldexp(1.0, f.mantissa), e - bias - f.mantissa);
  }
  return negative ? -v : v;
}

std::uint64_t encode_float(const Format& f, double x, bool toward_zero = false) {
  if (std::isnan(x)) return f.nan;
  const int bias = (1 << (f.exponent - 1)) - 1;
  const std::uint64_t sign = static_cast<std::uint64_t>(std::signbit(x)) << (f.exponent + f.mantissa);
  const double a = std::fabs(x);
  const std::uint64_t top = f.has_inf ? ((std::uint64_t{1} << f.exponent) - 1) << f.mantissa
                                      : (std::uint64_t{1} << (f.exponent + f.mantissa)) - (f.has_nan ? 1 : 0);
  if (std::isinf(a)) return sign | (f.saturate ? top - 1 : top);
  if (a == 0) return sign;
  int e = std::ilogb(a);
  e = std::max(e, 1 - bias);
  const double scaled = std::ldexp(a, f.mantissa - e);
  const double rounded = toward_zero ? std::trunc(scaled) : std::nearbyint(scaled);
  // A carry into the exponent falls out of the sum.
  const auto q = static_cast<std::uint64_t>(rounded);
  const std::uint64_t hidden = std::uint64_t{1} << f.mantissa;
  const std::uint64_t r = q < hidden ? q : (static_cast<std::uint64_t>(e + bias) << f.mantissa) + (q - hidden);
  if (r >= top) return sign | (f.saturate || toward_zero ? top - 1 : top);
  return sign | r;
}

// ---- rounding helpers

// x * y + z of 16-bit floats of wide range: exact product in double, sum rounded to odd there.
double fma_to_odd(double x, double y, double z) {
  const double p = x * y;
  const double s = p + z;
  if (!std::isfinite(s)) return s;
  const double bb = s - p;
  const double error = (p - (s - bb)) + (z - bb);
  auto u = std::bit_cast<std::uint64_t>(s);
  if (error != 0 && (u & 1) == 0) u = (error > 0) == (s > 0) ? u | 1 : u - 1;
  return std::bit_cast<double>(u);
}

void flush_subnormals(float* x) {
  for (int l = 0; l < kLanes; ++l) {
    if (std::fabs(x[l]) < std::numeric_limits<float>::min()) x[l] = std::copysign(0.0F, x[l]);
  }
}

// ---- operations in the working classes

template <class T>
T larger(T x, T y) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(x)) return y;
    if (std::isnan(y)) return x;
    if (x == y) return std::signbit(x) ? y : x;  // +0 is larger than -0
  }
  return x > y ? x : y;
}
template <class T>
T smaller(T x, T y) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(x)) return y;
    if (std::isnan(y)) return x;
    if (x == y) return std::signbit(x) ? x : y;
  }
  return x < y ? x : y;
}

template <class T>
void float_op(Op op, const T* x, const T* y, const T* z, T* d) {
  // Functions are computed in double: the nearest float to the true value but for ties beyond its precision.
  const auto each = [&](auto&& f) {
    for (int l = 0; l < kLanes; ++l) d[l] = static_cast<T>(f(l));
  };
  const auto wide = [&](int l) { return static_cast<double>(x[l]); };
  switch (op) {
    case Op::Cast:
      return each([&](int l) { return x[l]; });
    case Op::Neg:
      return each([&](int l) { return -x[l]; });
    case Op::Abs:
      return each([&](int l) { return std::fabs(x[l]); });
    case Op::Exp:
      return each([&](int l) { return std::exp(wide(l)); });
    case Op::Exp2:
      return each([&](int l) { return std::exp2(wide(l)); });
    case Op::Log:
      return each([&](int l) { return std::log(wide(l)); });
    case Op::Log2:
      return each([&](int l) { return std::log2(wide(l)); });
    case Op::Sqrt:
      return each([&](int l) { return std::sqrt(x[l]); });
    case Op::Rsqrt:
      return each([&](int l) { return 1.0 / std::sqrt(wide(l)); });
    case Op::Rcp:
      return each([&](int l) { return T{1} / x[l]; });
    case Op::Sin:
      return each([&](int l) { return std::sin(wide(l)); });
    case Op::Cos:
      return each([&](int l) { return std::cos(wide(l)); });
    case Op::Tanh:
      return each([&](int l) { return std::tanh(wide(l)); });
    case Op::Erf:
      return each([&](int l) { return std::erf(wide(l)); });
    case Op::Floor:
      return each([&](int l) { return std::floor(x[l]); });
    case Op::Ceil:
      return each([&](int l) { return std::ceil(x[l]); });
    case Op::Round:
      return each([&](int l) { return std::nearbyint(x[l]); });
    case Op::Trunc:
      return each([&](int l) { return std::trunc(x[l]); });
    case Op::Add:
      return each([&](int l) { return x[l] + y[l]; });
    case Op::Sub:
      return each([&](int l) { return x[l] - y[l]; });
    case Op::Mul:
      return each([&](int l) { return x[l] * y[l]; });
    case Op::Div:
      return each([&](int l) { return x[l] / y[l]; });
    case Op::Max:
      return each([&](int l) { return larger(x[l], y[l]); });
    case Op::Min:
      return each([&](int l) { return smaller(x[l], y[l]); });
    case Op::Pow:
      return each([&](int l) { return std::pow(wide(l), static_cast<double>(y[l])); });
    case Op::Fmod:
      return each([&](int l) { return std::fmod(x[l], y[l]); });
    case Op::Fma:
      return each([&](int l) { return std::fma(x[l], y[l], z[l]); });
    default:
      GR_ASSERT(false, "no such operation on floats");
  }
}

// Two's complement: computed modulo 2^64 and cut to the output's width when stored.
template <class T>
void int_op(Op op, int width, unsigned table, const std::uint64_t* a, const std::uint64_t* b, const std::uint64_t* c,
            std::uint64_t* d) {
  const auto each = [&](auto&& f) {
    for (int l = 0; l < kLanes; ++l) {
      d[l] = static_cast<std::uint64_t>(f(static_cast<T>(a[l]), static_cast<T>(b[l]), a[l], b[l], c[l]));
    }
  };
  using U = std::uint64_t;
  switch (op) {
    case Op::Neg:
      return each([](T, T, U x, U, U) { return U{0} - x; });
    case Op::Abs:
      return each([](T x, T, U u, U, U) { return x < T{0} ? U{0} - u : u; });
    case Op::Not:
      return each([](T, T, U x, U, U) { return ~x; });
    case Op::Add:
      return each([](T, T, U x, U y, U) { return x + y; });
    case Op::Sub:
      return each([](T, T, U x, U y, U) { return x - y; });
    case Op::Mul:
      return each([](T, T, U x, U y, U) { return x * y; });
    case Op::Fma:
      return each([](T, T, U x, U y, U z) { return x * y + z; });
    case Op::Div:  // by zero: all ones, as the hardware's integer division
      return each([](T x, T y, U u, U, U) {
        if (y == T{0}) return ~U{0};
        if (std::is_signed_v<T> && y == static_cast<T>(-1)) return U{0} - u;
        return static_cast<U>(x / y);
      });
    case Op::Max:
      return each([](T x, T y, U, U, U) { return static_cast<U>(larger(x, y)); });
    case Op::Min:
      return each([](T x, T y, U, U, U) { return static_cast<U>(smaller(x, y)); });
    case Op::And:
      return each([](T, T, U x, U y, U) { return x & y; });
    case Op::Or:
      return each([](T, T, U x, U y, U) { return x | y; });
    case Op::Xor:
      return each([](T, T, U x, U y, U) { return x ^ y; });
    case Op::Shl:
      return each([=](T, T, U x, U y, U) { return y >= static_cast<U>(width) ? U{0} : x << y; });
    case Op::Shr:
      return each([=](T x, T, U, U y, U) {
        const T out = x < T{0} ? static_cast<T>(~T{0}) : T{0};
        return static_cast<U>(y >= static_cast<U>(width) ? out : x >> y);
      });
    case Op::FloorDiv:
      return each([](T x, T y, U, U, U) { return floor_quotient(x, y); });
    case Op::Mod:
      return each([](T x, T y, U u, U v, U) { return y == T{0} ? U{0} : u - floor_quotient(x, y) * v; });
    case Op::MulHi:
      return each([=](T x, T y, U, U, U) { return upper_half(width, x, y); });
    case Op::Popc:
      return each([=](T, T, U x, U, U) { return static_cast<U>(std::popcount(x << (64 - width))); });
    case Op::Clz:
      return each(
          [=](T, T, U x, U, U) { return static_cast<U>(std::min(std::countl_zero(x << (64 - width)), width)); });
    case Op::Ffs:
      return each([](T, T, U x, U, U) { return x == 0 ? U{0} : static_cast<U>(std::countr_zero(x) + 1); });
    case Op::Brev:
      return each([=](T, T, U x, U, U) {
        U out = 0;
        for (int i = 0; i < width; ++i) out = out << 1U | (x >> static_cast<unsigned>(i) & 1U);
        return out;
      });
    case Op::Prmt:
      return each([](T, T, U x, U y, U z) { return permuted(x, y, z); });
    case Op::Dp4a:
      return each([](T, T, U x, U y, U z) { return dot_of_bytes(std::is_signed_v<T>, x, y, z); });
    case Op::Lop3:
      return each([=](T, T, U x, U y, U z) { return by_table(table, x, y, z); });
    default:
      GR_ASSERT(false, "no such operation on integers");
  }
}

template <class T>
void compare(Op op, const T* x, const T* y, std::uint8_t* d) {
  for (int l = 0; l < kLanes; ++l) {
    bool r = false;
    switch (op) {
      case Op::Eq:
        r = x[l] == y[l];
        break;
      case Op::Ne:
        r = x[l] != y[l];
        break;
      case Op::Lt:
        r = x[l] < y[l];
        break;
      case Op::Le:
        r = x[l] <= y[l];
        break;
      case Op::Gt:
        r = x[l] > y[l];
        break;
      default:
        r = x[l] >= y[l];
    }
    d[l] = static_cast<std::uint8_t>(r);
  }
}

void load_ints(ScalarType t, const void* in, std::uint64_t* out) {
  const int n = bytes_of(t);
  for (int l = 0; l < kLanes; ++l) {
    out[l] = static_cast<std::uint64_t>(decode_int(t, load_bits(static_cast<const char*>(in) + l * n, n)));
  }
}
void store_ints(ScalarType t, const std::uint64_t* in, void* out) {
  const int n = bytes_of(t);
  const std::uint64_t used = ~std::uint64_t{0} >> (64 - ir::bits(t));
  for (int l = 0; l < kLanes; ++l) {
    const std::uint64_t v = t == ScalarType::pred ? static_cast<std::uint64_t>(in[l] != 0) : in[l] & used;
    store_bits(static_cast<char*>(out) + l * n, n, v);
  }
}

void cast(ScalarType from, ScalarType to, bool toward_zero, const void* x, void* d) {
  if (from == to) {
    std::memcpy(d, x, static_cast<std::size_t>(bytes_of(to)) * kLanes);
    return;
  }
  if (is_float(to) && is_float(from) && from != ScalarType::fp64 && !toward_zero && to != ScalarType::fp64 &&
      to != ScalarType::tf32) {
    float f[kLanes];
    load_floats(from, x, f);
    store_floats(to, f, d);
    return;
  }
  const int n = bytes_of(from);
  const int m = bytes_of(to);
  const std::uint64_t used = ~std::uint64_t{0} >> (64 - ir::bits(to));
  for (int l = 0; l < kLanes; ++l) {
    const std::uint64_t bits = load_bits(static_cast<const char*>(x) + l * n, n);
    std::uint64_t r = 0;
    if (is_float(from)) {
      const double v = decode(from, bits);
      if (to == ScalarType::tf32) {
        r = std::isnan(v) ? 0x7fffffffU : (bits + 0x1000U) & ~0x1fffULL;  // rna
      } else if (is_float(to) && to != ScalarType::fp64 && toward_zero) {
        r = encode_float(format_of(to), v, true);
      } else if (to == ScalarType::pred) {
        r = static_cast<std::uint64_t>(v != 0);
      } else {
        r = encode(to, is_float(to) ? v : std::trunc(v));
        // PTX ISA, cvt: NaN becomes zero, but the top bit alone where source or result has 64 bits.
        const bool wide = from == ScalarType::fp64 || ir::bits(to) == 64;
        if (!is_float(to) && wide && std::isnan(v)) r = std::uint64_t{1} << (ir::bits(to) - 1);
      }
    } else if (is_float(to)) {
      const std::int64_t i = decode_int(from, bits);
      const bool huge = from == ScalarType::u64 && i < 0;
      if (to == ScalarType::fp32) {
        r = std::bit_cast<std::uint32_t>(huge ? static_cast<float>(bits) : static_cast<float>(i));
      } else {
        r = encode(to, huge ? static_cast<double>(bits) : static_cast<double>(i));
      }
    } else {
      r = to == ScalarType::pred ? static_cast<std::uint64_t>(bits != 0)
                                 : static_cast<std::uint64_t>(decode_int(from, bits));
    }
    store_bits(static_cast<char*>(d) + l * m, m, r & used);
  }
}

}  // namespace

std::uint64_t load_bits(const void* p, int bytes) {
  std::uint64_t v = 0;
  std::memcpy(&v, p, static_cast<std::size_t>(bytes));  // little endian, as the device
  return v;
}
void store_bits(void* p, int bytes, std::uint64_t bits) { std::memcpy(p, &bits, static_cast<std::size_t>(bytes)); }

std::uint64_t load_element(ScalarType t, const char* base, std::int64_t index) {
  if (!ir::is_packed(t)) return load_bits(base + index * bytes_of(t), bytes_of(t));
  return static_cast<std::uint8_t>(base[index / 2]) >> (index % 2 * 4) & 0xfU;
}
void store_element(ScalarType t, char* base, std::int64_t index, std::uint64_t bits) {
  if (!ir::is_packed(t)) return store_bits(base + index * bytes_of(t), bytes_of(t), bits);
  const auto shift = static_cast<unsigned>(index % 2 * 4);
  const unsigned kept = static_cast<std::uint8_t>(base[index / 2]) & ~(0xfU << shift);
  base[index / 2] = static_cast<char>(kept | static_cast<unsigned>(bits & 0xfU) << shift);
}

bool is_float(ScalarType t) { return ir::info(t).cls == ir::ScalarInfo::Class::Float; }
bool is_signed(ScalarType t) { return ir::info(t).cls == ir::ScalarInfo::Class::Signed; }

std::int64_t decode_int(ScalarType t, std::uint64_t bits) {
  const int shift = 64 - ir::bits(t);
  if (is_signed(t)) return static_cast<std::int64_t>(bits << shift) >> shift;
  return static_cast<std::int64_t>(bits << shift >> shift);
}

double decode(ScalarType t, std::uint64_t bits) {
  if (t == ScalarType::fp64) return std::bit_cast<double>(bits);
  if (t == ScalarType::fp32 || t == ScalarType::tf32) return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  if (is_float(t)) return decode_float(format_of(t), bits);
  const std::int64_t i = decode_int(t, bits);
  return ir::bits(t) == 64 && !is_signed(t) ? static_cast<double>(bits) : static_cast<double>(i);
}

std::uint64_t encode(ScalarType t, double value) {
  if (t == ScalarType::fp64) return std::bit_cast<std::uint64_t>(value);
  if (is_float(t)) return encode_float(format_of(t), value);
  if (t == ScalarType::pred) return static_cast<std::uint64_t>(value != 0);
  if (std::isnan(value)) return 0;
  const int n = ir::bits(t);
  if (is_signed(t)) {
    const double limit = std::ldexp(1.0, n - 1);
    if (value >= limit) return (std::uint64_t{1} << (n - 1)) - 1;
    if (value < -limit) return std::uint64_t{1} << (n - 1);
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
  }
  if (value <= 0) return 0;
  if (value >= std::ldexp(1.0, n)) return ~std::uint64_t{0} >> (64 - n);
  return static_cast<std::uint64_t>(value);
}

bool is_comparison(Op op) { return op >= Op::Eq && op <= Op::Ge; }

void load_floats(ScalarType t, const void* in, float* out) {
  switch (t) {
    case ScalarType::fp16:
      return halves_to_floats(static_cast<const std::uint16_t*>(in), out);
    case ScalarType::bf16:
      return bfloats_to_floats(static_cast<const std::uint16_t*>(in), out);
    case ScalarType::fp32:
    case ScalarType::tf32:
      std::memcpy(out, in, sizeof(float) * kLanes);
      return;
    default: {
      const int n = bytes_of(t);
      for (int l = 0; l < kLanes; ++l) {
        out[l] = static_cast<float>(decode(t, load_bits(static_cast<const char*>(in) + l * n, n)));
      }
    }
  }
}

void store_floats(ScalarType t, const float* in, void* out) {
  switch (t) {
    case ScalarType::fp16:
      return floats_to_halves(in, static_cast<std::uint16_t*>(out));
    case ScalarType::bf16:
      return floats_to_bfloats(in, static_cast<std::uint16_t*>(out));
    case ScalarType::fp32:
    case ScalarType::tf32:
      return canonical_floats(in, static_cast<float*>(out));
    default: {
      const int n = bytes_of(t);
      for (int l = 0; l < kLanes; ++l) {
        store_bits(static_cast<char*>(out) + l * n, n, encode(t, static_cast<double>(in[l])));
      }
    }
  }
}

void load_doubles(ScalarType t, const void* in, double* out) {
  const int n = bytes_of(t);
  for (int l = 0; l < kLanes; ++l) out[l] = decode(t, load_bits(static_cast<const char*>(in) + l * n, n));
}

void store_doubles(ScalarType t, const double* in, void* out) {
  const int n = bytes_of(t);
  for (int l = 0; l < kLanes; ++l) store_bits(static_cast<char*>(out) + l * n, n, encode(t, in[l]));
}

void Pointwise::operator()(const void* x, const void* y, const void* z, void* d) const {
  if (op == Op::Fma && out == ScalarType::fp16 && a == out && b == out && c == out) {
    return fma_half(static_cast<const std::uint16_t*>(x), static_cast<const std::uint16_t*>(y),
                    static_cast<const std::uint16_t*>(z), static_cast<std::uint16_t*>(d));
  }
  if (op == Op::Cast && !flush) return cast(a, out, toward_zero, x, d);
  const auto element = static_cast<std::size_t>(bytes_of(out));
  if (op == Op::Bitcast) {  // of one width
    std::memcpy(d, x, element * kLanes);
    return;
  }
  if (op == Op::Exchange) {
    std::memcpy(d, y, element * kLanes);
    return;
  }
  if (op == Op::Cas) {
    for (std::size_t l = 0; l < kLanes; ++l) {
      const auto at = [&](const void* v) { return static_cast<const char*>(v) + l * element; };
      std::memcpy(static_cast<char*>(d) + l * element, std::memcmp(at(x), at(z), element) == 0 ? at(y) : at(x),
                  element);
    }
    return;
  }
  if (op == Op::Where) {
    const int n = bytes_of(out);
    const auto* p = static_cast<const std::uint8_t*>(x);
    for (int l = 0; l < kLanes; ++l) {
      std::memcpy(static_cast<char*>(d) + l * n, static_cast<const char*>(p[l] != 0 ? y : z) + l * n,
                  static_cast<std::size_t>(n));
    }
    return;
  }
  const bool bitwise =
      op == Op::And || op == Op::Or || op == Op::Xor || op == Op::Not || op == Op::Shl || op == Op::Shr;
  if (!is_float(a) || bitwise) {
    std::uint64_t u[4][kLanes] = {};
    load_ints(a, x, u[0]);
    if (y != nullptr) load_ints(b, y, u[1]);
    if (z != nullptr) load_ints(c, z, u[2]);
    const bool is_sgn = is_signed(a);
    if (is_comparison(op)) {
      if (is_sgn) {
        return compare(op, reinterpret_cast<const std::int64_t*>(u[0]), reinterpret_cast<const std::int64_t*>(u[1]),
                       static_cast<std::uint8_t*>(d));
      }
      return compare(op, u[0], u[1], static_cast<std::uint8_t*>(d));
    }
    if (a == ScalarType::pred && op == Op::Not) {
      for (int l = 0; l < kLanes; ++l) u[3][l] = static_cast<std::uint64_t>(u[0][l] == 0);
    } else if (is_sgn) {
      int_op<std::int64_t>(op, ir::bits(a), table, u[0], u[1], u[2], u[3]);
    } else {
      int_op<std::uint64_t>(op, ir::bits(a), table, u[0], u[1], u[2], u[3]);
    }
    return store_ints(out, u[3], d);
  }
  const bool narrow = a != ScalarType::fp64 && out != ScalarType::fp64 && b != ScalarType::fp64;
  if (narrow && !(op == Op::Fma && out != ScalarType::fp32)) {
    alignas(64) float f[4][kLanes] = {};
    load_floats(a, x, f[0]);
    if (y != nullptr) load_floats(b, y, f[1]);
    if (z != nullptr) load_floats(c, z, f[2]);
    if (flush) {
      for (int i = 0; i < 3; ++i) flush_subnormals(f[i]);
    }
    if (is_comparison(op)) return compare(op, f[0], f[1], static_cast<std::uint8_t*>(d));
    if (op == Op::Fma) {
      fma_floats(f[0], f[1], f[2], f[3]);
    } else {
      float_op(op, f[0], f[1], f[2], f[3]);
    }
    if (flush) flush_subnormals(f[3]);
    return store_floats(out, f[3], d);
  }
  double f[4][kLanes] = {};
  load_doubles(a, x, f[0]);
  if (y != nullptr) load_doubles(b, y, f[1]);
  if (z != nullptr) load_doubles(c, z, f[2]);
  if (is_comparison(op)) return compare(op, f[0], f[1], static_cast<std::uint8_t*>(d));
  if (op == Op::Fma && out != ScalarType::fp64) {
    for (int l = 0; l < kLanes; ++l) f[3][l] = fma_to_odd(f[0][l], f[1][l], f[2][l]);
  } else {
    float_op(op, f[0], f[1], f[2], f[3]);
  }
  store_doubles(out, f[3], d);
}

}  // namespace graphene::sim
