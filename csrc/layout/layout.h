// CuTe's layouts: shape:stride over hierarchical integer tuples whose leaves may be symbolic. Coordinates are
// colexicographic (leftmost mode fastest). Values: copy them freely.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
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
  [[nodiscard]] std::string str() const;  // "(4,(2,4))", "8", "((4,2))" for one mode
  friend bool identical(const IntTuple& a, const IntTuple& b);

 private:
  std::vector<IntTuple> modes_;
  Expr leaf_;
  bool is_leaf_;
};

[[nodiscard]] bool congruent(const IntTuple& a, const IntTuple& b);  // same hierarchy

// Sizes are non-negative (LAYOUT_SIZE); strides are any integers. As a function a layout is extended past its size
// along its last mode, as in CuTe: that is what an over-approximated tile count relies on. check_coord() is the guard
// where a coordinate comes from outside.
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
  [[nodiscard]] Layout mode(int i) const;  // a sub-layout; LAYOUT_RANK when there is no mode i
  [[nodiscard]] Expr operator()(std::int64_t linear) const { return (*this)(Expr(linear)); }
  [[nodiscard]] Expr operator()(int linear) const { return (*this)(Expr(linear)); }
  [[nodiscard]] Expr operator()(const Expr& linear) const;     // offset of a colexicographic index
  [[nodiscard]] Expr operator()(const IntTuple& coord) const;  // offset of a coordinate, hierarchical to any level
  [[nodiscard]] IntTuple coord(const Expr& linear) const;      // natural coordinate of a colexicographic index
  [[nodiscard]] std::string str() const;                       // CuTe's: "(4,(2,4)):(2,(1,8))"
  [[nodiscard]] std::string graphene_str() const;              // Graphene's: "[4,(2,4):2,(1,8)]"; see parse_layout
  friend bool identical(const Layout& a, const Layout& b);

 private:
  IntTuple shape_;
  IntTuple stride_;
};

// Reads both notations; LAYOUT_PARSE with the offset of the problem. A layout without strides is column-major.
// `lookup` resolves names; a null function refuses them. Graphene's brackets are the outermost tuple, and a single leaf
// between them stands for itself: "[4:2]" is 4:2 (graphene_str prints (4):(2) so, too), "[(4,2):(1,16)]" is
// ((4,2)):((1,16)).
[[nodiscard]] Layout parse_layout(std::string_view text,
                                  const std::function<std::optional<Expr>(std::string_view)>& lookup = nullptr);

[[nodiscard]] IntTuple parse_int_tuple(std::string_view text,
                                       const std::function<std::optional<Expr>(std::string_view)>& lookup = nullptr);

// Coordinates past the end continue along the last mode. LAYOUT_COORD when the hierarchies do not fit.
[[nodiscard]] Expr crd2idx(const IntTuple& coord, const IntTuple& shape, const IntTuple& stride);
[[nodiscard]] IntTuple idx2crd(const Expr& index, const IntTuple& shape);
// A tuple of indices has one for each mode, to any level.
[[nodiscard]] IntTuple idx2crd(const IntTuple& index, const IntTuple& shape);
// (index // stride) % shape at every leaf, 0 where the stride is 0: the coordinate with this offset, where strides
// nest.
[[nodiscard]] IntTuple idx2crd(const IntTuple& index, const IntTuple& shape, const IntTuple& stride);
// LAYOUT_COORD / LAYOUT_BOUNDS unless every part of the coordinate fits; what the facts leave open is let pass.
void check_coord(const IntTuple& coord, const IntTuple& shape);
// The same of offsets, one of the whole or one for each mode: between the layout's least and its largest.
void check_offset(const IntTuple& offset, const Layout& l);
[[nodiscard]] Layout make_layout(const std::vector<Layout>& modes);  // concatenation: one mode each

// The algebra. Where it is defined only under a condition (divisibility, order), the condition is proven: refuted is
// LAYOUT_DIVISIBILITY, LAYOUT_COMPOSE or LAYOUT_INJECTIVE, undecided is LAYOUT_FACT, which names the missing fact.
[[nodiscard]] Layout coalesce(const Layout& l);
[[nodiscard]] Layout filter(const Layout& l);  // no stride-0 and size-1 modes
// Only the hierarchy of a profile counts: what stands at one of its leaves is treated by itself, modes past it are
// kept.
[[nodiscard]] Layout coalesce(const Layout& l, const IntTuple& profile);
[[nodiscard]] Layout filter(const Layout& l, const IntTuple& profile);
// For all i < size(b): r(i) == a(b(i)), and every coordinate of b is one of r. Below 0, where negative strides of b
// lead, a continues along its last mode, as it does past its size; or, where all of b's strides are negative, a(-x) is
// -a(x).
[[nodiscard]] Layout composition(const Layout& a, const Layout& b);
// The image of the result is disjoint from l's (0 apart) and ordered, and (l, result) is injective: the repetitions of
// l until cotarget is reached. Where l's strides divide, (l, result) covers all of [0, cotarget); else it leaves holes.
[[nodiscard]] Layout complement(const Layout& l, const Expr& cotarget);
[[nodiscard]] Layout right_inverse(const Layout& l);  // for all i < size(r): l(r(i)) == i
[[nodiscard]] Layout left_inverse(const Layout& l);   // for all i < size(l): l(r(l(i))) == l(i)

