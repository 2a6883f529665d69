// Membership in thread groups, for gr.only and barriers.
#pragma once

#include "base/diag.h"
#include "ir/threads.h"

namespace graphene::verify {

// Holds for the threads that belong to the group; with `elect`, for its first member alone. Decided by the levels: of
// tiles of a launch the strides nest.
[[nodiscard]] Expr is_member(const ir::ThreadTensor& group, bool elect);

}  // namespace graphene::verify
