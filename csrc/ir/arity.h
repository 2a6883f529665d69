// How many operands a kind of spec has.
#pragma once

#include <cstddef>
#include <optional>

#include "ir/types.h"

namespace graphene::ir {

struct Arity {
  std::size_t outs, ins;
  std::size_t more = 0;  // of either that may follow: of an atomic Move what was there, and what must be there
  [[nodiscard]] bool fits(std::size_t o, std::size_t i) const {
    return o >= outs && o <= outs + more && i >= ins && i <= ins + more;
  }
};

// Outputs and inputs of a kind; nullopt: any number.
[[nodiscard]] std::optional<Arity> arity(SpecKind kind);

}  // namespace graphene::ir
