// The numerical half of kernel.check(): what the kernel computed in its own types against float64.
#pragma once

#include <optional>
#include <vector>

#include "sim/ghost_view.h"

namespace graphene::sim {

struct Numerics {
  double worst = 0;  // largest error in units of its tolerance
  int specs = 0;     // that were compared
  std::vector<Diagnostic> problems;
};

// Compares every MatMul and sum that spans the whole grid on tensors in global memory. `before` and `after`: the bytes
// of every memory buffer in global memory (by buffer). The tolerance of a sum of n products is
// (n + 2) * epsilon * sum |a * b|, epsilon of the narrower of the output's type and the registers that accumulate.
[[nodiscard]] Numerics check_numerics(const Bytecode& code, const std::vector<std::vector<char>>& before,
                                      const std::vector<std::vector<char>>& after);

}  // namespace graphene::sim
