#include "emit/literal.h"

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/diag.h"

namespace graphene::emit {

using ir::ScalarType;

namespace {

struct MiniFloat {
  int exponent_bits, mantissa_bits;
  bool has_infinity;  // fp8e4m3 has none: it saturates to its largest value only by request; beyond is NaN
};

std::uint64_t encode(double value, const MiniFloat& f) {
  const std::uint64_t sign = std::signbit(value) ? 1ULL << (f.exponent_bits + f.mantissa_bits) : 0;
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const std::uint64_t all_ones = ((1ULL << (f.exponent_bits + f.mantissa_bits)) - 1);
  const std::uint64_t infinity = ((1ULL << f.exponent_bits) - 1) << f.mantissa_bits;
  const std::uint64_t nan = f.has_infinity ? infinity | (1ULL << (f.mantissa_bits - 1)) : all_ones;
  if (std::isnan(value)) return sign | nan;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  const std::uint64_t overflow = f.has_infinity ? infinity : nan;
  if (std::isinf(value)) return sign | overflow;
  // Round to a multiple of the ulp at this exponent; the carry into the next exponent falls out of the encoding.
  const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  const double units = std::nearbyint(std::ldexp(magnitude, f.mantissa_bits - exponent));
  const auto steps = static_cast<std::uint64_t>(units);
  const std::uint64_t bits =
      (static_cast<std::uint64_t>(exponent + bias - 1) << f.mantissa_bits) + steps;  // steps carries the hidden bit
  return sign | (bits >= (f.has_infinity ? infinity : all_ones) ? overflow : bits);
}

std::string hex(std::uint64_t v, int digits) {
  std::string out(static_cast<std::size_t>(digits), '0');
  for (int i = digits - 1; i >= 0; --i, v >>= 4U) out[static_cast<std::size_t>(i)] = "0123456789abcdef"[v & 15U];
  return "0x" + out;
}

template <class T>
std::string decimal(T v) {
  std::array<char, 64> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), v).ptr;
  std::string out(buffer.data(), end);
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

}  // namespace

std::string c_type(ScalarType t) {
  switch (t) {
    case ScalarType::fp16:
      return "half";
    case ScalarType::fp32:
    case ScalarType::tf32:
      return "float";
    case ScalarType::fp64:
      return "double";
    case ScalarType::bf16:
      return "bfloat16";
    case ScalarType::fp8e4m3:
    case ScalarType::fp8e5m2:
      return "u8";
    case ScalarType::pred:
      return "bool";
    case ScalarType::b8:
      return "u8";
    case ScalarType::b16:
      return "u16";
    case ScalarType::b32:
      return "u32";
    case ScalarType::b64:
      return "u64";
    default:
      return ir::name(t);
  }
}

std::uint64_t bits_of(double value, ScalarType t) {
  switch (t) {
    case ScalarType::fp16:
      return encode(value, {5, 10, true});
    case ScalarType::bf16:
      return encode(value, {8, 7, true});
    case ScalarType::fp8e4m3:
      return encode(value, {4, 3, false});
    case ScalarType::fp8e5m2:
      return encode(value, {5, 2, true});
    case ScalarType::fp32:
    case ScalarType::tf32:
      return std::bit_cast<std::uint32_t>(static_cast<float>(value));
    case ScalarType::fp64:
      return std::bit_cast<std::uint64_t>(value);
    default: {
      const auto wide =
          value < 0 ? static_cast<std::uint64_t>(static_cast<std::int64_t>(value)) : static_cast<std::uint64_t>(value);
      const int bits = ir::bits(t);
      return bits == 64 ? wide : wide & ((1ULL << bits) - 1);
    }
  }
}

std::string c_literal(double value, ScalarType t) {
  switch (ir::info(t).cls) {
    case ir::ScalarInfo::Class::Pred:
      return value != 0 ? "true" : "false";
    case ir::ScalarInfo::Class::Signed:
      return std::to_string(static_cast<std::int64_t>(value)) + (t == ScalarType::i64 ? "LL" : "");
    case ir::ScalarInfo::Class::Unsigned:
    case ir::ScalarInfo::Class::Bits:
      return std::to_string(bits_of(value, t)) + (ir::bits(t) == 64 ? "ULL" : "u");
    case ir::ScalarInfo::Class::Float:
      break;
  }
  if (ir::bits(t) <= 16) return hex(bits_of(value, t), ir::bits(t) / 4);
  const bool single = t != ScalarType::fp64;
  if (!std::isfinite(value) || (single && !std::isfinite(static_cast<float>(value)))) {
    return single ? "__int_as_float(" + hex(bits_of(value, t), 8) + ")"
                  : "__longlong_as_double(" + hex(bits_of(value, t), 16) + ")";
  }
  return single ? decimal(static_cast<float>(value)) + "f" : decimal(value);
}

}  // namespace graphene::emit
