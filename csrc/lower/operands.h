// Operands of a matched leaf as registers and memory references.
#pragma once

#include <cstdint>

#include "atoms/match.h"
#include "lower/lowered.h"
#include "lower/memory.h"

namespace graphene::lower {

// A binding of the matcher as an operand of the tree: swizzles applied, bounds as a condition. Throws LOWER_* (no
// location: the caller knows the statement).
[[nodiscard]] Operand resolve(const atoms::OperandBinding& binding, const Buffers& buffers, const atoms::Instance& atom,
                              bool is_input);

// LOWER_PARTIAL if only a part of the threads that execute an instruction would be inside, and it cannot take that.
void check_guard(const AtomCall& call);

// Exposed for tests: swizzle(offset + deltas[v]) as a new offset and constant deltas; LOWER_SWIZZLE when the values do
// not keep constant distances.
struct Swizzled {
  Expr offset;
  std::vector<std::int64_t> deltas;
};
[[nodiscard]] Swizzled apply_swizzle(const Swizzle& swizzle, const Expr& offset,
                                     const std::vector<std::int64_t>& deltas);

}  // namespace graphene::lower
