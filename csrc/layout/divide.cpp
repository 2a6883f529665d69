#include <algorithm>

#include "layout/facts.h"

namespace graphene::layout {

namespace {

using Operation = Layout (*)(const Layout&, const Layout&);

void check_rank(const Layout& l, const std::vector<ModeTiler>& tiler, const char* operation) {
  if (static_cast<int>(tiler.size()) <= l.rank()) return;
  fail(Code::LAYOUT_RANK,
       std::string(operation) + ": " + std::to_string(tiler.size()) + " tiler entries for a layout of rank " +
           std::to_string(l.rank()),
       {"layout: " + l.str()});
}

// The complement must reach every element: a stride that the extent below does not divide would lose some.
void check_no_holes(const Layout& tiler, const Layout& l) {
  const Flat f = filtered(flatten(tiler));
  Expr current = 1;
  const Facts facts("logical_divide", {{"layout: ", &l}, {"tile:   ", &tiler}});
  for (const std::size_t i : nested_order(f, facts)) {
    const Expr& d = f.stride[i];
    facts.need_divides(current, d, Code::LAYOUT_DIVISIBILITY, [&] {
      return "logical_divide: copies of the tile cannot cover the layout: its stride " + d.str() +
             " is not a multiple of " + current.str();
    });
    current = f.shape[i] * d;
  }
}

Layout by_mode(const Layout& l, const ModeTiler& tiler, const char* name, Operation operation) {
  if (tiler.is_none()) return l;
  if (tiler.whole() != nullptr) return operation(l, *tiler.whole());
  const std::vector<ModeTiler>& entries = *tiler.modes();
  check_rank(l, entries, name);
  std::vector<Layout> modes;
  for (int i = 0; i < l.rank(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    modes.push_back(at < entries.size() ? by_mode(l.mode(i), entries[at], name, operation) : l.mode(i));
  }
  return make_layout(modes);
}

// ((first parts), (second parts, modes without an entry)). Of nothing the parts are (1:0, all).
Layout zipped(const Layout& l, const ModeTiler& tiler, const char* name, Operation operation) {
  if (tiler.is_none()) return make_layout({Layout(), l});
  if (tiler.whole() != nullptr) return operation(l, *tiler.whole());
  const std::vector<ModeTiler>& entries = *tiler.modes();
  check_rank(l, entries, name);
  std::vector<Layout> first;
  std::vector<Layout> second;
  for (int i = 0; i < l.rank(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (at >= entries.size()) {
      second.push_back(l.mode(i));
      continue;
    }
    const Layout split = zipped(l.mode(i), entries[at], name, operation);
    first.push_back(split.mode(0));
    second.push_back(split.mode(1));
  }
  return make_layout({make_layout(first), make_layout(second)});
}

// How many places the offsets span, on both sides of 0.
Expr span(const Layout& l) {
  Flat f = flatten(l);
  for (Expr& d : f.stride)
    if (sym::prove(sym::lt(d, 0))) d = -d;
  return f.layout().cosize();
}

Layout unpack_second(const Layout& pair) {
  std::vector<Layout> modes = {pair.mode(0)};
  const Layout second = pair.mode(1);
  for (int i = 0; i < second.rank(); ++i) modes.push_back(second.mode(i));
  return make_layout(modes);
}

// Both to the same rank, by modes 1:0.
Layout product_of_equal_ranks(const Layout& l, const Layout& tiler, bool raked) {
  const int rank = std::max(l.rank(), tiler.rank());
  const auto padded = [&](const Layout& x) {
    std::vector<Layout> modes;
    for (int i = 0; i < rank; ++i) modes.push_back(i < x.rank() ? x.mode(i) : Layout());
    return make_layout(modes);
  };
  const Layout both = logical_product(padded(l), padded(tiler));
  std::vector<Layout> modes;
  for (int i = 0; i < rank; ++i) {
    const Layout inner = both.mode(0).mode(i);
    const Layout outer = both.mode(1).mode(i);
    modes.push_back(raked ? make_layout({outer, inner}) : make_layout({inner, outer}));
  }
  return make_layout(modes);
}

}  // namespace

Layout composition(const Layout& a, const ModeTiler& b) {
  if (b.is_none()) return a;
  if (b.whole() != nullptr) return composition(a, *b.whole());
  check_rank(a, *b.modes(), "composition");
  std::vector<Layout> modes;
  for (std::size_t i = 0; i < b.modes()->size(); ++i)
    modes.push_back(composition(a.mode(static_cast<int>(i)), (*b.modes())[i]));
  return make_layout(modes);
}

Layout logical_divide(const Layout& l, const Layout& tiler) {
  check_no_holes(tiler, l);
  return composition(l, make_layout({tiler, complement(tiler, l.size())}));
}

Layout logical_divide(const Layout& l, const ModeTiler& tiler) {
  return by_mode(l, tiler, "logical_divide", logical_divide);
}

Layout zipped_divide(const Layout& l, const ModeTiler& tiler) {
  return zipped(l, tiler, "zipped_divide", logical_divide);
}

Layout tiled_divide(const Layout& l, const ModeTiler& tiler) { return unpack_second(zipped_divide(l, tiler)); }

Layout logical_product(const Layout& l, const Layout& tiler) {
  return make_layout({l, composition(complement(l, l.size() * span(tiler)), tiler)});
}

Layout logical_product(const Layout& l, const ModeTiler& tiler) {
  return by_mode(l, tiler, "logical_product", logical_product);
}

Layout zipped_product(const Layout& l, const ModeTiler& tiler) {
  return zipped(l, tiler, "zipped_product", logical_product);
}

Layout tiled_product(const Layout& l, const ModeTiler& tiler) { return unpack_second(zipped_product(l, tiler)); }

Layout blocked_product(const Layout& l, const Layout& tiler) { return product_of_equal_ranks(l, tiler, false); }
Layout raked_product(const Layout& l, const Layout& tiler) { return product_of_equal_ranks(l, tiler, true); }

}  // namespace graphene::layout
