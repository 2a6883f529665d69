// A Move between registers: from one distribution over threads to another.
#pragma once

#include "ir/builder.h"

namespace graphene::build {

// What the quotient of the two layouts demands: nothing but other register numbers where each thread holds its elements
// already, exchanges between the lanes of a warp, else the way through shared memory with a barrier on either side of
// the reading. Throws LayoutError RELAYOUT.
void relayout(ir::Builder& b, const ir::SpecStmt& spec, const ir::TensorPtr& dst, const ir::TensorPtr& src);

}  // namespace graphene::build
