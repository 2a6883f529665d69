// Collective leaves: gr.move, gr.matmul and gr.init with `atom=` on larger tiles become a visible nest of leaves at
// once.
//
//   Move between a fragment and memory   solved by the TV layouts of fragment and atom (fragment_move.cpp)
//   Move between memories by a group     vector i to thread i mod T, contiguous mode first (copy.cpp)
//   MatMul over tiles of fragments       one leaf per tile of the atom (matmul.cpp)
//   Init of more than one element        one leaf per element that a thread holds (init.cpp)
//   Reduction of registers               own values, then across lanes and warps (reduce.cpp)
//   Move between registers               what the quotient of the two TV layouts demands (relayout.cpp)
// Pointwise expressions (pointwise.h) become leaves likewise, with no spec of their own.
//
// Nothing here names an instruction: entries are read.
#pragma once

#include "atoms/match.h"
#include "ir/builder.h"

namespace graphene::build {

// The builder's hook: records the decomposition of `spec` and returns true; false when it is a leaf as it stands.
// Throws SelectError COLLECTIVE_*.
bool expand(ir::Builder& b, const ir::SpecStmt& spec);

}  // namespace graphene::build
