#include "base/diag.h"
#include "layout/layout.h"

namespace graphene::layout {

namespace {

// `index` counts the leaves of `shape` colexicographically; what is left after a mode goes on to the next, and all of
// the rest to the last one.
Expr offset_of_index(Expr index, const IntTuple& shape, const IntTuple& stride) {
  if (shape.is_leaf()) return index * stride.leaf();
  Expr sum = 0;
  const int n = shape.rank();
  for (int i = 0; i < n; ++i) {
    if (i == n - 1) return sum + offset_of_index(index, shape[i], stride[i]);
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

}  // namespace

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
  modes.reserve(static_cast<std::size_t>(n));
  Expr rest = index;
  for (int i = 0; i < n; ++i) {
    const Expr size = shape[i].product();
    if (i == n - 1 || size.is_const(0)) {
      modes.push_back(idx2crd(rest, shape[i]));
      rest = 0;
    } else {
      modes.push_back(idx2crd(sym::mod(rest, size), shape[i]));
      rest = sym::floor_div(rest, size);
    }
  }
  return modes;
}

void check_coord(const IntTuple& coord, const IntTuple& shape) { check_part(coord, shape, coord, shape); }

}  // namespace graphene::layout
