// Operands that an agent moves as a whole.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "sim/machine.h"

namespace graphene::sim {

// The elements of the buffer, in the operand's order, of the copy that a lane issues; kOutside: not accessed.
inline constexpr std::int64_t kOutside = std::numeric_limits<std::int64_t>::min();
void bulk_elements(const IntPlans& plans, const Warp& w, const Operand& o, int lane, std::vector<std::int64_t>& out);

}  // namespace graphene::sim
