// What floats are in a ghost run: elements of the prime field, where algebra is exact, or doubles that nothing rounds,
// where exp and division mean what they say. Both travel as 64 bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "ir/constant.h"
#include "sim/ghost_field.h"
#include "sim/values.h"

namespace graphene::sim {

struct Numbers {
  bool real = false;

  static double as_double(std::uint64_t x) { return std::bit_cast<double>(x); }
  static std::uint64_t as_bits(double x) { return std::bit_cast<std::uint64_t>(x); }

  [[nodiscard]] std::uint64_t of_double(double v) const { return real ? as_bits(v) : field::of_double(v); }
  [[nodiscard]] std::uint64_t of_int(std::int64_t v) const {
    return real ? as_bits(static_cast<double>(v)) : field::of_int(v);
  }
  // Bits of a type: a float as a number, an integer unchanged.
  [[nodiscard]] std::uint64_t of_bits(ir::ScalarType t, std::uint64_t bits) const {
    return is_float(t) ? of_double(decode(t, bits)) : static_cast<std::uint64_t>(decode_int(t, bits));
  }
  // A constant, as the type that takes it holds it.
  [[nodiscard]] std::uint64_t of_constant(const ir::Constant& c, ir::ScalarType t) const {
    return of_bits(t, ir::constant_bits(c, t));
  }
  // The bits that a number has as a type, and the number that bits are. Over the field a float has no bits: they are
  // drawn from it, and it cannot be had back.
  [[nodiscard]] std::uint64_t raw(ir::ScalarType t, std::uint64_t x) const {
    const std::uint64_t all = ~std::uint64_t{0} >> static_cast<unsigned>(64 - ir::bits(t));
    if (!is_float(t)) return x & all;
    return (real ? encode(t, as_double(x)) : field::hashed(101, x)) & all;
  }
  [[nodiscard]] std::uint64_t of_raw(ir::ScalarType t, std::uint64_t bits) const {
    const std::uint64_t own = bits & ~std::uint64_t{0} >> static_cast<unsigned>(64 - ir::bits(t));
    if (!is_float(t)) return static_cast<std::uint64_t>(decode_int(t, own));
    return real ? as_bits(decode(t, own)) : field::reduce(field::hashed(102, own));
  }
  // A random argument.
  [[nodiscard]] std::uint64_t draw(std::uint64_t random) const {
    return real ? as_bits(static_cast<double>(random >> 11) * 0x1p-51 - 2.0) : field::reduce(random);
  }
  // What was never written.
  [[nodiscard]] std::uint64_t nothing(std::uint64_t random) const {
    return real ? as_bits(std::nan("")) : field::reduce(random);
  }
  [[nodiscard]] std::uint64_t add(std::uint64_t a, std::uint64_t b) const {
    return real ? as_bits(as_double(a) + as_double(b)) : field::add(a, b);
  }
  [[nodiscard]] std::uint64_t subtract(std::uint64_t a, std::uint64_t b) const {
    return real ? as_bits(as_double(a) - as_double(b)) : field::subtract(a, b);
  }
  [[nodiscard]] std::uint64_t multiply(std::uint64_t a, std::uint64_t b) const {
    return real ? as_bits(as_double(a) * as_double(b)) : field::multiply(a, b);
  }
  // Of floats; comparisons give 0 or 1.
  [[nodiscard]] std::uint64_t apply(Op op, std::uint64_t x, std::uint64_t y, std::uint64_t z) const;
};

// Operations whose decomposition the field decides.
[[nodiscard]] bool algebraic(Op op);

// 32 lanes of `p` without any rounding: floats are doubles, integers and predicates what they are.
void apply_real(const Pointwise& p, const std::uint64_t* x, const std::uint64_t* y, const std::uint64_t* z,
                std::uint64_t* out);

}  // namespace graphene::sim
