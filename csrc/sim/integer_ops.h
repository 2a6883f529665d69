// What integer operations compute beyond C++'s own: of numbers extended to 64 bits, results cut where they are stored.
#pragma once

#include <cstdint>
#include <type_traits>

namespace graphene::sim {

// Python's quotient and remainder, which round down; both are 0 where the divisor is. The one quotient that does not
// fit wraps.
template <class T>
std::uint64_t floor_quotient(T x, T y) {
  if (y == T{0}) return 0;
  if constexpr (std::is_signed_v<T>) {
    if (y == T{-1}) return std::uint64_t{0} - static_cast<std::uint64_t>(x);
    const T q = x / y;
    return static_cast<std::uint64_t>(q - static_cast<T>(x % y != 0 && (x < 0) != (y < 0)));
  } else {
    return x / y;
  }
}

// The bytes of two words that the selector's four nibbles name; a nibble's top bit asks for the byte's sign instead.
inline std::uint64_t permuted(std::uint64_t x, std::uint64_t y, std::uint64_t selector) {
  const std::uint64_t bytes = (x & 0xffffffffU) | y << 32U;
  std::uint64_t out = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const std::uint64_t nibble = selector >> (4 * i) & 0xfU;
    const std::uint64_t byte = bytes >> (8 * (nibble & 7U)) & 0xffU;
    const std::uint64_t taken = (nibble & 8U) == 0 ? byte : (byte & 0x80U) != 0 ? 0xffU : 0;
    out |= taken << (8 * i);
  }
  return out;
}

// Of each bit of three numbers what the table has at the place 4 x + 2 y + z.
inline std::uint64_t by_table(unsigned table, std::uint64_t x, std::uint64_t y, std::uint64_t z) {
  std::uint64_t out = 0;
  for (unsigned i = 0; i < 8; ++i) {
    if ((table >> i & 1U) == 0) continue;
    out |= ((i & 4U) != 0 ? x : ~x) & ((i & 2U) != 0 ? y : ~y) & ((i & 1U) != 0 ? z : ~z);
  }
  return out;
}

// The four bytes of two words, multiplied and added to a third.
inline std::uint64_t dot_of_bytes(bool is_signed, std::uint64_t x, std::uint64_t y, std::uint64_t z) {
  for (unsigned i = 0; i < 32; i += 8) {
    const std::uint64_t a = x >> i & 0xffU;
    const std::uint64_t b = y >> i & 0xffU;
    const auto wide = [&](std::uint64_t v) {
      return is_signed && v >= 0x80U ? static_cast<std::int64_t>(v) - 0x100 : static_cast<std::int64_t>(v);
    };
    z += static_cast<std::uint64_t>(wide(a) * wide(b));
  }
  return z;
}

// The upper half of the product of two integers of `width` bits.
template <class T>
std::uint64_t upper_half(int width, T x, T y) {
  if (width < 64) return static_cast<std::uint64_t>(x * y >> width);
  using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
  return static_cast<std::uint64_t>(static_cast<Wide>(x) * static_cast<Wide>(y) >> 64);
}

}  // namespace graphene::sim
