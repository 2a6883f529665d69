// The threads of a block in groups, as a tensor of threads says.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sim/bytecode.h"

namespace graphene::sim {

// The first members of tiles, relative to the tensor's first thread, of these levels: the last one fastest.
[[nodiscard]] std::vector<std::int64_t> relative_members(std::span<const Layout> levels, const Bytecode& code);

struct GroupsOfThreads {
  std::vector<int> of;                             // per thread: its group; -1: it is in none
  std::vector<std::vector<std::int64_t>> members;  // per group, sorted
};
[[nodiscard]] std::shared_ptr<const GroupsOfThreads> thread_groups(const ir::ThreadTensor& threads,
                                                                   const Bytecode& code);

// Each thread by itself, as a collective of one: what one thread multiplies is a tile, too.
[[nodiscard]] std::shared_ptr<const Collective> alone(const Bytecode& code);

}  // namespace graphene::sim
