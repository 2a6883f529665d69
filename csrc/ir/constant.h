// Constants and the types that they take: which numbers a type has, and the bits of each.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "ir/stmt.h"
#include "ir/types.h"

namespace graphene::ir {

// An integer that no double equals stays an integer; every other number is a double.
using Constant = std::variant<double, std::int64_t>;

[[nodiscard]] Constant constant_of(std::int64_t v);
// Of an attribute that is a number; 0 where it is absent or is not one that is known.
[[nodiscard]] Constant constant_attr(const Attrs& attrs, const std::string& name);

// As C and Python write it: "-1", "0.5", "inf".
[[nodiscard]] std::string constant_text(const Constant& c);

// What the type takes, if it does not take this: "an integer from 0 to 255". Every number is one for a float.
[[nodiscard]] std::string constant_refused(const Constant& c, ScalarType t);

// The bits of a constant that the type takes. A float rounds to nearest even as the conversions of the hardware do:
// 8-bit floats saturate, the larger ones overflow to infinity; a NaN is the canonical one.
[[nodiscard]] std::uint64_t constant_bits(const Constant& c, ScalarType t);

}  // namespace graphene::ir
