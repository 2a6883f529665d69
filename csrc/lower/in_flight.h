// Registers that operations in flight still use: accumulators and operands of products that complete in groups.
#pragma once

#include "lower/lowered.h"

namespace graphene::lower {

// The same tree, in which every wait for a group says which registers it completes: those of groups that are over
// behind it, less those that a younger one still uses. The compiler must not touch them before.
[[nodiscard]] Block complete_registers(Block body);

}  // namespace graphene::lower
