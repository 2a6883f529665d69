// Scalar types and numbers as C text.
#pragma once

#include <cstdint>
#include <string>

#include "ir/constant.h"
#include "ir/types.h"

namespace graphene::emit {

// 8- and 16-bit floats are their bits, which only the atoms' texts interpret: `half` and `bfloat16` are u16, 8-bit
// floats u8.
[[nodiscard]] std::string c_type(ir::ScalarType t);

// A literal of c_type(t): of a constant that the type has, and of the value that has these bits.
[[nodiscard]] std::string c_literal(const ir::Constant& value, ir::ScalarType t);
[[nodiscard]] std::string c_literal_of_bits(std::uint64_t bits, ir::ScalarType t);

}  // namespace graphene::emit
