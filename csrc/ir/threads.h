// Thread tensors: the hardware's blocks and threads as tiled tensors (paper section 4).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "layout/layout.h"

namespace graphene::ir {

enum class ThreadUnit : std::uint8_t { Block, Thread };

// `levels`, outermost first, map hierarchical coordinates to the linear hardware index (minus `offset`): threadIdx.x,
// or the linear block index. No levels: a scalar, "[].thread", each member for itself.
//
//   #warp:[32].thread   #warp.tile(8): [4:8].[8:1]   .reshape(0, row_major(2,2)): [2,2:16,8].[8:1]
//   #warp.tile([Layout((4,2),(1,16))]): [4:4].[(4,2):(1,16)]      (Volta's quad-pairs)
//
// Indexing level 0 by the tensor's own coordinates gives "my group": `offset` then depends on the executing thread.
// Indexing by constants gives a subset: legal inside only(group), where the branch is uniform for that group.
struct ThreadTensor {
  int id = -1;  // "#5"; -1: free-standing
  ThreadUnit unit = ThreadUnit::Thread;
  std::vector<Expr> dims;  // of the launch: one number of threads, or up to three grid extents (x, y, z)
  std::vector<Layout> levels;
  Expr offset;          // linear index of the first member
  bool subset = false;  // fewer than all members of the launch take part (constant index or slice)
  int root = -1;        // id of the launch tensor it came from

  // Linear hardware index as an expression: ThreadIdx variable "tid", or blockIdx.x + blockIdx.y * gx + ...
  [[nodiscard]] Expr linear_index() const;
  [[nodiscard]] Expr launch_size() const;  // product of dims
  [[nodiscard]] Expr size() const;         // members of this tensor (product over levels)
  // Own coordinates, one vector per level: (linear_index - offset) / stride % shape, simplified. THREAD_NOT_INJECTIVE
  // when a level is not injective. Hierarchical modes give one coordinate per top-level mode (colexicographic).
  [[nodiscard]] std::vector<std::vector<Expr>> indices() const;
  [[nodiscard]] std::string type_str() const;  // "[2,2:16,8].[8].thread": strides always but for ":1" of rank 1
};
using ThreadPtr = std::shared_ptr<const ThreadTensor>;

// The hardware variables. tid carries the bounds 0 <= tid < threads; bid.x/y/z those of the grid.
[[nodiscard]] Expr tid_var(std::int64_t threads);
[[nodiscard]] Expr bid_var(int dim, const Expr& extent);

ThreadTensor make_blocks(std::vector<Expr> dims);
ThreadTensor make_threads(std::vector<Expr> dims);  // rank-n threads(16,16): one level (16,16), linear index tid
ThreadTensor tile(const ThreadTensor& t, const layout::Tiler& tiler);         // tiles the innermost level
ThreadTensor reshape(const ThreadTensor& t, int level, const Layout& shape);  // level := level o shape
ThreadTensor scalar(const ThreadTensor& t);

// One entry per mode of level 0: an index, a slice [start, stop), or everything.
struct IndexArg {
  enum class Kind : std::uint8_t { At, Slice, All } kind = Kind::All;
  Expr at;    // At: the index; Slice: start
  Expr stop;  // Slice
};
ThreadTensor index(const ThreadTensor& t, const std::vector<IndexArg>& args);

}  // namespace graphene::ir
