#include "ir/constant.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/diag.h"
#include "ir/print.h"

namespace graphene::ir {

namespace {

using Class = ScalarInfo::Class;

struct Format {
  int exponent, mantissa;
  bool has_infinity;  // else the largest exponent holds numbers and one NaN
  bool saturates;
  bool has_nan = true;  // else a NaN becomes the largest number
};

std::uint64_t float_bits(double value, const Format& f) {
  const int width = f.exponent + f.mantissa;
  if (std::isnan(value)) return (1ULL << width) - 1;
  const std::uint64_t sign = std::signbit(value) ? 1ULL << width : 0;
  const int bias = (1 << (f.exponent - 1)) - 1;
  // The first pattern that is not a finite number.
  const std::uint64_t end =
      f.has_infinity ? ((1ULL << f.exponent) - 1) << f.mantissa : (1ULL << width) - (f.has_nan ? 1 : 0);
  const std::uint64_t overflow = f.saturates ? end - 1 : end;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (magnitude >= std::ldexp(1.0, bias + 2)) return sign | overflow;
  // Units of the last place at this exponent; the carry into the next exponent falls out of the encoding.
  const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  const auto units = static_cast<std::uint64_t>(std::nearbyint(std::ldexp(magnitude, f.mantissa - exponent)));
  const std::uint64_t bits = (static_cast<std::uint64_t>(exponent + bias - 1) << f.mantissa) + units;
  return sign | (bits >= end ? overflow : bits);
}

double as_double(const Constant& c) {
  const auto* d = std::get_if<double>(&c);
  return d != nullptr ? *d : static_cast<double>(std::get<std::int64_t>(c));
}

std::string range_text(ScalarType t) {
  if (info(t).cls == Class::Pred) return "0 or 1";
  const auto n = static_cast<unsigned>(bits(t));
  std::string lo = "0";
  std::uint64_t hi = ~0ULL >> (64 - n);
  if (info(t).cls == Class::Signed) {
    hi >>= 1U;
    lo = "-" + std::to_string(hi + 1);
  }
  return "an integer from " + lo + " to " + std::to_string(hi);
}

}  // namespace

Constant constant_of(std::int64_t v) {
  const auto d = static_cast<double>(v);
  if (d < 0x1p63 && static_cast<std::int64_t>(d) == v) return d;  // 2^63 would not convert back
  return v;
}

Constant constant_attr(const Attrs& attrs, const std::string& name) {
  const auto it = attrs.find(name);
  if (it == attrs.end()) return 0.0;
  if (const auto* d = std::get_if<double>(&it->second)) return *d;
  if (const auto* i = std::get_if<std::int64_t>(&it->second)) return constant_of(*i);
  if (const auto* e = std::get_if<Expr>(&it->second); e != nullptr && e->is_const()) return constant_of(e->value());
  return 0.0;
}

std::string constant_text(const Constant& c) {
  if (const auto* i = std::get_if<std::int64_t>(&c)) return std::to_string(*i);
  const double d = std::get<double>(c);
  if (d == std::floor(d) && std::fabs(d) < 0x1p63) return std::to_string(static_cast<std::int64_t>(d));
  const std::string text = number_text(d);
  return text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
}

std::string constant_refused(const Constant& c, ScalarType t) {
  const Class cls = info(t).cls;
  if (cls == Class::Float) return {};
  const int n = bits(t);
  const double lo = cls == Class::Signed ? -std::ldexp(1.0, n - 1) : 0;
  const double end = cls == Class::Pred ? 2 : std::ldexp(1.0, cls == Class::Signed ? n - 1 : n);
  if (const auto* i = std::get_if<std::int64_t>(&c)) {
    // Larger in magnitude than 2^53: only 64-bit types have it.
    return n == 64 && cls != Class::Pred && (*i >= 0 || cls == Class::Signed) ? "" : range_text(t);
  }
  const double d = std::get<double>(c);
  return d == std::floor(d) && d >= lo && d < end ? "" : range_text(t);
}

std::uint64_t constant_bits(const Constant& c, ScalarType t) {
  const double d = as_double(c);
  switch (t) {
    case ScalarType::fp16:
      return float_bits(d, {5, 10, true, false});
    case ScalarType::bf16:
      return float_bits(d, {8, 7, true, false});
    case ScalarType::fp8e4m3:
      return float_bits(d, {4, 3, false, true});
    case ScalarType::fp8e5m2:
      return float_bits(d, {5, 2, true, true});
    case ScalarType::fp6e2m3:
      return float_bits(d, {2, 3, false, true, false});
    case ScalarType::fp6e3m2:
      return float_bits(d, {3, 2, false, true, false});
    case ScalarType::fp4e2m1:
      return float_bits(d, {2, 1, false, true, false});
    case ScalarType::fp32:
    case ScalarType::tf32:
      return float_bits(d, {8, 23, true, false});
    case ScalarType::fp64:
      return std::bit_cast<std::uint64_t>(d);
    default:
      break;
  }
  GR_ASSERT(constant_refused(c, t).empty(), "a constant " + constant_text(c) + " of type " + name(t));
  if (const auto* i = std::get_if<std::int64_t>(&c)) return static_cast<std::uint64_t>(*i);
  const auto wide = d < 0 ? static_cast<std::uint64_t>(static_cast<std::int64_t>(d)) : static_cast<std::uint64_t>(d);
  const Class cls = info(t).cls;
  return cls == Class::Pred ? wide : wide & (~0ULL >> static_cast<unsigned>(64 - bits(t)));
}

}  // namespace graphene::ir
