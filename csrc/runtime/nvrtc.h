// NVRTC, found and loaded at the first need. Nothing here links to it or includes its headers.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace graphene::runtime {

// A place where NVRTC may be, in the order of the search:
//   1. $GRAPHENE_NVRTC (a file, or a directory that holds one); when set, nothing else is tried
//   2. a libnvrtc that the process has loaded already (torch's, after `import torch`)
//   3. <site-packages>/torch/lib
//   4. pip wheels: <site-packages>/nvidia/*/lib (nvidia-cuda-nvrtc, nvidia-cuda-nvrtc-cu12, ...)
//   5. $CUDA_HOME, $CUDA_PATH
//   6. the dynamic loader's own search (ldconfig), then /usr/local/cuda*
struct NvrtcCandidate {
  std::string path;  // a file, or a bare soname for the dynamic loader
  std::string why;   // "pip wheel", "$CUDA_HOME", ...
};
[[nodiscard]] std::vector<NvrtcCandidate> nvrtc_candidates(const std::vector<std::string>& site_packages);

// What is known of a library without loading it again: remembered on disk by path, size and time, because loading
// takes 10 to 100 ms and a cache hit should not pay it.
struct NvrtcInfo {
  std::string path;
  std::string why;
  int major = 0;
  int minor = 0;
  std::uintmax_t file_bytes = 0;  // tells builds of one version apart
  std::vector<int> archs;         // 75, 80, ..., ascending

  [[nodiscard]] std::string version() const { return std::to_string(major) + "." + std::to_string(minor); }
  [[nodiscard]] std::string identity() const { return version() + "/" + std::to_string(file_bytes); }
  [[nodiscard]] bool supports(const std::string& arch) const;
};

// "sm_90a" -> 90. Throws COMPILE_ARCH for anything but sm_ and digits with an optional a or f.
[[nodiscard]] int arch_number(const std::string& arch);

struct NvrtcOutput {
  bool ok = false;
  std::string log;
  std::string ptx;
  std::string cubin;
};

// Called while something takes long; what it throws ends it.
using Poll = std::function<void()>;

// Ends the compilations that other threads wait for.
void cancel_compilations();

class Nvrtc {
 public:
  // Null when the file cannot be loaded or lacks a function; `why_not` then says so.
  static std::shared_ptr<const Nvrtc> load(const std::string& path, std::string& why_not);

  // Whether load() brought the file into the process. What it brought must not change the order of later searches.
  static bool loaded_by_us(const std::string& path);

  [[nodiscard]] const NvrtcInfo& info() const { return info_; }
  // Compiles for `options` (which hold the architecture), in a thread of its own. Never throws for an error in the
  // source: see ok and log. `poll` is called many times a second; what it throws ends the wait, and the compilation is
  // cancelled where this NVRTC can do that (12.9 and later), else left to end by itself. Throws COMPILE_FORK, and
  // COMPILE_CANCELLED after cancel_compilations.
  [[nodiscard]] NvrtcOutput compile(const std::string& source, const std::string& file_name,
                                    const std::vector<std::string>& options, const Poll& poll) const;

 private:
  friend struct Job;
  struct Api;
  std::shared_ptr<const Api> api_;
  NvrtcInfo info_;
};

// The first library of the search that supports `arch`, described; not loaded when it is remembered. Throws
// COMPILE_NVRTC (none found) or COMPILE_ARCH (none supports it; says what each one found supports).
[[nodiscard]] NvrtcInfo find_nvrtc(const std::string& arch, const std::vector<std::string>& site_packages);

// Asks the system to read the first library of the search into memory, without waiting for it or loading it. False:
// there is none.
bool nvrtc_read_ahead(const std::vector<std::string>& site_packages);

// Loads the compiler for `arch` and lets it compile a few lines with these options, in a thread that nobody waits for:
// a first compilation then finds it started. Once a process, and not where there is one processor or where something
// was compiled; no error is told. False: nothing was begun.
bool nvrtc_start(const std::string& arch, const std::vector<std::string>& site_packages,
                 const std::vector<std::string>& options);

// Ends what nvrtc_start began. A process does so before it ends: what the library that is being loaded leaves behind
// for that moment must not meet a thread that uses it.
void nvrtc_end_start();

// Every library of the search that loads, each path once; for `doctor`.
[[nodiscard]] std::vector<NvrtcInfo> all_nvrtc(const std::vector<std::string>& site_packages);

// The loaded library behind a description; kept for the life of the process. Throws COMPILE_NVRTC.
[[nodiscard]] std::shared_ptr<const Nvrtc> loaded_nvrtc(const NvrtcInfo& info);

}  // namespace graphene::runtime
