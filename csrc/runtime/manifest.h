// What the runtime must know to check a call and launch it; everything else about a kernel is in its source text.
// Expressions range over the manifest's symbols and over integer scalar arguments, both by name.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sym/expr.h"

namespace graphene::runtime {

// Written into every manifest; a reader refuses another one.
inline constexpr int kManifestSchema = 1;

// An element type: Graphene's name and DLPack's description of the same bits.
struct DType {
  std::string name;       // "fp16"
  std::uint8_t code = 0;  // DLPack's, as base/scalars.h has it
  std::uint8_t bits = 0;

  friend bool operator==(const DType&, const DType&) = default;
};
// Of a type of which there are arrays. Throws LAUNCH_MANIFEST for any other name.
[[nodiscard]] DType dtype_of(std::string_view name);

enum class Access : std::uint8_t { Read, Write, ReadWrite };
enum class ArgKind : std::uint8_t { Tensor, Scalar };

struct Dim {
  Expr extent;
  Expr stride;  // in elements
};

struct ArgSpec {
  std::string name;
  ArgKind kind = ArgKind::Tensor;
  DType dtype;
  std::string packed = {};  // the declared element type of a tensor whose elements share bytes (dtype is u8): "i4"
  Access access = Access::Read;
  // Accepted shapes of a tensor. `dims`: one per top-level mode, when every mode is flat or coalesces to a flat one.
  // `flat`: one per leaf; empty when it equals `dims`. A layout with a mode that does not coalesce has `flat` alone.
  // Both empty: a tensor of rank 0.
  std::vector<Dim> dims;
  std::vector<Dim> flat;
  std::int64_t align_bytes = 1;  // of the address of element 0
  int list_count = 0;            // gr.inputs: this many tensors, passed as one list; 0: a single tensor
};

enum class SymbolFrom : std::uint8_t {
  Shape,    // solved from an extent or stride that is a * symbol + b in some argument's `dims` or `flat`
  SmCount,  // the number of multiprocessors of the device
};

struct SymbolSpec {
  std::string name;
  std::int64_t min = 0;
  std::int64_t max = sym::kMaxInt;  // inclusive
  std::int64_t multiple_of = 1;
  SymbolFrom from = SymbolFrom::Shape;
  bool is_param = true;  // passed to the kernel
  int bits = 64;         // width of that parameter: 32 or 64, signed
};

// A condition that only the arguments decide, checked before a launch.
struct FactSpec {
  Expr condition;
  std::string text;   // what needs it: "ld.global.v4 of A: the row stride is a multiple of 8"
  std::string where;  // "gemm.py:41", may be empty
};

// A tensor map: how copies of boxes find an argument's elements. The driver encodes it from the address of a call.
struct MapSpec {
  int arg = 0;                    // its number among `args`
  std::vector<Dim> dims;          // fastest first, whose stride is 1; at most 5
  std::vector<std::int64_t> box;  // elements along each
  int swizzle_bytes = 0;          // 0, 32, 64, 128
};
// As many maps as 4 KiB, which all drivers take, hold beside other parameters: lower::kMostMaps.
inline constexpr std::size_t kMapBytes = 128, kMapDims = 5, kMaxMaps = 28;

// The kernel's parameters, in order: tensors in declaration order (a pointer each; a list is one struct of list_count
// pointers), then scalars in declaration order, then the symbols with is_param, then the maps.
struct LaunchManifest {
  std::string kernel_name;  // what messages call it
  std::string entry;        // the extern "C" symbol in the cubin
  std::vector<ArgSpec> args;
  std::vector<SymbolSpec> symbols;
  std::vector<FactSpec> facts;
  std::vector<MapSpec> maps;
  std::array<Expr, 3> grid = {1, 1, 1};
  std::array<int, 3> cluster = {1, 1, 1};
  int block_threads = 1;  // blockDim = (block_threads, 1, 1)
  Expr dynamic_shared_bytes = 0;
  bool waits_itself = false;  // for the kernels before it in the stream: it may be started before they have ended

  // Bytes of each kernel parameter, in order.
  [[nodiscard]] std::vector<std::int64_t> param_bytes() const;

  [[nodiscard]] std::string to_json(int indent = -1) const;
  // Throws LAUNCH_MANIFEST on malformed text or another schema.
  [[nodiscard]] static LaunchManifest from_json(std::string_view text);
};

}  // namespace graphene::runtime
