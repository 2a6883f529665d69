// What a declaration implies: the facts of variables, the derived fields of buffers, the defaults of attributes. The
// builder and the parser both declare through these, so that a kernel's text needs to say only what differs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/stmt.h"

namespace graphene::ir {

// Blocks of statements inside each other, in every form of a kernel: what can be built can be read back.
inline constexpr int kMaxBlockDepth = 400;

// Facts of the variables that statements declare.
[[nodiscard]] sym::VarInfo loop_info(const std::string& name, const Expr& start, const Expr& stop, const Expr& step);
// A step is positive where that is proven, or where it is an extent of the grid, the number of its blocks or of its
// clusters: a block that runs is one of a grid that is not empty. `grid`: may be null.
[[nodiscard]] bool steps_forward(const Expr& step, const ThreadPtr& grid, std::int64_t cluster);
[[nodiscard]] sym::VarInfo coord_info(const std::string& name, const Expr& def);
[[nodiscard]] sym::VarInfo param_info(const std::string& name, ScalarType dtype);

// What a view statement makes of its source; the number is for the caller to give. Throws as the view does.
[[nodiscard]] Tensor result_of(const ViewStmt& v);
[[nodiscard]] ThreadTensor result_of(const ThreadStmt& t);

// Attributes a spec has even if nobody says them: Move fill=0.0, MatMul accumulate=true, Reduction accumulate=false.
// Every other attribute is absent unless said.
[[nodiscard]] const Attrs& default_attrs(SpecKind kind);
[[nodiscard]] bool same_attr(const AttrValue& a, const AttrValue& b);

// Throws TENSOR_SIZE for what no device can hold. Behind it the bytes and registers of a tensor of constant size are
// small numbers, which later layers multiply and add without a care.
void check_capacity(const Buffer& b);
// The same of a fragment whose shape is given, before anything follows from it.
void check_fragment_capacity(const Buffer& b);

// Throws TENSOR_TYPE for a mode without sizes and for sizes below 1; symbolic ones are judged at a launch.
void check_sizes(const Buffer& b);
// Throws as layout::require_holders where a fragment's threads do not hold it as they must.
void check_holders(const Buffer& b);

// Alignment in bytes where none is asked for: global memory one element; shared memory 16, or 1024 if swizzled;
// registers 0.
[[nodiscard]] int usual_align_bytes(const Buffer& b);
// Elements from one stage to the next: what a stage holds, rounded up to the alignment in shared memory. 0: not staged.
[[nodiscard]] Expr usual_stage_elems(const Buffer& b);

// The tensor that declares a buffer: one level (none for a scalar), below a level of stages if it has them. Zero
// align_bytes and stage_elems are filled in. Throws as check_capacity. Not for fragments.
[[nodiscard]] Tensor declare(Buffer b);

// A scalar argument that is not an integer: a private scalar that every thread finds set.
[[nodiscard]] Tensor declare_param(int id, const std::string& name, ScalarType dtype);

// How a fragment is asked for: the operand of an atom it is for, or a TV layout over the whole shape.
struct FragmentSpec {
  Layout tv;                          // (thread, value) -> element of the tile
  std::vector<std::int64_t> extents;  // of the tile; empty: tv covers the whole shape
  std::string label;                  // "mma.m16n8k16.f32.f16.c"
};
// Spreads a tile over a group: the group's outer levels cut the shape, registers repeat the atom's tile. Levels are
// [warps].[registers].[atom]. `b` holds name, dtype, stages. Throws FRAGMENT_SHAPE, FRAGMENT_GROUP, TENSOR_SIZE.
[[nodiscard]] Tensor declare_fragment(Buffer b, const std::vector<std::int64_t>& shape, const FragmentSpec& spec,
                                      const ThreadPtr& group);

}  // namespace graphene::ir
