// Membership in thread groups, for gr.only and barriers.
#pragma once

#include "base/diag.h"
#include "ir/threads.h"

namespace graphene::verify {

// Holds for the threads that belong to the group; with `elect`, for its first member alone. Decided by the levels: of
// tiles of a launch the strides nest.
[[nodiscard]] Expr is_member(const ir::ThreadTensor& group, bool elect);

// What an expression is in each thread of a block.
class InThread {
 public:
  InThread(Expr e, std::int64_t block_threads);
  [[nodiscard]] Expr operator()(std::int64_t thread) const;

 private:
  Expr e_, tid_;
  bool number_;  // nothing but the thread decides it
};

}  // namespace graphene::verify
