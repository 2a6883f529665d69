// Operations on tiling levels that data tensors and thread tensors share. A level of rank 1 with a plain mode is a leaf
// layout, any other level a tuple of its modes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "layout/layout.h"

namespace graphene::ir {

[[nodiscard]] std::vector<Layout> modes_of(const Layout& level);
[[nodiscard]] Layout level_of(const std::vector<Layout>& modes);
[[nodiscard]] Layout zeros(const IntTuple& shape);  // every stride 0
[[nodiscard]] std::string level_str(const Layout& level, bool strides = true);
[[nodiscard]] std::string levels_str(const std::vector<Layout>& levels, bool strides = true);

// Whether some mode is an empty tuple, which has no coordinate, or there is no mode at all.
[[nodiscard]] bool lacks_modes(const Layout& level);

// level o shape: one mode for each of shape's.
[[nodiscard]] Layout reshaped(const Layout& level, const Layout& shape);

// One mode cut by a tiler: for all tile elements e and tiles r inside the mode, mode(coordinate(r, e)) ==
// rest(r) + tile(e). `rest_coord` and `tile_coord` give that coordinate. partial: the last tiles may reach past the
// end.
struct ModeTile {
  Layout rest, tile;
  Layout rest_coord, tile_coord;
  bool partial = false;
};
// `refuse(why)` must throw: a hierarchical mode that does not divide, a tiler that overlaps itself.
[[nodiscard]] ModeTile tile_mode(const Layout& mode, const Layout& tiler,
                                 const std::function<void(const std::string&)>& refuse);

}  // namespace graphene::ir
