// Scalar types and numbers as C text.
#pragma once

#include <cstdint>
#include <string>

#include "ir/types.h"

namespace graphene::emit {

// 8- and 16-bit floats are storage that only the atoms' texts interpret: `half` and `bfloat16` are structs of their
// `bits`, 8-bit floats are u8.
[[nodiscard]] std::string c_type(ir::ScalarType t);

// The bits of `value` rounded to the nearest even value of the type (integers: truncated to their width).
[[nodiscard]] std::uint64_t bits_of(double value, ir::ScalarType t);

// A literal of c_type(t).
[[nodiscard]] std::string c_literal(double value, ir::ScalarType t);

}  // namespace graphene::emit
