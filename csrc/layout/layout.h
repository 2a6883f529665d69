// CuTe's layouts: shape:stride over hierarchical integer tuples whose leaves may be symbolic. Coordinates are
// colexicographic (leftmost mode fastest). Values: copy them freely.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sym/expr.h"

namespace graphene::layout {

// A leaf or a tuple of IntTuples.
class IntTuple {
 public:
  IntTuple() : IntTuple(Expr(0)) {}
  IntTuple(Expr e) : leaf_(e), is_leaf_(true) {}          // NOLINT(google-explicit-constructor)
  IntTuple(std::int64_t v) : leaf_(v), is_leaf_(true) {}  // NOLINT(google-explicit-constructor)
  IntTuple(int v) : leaf_(v), is_leaf_(true) {}           // NOLINT(google-explicit-constructor)
  IntTuple(std::vector<IntTuple> modes) : modes_(std::move(modes)), is_leaf_(false) {}  // NOLINT

  [[nodiscard]] bool is_leaf() const { return is_leaf_; }
  [[nodiscard]] const Expr& leaf() const { return leaf_; }
  [[nodiscard]] int rank() const { return is_leaf_ ? 1 : static_cast<int>(modes_.size()); }
  [[nodiscard]] int depth() const;  // leaf 0, flat tuple 1
  [[nodiscard]] const IntTuple& operator[](int i) const {
    return is_leaf_ ? *this : modes_[static_cast<std::size_t>(i)];
  }
  [[nodiscard]] const std::vector<IntTuple>& modes() const { return modes_; }  // of a tuple
  [[nodiscard]] std::vector<Expr> leaves() const;
  [[nodiscard]] Expr product() const;  // 1 for ()
  [[nodiscard]] bool is_static() const;
  [[nodiscard]] std::string str() const;  // "(4,(2,4))", "8"
  friend bool identical(const IntTuple& a, const IntTuple& b);

 private:
  std::vector<IntTuple> modes_;
  Expr leaf_;
  bool is_leaf_;
};

[[nodiscard]] bool congruent(const IntTuple& a, const IntTuple& b);  // same hierarchy

class Layout {
 public:
  Layout();                                 // 1:0
  explicit Layout(IntTuple shape);          // column-major
  Layout(IntTuple shape, IntTuple stride);  // LAYOUT_CONGRUENT unless congruent
  [[nodiscard]] static Layout row_major(IntTuple shape);

  [[nodiscard]] const IntTuple& shape() const { return shape_; }
  [[nodiscard]] const IntTuple& stride() const { return stride_; }
  [[nodiscard]] int rank() const { return shape_.rank(); }
  [[nodiscard]] int depth() const { return shape_.depth(); }
  [[nodiscard]] Expr size() const { return shape_.product(); }
  [[nodiscard]] Expr cosize() const;  // largest offset + 1 (0 if the size is 0)
  [[nodiscard]] bool is_static() const { return shape_.is_static() && stride_.is_static(); }
  [[nodiscard]] Layout mode(int i) const;                      // a sub-layout
  [[nodiscard]] Expr operator()(const Expr& linear) const;     // offset of a colexicographic index
  [[nodiscard]] Expr operator()(const IntTuple& coord) const;  // offset of a coordinate, hierarchical to any level
  [[nodiscard]] IntTuple coord(const Expr& linear) const;      // natural coordinate of a colexicographic index
  [[nodiscard]] std::string str() const;                       // CuTe's: "(4,(2,4)):(2,(1,8))"
  [[nodiscard]] std::string graphene_str() const;              // Graphene's: "[4,(2,4):2,(1,8)]"
  friend bool identical(const Layout& a, const Layout& b);

 private:
  IntTuple shape_;
  IntTuple stride_;
};

// Reads both notations; LAYOUT_PARSE with the offset of the problem. A layout without strides is column-major.
// `lookup` resolves names; a null function refuses them.
[[nodiscard]] Layout parse_layout(std::string_view text,
                                  const std::function<std::optional<Expr>(std::string_view)>& lookup = nullptr);

[[nodiscard]] Expr crd2idx(const IntTuple& coord, const IntTuple& shape, const IntTuple& stride);
[[nodiscard]] IntTuple idx2crd(const Expr& index, const IntTuple& shape);
[[nodiscard]] Layout make_layout(const std::vector<Layout>& modes);  // concatenation: one mode each

[[nodiscard]] Layout coalesce(const Layout& l);
[[nodiscard]] Layout filter(const Layout& l);                        // no stride-0 and size-1 modes
[[nodiscard]] Layout composition(const Layout& a, const Layout& b);  // for all i: r(i) == a(b(i))
[[nodiscard]] Layout complement(const Layout& l, const Expr& cotarget);
[[nodiscard]] Layout right_inverse(const Layout& l);
[[nodiscard]] Layout left_inverse(const Layout& l);

// A tiler is a Layout (applied to the whole), or one entry per mode; a null entry keeps a mode whole.
using Tiler = std::vector<std::optional<Layout>>;
[[nodiscard]] Layout logical_divide(const Layout& l, const Layout& tiler);
[[nodiscard]] Layout logical_divide(const Layout& l, const Tiler& tiler);
[[nodiscard]] Layout zipped_divide(const Layout& l, const Tiler& tiler);  // ((tiles),(rest))
[[nodiscard]] Layout tiled_divide(const Layout& l, const Tiler& tiler);   // ((tiles),rest...)
[[nodiscard]] Layout logical_product(const Layout& l, const Layout& tiler);
[[nodiscard]] Layout zipped_product(const Layout& l, const Layout& tiler);
[[nodiscard]] Layout tiled_product(const Layout& l, const Layout& tiler);
[[nodiscard]] Layout blocked_product(const Layout& l, const Layout& tiler);
[[nodiscard]] Layout raked_product(const Layout& l, const Layout& tiler);

[[nodiscard]] bool is_injective(const Layout& l);                         // static layouts
[[nodiscard]] bool equal_as_functions(const Layout& a, const Layout& b);  // same size, same offset everywhere

// CuTe's Swizzle<bits, base, shift>: offset ^ ((offset & mask) >> shift), mask = ((1<<bits)-1) << (base+shift).
// Offsets count ELEMENTS of the tensor it is given to.
struct Swizzle {
  int bits = 0;
  int base = 0;
  int shift = 0;

  [[nodiscard]] bool trivial() const { return bits == 0; }
  [[nodiscard]] Expr operator()(const Expr& offset) const;
  [[nodiscard]] std::string str() const;  // "Sw<3,3,3>"
  bool operator==(const Swizzle&) const = default;
};

// swizzle o (offset + layout): what composition(Swizzle, Layout) gives.
struct ComposedLayout {
  Swizzle swizzle;
  Expr offset;
  Layout layout;

  [[nodiscard]] Expr operator()(const Expr& linear) const { return swizzle(offset + layout(linear)); }
  [[nodiscard]] Expr operator()(const IntTuple& coord) const { return swizzle(offset + layout(coord)); }
  [[nodiscard]] std::string str() const;
};

}  // namespace graphene::layout

namespace graphene {
using layout::IntTuple;
using layout::Layout;
using layout::Swizzle;
}  // namespace graphene
