#include "layout/layout.h"

#include "base/diag.h"

namespace graphene::layout {

namespace {

void check_sizes(const IntTuple& t, const IntTuple& whole) {
  if (t.is_leaf()) {
    const Expr& e = t.leaf();
    const bool negative = e.is_const() ? e.value() < 0 : sym::upper_bound(e) < 0;
    if (negative)
      fail(Code::LAYOUT_SIZE, "a layout's sizes must not be negative, got " + e.str(), {"shape: " + whole.str()});
    return;
  }
  for (const IntTuple& m : t.modes()) check_sizes(m, whole);
}

// Strides that number the leaves of `shape`, from the first (column-major) or from the last.
IntTuple compact(const IntTuple& shape, Expr& current, bool row_major) {
  if (shape.is_leaf()) {
    const Expr stride = current;
    current = current * shape.leaf();
    return stride;
  }
  std::vector<IntTuple> modes(shape.modes().size());
  const int n = shape.rank();
  for (int i = 0; i < n; ++i) {
    const int at = row_major ? n - 1 - i : i;
    modes[static_cast<std::size_t>(at)] = compact(shape[at], current, row_major);
  }
  return modes;
}

IntTuple column_major_stride(const IntTuple& shape) {
  Expr current = 1;
  return compact(shape, current, false);
}

// The sum of (size - 1) * stride over the modes with a positive stride; a stride of unknown sign counts as max(0, .).
Expr max_offset(const IntTuple& shape, const IntTuple& stride) {
  if (shape.is_leaf()) {
    const Expr& d = stride.leaf();
    if (sym::prove(sym::le(d, 0))) return 0;
    const Expr reach = (shape.leaf() - 1) * d;
    return sym::prove(sym::le(0, d)) ? reach : sym::max(0, reach);
  }
  Expr sum = 0;
  for (int i = 0; i < shape.rank(); ++i) sum = sum + max_offset(shape[i], stride[i]);
  return sum;
}

void print_modes(const IntTuple& t, std::string& out) {
  if (t.is_leaf()) {
    out += t.str();
    return;
  }
  for (int i = 0; i < t.rank(); ++i) {
    if (i > 0) out += ',';
    out += t[i].str();
  }
  if (t.rank() == 0) out += "()";
}

}  // namespace

namespace {

// Copies, printing and the algebra go through all of a layout, most of them more than once.
void check_extent(const IntTuple& shape) {
  constexpr std::size_t kMaxLeaves = std::size_t{1} << 14;
  constexpr int kMaxDepth = 64;  // as in text
  const int depth = shape.depth();
  if (depth > kMaxDepth)
    fail(Code::LAYOUT_LIMIT, "a layout nested deeper than " + std::to_string(kMaxDepth) + " levels", {},
         "coalesce it, or merge modes");
  const std::size_t leaves = depth > 0 ? shape.leaves().size() : 1;
  if (leaves > kMaxLeaves)
    fail(Code::LAYOUT_LIMIT, "a layout of more than " + std::to_string(kMaxLeaves) + " modes",
         {"got: " + std::to_string(leaves)}, "coalesce it, or merge modes");
}

}  // namespace

Layout::Layout() : shape_(1), stride_(0) {}

Layout::Layout(IntTuple shape) : shape_(std::move(shape)) {
  check_extent(shape_);
  check_sizes(shape_, shape_);
  stride_ = column_major_stride(shape_);
}

Layout::Layout(IntTuple shape, IntTuple stride) : shape_(std::move(shape)), stride_(std::move(stride)) {
  check_extent(shape_);
  if (!congruent(shape_, stride_))
    fail(Code::LAYOUT_CONGRUENT, "shape and stride must have the same hierarchy",
         {"shape:  " + shape_.str(), "stride: " + stride_.str()}, "give one stride for each size");
  check_sizes(shape_, shape_);
}

Layout Layout::row_major(IntTuple shape) {
  Expr current = 1;
  IntTuple stride = compact(shape, current, true);
  return {std::move(shape), std::move(stride)};
}

Expr Layout::cosize() const {
  const Expr n = size();
  if (n.is_const(0)) return 0;
  return max_offset(shape_, stride_) + 1;
}

Layout Layout::mode(int i) const {
  if (i < 0 || i >= rank())
    fail(Code::LAYOUT_RANK, "mode " + std::to_string(i) + " of a layout of rank " + std::to_string(rank()),
         {"layout: " + str()});
  return {shape_[i], stride_[i]};
}

Expr Layout::operator()(const Expr& linear) const { return crd2idx(linear, shape_, stride_); }
Expr Layout::operator()(const IntTuple& coord) const { return crd2idx(coord, shape_, stride_); }
IntTuple Layout::coord(const Expr& linear) const { return idx2crd(linear, shape_); }
std::string Layout::str() const { return shape_.str() + ":" + stride_.str(); }

std::string Layout::graphene_str() const {
  std::string s = "[";
  print_modes(shape_, s);
  s += ':';
  print_modes(stride_, s);
  return s + "]";
}

bool identical(const Layout& a, const Layout& b) {
  return identical(a.shape_, b.shape_) && identical(a.stride_, b.stride_);
}

Layout make_layout(const std::vector<Layout>& modes) {
  std::vector<IntTuple> shape;
  std::vector<IntTuple> stride;
  shape.reserve(modes.size());
  stride.reserve(modes.size());
  for (const Layout& m : modes) {
    shape.push_back(m.shape());
    stride.push_back(m.stride());
  }
  return {IntTuple(std::move(shape)), IntTuple(std::move(stride))};
}

}  // namespace graphene::layout
