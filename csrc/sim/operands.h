// From an atom call of the lowered tree to a leaf that a warp executes: values, lanes and tiles resolved to tables. The
// meaning comes from the entry alone: kind, named axes, thread-value layouts.
#pragma once

#include "sim/bytecode.h"

namespace graphene::sim {

// Attributes of a call; "", false, 0 where it has none of this name.
[[nodiscard]] std::string text_attr(const lower::AtomCall& call, const char* name);
[[nodiscard]] bool flag_attr(const lower::AtomCall& call, const char* name);
[[nodiscard]] double number_attr(const lower::AtomCall& call, const char* name);

// The number of a domain of copies; it is added where it is new.
[[nodiscard]] int copy_domain(const std::string& name, Bytecode& code);
inline constexpr const char* kReads = ".read";  // of a domain's name: that of the same operations' reads

// `code` holds the buffers and registers; its plans are extended.
[[nodiscard]] Leaf compile_leaf(const lower::AtomCall& call, const ir::Stmt* origin, Bytecode& code);
[[nodiscard]] TellCode compile_tell(const lower::Tell& tell, Bytecode& code);
// Where the warps of a leaf's collectives meet.
[[nodiscard]] Barrier compile_meeting(const Leaf& leaf, Bytecode& code);
[[nodiscard]] Barrier compile_barrier(const lower::AtomCall& call, const ir::Stmt* origin, Bytecode& code);
// A commit or a wait of a domain of copies.
[[nodiscard]] GroupSync compile_group_sync(const lower::AtomCall& call, const ir::Stmt* origin, Bytecode& code);
// An operand that is an mbarrier; blocks of the cluster.
[[nodiscard]] MBarrierRef compile_mbarrier(const lower::Operand& operand, Bytecode& code);
[[nodiscard]] Ranks compile_ranks(const ir::ThreadPtr& blocks, Bytecode& code);
// An arrival at an mbarrier, or a wait for its phase. `relaxed`: half of the bytes, the other parity.
[[nodiscard]] PhaseSync compile_phase_sync(const lower::AtomCall& call, const ir::Stmt* origin, bool relaxed,
                                           Bytecode& code);
// At a named barrier; its code is the last of the mbarriers'.
[[nodiscard]] PhaseSync compile_named_sync(const lower::AtomCall& call, const ir::Stmt* origin, Bytecode& code);
[[nodiscard]] ProxyFence compile_fence(const lower::AtomCall& call, const ir::Stmt* origin);

}  // namespace graphene::sim
