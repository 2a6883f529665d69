// Operands of decomposed specs as lists of places: which cells of memory and registers an instance of a view covers, in
// the order of its logical coordinates.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "sim/budget.h"
#include "sim/elements.h"
#include "sim/machine.h"

namespace graphene::sim {

// Where buffers and registers begin among the cells of the ghost run.
struct CellMap {
  std::vector<std::int64_t> buffer_first;  // per MemBuffer
  std::int64_t register_first = 0;         // register r of thread t: register_first + r * threads + t
  std::int64_t threads = 1;                // of the cluster: those of block 0 first
  std::int64_t block_threads = 1;
  std::int64_t shared_first = 0, shared_cells = 0;  // of block 0; those of the others follow
  std::int64_t cells = 0;
  std::vector<std::int64_t> argument_end;  // cells below belong to kernel arguments (one entry)

  [[nodiscard]] std::int64_t thread(const Warp& w, int lane) const {
    return w.rank * block_threads + std::int64_t{w.local} * kLanes + lane;
  }
  // Element 0 of a buffer, as the block of this rank finds it.
  [[nodiscard]] std::int64_t first(int buffer, int rank) const {
    const std::int64_t at = buffer_first[static_cast<std::size_t>(buffer)];
    return at < shared_first ? at : at + rank * shared_cells;
  }
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
  IntPlan rank;     // of the cluster's blocks, whose memory it is; of own memory -1
  IntPlan offset;
  // Per dimension and coordinate: contribution to the offset. Levels of different rank make one dimension.
  std::vector<std::vector<std::int64_t>> dims;
  struct Bound {
    IntPlan base, extent;
    std::vector<std::vector<std::int64_t>> dims;
  };
  std::vector<Bound> bounds;
  // Of a fragment: threads of the group by rank, relative to its first; who holds each logical element of a stage.
  struct RankedValue {
    std::size_t rank;
    std::int64_t value;
  };
  std::vector<std::int64_t> ranks;
  std::vector<std::vector<RankedValue>> holders;
};
// nullopt: something in it is known only at run time in a way that is not supported.
[[nodiscard]] std::optional<ViewPlan> plan_view(const ir::Tensor& t, const Bytecode& code);

// The cells of each element of a view, one list after the other.
class CellLists {
 public:
  using Cells = std::span<const std::int64_t>;
  class Iterator {
   public:
    Iterator(const CellLists& lists, std::size_t at) : lists_(&lists), at_(at) {}
    Cells operator*() const { return (*lists_)[at_]; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.at_ == b.at_; }

   private:
    const CellLists* lists_;
    std::size_t at_;
  };

  [[nodiscard]] std::size_t size() const { return ends_.size(); }
  [[nodiscard]] Cells operator[](std::size_t element) const {
    const std::size_t first = element == 0 ? 0 : ends_[element - 1];
    return {cells_.data() + first, ends_[element] - first};
  }
  [[nodiscard]] Iterator begin() const { return {*this, 0}; }
  [[nodiscard]] Iterator end() const { return {*this, size()}; }
  void reserve(std::size_t elements) {
    cells_.reserve(elements);
    ends_.reserve(elements);
  }
  void add(std::int64_t cell) { cells_.push_back(cell); }  // to the element that end_element() ends
  void end_element() { ends_.push_back(cells_.size()); }

 private:
  CountedVector<std::int64_t> cells_;
  CountedVector<std::size_t> ends_;  // per element
};

// The places of one instance of a view.
struct View {
  std::vector<std::int64_t> extents;  // logical shape
  CellLists cells;                    // per element, every holder; none: outside
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
