// The field of the ghost run: integers modulo 2^31 - 1 stand for floats. Sums and products are exact there, so an
// algebraic promise holds for random inputs or is wrong, with an error probability of about 2^-31. Every finite double
// is m * 2^e and maps to a field element; maps preserve + and *. The order of the representatives serves max and min.
#pragma once

#include <cmath>
#include <cstdint>

namespace graphene::sim::field {

inline constexpr std::uint64_t kPrime = (std::uint64_t{1} << 31) - 1;

constexpr std::uint64_t reduce(std::uint64_t x) {
  x = (x & kPrime) + (x >> 31);
  x = (x & kPrime) + (x >> 31);
  return x >= kPrime ? x - kPrime : x;
}
constexpr std::uint64_t add(std::uint64_t a, std::uint64_t b) { return a + b >= kPrime ? a + b - kPrime : a + b; }
constexpr std::uint64_t negate(std::uint64_t a) { return a == 0 ? 0 : kPrime - a; }
constexpr std::uint64_t subtract(std::uint64_t a, std::uint64_t b) { return add(a, negate(b)); }
constexpr std::uint64_t multiply(std::uint64_t a, std::uint64_t b) { return reduce(a * b); }
constexpr std::uint64_t power(std::uint64_t a, std::uint64_t n) {
  std::uint64_t r = 1;
  for (; n != 0; n >>= 1) {
    if ((n & 1) != 0) r = multiply(r, a);
    a = multiply(a, a);
  }
  return r;
}
constexpr std::uint64_t invert(std::uint64_t a) { return power(a, kPrime - 2); }  // of 0: 0
constexpr std::uint64_t of_int(std::int64_t v) {
  const std::int64_t r = v % static_cast<std::int64_t>(kPrime);
  return static_cast<std::uint64_t>(r < 0 ? r + static_cast<std::int64_t>(kPrime) : r);
}
inline std::uint64_t of_double(double v) {
  if (std::isnan(v)) return 0x2545f491U;
  if (std::isinf(v)) return v > 0 ? kPrime - 1 : 0;  // the ends of the order
  int e = 0;
  const auto m = static_cast<std::int64_t>(std::ldexp(std::frexp(v, &e), 53));
  e -= 53;
  const std::uint64_t scale =
      e >= 0 ? power(2, static_cast<std::uint64_t>(e)) : power(invert(2), static_cast<std::uint64_t>(-e));
  return multiply(of_int(m), scale);
}
// A function that is not algebraic: a hash of what it is applied to.
constexpr std::uint64_t hashed(std::uint64_t key, std::uint64_t a, std::uint64_t b = 0) {
  std::uint64_t x =
      (key + 1) * 0x9e3779b97f4a7c15ULL ^ (a * 0xbf58476d1ce4e5b9ULL) ^ ((b + 77) * 0x94d049bb133111ebULL);
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  return reduce(x ^ x >> 31);
}

}  // namespace graphene::sim::field
