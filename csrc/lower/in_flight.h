// Registers that operations in flight still use: accumulators and operands of products that complete in groups.
#pragma once

#include "lower/lowered.h"

namespace graphene::lower {

// The same tree, in which every wait for a group says which registers it completes: those of groups that are over
// behind it, less those that a younger one still uses. The compiler must not touch them before.
[[nodiscard]] Block complete_registers(Block body);

// For each array of registers, whether only products in flight need to find their sums in it: whatever else writes an
// element, products write it anew before they add to it and before a wait completes it. The waits then have all that
// anybody else reads, and the compiler need not follow the registers from product to product.
[[nodiscard]] std::vector<bool> sums_in_flight(const Program& program);

}  // namespace graphene::lower
