// Whether a value is the same in all threads of a group, and which branches they take together.
#pragma once

#include "verify/rule.h"

namespace graphene::verify {

class Uniformity {
 public:
  explicit Uniformity(Context& c) : c_(c), block_(c.kernel().block->launch_size().value()) {}

  // Whether a value may differ between threads that `group` names as one (null: the whole block). Groups that depend on
  // the executing thread ("my warp") are told apart by their first member.
  [[nodiscard]] bool varies(const Expr& e, const ir::ThreadTensor* group);
  // Whether they may take the branch, or repeat the loop, differently.
  [[nodiscard]] bool splits(const ir::Stmt& s, const ir::ThreadTensor* group);
  // The innermost statement around that not all of them reach together; null: they do.
  [[nodiscard]] const ir::Stmt* diverges(const ir::ThreadTensor* group);

 private:
  using Scalars = std::set<const sym::Node*>;

  // Scalars that may differ between the threads of one such group. A scalar is the same if its values are, and the
  // branches between its declaration and its assignments: whatever is around both, who has the scalar has taken.
  const Scalars& divergent(const ir::ThreadTensor* group);
  bool compare(const Expr& e, const ir::ThreadTensor* group, const Scalars& scalars);
  const std::vector<Member>& members(const std::string& key, const ir::ThreadTensor* group);
  [[nodiscard]] static bool depends_on(const Expr& e, const Scalars& scalars);

  Context& c_;
  std::int64_t block_;
};

}  // namespace graphene::verify
