// Which blocks of a large grid run: such that whatever some block does, one of them does it, too.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "sim/bytecode.h"

namespace graphene::sim {

struct ChosenBlocks {
  std::vector<std::int64_t> blocks;  // linear, in order
  std::int64_t looked_at = 0;        // among all of them: each, or those at edges of the grid and some between
  std::int64_t grid = 0;
};

// What blocks do is told apart by following their control flow, of loops the first and the last turn: which statements
// are executed, by whole warps or by a part of one, where loops go on and branches are not taken, and which accesses
// are cut by the end of a tensor. Without data: an index that is read from memory counts as the smallest that its facts
// allow. `few`: of a grid of no more blocks all run.
[[nodiscard]] ChosenBlocks telling_blocks(const Bytecode& code, std::int64_t few, const std::function<void()>& poll);

// Adds what runs with them: the other blocks of their clusters.
void add_clusters(const Bytecode& code, std::set<std::int64_t>& blocks);

}  // namespace graphene::sim
