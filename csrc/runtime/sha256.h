// SHA-256 (FIPS 180-4): keys and checksums of the cubin cache.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace graphene::runtime {

class Sha256 {
 public:
  Sha256& update(std::string_view bytes);
  // Length-prefixed: ("ab","c") and ("a","bc") hash differently.
  Sha256& field(std::string_view bytes);
  [[nodiscard]] std::string hex();  // 64 digits; ends the message

 private:
  void block(const unsigned char* p);
  std::array<std::uint32_t, 8> h_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> tail_{};
  std::size_t tail_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

[[nodiscard]] std::string sha256_hex(std::string_view bytes);

}  // namespace graphene::runtime
