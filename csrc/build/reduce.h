// Reductions of registers: a thread's own values, then across the threads that hold the same row or column.
#pragma once

#include <string>

#include "ir/builder.h"

namespace graphene::build {

// A fragment that keeps one value per element of `x` without dimension `axis` (extent 1), on the threads that own those
// elements; `lanes`: one partial value per thread along the axis instead. Throws LayoutError REDUCE_FRAGMENT.
ir::TensorPtr reduced(ir::Builder& b, const ir::TensorPtr& x, int axis, const std::string& name, ir::ScalarType dtype,
                      bool lanes);

// Decomposes a Reduction of registers; false: its operands are none, or do not fit: verifying says what is wrong.
bool reduce(ir::Builder& b, const ir::SpecStmt& spec);

// x <- op over the group's x, for each of its registers; every thread gets it. One warp or a part of it exchanges
// registers; several warps meet in shared memory, with a barrier before and after reading.
void allreduce(ir::Builder& b, const std::string& op, const ir::TensorPtr& x, const ir::ThreadPtr& group);

}  // namespace graphene::build