// One entry per mode, as tensors are tiled: a null one keeps a mode whole.
using Tiler = std::vector<std::optional<Layout>>;

// The algebra's tilers: nothing (CuTe's _), a Layout for the whole, or a tuple of tilers, one per mode, to any depth.
class ModeTiler {
 public:
  ModeTiler() = default;
  ModeTiler(Layout whole) : tiler_(std::move(whole)) {}                  // NOLINT(google-explicit-constructor)
  ModeTiler(std::vector<ModeTiler> modes) : tiler_(std::move(modes)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool is_none() const { return std::holds_alternative<std::monostate>(tiler_); }
  [[nodiscard]] const Layout* whole() const { return std::get_if<Layout>(&tiler_); }
  [[nodiscard]] const std::vector<ModeTiler>* modes() const { return std::get_if<std::vector<ModeTiler>>(&tiler_); }

 private:
  std::variant<std::monostate, Layout, std::vector<ModeTiler>> tiler_;
};

// Nothing leaves a mode unchanged; gathered, its first part is 1:0 and it is rest. Modes beyond the tiler's entries are
// rest, except that composition drops them. A tile size that does not divide rounds the tile count up.
[[nodiscard]] Layout composition(const Layout& a, const ModeTiler& b);
[[nodiscard]] Layout logical_divide(const Layout& l, const Layout& tiler);     // (tile, rest)
[[nodiscard]] Layout logical_divide(const Layout& l, const ModeTiler& tiler);  // (tile, rest) in each mode
[[nodiscard]] Layout zipped_divide(const Layout& l, const ModeTiler& tiler);   // ((tiles),(rest))
[[nodiscard]] Layout tiled_divide(const Layout& l, const ModeTiler& tiler);    // ((tiles),rest...)
[[nodiscard]] Layout logical_product(const Layout& l, const Layout& tiler);
[[nodiscard]] Layout logical_product(const Layout& l, const ModeTiler& tiler);
[[nodiscard]] Layout zipped_product(const Layout& l, const ModeTiler& tiler);
[[nodiscard]] Layout tiled_product(const Layout& l, const ModeTiler& tiler);
[[nodiscard]] Layout blocked_product(const Layout& l, const Layout& tiler);  // mode i: (l's, tiler's)
[[nodiscard]] Layout raked_product(const Layout& l, const Layout& tiler);    // mode i: (tiler's, l's)

// Static layouts are decided exactly (by enumeration where the strides interleave: LAYOUT_LIMIT past 2^24 elements).
// Symbolic ones: true where proven, else LAYOUT_FACT.
[[nodiscard]] bool is_injective(const Layout& l);
// Same size, same offset everywhere. With symbolic leaves: proven so, whatever the values.
[[nodiscard]] bool equal_as_functions(const Layout& a, const Layout& b);

// CuTe's Swizzle<bits, base, shift>: offset ^ ((offset & mask) >> shift), mask = ((1<<bits)-1) << (base+shift); a
// negative shift reads the low bits and changes the high ones. Offsets count ELEMENTS of the tensor it is given to.
struct Swizzle {
  int bits = 0;
  int base = 0;
  int shift = 0;

  Swizzle() = default;
  Swizzle(int bits, int base, int shift);  // LAYOUT_SWIZZLE unless 0 <= bits <= |shift| and 0 <= base
  [[nodiscard]] bool trivial() const { return bits == 0; }
  [[nodiscard]] Expr operator()(const Expr& offset) const;
  // Offsets of one aligned block of this size (a power of two) are permuted among themselves.
  [[nodiscard]] std::int64_t period() const;
  [[nodiscard]] std::string str() const;  // "Sw<3,3,3>"
  bool operator==(const Swizzle&) const = default;
};
[[nodiscard]] Swizzle parse_swizzle(std::string_view text);  // what str() prints; LAYOUT_PARSE

// The swizzle that lets 8 consecutive rows be read at one 16-byte column without a bank conflict (the access of
// ldmatrix), in a row-major tile of `row_elems` elements of `element_bits` bits. LAYOUT_SWIZZLE unless rows are whole
// 16-byte chunks. With 2^k the largest power of two that divides the chunks of a row: <min(k,3), log2(elements of a
// chunk), max(k,3)>. Why: the 8 chunks r*C + c (C = 2^k * odd, r = 0..7) must fall on the 8 different groups of 4
// banks, that is their low 3 bits must differ. r*C + c leaves its low k bits fixed and takes 8 consecutive odd
// multiples above them; of those three distinguishing bits, 3-min(k,3) lie in the group number already and the others
// are xored into its fixed low bits.
[[nodiscard]] Swizzle row_swizzle(std::int64_t row_elems, int element_bits);

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
