// The arguments of a call, checked against a manifest. No Python and no CUDA: the launcher and the simulator share it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/diag.h"
#include "base/grid.h"
#include "runtime/manifest.h"

namespace graphene::runtime {

// DLPack's device types, as far as they matter.
inline constexpr std::int32_t kCpu = 1, kCuda = 2, kCudaHost = 3, kRocm = 10, kCudaManaged = 13;

struct Device {
  std::int32_t type = kCpu;
  std::int32_t id = 0;

  friend bool operator==(const Device&, const Device&) = default;
  [[nodiscard]] bool on_host() const { return type == kCpu || type == kCudaHost; }
  [[nodiscard]] bool on_cuda() const { return type == kCuda || type == kCudaManaged; }
  [[nodiscard]] std::string str() const;  // "cuda:0", "cpu", "DLPack device type 8"
};

// A tensor as its owner describes it. shape and strides belong to the owner.
struct TensorArg {
  void* data = nullptr;  // address of element 0
  Device device;
  std::uint8_t code = 0;  // DLPack's type code
  std::uint8_t bits = 0;
  std::uint16_t lanes = 1;
  int ndim = 0;
  const std::int64_t* shape = nullptr;
  const std::int64_t* strides = nullptr;  // in elements; null: row-major
  bool readonly = false;
  bool raw_bits = false;  // the owner knows no 8- and 16-bit floats but fp16: unsigned integers may stand for them

  [[nodiscard]] std::int64_t numel() const;
  [[nodiscard]] std::int64_t stride(int dim) const;
};

// Keeps a field apart from its neighbours: read as one word, fields that were just written apart wait for all of them
// to leave the store buffer, which is a tenth of a launch's host time.
template <class T>
[[nodiscard]] inline T apart(T x) {
  asm("" : "+r"(x));
  return x;
}

struct ScalarArg {
  enum class Kind : std::uint8_t { Int, UInt, Float, Bool, TooLarge } kind = Kind::Int;  // TooLarge: for a double
  std::int64_t i = 0;                                                                    // Int, Bool
  std::uint64_t u = 0;                                                                   // UInt: above the signed range
  double f = 0;                                                                          // Float
  [[nodiscard]] std::string str() const;
};

// What was passed for one ArgSpec. `problem` is set when it could not be read; the rest is then ignored.
struct ArgValue {
  std::vector<TensorArg> tensors;  // one, or list_count
  ScalarArg scalar;
  std::optional<Diagnostic> problem;
};

struct DeviceLimits {
  std::array<std::int64_t, 3> grid = kGridLimit;
  std::int64_t block_threads = 1024;
  std::int64_t shared_bytes = 227 * 1024;  // dynamic and static together
  std::int64_t sm_count = 1;
};

// A tensor map but for its address.
struct BoundMap {
  std::size_t tensor = 0;  // its parameter's number among the tensors and lists
  DType dtype;
  unsigned rank = 0;
  std::array<std::uint64_t, kMapDims> extents = {}, stride_bytes = {};  // of the fastest dimension: not read
  std::array<std::uint32_t, kMapDims> box = {};
  int swizzle_bytes = 0;
};

// What a checked call launches with.
struct BoundCall {
  std::vector<std::int64_t> symbols;   // values, in the manifest's order
  std::vector<std::uint64_t> scalars;  // bits of each scalar argument in its own type, in order
  std::array<std::int64_t, 3> grid = {1, 1, 1};
  std::int64_t dynamic_shared_bytes = 0;
  // For each tensor of the call (lists spelled out): whether it was matched with `flat` rather than `dims`.
  std::vector<bool> flat;
  std::vector<BoundMap> maps;

  [[nodiscard]] bool empty() const { return grid[0] == 0 || grid[1] == 0 || grid[2] == 0; }
};

// Throws Error with everything that is wrong (LAUNCH_*); no argument is touched.
[[nodiscard]] BoundCall bind_args(const LaunchManifest& m, const std::vector<ArgValue>& args,
                                  const DeviceLimits& limits = {});

// The scalar's bits in `dtype`, little-endian; nullopt when it does not fit. Floats round to nearest even; a finite
// number that would become infinite does not fit, and neither does a fraction in an integer.
[[nodiscard]] std::optional<std::uint64_t> pack_scalar(const DType& dtype, const ScalarArg& value);

// "float16", "int32", "DLPack type 5 of 64 bits": how messages name what was passed.
[[nodiscard]] std::string dtype_text(std::uint8_t code, std::uint8_t bits, std::uint16_t lanes);

// The first diagnostic of a call gets "; nothing was launched" through this, so that all of them read alike.
[[nodiscard]] Diagnostic launch_problem(Code code, const std::string& kernel, const std::string& what,
                                        std::vector<std::string> details = {}, std::string fix = {});

}  // namespace graphene::runtime
