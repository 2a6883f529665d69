// Types and operations of pointwise expressions on registers.
#pragma once

#include <set>
#include <string>

#include "ir/types.h"

namespace graphene::build::point {

inline bool is_float(ir::ScalarType t) { return ir::info(t).cls == ir::ScalarInfo::Class::Float; }

// Floats of 4 or 6 bits, which are converted one by one.
inline bool narrow(ir::ScalarType t) {
  return t == ir::ScalarType::fp4e2m1 || t == ir::ScalarType::fp6e2m3 || t == ir::ScalarType::fp6e3m2;
}

// The type arithmetic on a type is done in.
inline ir::ScalarType widened(ir::ScalarType t) {
  if (is_float(t)) return t == ir::ScalarType::fp64 ? t : ir::ScalarType::fp32;
  if (ir::bits(t) < 32 &&
      (ir::info(t).cls == ir::ScalarInfo::Class::Signed || ir::info(t).cls == ir::ScalarInfo::Class::Unsigned))
    return ir::ScalarType::i32;
  return t;
}

// Whether eight neighbours of 4 bits, a word, are converted by one instruction.
inline bool converts_words(ir::ScalarType from, ir::ScalarType to) {
  return ir::is_packed(from) && (to == ir::ScalarType::fp16 || (to == ir::ScalarType::bf16 && !is_float(from)));
}

// Whether two neighbours are converted by one instruction.
inline bool converts_pairs(ir::ScalarType from, ir::ScalarType to) {
  return is_float(from) && is_float(to) &&
         ((from == ir::ScalarType::fp32 && ir::bits(to) <= 16) ||
          (to == ir::ScalarType::fp32 && ir::bits(from) <= 16) ||
          (ir::bits(from) == 8 && to == ir::ScalarType::fp16)) &&
         !narrow(from) && !narrow(to);
}

// Conversions that no instruction makes, of types whose values fp32 has all: exactly to fp32, then rounding once.
inline bool converts_by_fp32(ir::ScalarType from, ir::ScalarType to) {
  if (ir::bits(from) > 16 || from == ir::ScalarType::pred || to == ir::ScalarType::pred) return false;
  if (from == to || to == ir::ScalarType::fp32) return false;
  if (!is_float(from)) return is_float(to) && ir::bits(to) <= 16;
  return from != ir::ScalarType::fp16 || ir::bits(to) < 32;
}

inline ir::ScalarType promoted(ir::ScalarType a, ir::ScalarType b) {
  a = widened(a);
  b = widened(b);
  if (a == b) return a;
  if (is_float(a) || is_float(b))
    return a == ir::ScalarType::fp64 || b == ir::ScalarType::fp64 ? ir::ScalarType::fp64 : ir::ScalarType::fp32;
  return ir::bits(a) == ir::bits(b)  ? (ir::info(a).cls == ir::ScalarInfo::Class::Unsigned ? a : b)
         : ir::bits(a) > ir::bits(b) ? a
                                     : b;
}

inline bool compares(const std::string& op) {
  static const std::set<std::string> ops = {"eq", "ne", "lt", "le", "gt", "ge"};
  return ops.contains(op);
}

// Operations on the bits of integers, or that round quotients of integers.
inline bool of_integers(const std::string& op) {
  static const std::set<std::string> ops = {"shl", "shr", "floordiv", "mod",  "mulhi", "popc",
                                            "clz", "ffs", "brev",     "prmt", "dp4a",  "lop3"};
  return ops.contains(op);
}

inline bool logic(const std::string& op) { return op == "and" || op == "or" || op == "xor" || op == "not"; }

}  // namespace graphene::build::point
