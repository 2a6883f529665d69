// From an atom call of the lowered tree to a leaf that a warp executes: values, lanes and tiles resolved to tables. The
// meaning comes from the entry alone: kind, named axes, thread-value layouts.
#pragma once

#include "sim/bytecode.h"

namespace graphene::sim {

// `code` holds the buffers and registers; its plans are extended.
[[nodiscard]] Leaf compile_leaf(const lower::AtomCall& call, const ir::Stmt* origin, Bytecode& code);
// Where the warps of a leaf's collectives meet.
[[nodiscard]] Barrier compile_meeting(const Leaf& leaf, Bytecode& code);
[[nodiscard]] Barrier compile_barrier(const lower::AtomCall& call, const ir::Stmt* origin, Bytecode& code);
// A commit or a wait of a domain of copies.
[[nodiscard]] GroupSync compile_group_sync(const lower::AtomCall& call, const ir::Stmt* origin, Bytecode& code);

}  // namespace graphene::sim
