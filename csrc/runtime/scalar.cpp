// Numbers -> the bits of a kernel parameter.
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

#include "runtime/args.h"

namespace graphene::runtime {

namespace {

// An IEEE format of 1 sign, `exponent` and `mantissa` bits; with `one_nan` all bits set are its NaN, and it has no
// infinity. Rounds once, to nearest even.
std::optional<std::uint64_t> pack_float(double v, int exponent, int mantissa, bool one_nan = false) {
  const std::uint64_t sign = std::signbit(v) ? std::uint64_t{1} << (exponent + mantissa) : 0;
  const std::uint64_t all = (std::uint64_t{1} << (exponent + mantissa)) - 1;
  const std::uint64_t infinity = one_nan ? all : all >> mantissa << mantissa;
  if (std::isnan(v)) return sign | (one_nan ? all : infinity | std::uint64_t{1} << (mantissa - 1));
  if (std::isinf(v)) return one_nan ? std::nullopt : std::optional(sign | infinity);
  if (v == 0) return sign;
  const int bias = (1 << (exponent - 1)) - 1;
  int e = 0;
  std::frexp(v, &e);                                      // |v| = f * 2^e, 0.5 <= f < 1
  const int unit = std::max(e - 1, 1 - bias) - mantissa;  // exponent of the last place
  const double scaled = std::nearbyint(std::ldexp(std::fabs(v), -unit));
  // Counting in last places from zero walks through subnormals, normals and infinity alike.
  const auto steps = static_cast<std::uint64_t>(scaled);
  const std::uint64_t hidden = std::uint64_t{1} << mantissa;
  const std::uint64_t base = static_cast<std::uint64_t>(unit + mantissa + bias - 1) << mantissa;
  const std::uint64_t bits = steps < hidden ? steps : base + steps;
  if (bits >= infinity) return std::nullopt;
  return sign | bits;
}

std::optional<std::uint64_t> pack_int(const ScalarArg& s, int bits, bool is_signed) {
  const std::uint64_t mask = bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
  if (s.kind == ScalarArg::Kind::Float) return std::nullopt;
  if (s.kind == ScalarArg::Kind::UInt) return !is_signed && bits == 64 ? std::optional(s.u) : std::nullopt;
  if (is_signed) {
    const std::int64_t high =
        bits == 64 ? std::numeric_limits<std::int64_t>::max() : (std::int64_t{1} << (bits - 1)) - 1;
    if (s.i > high || s.i < -high - 1) return std::nullopt;
  } else if (s.i < 0 || static_cast<std::uint64_t>(s.i) > mask) {
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(s.i) & mask;
}

double as_double(const ScalarArg& s) {
  switch (s.kind) {
    case ScalarArg::Kind::Float:
      return s.f;
    case ScalarArg::Kind::UInt:
      return static_cast<double>(s.u);
    default:
      return static_cast<double>(s.i);
  }
}

}  // namespace

std::string ScalarArg::str() const {
  if (kind == Kind::TooLarge) return "an integer beyond every floating-point number";
  if (kind == Kind::Bool) return i != 0 ? "True" : "False";
  if (kind == Kind::UInt) return std::to_string(u);
  if (kind == Kind::Int) return std::to_string(i);
  std::array<char, 40> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), f).ptr};
}

std::optional<std::uint64_t> pack_scalar(const DType& dtype, const ScalarArg& value) {
  if (value.kind == ScalarArg::Kind::TooLarge) return std::nullopt;
  switch (dtype.code) {
    case 0:
      return pack_int(value, dtype.bits, true);
    case 1:
      return pack_int(value, dtype.bits, false);
    case 6:
      if (value.kind == ScalarArg::Kind::Bool || (value.kind == ScalarArg::Kind::Int && (value.i == 0 || value.i == 1)))
        return static_cast<std::uint64_t>(value.i);
      return std::nullopt;
    case 2:
      if (dtype.bits == 64) return std::bit_cast<std::uint64_t>(as_double(value));
      return dtype.bits == 32 ? pack_float(as_double(value), 8, 23) : pack_float(as_double(value), 5, 10);
    case 4:
      return pack_float(as_double(value), 8, 7);
    case 10:
      return pack_float(as_double(value), 4, 3, true);
    case 12:
      return pack_float(as_double(value), 5, 2);
    default:
      return std::nullopt;
  }
}

}  // namespace graphene::runtime
