// Scalar types and numbers as C text.
#pragma once

#include <cstdint>
#include <string>

#include "ir/types.h"

namespace graphene::emit {

// 8- and 16-bit floats are their bits, which only the atoms' texts interpret: `half` and `bfloat16` are u16, 8-bit
// floats u8.
[[nodiscard]] std::string c_type(ir::ScalarType t);

// The bits of `value` rounded to the nearest even value of the type (integers: truncated to their width).
[[nodiscard]] std::uint64_t bits_of(double value, ir::ScalarType t);

// A literal of c_type(t).
[[nodiscard]] std::string c_literal(double value, ir::ScalarType t);

}  // namespace graphene::emit
