// What each thread holds of a view of a fragment, by enumeration.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/stmt.h"

namespace graphene::build {

struct Held {
  std::vector<std::int64_t> shape;  // of the view, per dimension
  // Threads that see different parts: all of the group (rank, innermost level fastest), or only its innermost level
  // where the view is already each one's own part.
  std::int64_t threads = 1;
  bool whole_group = true;
  std::int64_t stage = 0;
  std::vector<std::int64_t> registers;  // of one stage, ascending
  // Coordinates in the view, per dimension, of register number i of `registers` in thread t.
  [[nodiscard]] const std::int64_t* coord(std::int64_t t, std::size_t i) const {
    return &coords_[(static_cast<std::size_t>(t) * registers.size() + i) * shape.size()];
  }
  std::vector<std::int64_t> coords_;
};

// Throws SelectError COLLECTIVE_FRAGMENT: the view's place is not a constant, or threads hold parts of different form.
[[nodiscard]] Held enumerate(const ir::SpecStmt& spec, const ir::Tensor& view);

}  // namespace graphene::build
