// Which registers of a fragment an atom's operand is: the algebra of TV layouts.
//
// A leaf's view of a fragment covers exactly one tile of the atom. Lane t's value v of the atom is tile element A(t,
// v); the view maps it to a logical element; the fragment's TV layout F says who holds that. Legal where lane t itself
// holds it, at one register for all lanes: that register is a function of v alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "atoms/atom.h"

namespace graphene::atoms {

struct FragmentRegisters {
  std::vector<int> registers;  // of value v, stages included
  std::string mismatch;        // not empty: the view is no such tile ("want ..., got ...")
  std::string error;           // not empty: it is, but its registers are not this thread's own or not constant
  std::string fix;
};

// `dims[d]`: number of the operand's axis that dimension d of the view runs along. `exec`: the spec's threads, whose
// innermost level is the atom's collective.
[[nodiscard]] FragmentRegisters fragment_registers(const ir::Tensor& view, const OperandInstance& operand,
                                                   const std::vector<int>& dims, const ir::ThreadTensor& exec,
                                                   int threads);

// The axis of each dimension of an operand's view: MatMul is out[batch, m, n], a[batch, m, k], b[batch, k, n]; every
// other kind takes the axes in the tile's order.
[[nodiscard]] std::vector<int> view_axes(const Instance& atom, bool is_output, std::size_t index);

// Rank inside `group` of the first thread of the executing thread's innermost group of `exec`; nullopt: those are not
// threads of one innermost group of `group`.
[[nodiscard]] std::optional<Expr> own_rank(const ir::ThreadTensor& exec, const ir::ThreadTensor& group);

// Linear index of the first thread of the executing thread's own innermost group: offset plus the outer levels at their
// own coordinates, in terms of the hardware index.
[[nodiscard]] Expr own_group_base(const ir::ThreadTensor& t);

// a - b when it is one constant for every thread of the block.
[[nodiscard]] std::optional<std::int64_t> constant_difference(const Expr& a, const Expr& b);

}  // namespace graphene::atoms
