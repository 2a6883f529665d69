// Indices that are certainly outside of what they index, found before anything runs.
#pragma once

#include <vector>

#include "lower/lowered.h"

namespace graphene::lower {

// One problem for each statement with a claim that some thread of some block breaks whatever the sizes are. What
// depends on a size, on data or on mutable scalars is left to the simulator.
[[nodiscard]] std::vector<Diagnostic> certainly_outside(const Program& program);

}  // namespace graphene::lower
