// Operands of decomposed specs as lists of places: which cells of memory and registers an instance of a view covers, in
// the order of its logical coordinates.
#pragma once

#include <optional>
#include <vector>

#include "sim/elements.h"
#include "sim/machine.h"

namespace graphene::sim {

// Where buffers and registers begin among the cells of the ghost run.
struct CellMap {
  std::vector<std::int64_t> buffer_first;  // per MemBuffer
  std::int64_t register_first = 0;         // register r of thread t: register_first + r * threads + t
  std::int64_t threads = 1;
  std::int64_t cells = 0;
  std::vector<std::int64_t> argument_end;  // cells below belong to kernel arguments (one entry)

  [[nodiscard]] std::int64_t reg(std::int64_t r, std::int64_t thread) const {
    return register_first + r * threads + thread;
  }
};
[[nodiscard]] CellMap make_cell_map(const Bytecode& code);

// A view with numbers for sizes.
struct ViewPlan {
  const ir::Tensor* tensor = nullptr;
  int buffer = -1;  // memory
  int array = -1;   // registers
  IntPlan member;   // of a list of tensors: added to `buffer`
  IntPlan offset;
  // Per dimension and coordinate: contribution to the offset. Levels of different rank make one dimension.
  std::vector<std::vector<std::int64_t>> dims;
  struct Bound {
    IntPlan base, extent;
    std::vector<std::vector<std::int64_t>> dims;
  };
  std::vector<Bound> bounds;
  // Of a fragment: threads of the group by rank, relative to its first; who holds each logical element of a stage.
  struct Held {
    std::size_t rank;
    std::int64_t value;
  };
  std::vector<std::int64_t> ranks;
  std::vector<std::vector<Held>> holders;
};
// nullopt: something in it is known only at run time in a way that is not supported.
[[nodiscard]] std::optional<ViewPlan> plan_view(const ir::Tensor& t, const Bytecode& code);

// The places of one instance of a view.
struct View {
  std::vector<std::int64_t> extents;             // logical shape
  std::vector<std::vector<std::int64_t>> cells;  // per element, every holder; empty: outside
  bool scattered = false;  // private registers of several threads: who holds what is not declared; `cells` has one
                           // entry per register of each thread
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(cells.size()); }
};
// `lane`: a thread of the warp that takes part; `members`: threads of the group.
[[nodiscard]] View view_cells(const ViewPlan& plan, const Bytecode& code, const CellMap& map, const Warp& w, int lane,
                              const std::vector<std::int64_t>& members);

// "(3, 5)" of a colexicographic element number.
[[nodiscard]] std::string coordinate_text(const std::vector<std::int64_t>& extents, std::int64_t element);

}  // namespace graphene::sim
