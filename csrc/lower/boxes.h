// Copies by tensor maps: which box of an argument a tile is. A map wants a coordinate for each dimension, a view has
// one offset; so the views that made the tile are applied once more, to the coordinates of the argument's elements.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "atoms/match.h"
#include "lower/lowered.h"
#include "lower/memory.h"
#include "lower/substitute.h"

namespace graphene::lower {

// Where the elements of a view of an argument lie along one dimension: base + sum of levels(coordinates).
struct Position {
  Expr base;
  std::vector<Layout> levels;
};

class Boxes {
 public:
  explicit Boxes(const ir::Kernel& kernel);

  void see(const ir::ViewStmt& view) { made_by_[view.result->id] = &view; }

  // One for each leaf of the argument's layout, in its order. LOWER_BOX where the views are not known.
  [[nodiscard]] std::vector<Position> positions(const ir::Tensor& t, const Substitution& unrolled) const;

  // Both sides of a copy: global memory as a box of a map, shared memory as its elements in order. LOWER_BOX says which
  // dimension is not a box, and why. Appends what only the arguments decide to `facts`.
  struct Copy {
    MemRef global, shared;
    std::int64_t align_bytes = 0;  // of the allocation in shared memory
  };
  [[nodiscard]] Copy copy(const ir::Tensor& global, const ir::Tensor& shared, const Buffers& buffers,
                          const Substitution& unrolled, std::vector<atoms::LaunchFact>& facts);

  [[nodiscard]] std::vector<TensorMap> take_maps() { return std::move(maps_); }

 private:
  int number(TensorMap map);

  std::map<int, ir::TensorPtr> arguments_;              // by the id of what declares them
  std::map<int, const ir::ViewStmt*> made_by_;          // by the id of the result
  mutable std::map<int, std::vector<Position>> known_;  // by the id of a view
  std::vector<TensorMap> maps_;
};

}  // namespace graphene::lower
