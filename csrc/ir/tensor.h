// Data tensors: a view of a buffer with one layout per tiling level (paper section 3). Views never move data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/diag.h"
#include "ir/threads.h"
#include "ir/types.h"
#include "layout/layout.h"

namespace graphene::ir {

// What makes registers a fragment: one logical tile that a group of threads holds together.
// `tv`: (thread, value) -> colexicographic element of `shape`. thread: rank of the thread inside the group, innermost
// level of `group` fastest; value: register number. An element may be held by several threads (replication).
// The element space of a fragment's views is: logical element (+ stage * product(shape)).
struct Fragment {
  std::vector<std::int64_t> shape;  // logical, of one stage
  ThreadPtr group;                  // e.g. #6:[2,4].[32].thread, or [32].thread for one warp
  Layout tv;                        // two modes
  std::string label;                // "mma.m16n8k16.f32.f16.c", printed in RF<...>; "tv" when built from gr.tv
  [[nodiscard]] std::int64_t values() const;  // registers per thread and stage
  // Elements that `tv` reaches, at least those of `shape`: a TV layout may reach past the end of the last dimension;
  // such elements read as the fill, and are not written.
  [[nodiscard]] std::int64_t covered_elems() const;
};

enum class Role : std::uint8_t { Input, Output, InOut, Alloc, Free };  // Free: gr.tensor, outside kernels

struct Buffer {
  int id = -1;  // of the tensor that declares it
  std::string name;
  ScalarType dtype = ScalarType::fp32;
  Memory memory = Memory::GL;
  Role role = Role::Free;
  Layout layout;     // of one stage, elements
  Swizzle swizzle;   // SH: physical element = swizzle(logical offset); trivial elsewhere
  int count = 0;     // gr.inputs: how many tensors of this type are listed; 0: one tensor
  int stages = 0;    // 0: not staged. Stage s starts at s * stage_elems
  Expr stage_elems;  // elements of one stage (SH: rounded up to the alignment)
  int align_bytes = 0;
  std::vector<int> over;             // ids of the buffers whose bytes it reuses
  std::int64_t at_bytes = -1;        // SH: where it starts in the block's shared memory; -1: lowering chooses
  std::optional<Fragment> fragment;  // RF only; RF without it is private to each thread
  int arrivals = 0;  // mbar: arrivals that a phase waits for; bar: threads that arrive or wait in a round; else 0
  SourceLoc loc;

  [[nodiscard]] Expr size_elems() const;  // all stages; RF private: registers per thread
};
using BufferPtr = std::shared_ptr<const Buffer>;

// What is outside of a bound. Fill: nothing, the part of a tile that the tensor does not have. Past, Before: the
// element that an index names past the end or before the start (the base is then minus the index, the extent 1), an
// error of the index.
enum class Outside : std::uint8_t { Fill, Past, Before };

// A dimension whose accesses are not proven inside: an element's coordinate along it, base + sum of
// levels(coordinates), must be < extent. Carries layouts congruent with the tensor's own: tiling, indexing ... act on
// both alike.
struct DimBound {
  Expr base;
  std::vector<Layout> levels;
  Expr extent;
  Outside outside = Outside::Fill;
};

// %7:[8,1:128,..].[128,1024:..].fp16.GL. Offsets and strides count innermost scalar elements of the buffer.
struct Tensor {
  int id = -1;  // "%7"; -1: free-standing or not recorded
  BufferPtr buffer;
  Expr offset;
  std::vector<Layout> levels;    // outermost first; empty: a scalar "[]"
  std::vector<DimBound> bounds;  // only dimensions that a partial tile or an index made uncertain
  ScalarType dtype = ScalarType::fp32;
  std::optional<Expr> member;  // of a list of tensors: which one; none: the list itself
  bool own_values = false;     // of a fragment, what values() gave: offsets count the thread's own registers
  std::optional<Expr> rank;    // of shared memory: of which block of the cluster; none: of the own

  [[nodiscard]] Memory memory() const { return rank ? Memory::DSM : buffer->memory; }
  [[nodiscard]] bool is_list() const { return buffer->count > 0 && !member; }
  [[nodiscard]] bool is_fragment() const { return buffer->fragment.has_value() && !own_values; }
  // The logical shape over all levels: product per dimension. TENSOR_RANK unless all levels have one rank.
  [[nodiscard]] std::vector<Expr> logical_shape() const;
  [[nodiscard]] Expr size() const;
  [[nodiscard]] std::string type_str(bool strides = true) const;  // "[2,2:2,16].[2,4:1,4].fp32.GL"
};
using TensorPtr = std::shared_ptr<const Tensor>;

// The bytes of a number of elements.
[[nodiscard]] Expr bytes_of_elems(const Expr& elems, ScalarType t);

// Views. Each throws LayoutError (TENSOR_*) with the tensor's type, want and got.
//
// Tiles the OUTERMOST level (paper 3.3, Fig. 4): a level's elements are the tiles of the level below it, and tile sizes
// count them. A fragment's levels say how the group holds it, so its tile sizes count logical elements: [4,4].[16,16]
// tiled by [None,16] is [1,4].[4,1].[16,16]. Partial tiles round up.
Tensor tile(const Tensor& t, const layout::Tiler& tiler);
// The outermost level; all modes fixed: level removed. An index that is not proven inside adds a bound. A tile's number
// past the end of an argument in global memory is an empty tile; any other index outside is an error, here where it is
// proven, else where it happens.
Tensor index(const Tensor& t, const std::vector<IndexArg>& args);
Tensor transpose(const Tensor& t);  // .T: the two modes of every level
Tensor permute(const Tensor& t, const std::vector<int>& order);
Tensor reshape(const Tensor& t, int level, const Layout& shape);
Tensor window(const Tensor& t, const Expr& start, const Expr& size);  // mode 0 of the outermost level
Tensor values(const Tensor& fragment);  // the thread's own registers, private, rank 1, register order
// The same place in the shared memory of the cluster's block number `rank`.
Tensor of(const Tensor& t, const Expr& rank);

// Drops the bounds that are proven for every element.
void prune_bounds(Tensor& t);

}  // namespace graphene::ir
