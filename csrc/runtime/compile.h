// CUDA C++ text -> cubin, through the disk cache.
#pragma once

#include <string>
#include <vector>

#include "runtime/cache.h"
#include "runtime/cubin.h"
#include "runtime/nvrtc.h"

namespace graphene::runtime {

struct Binary {
  std::string entry;  // the extern "C" symbol
  std::string arch;   // "sm_90a"
  std::string cubin;
  std::string ptx;
  std::string log;  // NVRTC's and the assembler's
  std::string nvrtc_version;
  Resources resources;
  bool from_cache = false;
  std::string key;        // of its entry in the cache; there may be none
  double compile_ms = 0;  // of NVRTC; kept in the cache
};

// C++17, device code by default, and no contraction of a * b + c: what is fused is written as fma in the source. With
// GRAPHENE_LINEINFO=1 when the process first asks: line information for profilers, which takes time and space.
[[nodiscard]] const std::vector<std::string>& default_options();

struct CompileRequest {
  std::string source;
  std::string entry;
  std::string arch;
  std::string kernel_name;  // for messages
  std::vector<std::string> options = default_options();
  std::vector<std::string> site_packages;  // where NVRTC is looked for besides the system's places
};

// Throws COMPILE_NVRTC, COMPILE_ARCH, COMPILE_SOURCE (the errors, each with its source line and the nearest comment
// above it, which is the IR line) or COMPILE_REMARK (a remark of the assembler that is an error to us).
// `poll` is as in Nvrtc::compile.
[[nodiscard]] Binary compile(const CompileRequest& request, const Poll& poll);

// Whether the cache holds it already; the library is not loaded.
[[nodiscard]] bool is_cached(const CompileRequest& request);

// The key under which `compile` looks first. Where no NVRTC serves the architecture it is the first part alone, which
// is the request's hash.
[[nodiscard]] std::string cubin_key(const CompileRequest& request);

// A cached kernel's key is a hash of the request, which any NVRTC may have met, then one of the NVRTC build: where no
// NVRTC serves the architecture, what another one compiled is used.

// The cubin of an entry, if it is `entry` for `arch`: without PTX, source and log, which are not read.
[[nodiscard]] bool load_cubin(const std::string& key, const std::string& entry, const std::string& arch, Binary& b);

// The second part of a key: which NVRTC serves `arch`. Empty where none does.
[[nodiscard]] std::string build_digits(const std::string& arch, const std::vector<std::string>& site_packages);

// Why `files` are not what the cache keeps under `key`: their request must hash to it, the cubin must hold the kernel.
// Empty when they are.
[[nodiscard]] std::string why_not_cacheable(const std::string& key, const CacheFiles& files);

}  // namespace graphene::runtime
