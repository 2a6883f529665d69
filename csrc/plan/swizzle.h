// The swizzle, or the padding, of a tile in shared memory, from all accesses of the tile.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/layout.h"

namespace graphene::plan {

// One lane's vector: `elems` neighbours along the row, from (row, column) on.
struct Spot {
  int lane = 0;
  std::int64_t row = 0;
  std::int64_t column = 0;
};

// An access of the tile: requests of warps, each a list of spots by ascending lane. A vector stays together.
struct TileAccess {
  int elems = 1;
  std::vector<std::vector<Spot>> requests;
};

struct Arrangement {
  Swizzle swizzle;
  std::int64_t row_elems = 0;  // from one row to the next: the columns, and padding
  std::int64_t bytes = 0;
  std::int64_t wavefronts = 0;
  std::int64_t conflicts = 0;
};

// What was looked at, the best first: by conflicts, then bytes, then no swizzle before one, then fewer bits, and the
// swizzle nearest to that of 8 rows of 16 bytes. Candidates are every swizzle that keeps vectors together and permutes
// the tile's elements among themselves, and paddings of one to `most_padding` vectors. PLAN_GRAPH for spots outside of
// the tile, vectors that a row cuts, and elements of parts of bytes.
[[nodiscard]] std::vector<Arrangement> arrangements(std::int64_t rows, std::int64_t columns, int element_bits,
                                                    const std::vector<TileAccess>& accesses, int most_padding = 8);

}  // namespace graphene::plan
