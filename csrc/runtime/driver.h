// The CUDA driver, loaded at the first need ($GRAPHENE_CUDA_DRIVER, else libcuda.so.1). Nothing links to it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/diag.h"
#include "runtime/args.h"

namespace graphene::runtime {

// cuda.h, as far as it is used.
using CuContext = struct OpaqueContext*;
using CuModule = struct OpaqueModule*;
using CuFunction = struct OpaqueFunction*;
using CuStream = struct OpaqueStream*;
inline constexpr int kCudaSuccess = 0;

struct CuLaunchAttribute {
  int id = 0;
  char pad[4] = {};
  union {
    char bytes[64];
    unsigned cluster[3];
    int programmatic;
  } value = {};
};

struct CuLaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  CuStream stream;
  CuLaunchAttribute* attributes;
  unsigned attribute_count;
};

struct Driver {
  int (*init)(unsigned);
  int (*version)(int*);
  int (*device_count)(int*);
  int (*device_name)(char*, int, int);
  int (*device_attribute)(int*, int, int);
  int (*primary_retain)(CuContext*, int);
  int (*get_current)(CuContext*);
  int (*set_current)(CuContext);
  int (*module_load)(CuModule*, const void*);
  int (*module_function)(CuFunction*, CuModule, const char*);
  int (*function_set)(CuFunction, int, int);
  int (*function_load)(CuFunction);  // null in drivers before 12.4
  int (*launch)(CuFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CuStream, void**,
                void**);
  int (*launch_ex)(const CuLaunchConfig*, CuFunction, void**, void**);  // null in drivers before 11.8
  int (*encode_map)(void* map, int dtype, unsigned rank, void* address, const std::uint64_t* extents,
                    const std::uint64_t* stride_bytes, const std::uint32_t* box, const std::uint32_t* steps,
                    int interleave, int swizzle, int promotion, int fill);  // null in drivers before 12.0
  int (*is_capturing)(CuStream, int*);
  int (*error_name)(int, const char**);
  int (*error_string)(int, const char**);

  std::string path;
  int version_number = 0;  // 13000: 13.0
};

// Throws LAUNCH_NO_DRIVER with what the loader or cuInit said.
[[nodiscard]] const Driver& driver();

struct DeviceInfo {
  int id = 0;
  std::string name;
  std::string arch;    // the exact architecture: "sm_80", "sm_90a"
  int capability = 0;  // 90
  DeviceLimits limits;
  CuContext context = nullptr;  // the primary context, which PyTorch uses; retained once, for good
};
// Throws LAUNCH_DRIVER.
[[nodiscard]] const DeviceInfo& device(int id);
[[nodiscard]] int device_count();

// A device's clocks at their highest, and how wide its memory is; 0 where the driver does not say.
struct DeviceClocks {
  int clock_khz = 0;
  int memory_clock_khz = 0;
  int memory_bus_bits = 0;
};
[[nodiscard]] DeviceClocks device_clocks(int id);

// Makes a device's primary context current, and the previous one again at the end.
class UseContext {
 public:
  UseContext(const Driver& d, CuContext wanted) : driver_(d) {
    if (d.get_current(&previous_) != kCudaSuccess) previous_ = nullptr;
    changed_ = previous_ != wanted;
    if (changed_) result_ = d.set_current(wanted);
  }
  ~UseContext() {
    if (changed_ && previous_ != nullptr) driver_.set_current(previous_);
  }
  UseContext(const UseContext&) = delete;
  UseContext& operator=(const UseContext&) = delete;
  [[nodiscard]] int result() const { return result_; }

 private:
  const Driver& driver_;
  CuContext previous_ = nullptr;
  bool changed_ = false;
  int result_ = kCudaSuccess;
};

// The driver's name and text of a result as a diagnostic: LAUNCH_CAPTURE for what a capture forbids, else
// LAUNCH_DRIVER.
[[nodiscard]] Diagnostic driver_problem(int result, const std::string& kernel, const std::string& call);

[[nodiscard]] bool is_capturing(CuStream stream);

}  // namespace graphene::runtime
