// The decompositions that expand() chooses from.
#pragma once

#include <cstdint>

#include "atoms/match.h"
#include "ir/builder.h"

namespace graphene::build {

// An entry of the family that moves elements of this type from memory `from` to memory `to`; COLLECTIVE_ATOM if none.
[[nodiscard]] atoms::InstancePtr entry_for(const ir::SpecStmt& spec, const std::string& atom, ir::ScalarType dtype,
                                           ir::Memory to, ir::Memory from);

// The dimension along which `values` neighbours of a memory tile lie side by side: stride 1. -1: none.
[[nodiscard]] int contiguous_dim(const ir::Tensor& t, std::int64_t values);

void move_fragment(ir::Builder& b, const ir::SpecStmt& spec, const ir::TensorPtr& fragment, const ir::TensorPtr& memory,
                   bool load);
void copy(ir::Builder& b, const ir::SpecStmt& spec, const ir::TensorPtr& dst, const ir::TensorPtr& src,
          const std::vector<std::string>& atoms);
// A Move by an atom that addresses memory by a tensor map, as a leaf a box. False: the tile is one box as it stands, or
// none that can be cut.
bool copy_boxes(ir::Builder& b, const ir::SpecStmt& spec);
void move_private(ir::Builder& b, const ir::SpecStmt& spec, const ir::TensorPtr& registers, const ir::TensorPtr& memory,
                  bool load);
void matmul(ir::Builder& b, const ir::SpecStmt& spec);
void init(ir::Builder& b, const ir::SpecStmt& spec);

}  // namespace graphene::build
