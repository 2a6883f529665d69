#include "ir/levels.h"

#include <algorithm>

#include "base/diag.h"

namespace graphene::ir {

using layout::complement;
using layout::composition;

std::vector<Layout> modes_of(const Layout& level) {
  std::vector<Layout> out;
  const int rank = level.rank();
  out.reserve(static_cast<std::size_t>(rank));
  for (int i = 0; i < rank; ++i) out.emplace_back(level.shape()[i], level.stride()[i]);
  return out;
}

Layout level_of(const std::vector<Layout>& modes) {
  if (modes.size() == 1 && modes[0].shape().is_leaf()) return modes[0];
  std::vector<IntTuple> shape;
  std::vector<IntTuple> stride;
  for (const Layout& m : modes) {
    shape.push_back(m.shape());
    stride.push_back(m.stride());
  }
  return {IntTuple(std::move(shape)), IntTuple(std::move(stride))};
}

namespace {

IntTuple zero_strides(const IntTuple& shape) {
  if (shape.is_leaf()) return 0;
  std::vector<IntTuple> out;
  for (const IntTuple& m : shape.modes()) out.push_back(zero_strides(m));
  return out;
}

IntTuple scaled(const IntTuple& strides, const Expr& by) {
  if (strides.is_leaf()) return strides.leaf() * by;
  std::vector<IntTuple> out;
  for (const IntTuple& m : strides.modes()) out.push_back(scaled(m, by));
  return out;
}

std::string joined(const IntTuple& t) {
  if (t.is_leaf()) return t.str();
  std::string s;
  for (const IntTuple& m : t.modes()) s += (s.empty() ? "" : ",") + m.str();
  return s;
}

bool divides(const Expr& n, const Expr& size) {
  if (n.is_const() && size.is_const()) return size.value() > 0 && n.value() % size.value() == 0;
  if (size.is_const() && size.value() > 0 && sym::divisor(n) % size.value() == 0) return true;
  return sym::prove(sym::eq(sym::mod(n, size), 0));
}

}  // namespace

Layout zeros(const IntTuple& shape) { return {shape, zero_strides(shape)}; }

std::string level_str(const Layout& level, bool strides) {
  std::string s = "[" + joined(level.shape());
  const bool unit = level.rank() == 1 && level.stride()[0].is_leaf() && level.stride()[0].leaf().is_const(1);
  if (strides && !unit && level.rank() > 0) s += ":" + joined(level.stride());
  return s + "]";
}

std::string levels_str(const std::vector<Layout>& levels, bool strides) {
  if (levels.empty()) return "[]";
  std::string s;
  for (const Layout& l : levels) s += (s.empty() ? "" : ".") + level_str(l, strides);
  return s;
}

bool lacks_modes(const Layout& level) {
  const std::function<bool(const IntTuple&)> empty = [&](const IntTuple& t) {
    return !t.is_leaf() && (t.modes().empty() || std::any_of(t.modes().begin(), t.modes().end(), empty));
  };
  return empty(level.shape());
}

Layout reshaped(const Layout& level, const Layout& shape) {
  std::vector<Layout> modes;
  for (const Layout& m : modes_of(shape)) modes.push_back(composition(level, m));
  return level_of(modes);
}

ModeTile tile_mode(const Layout& mode, const Layout& tiler, const std::function<void(const std::string&)>& refuse) {
  const Expr n = mode.size();
  const Expr size = tiler.size();
  if (lacks_modes(tiler)) refuse("a tile without sizes, got " + tiler.str());
  if (!sym::prove(sym::le(1, size))) refuse("a tile size must be positive, got " + size.str());
  ModeTile out;
  const bool contiguous = tiler.shape().is_leaf() && (tiler.stride().leaf().is_const(1) || size.is_const(1));
  if (contiguous) {
    out.tile_coord = Layout(size, 1);
    const Expr tiles = sym::ceil_div(n, size);
    out.rest_coord = Layout(tiles, tiles.is_const(1) ? Expr(0) : size);
    out.partial = !divides(n, size);
  } else {
    if (!tiler.is_static()) refuse("a tile with strides must have constant sizes and strides, got " + tiler.str());
    if (!layout::is_injective(tiler)) refuse("the tile " + tiler.str() + " names an element twice");
    out.tile_coord = tiler;
    out.rest_coord = layout::coalesce(complement(tiler, n));
    out.partial = !sym::prove(sym::eq(size * out.rest_coord.size(), n));
  }
  if (mode.shape().is_leaf()) {
    const Expr stride = mode.stride().leaf();
    out.tile = Layout(out.tile_coord.shape(), scaled(out.tile_coord.stride(), stride));
    out.rest = Layout(out.rest_coord.shape(), scaled(out.rest_coord.stride(), stride));
  } else {
    if (out.partial)
      refuse("the tile " + tiler.str() + " does not divide the hierarchical mode " + mode.str() + " of " + n.str() +
             " elements");
    out.tile = composition(mode, out.tile_coord);
    out.rest = composition(mode, out.rest_coord);
  }
  return out;
}

}  // namespace graphene::ir
