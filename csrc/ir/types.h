// Scalar types, memories, spec kinds: the closed vocabularies of the IR.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/scalars.h"

namespace graphene::ir {

// b4..b64 are untyped bits: they appear in atom patterns ("any 16-bit type"), never in a kernel's tensors.
enum class ScalarType : std::uint8_t {
  fp16,
  bf16,
  fp32,
  tf32,
  fp64,
  fp8e4m3,
  fp8e5m2,
  i8,
  u8,
  i16,
  u16,
  i32,
  u32,
  i64,
  u64,
  fp6e2m3,  // in the low bits of a byte
  fp6e3m2,
  fp4e2m1,  // two in a byte, as i4 and u4
  i4,
  u4,
  pred,
  mbar,  // an mbarrier: 8 bytes of shared memory
  bar,   // one of the block's 16 hardware barriers: no memory
  b4,
  b8,
  b16,
  b32,
  b64
};

using ScalarInfo = Scalar;
[[nodiscard]] const ScalarInfo& info(ScalarType t);
[[nodiscard]] inline int bits(ScalarType t) { return info(t).bits; }
// Elements of less than a byte share bytes, the first one in the low bits.
[[nodiscard]] inline bool is_packed(ScalarType t) { return info(t).packed(); }
[[nodiscard]] inline std::int64_t bytes_of_elems(ScalarType t, std::int64_t elems) { return (elems * bits(t) + 7) / 8; }
[[nodiscard]] inline const char* name(ScalarType t) { return info(t).name; }
[[nodiscard]] std::optional<ScalarType> scalar_type_from_name(std::string_view name);

// DSM: the shared memory of another block of the cluster; tensors live there by Tensor::rank alone.
enum class Memory : std::uint8_t { GL, SH, RF, DSM };
[[nodiscard]] const char* name(Memory m);
[[nodiscard]] std::optional<Memory> memory_from_name(std::string_view name);

// The paper's Table 1 plus TernaryPointwise (fma, where). Spec is the generic one.
enum class SpecKind : std::uint8_t {
  Spec,
  Move,
  MatMul,
  UnaryPointwise,
  BinaryPointwise,
  TernaryPointwise,
  Reduction,
  Shfl,
  Init,
  Allocate
};
[[nodiscard]] const char* name(SpecKind k);
[[nodiscard]] std::optional<SpecKind> spec_kind_from_name(std::string_view name);

}  // namespace graphene::ir
