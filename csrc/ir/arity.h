// How many operands a kind of spec has.
#pragma once

#include <cstddef>
#include <optional>

#include "ir/types.h"

namespace graphene::ir {

struct Arity {
  std::size_t outs, ins;
};

// Outputs and inputs of a kind; nullopt: any number.
[[nodiscard]] std::optional<Arity> arity(SpecKind kind);

}  // namespace graphene::ir
