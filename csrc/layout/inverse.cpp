#include "layout/inverse.h"

#include <algorithm>
#include <cstdlib>

#include "base/diag.h"

namespace graphene::layout {

Expr InverseLayout::operator()(const Expr& x) const {
  const Expr at = offset + swizzle(x);
  check_coord(at, layout.shape());
  return layout(at);
}

Expr InverseLayout::size() const {
  if (offset.is_const() && offset.value() < 0) return 0;  // offset 0 stays 0 under a swizzle
  const Expr end = layout.size() - offset;
  if (end.is_const() && end.value() <= 0) return 0;
  if (swizzle.trivial()) return end;
  // Below `fixed` the bits that are read are 0. Aligned blocks of `block` are permuted in themselves.
  const std::int64_t fixed = std::int64_t{1} << (swizzle.base + std::max(swizzle.shift, 0));
  const std::int64_t block = swizzle.shift > 0 ? std::int64_t{1} << (swizzle.base + swizzle.bits) : swizzle.period();
  const Expr whole = sym::floor_div(end, block) * block;
  if (!end.is_const()) return whole;
  return end.value() <= fixed ? end : Expr(std::max(fixed, whole.value()));
}

std::string InverseLayout::str() const { return layout.str() + " o " + IntTuple(offset).str() + " o " + swizzle.str(); }

InverseLayout right_inverse(const ComposedLayout& l) { return {right_inverse(l.layout), -l.offset, l.swizzle}; }
InverseLayout left_inverse(const ComposedLayout& l) { return {left_inverse(l.layout), -l.offset, l.swizzle}; }
ComposedLayout right_inverse(const InverseLayout& l) { return {l.swizzle, -l.offset, right_inverse(l.layout)}; }
ComposedLayout left_inverse(const InverseLayout& l) { return {l.swizzle, -l.offset, left_inverse(l.layout)}; }

Layout composition(const InverseLayout& a, const ComposedLayout& b) {
  if (!(a.swizzle == b.swizzle) || !(a.offset + b.offset).is_const(0))
    fail(Code::LAYOUT_COMPOSE, "the composition is not a layout: swizzles or offsets in it do not cancel out",
         {"left:  " + a.str(), "right: " + b.str()}, "call one function with what the other one returns");
  return composition(a.layout, b.layout);
}

}  // namespace graphene::layout
