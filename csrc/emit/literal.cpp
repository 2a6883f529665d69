#include "emit/literal.h"

#include <array>
#include <bit>
#include <charconv>
#include <cmath>

namespace graphene::emit {

using ir::ScalarType;

namespace {

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
    case ScalarType::fp6e2m3:
    case ScalarType::fp6e3m2:
    case ScalarType::fp4e2m1:
    case ScalarType::u4:
    case ScalarType::i4:  // in memory: a byte of two
      return "u8";
    case ScalarType::pred:
      return "bool";
    case ScalarType::b8:
      return "u8";
    case ScalarType::b16:
      return "u16";
    case ScalarType::b32:
      return "u32";
    case ScalarType::mbar:
    case ScalarType::b64:
      return "u64";
    default:
      return ir::name(t);
  }
}

std::string c_literal_of_bits(std::uint64_t bits, ScalarType t) {
  const int n = ir::bits(t);
  switch (ir::info(t).cls) {
    case ir::ScalarInfo::Class::Pred:
      return bits != 0 ? "true" : "false";
    case ir::ScalarInfo::Class::Signed: {
      const std::string suffix = t == ScalarType::i64 ? "LL" : "";
      const auto unused = static_cast<unsigned>(64 - n);
      const auto v = static_cast<std::int64_t>(bits << unused) >> unused;
      // C has no negative literals: the type of 2147483648 alone is wider.
      if (n >= 32 && bits == 1ULL << static_cast<unsigned>(n - 1))
        return "(" + std::to_string(v + 1) + suffix + " - 1)";
      return std::to_string(v) + suffix;
    }
    case ir::ScalarInfo::Class::Unsigned:
    case ir::ScalarInfo::Class::Barrier:
    case ir::ScalarInfo::Class::Bits:
      return std::to_string(bits) + (n == 64 ? "ULL" : "u");
    case ir::ScalarInfo::Class::Float:
      break;
  }
  if (n <= 16) return hex(bits, n / 4);
  if (t == ScalarType::fp64) {
    const auto v = std::bit_cast<double>(bits);
    return std::isfinite(v) ? decimal(v) : "__longlong_as_double(" + hex(bits, 16) + ")";
  }
  const auto v = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  return std::isfinite(v) ? decimal(v) + "f" : "__int_as_float(" + hex(bits, 8) + ")";
}

std::string c_literal(const ir::Constant& value, ScalarType t) {
  return c_literal_of_bits(ir::constant_bits(value, t), t);
}

}  // namespace graphene::emit
