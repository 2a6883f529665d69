// Scalar types: what each is called here and elsewhere. The one table of them, which every layer and Python read.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace graphene {

struct Scalar {
  const char* name;  // in the IR: "fp16"
  int bits;  // of one element in memory (pred and fp6: 8, a byte of its own); of 4 two share a byte, low one first
  enum class Class : std::uint8_t { Float, Signed, Unsigned, Pred, Barrier, Bits } cls;
  // Arrays of it: what NumPy and PyTorch call their type, and DLPack's code of that. Empty where no array holds any.
  // What is narrower than a byte is held in arrays of bytes.
  const char* array = "";
  std::uint8_t dlpack = 0;

  [[nodiscard]] constexpr bool in_arrays() const { return *array != '\0'; }
  [[nodiscard]] constexpr bool packed() const { return bits < 8; }  // several elements share a byte
  [[nodiscard]] constexpr bool in_numpy() const { return in_arrays() && (dlpack <= 2 || cls == Class::Pred); }
};

// In the order of ir::ScalarType. Where two have arrays of one type (tf32 is stored as fp32), the usual one is first.
[[nodiscard]] std::span<const Scalar> scalars();

// Null where there is none.
[[nodiscard]] const Scalar* find_scalar(std::string_view name);
[[nodiscard]] const Scalar* find_array_scalar(std::string_view array);

}  // namespace graphene
