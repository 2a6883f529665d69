// Scalar arithmetic on 32 lanes of raw bits, rounded as the hardware rounds. A pointwise operation loads its operands
// into a working class (float for floats up to 32 bits, double, or 64-bit integers), computes there, and rounds once
// to the output's type: for 16-bit floats that is innocuous for + - * / sqrt, since 24 >= 2 * 11 + 2; fma rounds to odd
// in between.
#pragma once

#include <cstdint>
#include <string_view>

#include "ir/types.h"

namespace graphene::sim {

// Of an element in a register. In memory elements of 4 bits share bytes.
[[nodiscard]] inline int bytes_of(ir::ScalarType t) { return ir::is_packed(t) ? 1 : ir::bits(t) / 8; }
[[nodiscard]] std::uint64_t load_element(ir::ScalarType t, const char* base, std::int64_t index);
void store_element(ir::ScalarType t, char* base, std::int64_t index, std::uint64_t bits);

// One element. Integers saturate where the value does not fit; floats round to nearest even.
[[nodiscard]] double decode(ir::ScalarType t, std::uint64_t bits);
[[nodiscard]] std::uint64_t encode(ir::ScalarType t, double value);
[[nodiscard]] bool is_float(ir::ScalarType t);
[[nodiscard]] bool is_signed(ir::ScalarType t);
[[nodiscard]] std::int64_t decode_int(ir::ScalarType t, std::uint64_t bits);  // integers and pred
// "1.5", "-3", "true"
[[nodiscard]] std::uint64_t load_bits(const void* p, int bytes);
void store_bits(void* p, int bytes, std::uint64_t bits);

enum class Op : std::uint8_t {
  // unary
  Cast,
  Neg,
  Abs,
  Exp,
  Exp2,
  Log,
  Log2,
  Sqrt,
  Rsqrt,
  Rcp,
  Sin,
  Cos,
  Tanh,
  Erf,
  Floor,
  Ceil,
  Round,
  Trunc,
  Not,
  Popc,
  Clz,
  Ffs,
  Brev,
  Bitcast,
  // binary
  Add,
  Sub,
  Mul,
  Div,
  Max,
  Min,
  And,
  Or,
  Xor,
  Shl,
  Shr,
  FloorDiv,
  Mod,
  MulHi,
  Pow,
  Fmod,
  Exchange,  // of atomics: y
  Ballot,    // of the lanes of a warp
  Match,
  Eq,
  Ne,
  Lt,
  Le,
  Gt,
  Ge,
  // ternary
  Fma,
  Where,
  Prmt,
  Dp4a,
  Lop3,
  Cas  // of atomics: y where x has the bits of z, else x
};
// Of the vocabulary of atoms::ops; false: unknown.
[[nodiscard]] bool op_from_name(std::string_view name, Op& op);
[[nodiscard]] bool is_comparison(Op op);

// 32 lanes of floats up to 32 bits, as floats.
void load_floats(ir::ScalarType t, const void* in, float* out);
void store_floats(ir::ScalarType t, const float* in, void* out);
void load_doubles(ir::ScalarType t, const void* in, double* out);
void store_doubles(ir::ScalarType t, const double* in, void* out);

// out = op(a, b, c) on 32 lanes. Types: of the inputs and of the output.
struct Pointwise {
  Op op = Op::Cast;
  ir::ScalarType a = ir::ScalarType::fp32, b = ir::ScalarType::fp32, c = ir::ScalarType::fp32;
  ir::ScalarType out = ir::ScalarType::fp32;
  bool flush = false;        // .ftz
  bool toward_zero = false;  // round=rz of a cast to a float
  std::uint8_t table = 0;    // of lop3

  void operator()(const void* x, const void* y, const void* z, void* d) const;
};

}  // namespace graphene::sim
