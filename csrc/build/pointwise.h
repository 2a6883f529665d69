// Pointwise expressions on registers, `rC[:] = gr.max(acc + rbias, 0)`, as leaves.
//
// An expression is evaluated at the elements that each thread holds of the destination: no lane is crossed. Each
// subexpression is evaluated once at its own (broadcast) shape: a row's factor once a row. 8- and 16-bit floats widen
// to fp32, in pairs where their registers are neighbours; the conversion back happens at the store.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/builder.h"

namespace graphene::build {

struct PointNode {
  enum class Kind : std::uint8_t { Tensor, Number, Integer, Op } kind = Kind::Number;
  ir::TensorPtr tensor;                              // registers: a fragment, or private
  double number = 0;                                 // takes the other operand's type
  Expr integer;                                      // or a condition; may name coordinates of the element
  ir::SpecKind spec = ir::SpecKind::UnaryPointwise;  // Op: Unary-, Binary- or TernaryPointwise
  std::string op;                                    // its operation
  std::vector<int> args;                             // earlier nodes
  ir::ScalarType to = ir::ScalarType::fp32;          // of "cast"
  ir::Attrs attrs = {};                              // of the leaf, besides its operation: ftz
};

// Records `dst[:] = nodes.back()` as a Spec of leaves. Errors: LayoutError POINTWISE_SHAPE (shapes that do not
// broadcast to the destination's), POINTWISE_OWNER (an element that another thread holds), POINTWISE_TYPE.
void pointwise(ir::Builder& b, const ir::TensorPtr& dst, const std::vector<PointNode>& nodes);

// The type that registers must have to hold the value as it is computed; nullopt: a number's, which any type takes.
[[nodiscard]] std::optional<ir::ScalarType> type_of(ir::Builder& b, const std::vector<PointNode>& nodes);

// Stands for coordinate `dim`, below `extent`, of the element that an expression is evaluated at, in a destination of
// this shape.
[[nodiscard]] Expr element_coordinate(const std::vector<std::int64_t>& shape, std::size_t dim, std::int64_t extent);

// Coordinates of the executing thread's own elements of a fragment, one variable per dimension, and whether an element
// is one of the tensor's (a TV layout may reach past its end).
[[nodiscard]] std::vector<Expr> coordinates(const ir::Tensor& fragment);
[[nodiscard]] Expr valid(const ir::Tensor& fragment);

}  // namespace graphene::build
