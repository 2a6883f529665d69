// Membership in thread groups, for gr.only and barriers.
#pragma once

#include "base/diag.h"
#include "ir/threads.h"

namespace graphene::verify {

// Holds for the threads (or blocks) that belong to the group; with `elect`, for its first member alone.
// Decided by the levels: VERIFY_MEMBERS when their strides do not nest.
[[nodiscard]] Expr is_member(const ir::ThreadTensor& group, bool elect);

}  // namespace graphene::verify
