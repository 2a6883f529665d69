// Recording a nest of leaves: what the decompositions share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "build/affine.h"
#include "ir/builder.h"

namespace graphene::build {

class Nest {
 public:
  Nest(ir::Builder& b, const ir::SpecStmt& spec) : b_(b), spec_(spec) {}

  // Views. `at` with every mode indexed removes the outermost level.
  ir::TensorPtr tile(const ir::TensorPtr& t, const std::vector<std::int64_t>& sizes);
  ir::TensorPtr at(const ir::TensorPtr& t, const std::vector<Expr>& index);
  ir::TensorPtr values(const ir::TensorPtr& fragment);

  // A fully unrolled loop; its counter (0 and no loop when there is one iteration). close() ends all that are open.
  Expr loop(const std::string& name, std::int64_t extent);
  void close();

  // One leaf. `each`: every thread for itself instead of the spec's threads. What a Move completes on is the spec's.
  void leaf(ir::SpecKind kind, const ir::TensorPtr& out, std::vector<ir::Operand> ins, const std::string& atom,
            bool each);
  // Attributes and threads of the leaves from here on that differ from the spec's.
  void say(const std::string& attribute, ir::AttrValue value) { attrs_[attribute] = std::move(value); }
  void by(ir::ThreadPtr threads) { threads_ = std::move(threads); }

  // Coordinates of the executing thread in a group, outermost level first.
  std::vector<std::vector<Expr>> indices(const ir::ThreadPtr& group);

 private:
  ir::Builder& b_;
  const ir::SpecStmt& spec_;
  ir::Attrs attrs_ = spec_.attrs;
  ir::ThreadPtr threads_ = spec_.threads;
  int open_ = 0;
};

[[nodiscard]] std::string tile_text(const std::vector<std::int64_t>& v);  // "[16,8]"

// Extents of a view over all its levels, per dimension; empty: not constant, or levels of different ranks.
[[nodiscard]] std::vector<std::int64_t> static_shape(const ir::Tensor& t);

// Throws SelectError with the line of the spec.
[[noreturn]] void refuse(const ir::SpecStmt& spec, Code code, std::string message,
                         std::vector<std::string> details = {}, std::string fix = {});

}  // namespace graphene::build
