#include <algorithm>
#include <bit>

#include "base/diag.h"
#include "layout/facts.h"

namespace graphene::layout {

namespace {

constexpr int kMaxBit = 62;  // of an offset: it stays a non-negative 64-bit integer
constexpr int kChunkBits = 128;

std::int64_t power(int exponent) { return std::int64_t{1} << exponent; }

}  // namespace

Swizzle::Swizzle(int bits_, int base_, int shift_) : bits(bits_), base(base_), shift(shift_) {
  const auto text = [&] {
    return "Swizzle(" + std::to_string(bits) + ", " + std::to_string(base) + ", " + std::to_string(shift) + ")";
  };
  if (bits < 0 || base < 0) fail(Code::LAYOUT_SWIZZLE, text() + ": bits and base must not be negative");
  if (std::abs(static_cast<std::int64_t>(shift)) < bits)
    fail(Code::LAYOUT_SWIZZLE, text() + ": |shift| must be at least bits, or the bits read are themselves changed");
  if (static_cast<std::int64_t>(bits) + base + std::abs(static_cast<std::int64_t>(shift)) > kMaxBit)
    fail(Code::LAYOUT_SWIZZLE, text() + ": the bits lie outside of a 64-bit offset");
}

std::int64_t Swizzle::period() const { return trivial() ? 1 : power(bits + base + std::abs(shift)); }

Expr Swizzle::operator()(const Expr& offset) const {
  if (trivial()) return offset;
  const int read = base + std::max(shift, 0);
  const int changed = base + std::max(-shift, 0);
  if (offset.is_const()) {
    const std::int64_t v = offset.value();
    if (v < 0) fail(Code::LAYOUT_BOUNDS, str() + " of the negative offset " + std::to_string(v));
    return v ^ (((v >> read) & (power(bits) - 1)) << changed);
  }
  const Expr taken = sym::mod(sym::floor_div(offset, power(read)), power(bits));
  return sym::bit_xor(offset, taken * power(changed));
}

std::string Swizzle::str() const {
  return "Sw<" + std::to_string(bits) + "," + std::to_string(base) + "," + std::to_string(shift) + ">";
}

std::string ComposedLayout::str() const {
  return swizzle.str() + " o " + IntTuple(offset).str() + " o " + layout.str();
}

Swizzle row_swizzle(std::int64_t row_elems, int element_bits) {
  if (element_bits < 1 || element_bits > kChunkBits || !std::has_single_bit(static_cast<unsigned>(element_bits)))
    fail(Code::LAYOUT_SWIZZLE,
         "swizzle: elements of " + std::to_string(element_bits) + " bits do not divide a 16-byte chunk");
  const int chunk_elems = kChunkBits / element_bits;
  if (row_elems <= 0 || row_elems % chunk_elems != 0)
    fail(Code::LAYOUT_SWIZZLE,
         "swizzle: a row must be a whole number of 16-byte chunks, got " + std::to_string(row_elems) + " elements of " +
             std::to_string(element_bits) + " bits",
         {}, "pad the row to a multiple of " + std::to_string(chunk_elems) + " elements");
  const int k = std::countr_zero(static_cast<std::uint64_t>(row_elems / chunk_elems));
  return {std::min(k, 3), std::countr_zero(static_cast<unsigned>(chunk_elems)), std::max(k, 3)};
}

}  // namespace graphene::layout
