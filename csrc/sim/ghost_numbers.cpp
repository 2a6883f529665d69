#include "sim/ghost_numbers.h"

#include "sim/clocks.h"

namespace graphene::sim {

namespace {

// The order of floats is that of the representatives.
std::uint64_t field_op(Op op, std::uint64_t x, std::uint64_t y, std::uint64_t z) {
  switch (op) {
    case Op::Cast:
      return x;
    case Op::Neg:
      return field::negate(x);
    case Op::Rcp:
      return field::invert(x);
    case Op::Add:
      return field::add(x, y);
    case Op::Sub:
      return field::subtract(x, y);
    case Op::Mul:
      return field::multiply(x, y);
    case Op::Div:
      return field::multiply(x, field::invert(y));
    case Op::Fma:
      return field::add(field::multiply(x, y), z);
    case Op::Max:
      return x > y ? x : y;
    case Op::Min:
      return x < y ? x : y;
    case Op::Eq:
      return static_cast<std::uint64_t>(x == y);
    case Op::Ne:
      return static_cast<std::uint64_t>(x != y);
    case Op::Lt:
      return static_cast<std::uint64_t>(x < y);
    case Op::Le:
      return static_cast<std::uint64_t>(x <= y);
    case Op::Gt:
      return static_cast<std::uint64_t>(x > y);
    case Op::Ge:
      return static_cast<std::uint64_t>(x >= y);
    default:
      return field::hashed(static_cast<std::uint64_t>(op), x, y);
  }
}

}  // namespace

bool algebraic(Op op) {
  switch (op) {
    case Op::Cast:
    case Op::Neg:
    case Op::Add:
    case Op::Sub:
    case Op::Mul:
    case Op::Fma:
    case Op::Max:
    case Op::Min:
      return true;
    default:
      return false;
  }
}

std::uint64_t Numbers::apply(Op op, std::uint64_t x, std::uint64_t y, std::uint64_t z) const {
  if (!real) return field_op(op, x, y, z);
  const double a = as_double(x);
  const double b = as_double(y);
  switch (op) {  // the common ones; the others by 32 lanes of the same
    case Op::Cast:
      return x;
    case Op::Add:
      return as_bits(a + b);
    case Op::Sub:
      return as_bits(a - b);
    case Op::Mul:
      return as_bits(a * b);
    case Op::Fma:
      return as_bits(a * b + as_double(z));
    case Op::Max:
      return as_bits(std::fmax(a, b));
    case Op::Min:
      return as_bits(std::fmin(a, b));
    default:
      break;
  }
  Pointwise p;
  p.op = op;
  p.a = p.b = p.c = ir::ScalarType::fp64;
  p.out = is_comparison(op) ? ir::ScalarType::pred : ir::ScalarType::fp64;
  std::uint64_t in[3][kLanes] = {};
  std::uint64_t out[kLanes] = {};
  in[0][0] = x;
  in[1][0] = y;
  in[2][0] = z;
  apply_real(p, in[0], in[1], in[2], out);
  return out[0];
}

void apply_real(const Pointwise& p, const std::uint64_t* x, const std::uint64_t* y, const std::uint64_t* z,
                std::uint64_t* out) {
  const auto wide = [](ir::ScalarType t) { return is_float(t) ? ir::ScalarType::fp64 : t; };
  Pointwise q = p;
  q.a = wide(p.a);
  q.b = wide(p.b);
  q.c = wide(p.c);
  q.out = wide(p.out);
  q.flush = q.toward_zero = false;
  alignas(64) char in[3][kLanes * 8];
  alignas(64) char result[kLanes * 8];
  const auto put = [](char* to, ir::ScalarType t, const std::uint64_t* from) {
    const int n = bytes_of(t);
    for (int l = 0; l < kLanes; ++l) store_bits(to + l * n, n, from[l]);
  };
  put(in[0], q.a, x);
  put(in[1], q.b, y);
  put(in[2], q.c, z);
  q(in[0], in[1], in[2], result);
  const int n = bytes_of(q.out);
  for (int l = 0; l < kLanes; ++l) {
    const std::uint64_t bits = load_bits(result + l * n, n);
    out[l] = is_float(q.out) ? bits : static_cast<std::uint64_t>(decode_int(q.out, bits));
  }
}

}  // namespace graphene::sim
