// Matrix multiply-accumulate entries come in pairs: D += A B, and D = A B ("/mul"), the product alone.
#pragma once

#include "atoms/entries/operands.h"

namespace graphene::atoms::subjects {

// What declares the zero `z` that stands for C.
inline constexpr const char* kZeroF32 = ".reg .f32 z; mov.f32 z, 0f00000000;";
inline constexpr const char* kZeroF64 = ".reg .f64 z; mov.f64 z, 0d0000000000000000;";
inline constexpr const char* kZeroB32 = ".reg .b32 z; mov.b32 z, 0;";

// How an architecture adds up, as benchmarks/mma_rounding.py found it there: equal bits are promised.
inline Numerics measured(std::string arch, int group, int guard_bits, std::string round) {
  return {std::move(arch), group, guard_bits, std::move(round), 0};
}
// As publications say: the last bit may differ.
inline Numerics published(std::string arch, int group, int guard_bits, std::string round) {
  return {std::move(arch), group, guard_bits, std::move(round), 1};
}

// `a`: kind is MatMul; its ptx is the opcode with its qualifiers; its doc is what is multiplied and added to. The
// family has the parameters `zero` and `z`, the registers of a C of zeros.
inline void add_matrix_multiply(std::vector<Atom>& list, Atom a) {
  const std::string what = a.doc;
  const std::string opcode = a.ptx;
  a.kind = Kind::MatMul;
  a.doc = "Adds the product of " + what + ".";
  a.ptx = opcode + " {$d}, {$a}, {$b}, {$d};";
  list.push_back(a);
  a.name += "/mul";
  a.out.front().access = Access::Write;
  a.attrs.push_back({"accumulate", {"false"}});
  a.doc = "Sets, without adding, the product of " + what + ".";
  a.ptx = "{${zero} " + opcode + " {$d}, {$a}, {$b}, {${z}};}";
  list.push_back(std::move(a));
}

}  // namespace graphene::atoms::subjects
