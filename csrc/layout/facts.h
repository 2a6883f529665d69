// What the layout algebra asks of its integers: constants are decided at once, symbols by their facts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/diag.h"
#include "layout/layout.h"

namespace graphene::layout {

// nullopt: the facts do not decide.
[[nodiscard]] inline std::optional<bool> known_le(const Expr& a, const Expr& b) {
  if (a.is_const() && b.is_const()) return a.value() <= b.value();
  return sym::decide(sym::le(a, b));
}
[[nodiscard]] inline bool proven_le(const Expr& a, const Expr& b) { return known_le(a, b).value_or(false); }
[[nodiscard]] std::optional<bool> known_divides(const Expr& divisor, const Expr& e);

// Throws `refuted` where the condition is known to be false, LAYOUT_FACT where nothing is known. `condition` is text.
void require(std::optional<bool> known, const std::string& operation, const std::string& condition, Code refuted,
             const std::string& refuted_message, const std::vector<std::string>& details);

// Leaves in order: as a function a layout is exactly this.
struct Flat {
  std::vector<Expr> shape;
  std::vector<Expr> stride;

  [[nodiscard]] std::size_t rank() const { return shape.size(); }
  void push(const Expr& s, const Expr& d) {
    shape.push_back(s);
    stride.push_back(d);
  }
  [[nodiscard]] Layout layout() const;  // 1:0 without modes, a leaf with one, else a flat tuple
};

[[nodiscard]] Flat flatten(const Layout& l);
[[nodiscard]] Flat coalesced(const Flat& f);  // at least one mode; an empty layout is 0:0
// The same function for every index, also past the size, where it continues along the last mode.
[[nodiscard]] Flat coalesced_open_ended(const Flat& f);
[[nodiscard]] Flat filtered(const Flat& f);  // no stride-0 and size-1 modes; may have none

// The modes of a filtered layout by increasing stride, proven to nest: each stride is at least the extent (size x
// stride) of the mode before. LAYOUT_INJECTIVE where they do not, LAYOUT_FACT where that is open.
[[nodiscard]] std::vector<std::size_t> nested_order(const Flat& f, const std::string& operation, const Layout& l);

}  // namespace graphene::layout
