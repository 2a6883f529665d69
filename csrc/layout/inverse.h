// Inverses of swizzled layouts: in these the swizzle comes first.
#pragma once

#include <string>

#include "layout/layout.h"

namespace graphene::layout {

// layout o (offset + swizzle): it leads from offsets to indices, where a ComposedLayout leads from indices to offsets.
struct InverseLayout {
  Layout layout;
  Expr offset;
  Swizzle swizzle;

  // LAYOUT_BOUNDS where the swizzled offset lies outside of the layout.
  [[nodiscard]] Expr operator()(const Expr& x) const;
  // All of [0, size) leads into the layout. A part of a swizzle's block at the end does not count.
  [[nodiscard]] Expr size() const;
  [[nodiscard]] std::string str() const;
};

[[nodiscard]] InverseLayout right_inverse(const ComposedLayout& l);  // for all i < size(r): l(r(i)) == i
[[nodiscard]] InverseLayout left_inverse(const ComposedLayout& l);   // as of a Layout: l(r(l(i))) == l(i)
[[nodiscard]] ComposedLayout right_inverse(const InverseLayout& l);
[[nodiscard]] ComposedLayout left_inverse(const InverseLayout& l);
// LAYOUT_COMPOSE unless both have one swizzle, which cancels out, and offsets that add up to 0.
[[nodiscard]] Layout composition(const InverseLayout& a, const ComposedLayout& b);

}  // namespace graphene::layout
