// Thread-value (TV) layouts: (thread, value) -> element of a tile, both colexicographic. The tile's elements are
// numbered 0..elements-1. An element may be held several times (a stride of 0: replication). Static layouts only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "layout/layout.h"

namespace graphene::layout {

struct Holder {
  int thread = 0;
  int value = 0;
  bool operator==(const Holder&) const = default;
};

// A TV layout, tabulated in both directions.
class TvTable {
 public:
  // LAYOUT_TV unless the layout is static and has two modes, and every element lies in [0, elements). `what` names it
  // in the message ("operand a of mma.m16n8k16").
  TvTable(const Layout& tv, std::int64_t elements, const std::string& what = "TV layout");

  [[nodiscard]] int threads() const { return threads_; }
  [[nodiscard]] int values() const { return values_; }
  [[nodiscard]] std::int64_t elements() const { return elements_; }
  [[nodiscard]] std::int64_t element(int thread, int value) const {
    return element_[static_cast<std::size_t>(value) * static_cast<std::size_t>(threads_) +
                    static_cast<std::size_t>(thread)];
  }
  // Who holds an element: by thread, then by value. Law: element(h) == e for exactly these h.
  [[nodiscard]] std::vector<Holder> holders(std::int64_t element) const;
  [[nodiscard]] int holder_count(std::int64_t element) const;

  [[nodiscard]] std::optional<std::int64_t> first_hole() const;  // the first element that nobody holds
  // How often each element is held where that is the same for all of them (1: a bijection); nullopt otherwise.
  [[nodiscard]] std::optional<int> replication() const;
  // Whether some thread holds an element in two of its values.
  [[nodiscard]] bool repeats_within_thread() const;

  void require_cover() const;  // LAYOUT_TV with the first hole

 private:
  void check_element(std::int64_t element) const;  // LAYOUT_BOUNDS

  int threads_ = 0;
  int values_ = 0;
  std::int64_t elements_ = 0;
  std::vector<std::int64_t> element_;  // [value][thread]
  std::vector<std::int32_t> first_;    // of each element, into holders_; one more at the end
  std::vector<Holder> holders_;
  std::string what_;
};

// What a fragment's layout must be. Throws LAYOUT_TV unless it is static, has two modes of at least one thread and one
// value, and every element from 0 to `elements` - 1 is held; LAYOUT_INJECTIVE where an element has two places: two
// values of a thread, or two threads that do not hold all the same elements in the same values. Threads along modes of
// stride 0 do: they hold copies. `what` names it in the message.
void require_two_modes(const Layout& tv, const std::string& what);
void require_holders(const Layout& tv, std::int64_t elements, const std::string& what);

// Same elements at every thread and value.
[[nodiscard]] bool tv_equal(const Layout& a, const Layout& b);

// F o D^-1: which element of f's tile each element of the atom's tile is, when threads first_thread, first_thread + 1,
// ... of the fragment f execute the atom and its values are values[0], values[1], ... of f:
//   result[d.element(t, v)] == f.element(first_thread + t, values[v]) for every thread t and value v of d.
// -1 where nobody holds an element of the atom's tile. LAYOUT_TV where two holders of an element disagree.
[[nodiscard]] std::vector<std::int64_t> tv_quotient(const TvTable& f, const std::vector<int>& values, const TvTable& d,
                                                    int first_thread = 0);

// offset + layout that equals the table at every index, where there is one.
struct OffsetLayout {
  std::int64_t offset = 0;
  Layout layout;
};
[[nodiscard]] std::optional<OffsetLayout> layout_from_table(const std::vector<std::int64_t>& table);

// The most elements that are consecutive in both layouts: the largest N such that a(r(n)) == n for all n < N, with r
// the right inverse of b. (CuTe's max_common_vector.) Symbolic leaves: proven so.
[[nodiscard]] std::int64_t max_common_vector(const Layout& a, const Layout& b);

// The widest vector along a mode: the largest V such that, for every coordinate whose index in `mode` is a multiple of
// V, the V elements from there on along the mode are consecutive, and start at a multiple of V. 1 where nothing better
// is proven. With a swizzle: also under it.
[[nodiscard]] std::int64_t max_vector(const Layout& l, int mode);
[[nodiscard]] std::int64_t max_vector(const ComposedLayout& l, int mode);

}  // namespace graphene::layout
