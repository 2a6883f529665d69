// Barriers as tensors: mbarriers in shared memory, and the block's named barriers, which are not memory. What declares
// one, and what an arrival, a wait and a copy that completes on one may say.
#pragma once

#include <cstdint>
#include <string>

#include "ir/stmt.h"

namespace graphene::ir {

inline constexpr std::int64_t kMaxArrivals = (1 << 20) - 1;  // of a phase of an mbarrier, and the bytes of one
inline constexpr std::int64_t kMaxNamedBarriers = 16;        // of a block
inline constexpr std::int64_t kMaxCluster = 8;               // blocks that every device with clusters can hold

[[nodiscard]] bool is_barrier(ScalarType t);

// `stages` barriers side by side: [stages:1].mbar.SH or .bar.SH. The rest of the buffer is for the caller to fill in.
[[nodiscard]] Buffer barrier_buffer(const std::string& name, ScalarType dtype, std::int64_t stages,
                                    std::int64_t arrivals);
// Throws VERIFY_BARRIER for a tensor of a barrier's type that is declared otherwise, or whose counts no barrier has.
void check_barriers(const Buffer& b);

// Throw VERIFY_BARRIER where a barrier is used as what it is not, SPEC_GROUP for blocks where threads are wanted.
// `cluster`: blocks of a cluster of the kernel.
void check_sync(const SyncStmt& s, std::int64_t cluster);
void check_barrier_use(const SpecStmt& s);

// Throws VERIFY_CLUSTER for a grid that cannot be launched in clusters of that size.
void check_cluster(const ThreadTensor& grid, std::int64_t cluster);
// Throws VERIFY_CLUSTER unless a view of another block's shared memory names one of the cluster's blocks.
void check_rank(const Tensor& view, std::int64_t cluster);
// What tiles a grid into its clusters: [n,m] into [n/2,m].[2,1].
[[nodiscard]] layout::Tiler cluster_tiler(const ThreadTensor& grid, std::int64_t cluster);

}  // namespace graphene::ir
