#include "runtime/driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

#include "base/fork.h"
#include "base/stages.h"
#include "runtime/library.h"

namespace graphene::runtime {

namespace {

// cuda.h's CUdevice_attribute.
ForkMutex driver_mutex(ForkMutex::kDriver), device_mutex(ForkMutex::kDevice);

constexpr int kMaxThreads = 1, kGridX = 5, kGridY = 6, kGridZ = 7, kSmCount = 16, kMajor = 75, kMinor = 76,
              kShared = 97, kClock = 13, kMemoryClock = 36, kMemoryBus = 37;
constexpr int kNotInitialized = 3;  // cuda.h's CUresult

template <class F>
bool resolve(void* library, const char* name, F& f) {
  f = reinterpret_cast<F>(dlsym(library, name));
  return f != nullptr;
}

[[noreturn]] void no_driver(const std::string& what, const std::string& detail) {
  fail(Code::LAUNCH_NO_DRIVER, what, detail.empty() ? std::vector<std::string>{} : std::vector{detail},
       "install the NVIDIA driver (a container needs --gpus all), or pass CPU tensors or NumPy arrays to run on the "
       "simulator; `python -m graphene doctor` shows what was found");
}

// CUDA does not outlive a fork, and says so by errors that name nothing.
[[noreturn]] void fail_forked() {
  fail(Code::LAUNCH_FORK, "CUDA was started before this process was forked, and cannot be used in it", {},
       "start worker processes with multiprocessing's \"spawn\" or \"forkserver\", or touch CUDA after the fork only");
}

Driver load() {
  Driver d{};
  const char* named = std::getenv("GRAPHENE_CUDA_DRIVER");
  d.path = named != nullptr && *named != '\0' ? named : "libcuda.so.1";
  std::string why_not;
  void* lib = open_library(d.path, why_not);
  if (lib == nullptr) no_driver("the CUDA driver cannot be loaded", "loader: " + why_not);
  if (Dl_info where{}; dladdr(dlsym(lib, "cuInit"), &where) != 0 && where.dli_fname != nullptr)
    d.path = where.dli_fname;
  const bool complete =
      resolve(lib, "cuInit", d.init) && resolve(lib, "cuDriverGetVersion", d.version) &&
      resolve(lib, "cuDeviceGetCount", d.device_count) && resolve(lib, "cuDeviceGetName", d.device_name) &&
      resolve(lib, "cuDeviceGetAttribute", d.device_attribute) &&
      resolve(lib, "cuDevicePrimaryCtxRetain", d.primary_retain) && resolve(lib, "cuCtxGetCurrent", d.get_current) &&
      resolve(lib, "cuCtxSetCurrent", d.set_current) && resolve(lib, "cuModuleLoadData", d.module_load) &&
      resolve(lib, "cuModuleGetFunction", d.module_function) && resolve(lib, "cuFuncSetAttribute", d.function_set) &&
      resolve(lib, "cuLaunchKernel", d.launch) && resolve(lib, "cuStreamIsCapturing", d.is_capturing) &&
      resolve(lib, "cuGetErrorName", d.error_name) && resolve(lib, "cuGetErrorString", d.error_string);
  if (!complete) no_driver("the CUDA driver lacks a function", "at: " + d.path);
  resolve(lib, "cuFuncLoad", d.function_load);
  resolve(lib, "cuLaunchKernelEx", d.launch_ex);
  resolve(lib, "cuTensorMapEncodeTiled", d.encode_map);
  if (const int r = d.init(0); r != kCudaSuccess) {
    if (r == kNotInitialized) fail_forked();  // what cuInit returns nowhere else
    const char* name = nullptr;
    d.error_name(r, &name);
    no_driver("the CUDA driver does not work", std::string("cuInit: ") + (name != nullptr ? name : std::to_string(r)));
  }
  d.version(&d.version_number);
  return d;
}

}  // namespace

const Driver& driver() {
  static std::atomic<const Driver*> loaded{nullptr};
  static std::atomic<unsigned> loaded_at{0};
  const Driver* d = loaded.load(std::memory_order_acquire);
  if (d == nullptr) {
    const std::lock_guard lock(driver_mutex);
    d = loaded.load();
    if (d == nullptr) {
      const Stage stage("open the device");
      loaded_at = fork_depth();
      d = new Driver(load());  // a throw leaves it unset: the next call tries again
      loaded.store(d, std::memory_order_release);
    }
  }
  if (loaded_at.load(std::memory_order_relaxed) != fork_depth()) fail_forked();
  return *d;
}

int device_count() {
  int n = 0;
  const int r = driver().device_count(&n);
  if (r != kCudaSuccess) throw Error(driver_problem(r, "", "cuDeviceGetCount"));
  return n;
}

const DeviceInfo& device(int id) {
  static std::map<int, std::unique_ptr<DeviceInfo>> devices;
  const Driver& d = driver();
  const std::lock_guard lock(device_mutex);
  auto& slot = devices[id];
  if (slot) return *slot;
  const Stage stage("open the device");
  auto info = std::make_unique<DeviceInfo>();
  info->id = id;
  const auto attribute = [&](int which) {
    int v = 0;
    if (const int r = d.device_attribute(&v, which, id); r != kCudaSuccess)
      throw Error(driver_problem(r, "", "cuDeviceGetAttribute"));
    return v;
  };
  const int major = attribute(kMajor), minor = attribute(kMinor);
  info->capability = major * 10 + minor;
  info->arch = "sm_" + std::to_string(info->capability) + (major >= 9 ? "a" : "");
  info->limits = {.grid = {attribute(kGridX), attribute(kGridY), attribute(kGridZ)},
                  .block_threads = attribute(kMaxThreads),
                  .shared_bytes = attribute(kShared),
                  .sm_count = attribute(kSmCount)};
  char name[256] = {};
  if (d.device_name(name, sizeof name, id) == kCudaSuccess) info->name = name;
  if (const int r = d.primary_retain(&info->context, id); r != kCudaSuccess)
    throw Error(driver_problem(r, "", "cuDevicePrimaryCtxRetain"));
  slot = std::move(info);
  return *slot;
}

DeviceClocks device_clocks(int id) {
  const Driver& d = driver();
  const auto attribute = [&](int which) {
    int v = 0;
    return d.device_attribute(&v, which, id) == kCudaSuccess ? v : 0;
  };
  return {.clock_khz = attribute(kClock),
          .memory_clock_khz = attribute(kMemoryClock),
          .memory_bus_bits = attribute(kMemoryBus)};
}

Diagnostic driver_problem(int result, const std::string& kernel, const std::string& call) {
  const Driver& d = driver();
  const char *name = nullptr, *text = nullptr;
  d.error_name(result, &name);
  d.error_string(result, &text);
  const std::string what = name != nullptr ? name : "error " + std::to_string(result);
  Diagnostic out{.code = Code::LAUNCH_DRIVER,
                 .where = {},
                 .message = (kernel.empty() ? "" : kernel + ": ") + call + " failed with " + what +
                            (kernel.empty() ? "" : "; nothing was launched"),
                 .ir = {},
                 .details = {},
                 .fix = {}};
  if (text != nullptr) out.details.push_back(std::string("driver: ") + text);
  if (result >= 900 && result <= 908) {
    out.code = Code::LAUNCH_CAPTURE;
    out.fix = "call the kernel once, or kernel.load(), before the capture starts";
  } else if (result == 700 || (result >= 714 && result <= 719)) {
    out.fix =
        "a kernel launched earlier, by anybody, broke the context: find it with kernel.simulate(...) on small "
        "inputs or with compute-sanitizer, and start a new process";
  } else if (result == 209) {
    out.fix = "the cubin is for another architecture: compile for this device's";
  } else if (result == 2) {
    out.fix = "free device memory";
  }
  return out;
}

bool is_capturing(CuStream stream) {
  int status = 0;
  return driver().is_capturing(stream, &status) == kCudaSuccess && status != 0;
}

}  // namespace graphene::runtime
