// Barriers, commits, waits and fences as Sync atoms.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lower/lowered.h"
#include "lower/memory.h"

namespace graphene::lower {

// Hardware barriers handed out so far. Barrier 0 is the whole block's.
struct SyncState {
  std::int64_t block_threads = 0;
  std::map<std::pair<std::string, std::int64_t>, int> first_id;  // (group, threads) -> its barrier
  std::map<int, int> named;                                      // named barrier -> that of its first stage
  int next_id = 1;
};

// Throws SelectError of the matcher; LOWER_BARRIERS when the block's 16 barriers are used up.
[[nodiscard]] AtomCall lower_sync(const ir::SyncStmt& sync, const std::string& arch, const SourceLoc& where,
                                  const Buffers& buffers, SyncState& state);

}  // namespace graphene::lower
