#include "sim/ghost_seen.h"

#include <algorithm>
#include <bit>

namespace graphene::sim {

void SeenCells::cover(std::span<const View* const> operands) {
  std::vector<Range> found;
  for (const View* v : operands) {
    Range r{.first = kMostCells, .last = -1};
    for (const auto& cells : v->cells) {
      for (const std::int64_t c : cells) {
        r.first = std::min(r.first, c);
        r.last = std::max(r.last, c);
        ++r.cells;
      }
    }
    if (r.cells > 0) found.push_back(r);
  }
  std::sort(found.begin(), found.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  for (const Range& r : found) {
    if (ranges_.empty() || r.first > ranges_.back().last) {
      ranges_.push_back(r);
      continue;
    }
    ranges_.back().last = std::max(ranges_.back().last, r.last);
    ranges_.back().cells += r.cells;
  }
  std::int64_t dense = 0;
  std::int64_t sparse = 0;
  for (Range& r : ranges_) {
    const std::int64_t extent = r.last - r.first + 1;
    if (extent > kSparse * r.cells) {
      sparse += r.cells;
    } else {
      r.at = dense;
      dense += extent;
    }
  }
  dense_.resize(static_cast<std::size_t>(dense));
  if (sparse > 0) slots_.resize(std::bit_ceil(std::max(2 * static_cast<std::size_t>(sparse), kRow)));
}

Seen& SeenCells::operator[](std::int64_t cell) {
  for (const Range& r : ranges_) {
    if (cell >= r.first && cell <= r.last && r.at >= 0) return dense_[static_cast<std::size_t>(r.at + cell - r.first)];
  }
  Slot& s = slots_[place(cell)];
  s.cell = cell;
  return s.seen;
}

}  // namespace graphene::sim
