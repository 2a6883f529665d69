// What memory makes of one request of a warp: wavefronts of shared memory, sectors of global memory. kernel.report()
// counts by these rules, and so does whoever chooses a layout.
//
// Shared memory: 32 banks of 4 bytes. Vectors of up to 4 bytes are served 32 lanes at once, of 8 bytes by half-warps,
// of 16 bytes by quarter-warps (an 8x8 matrix of ldmatrix is one: eight rows of 16 bytes). Such a group takes as many
// wavefronts as the bank that holds most of its different words; lanes that name one word share it. What a group takes
// beyond its first wavefront are bank conflicts.
// Global memory: a request touches sectors of 32 bytes; ideal is what its different bytes would fill.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/layout.h"

namespace graphene::layout {

// One lane's part of a request: contiguous bytes. Requests list their pieces by lane, ascending.
struct LanePiece {
  int lane = 0;
  std::int64_t address = 0;
  int bytes = 0;
};

struct BankCount {
  std::uint64_t wavefronts = 0, conflicts = 0;
  int ways = 0;  // the most words that one bank holds in one group
};
// `words` is scratch memory.
[[nodiscard]] BankCount count_banks(const std::vector<LanePiece>& pieces, int vector_bytes,
                                    std::vector<std::int64_t>& words);

struct SectorCount {
  std::uint64_t sectors = 0, ideal = 0;
};
// Sorts the pieces by address.
[[nodiscard]] SectorCount count_sectors(std::vector<LanePiece>& pieces, std::vector<std::int64_t>& words);

// One access of a tile by threads: thread t moves the elements tv(t, 0), tv(t, 1), ..., whose runs of neighbours in
// memory of up to 16 bytes are one vector each.
struct AccessCount {
  std::int64_t requests = 0, bytes = 0;
  int vector_bytes = 0;  // of the widest vector
  std::int64_t wavefronts = 0, conflicts = 0;
  int ways = 0;
  std::int64_t sectors = 0, ideal_sectors = 0;
};
// `tv`: (thread, value) -> element of the tile, colexicographic; `tile`: element -> offset in elements, permuted by
// `swizzle`. Both are static: LAYOUT_TV, LAYOUT_FACT, LAYOUT_BOUNDS. Every vector is as wide as each thread's allows.
[[nodiscard]] AccessCount count_access(const Layout& tile, const Layout& tv, int element_bits, const Swizzle& swizzle);

}  // namespace graphene::layout
