// What an instance of a spec knows of its operands' elements, by cell.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/budget.h"
#include "sim/ghost_view.h"

namespace graphene::sim {

// An element of an operand that an instance touched, or may touch.
struct Seen {
  std::uint64_t before = 0, after = 0;
  std::uint32_t version = 0;
  bool input = false, output = false;
  bool accessed = false, written = false;
};

// Most cells that a thread touches are of no operand, or lie close together: each operand has the range that its cells
// are in. A range that they fill is an array, the others share a table.
class SeenCells {
 public:
  void cover(std::span<const View* const> operands);  // once
  [[nodiscard]] Seen* find(std::int64_t cell) {       // null: no operand has it
    for (const Range& r : ranges_) {
      if (cell < r.first || cell > r.last) continue;
      if (r.at < 0) return looked_up(cell);
      Seen& s = dense_[static_cast<std::size_t>(r.at + cell - r.first)];
      return s.input || s.output ? &s : nullptr;
    }
    return nullptr;
  }
  [[nodiscard]] const Seen* find(std::int64_t cell) const { return const_cast<SeenCells*>(this)->find(cell); }

  Seen& operator[](std::int64_t cell);  // of an operand

 private:
  static constexpr std::int64_t kMostCells = std::int64_t{1} << 62;
  static constexpr std::int64_t kSparse = 3;  // a range of more than three times its cells is in the table
  static constexpr std::size_t kRow = 16;     // neighbouring cells are neighbours in the table, too
  struct Slot {
    std::int64_t cell = -1;
    Seen seen;
  };
  struct Range {
    std::int64_t first = 0, last = -1;
    std::int64_t cells = 0;  // an element of several holders, or several elements of one, count as they are
    std::int64_t at = -1;    // in `dense_`; -1: in the table
  };

  // Of the cell in the table, or where it would be.
  [[nodiscard]] std::size_t place(std::int64_t cell) const {
    const auto at = static_cast<std::uint64_t>(cell);
    const std::uint64_t row = (at / kRow + 1) * 0x9e3779b97f4a7c15ULL;
    const std::size_t last = slots_.size() - 1;
    auto i = static_cast<std::size_t>(row >> 20 & ~std::uint64_t{kRow - 1}) | ((at ^ row >> 60) & (kRow - 1));
    for (i &= last; slots_[i].cell >= 0 && slots_[i].cell != cell;) i = (i + 1) & last;
    return i;
  }
  [[nodiscard]] Seen* looked_up(std::int64_t cell) {
    if (slots_.empty()) return nullptr;
    Slot& s = slots_[place(cell)];
    return s.cell == cell ? &s.seen : nullptr;
  }
  std::vector<Range> ranges_;  // apart from each other
  CountedVector<Seen> dense_;
  CountedVector<Slot> slots_;  // a power of two, at least twice as many as cells in the table
};

}  // namespace graphene::sim
