#include <algorithm>

#include "base/diag.h"
#include "layout/layout.h"

namespace graphene::layout {

namespace {

bool has_leaf(const IntTuple& t) { return t.is_leaf() || std::any_of(t.modes().begin(), t.modes().end(), has_leaf); }

// The mode that an index goes on in past the end: the last one with a leaf, as that of the flat layout is. -1 if none.
int open_ended_mode(const IntTuple& shape) {
  int i = shape.rank() - 1;
  while (i >= 0 && !has_leaf(shape[i])) --i;
  return i;
}

// `index` counts the leaves of `shape` colexicographically; what is left after a mode goes on to the next, and all of
// the rest to the last one.
Expr offset_of_index(Expr index, const IntTuple& shape, const IntTuple& stride) {
  if (shape.is_leaf()) return index * stride.leaf();
  Expr sum = 0;
  const int last = open_ended_mode(shape);
  for (int i = 0; i <= last; ++i) {
    if (i == last) return sum + offset_of_index(index, shape[i], stride[i]);
    const Expr size = shape[i].product();
    if (size.is_const(1)) continue;
    if (size.is_const(0)) return 0;
    sum = sum + offset_of_index(sym::mod(index, size), shape[i], stride[i]);
    index = sym::floor_div(index, size);
  }
  return sum;
}

[[noreturn]] void bad_coord(const IntTuple& coord, const IntTuple& shape) {
  fail(Code::LAYOUT_COORD, "coordinate " + coord.str() + " does not fit the shape " + shape.str(),
       {"a coordinate is an index, or a tuple with one coordinate for each of the " + std::to_string(shape.rank()) +
        (shape.rank() == 1 ? " mode" : " modes")});
}

void check_part(const IntTuple& coord, const IntTuple& shape, const IntTuple& whole_coord, const IntTuple& whole) {
  if (coord.is_leaf()) {
    const Expr& c = coord.leaf();
    const Expr size = shape.product();
    const bool below = !sym::decide(sym::le(0, c)).value_or(true);
    const bool above = !sym::decide(sym::lt(c, size)).value_or(true);
    if (!below && !above) return;
    std::vector<std::string> details;
    if (!whole_coord.is_leaf()) details.push_back("coordinate: " + whole_coord.str() + " in " + whole.str());
    fail(Code::LAYOUT_BOUNDS, "coordinate " + c.str() + " is outside of " + shape.str() + " (size " + size.str() + ")",
         std::move(details));
  }
  if (coord.rank() != shape.rank()) bad_coord(coord, shape);
  for (int i = 0; i < coord.rank(); ++i) check_part(coord[i], shape[i], whole_coord, whole);
}

IntTuple negated(const IntTuple& t) {
  if (t.is_leaf()) return -t.leaf();
  std::vector<IntTuple> modes;
  for (const IntTuple& m : t.modes()) modes.push_back(negated(m));
  return modes;
}

}  // namespace

void check_offset(const IntTuple& offset, const Layout& l) {
  if (!offset.is_leaf()) {
    if (l.shape().is_leaf() || offset.rank() != l.rank()) bad_coord(offset, l.shape());
    for (int i = 0; i < offset.rank(); ++i) check_offset(offset[i], l.mode(i));
    return;
  }
  const Expr least = 1 - Layout(l.shape(), negated(l.stride())).cosize();
  const Expr& x = offset.leaf();
  if (sym::decide(sym::le(least, x)).value_or(true) && sym::decide(sym::lt(x, l.cosize())).value_or(true)) return;
  fail(
      Code::LAYOUT_BOUNDS,
      "offset " + x.str() + " is none of the layout's, which are from " + least.str() + " to " + (l.cosize() - 1).str(),
      {"layout: " + l.str()});
}

Expr crd2idx(const IntTuple& coord, const IntTuple& shape, const IntTuple& stride) {
  if (coord.is_leaf()) return offset_of_index(coord.leaf(), shape, stride);
  if (coord.rank() != shape.rank()) bad_coord(coord, shape);
  Expr sum = 0;
  for (int i = 0; i < coord.rank(); ++i) sum = sum + crd2idx(coord[i], shape[i], stride[i]);
  return sum;
}

IntTuple idx2crd(const Expr& index, const IntTuple& shape) {
  if (shape.is_leaf()) return index;
  std::vector<IntTuple> modes;
  const int n = shape.rank();
  const int last = open_ended_mode(shape);
  modes.reserve(static_cast<std::size_t>(n));
  Expr rest = index;
  for (int i = 0; i < n; ++i) {
    const Expr size = shape[i].product();
    if (i == last || size.is_const(0)) {
      modes.push_back(idx2crd(rest, shape[i]));
      rest = 0;
    } else {
      modes.push_back(idx2crd(sym::mod(rest, size), shape[i]));
      rest = sym::floor_div(rest, size);
    }
  }
  return modes;
}

IntTuple idx2crd(const IntTuple& index, const IntTuple& shape) {
  if (index.is_leaf()) return idx2crd(index.leaf(), shape);
  if (shape.is_leaf() || index.rank() != shape.rank()) bad_coord(index, shape);
  std::vector<IntTuple> modes;
  for (int i = 0; i < index.rank(); ++i) modes.push_back(idx2crd(index[i], shape[i]));
  return modes;
}

IntTuple idx2crd(const IntTuple& index, const IntTuple& shape, const IntTuple& stride) {
  if (!index.is_leaf() && (shape.is_leaf() || index.rank() != shape.rank())) bad_coord(index, shape);
  if (shape.is_leaf()) {
    const Expr& d = stride.leaf();
    if (d.is_const(0) || shape.leaf().is_const(1)) return 0;
    return sym::mod(sym::floor_div(index.leaf(), d), shape.leaf());
  }
  std::vector<IntTuple> modes;
  for (int i = 0; i < shape.rank(); ++i)
    modes.push_back(idx2crd(index.is_leaf() ? index : index[i], shape[i], stride[i]));
  return modes;
}

void check_coord(const IntTuple& coord, const IntTuple& shape) { check_part(coord, shape, coord, shape); }

}  // namespace graphene::layout
