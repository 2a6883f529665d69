#include "runtime/nvrtc.h"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <mutex>
#include <set>

#include "base/diag.h"

namespace graphene::runtime {

namespace {

// nvrtc.h, as far as it is used.
using Program = struct OpaqueProgram*;
constexpr int kSuccess = 0;

template <class F>
bool resolve(void* library, const char* name, F& f) {
  f = reinterpret_cast<F>(dlsym(library, name));
  return f != nullptr;
}

}  // namespace

struct Nvrtc::Api {
  int (*version)(int*, int*);
  int (*num_archs)(int*);
  int (*archs)(int*);
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*destroy)(Program*);
  int (*compile)(Program, int, const char* const*);
  int (*log_size)(Program, std::size_t*);
  int (*log)(Program, char*);
  int (*ptx_size)(Program, std::size_t*);
  int (*ptx)(Program, char*);
  int (*cubin_size)(Program, std::size_t*);
  int (*cubin)(Program, char*);
  const char* (*error_string)(int);

  bool resolve_all(void* lib) {
    return resolve(lib, "nvrtcVersion", version) && resolve(lib, "nvrtcGetNumSupportedArchs", num_archs) &&
           resolve(lib, "nvrtcGetSupportedArchs", archs) && resolve(lib, "nvrtcCreateProgram", create) &&
           resolve(lib, "nvrtcDestroyProgram", destroy) && resolve(lib, "nvrtcCompileProgram", compile) &&
           resolve(lib, "nvrtcGetProgramLogSize", log_size) && resolve(lib, "nvrtcGetProgramLog", log) &&
           resolve(lib, "nvrtcGetPTXSize", ptx_size) && resolve(lib, "nvrtcGetPTX", ptx) &&
           resolve(lib, "nvrtcGetCUBINSize", cubin_size) && resolve(lib, "nvrtcGetCUBIN", cubin) &&
           resolve(lib, "nvrtcGetErrorString", error_string);
  }

  static std::string text(Program p, int (*size)(Program, std::size_t*), int (*read)(Program, char*)) {
    std::size_t n = 0;
    if (size(p, &n) != kSuccess || n == 0) return {};
    std::string s(n, '\0');
    if (read(p, s.data()) != kSuccess) return {};
    return s;
  }
};

int arch_number(const std::string& arch) {
  int n = 0;
  const char* first = arch.data() + 3;
  const char* last = arch.data() + arch.size();
  if (arch.starts_with("sm_")) {
    const auto [end, error] = std::from_chars(first, last, n);
    const std::string_view suffix(end, static_cast<std::size_t>(last - end));
    if (error == std::errc() && n >= 10 && n <= 999 && (suffix.empty() || suffix == "a" || suffix == "f")) return n;
  }
  fail(Code::COMPILE_ARCH, "'" + arch + "' is not an NVIDIA architecture", {},
       "name one as in \"sm_80\" or \"sm_90a\"");
}

bool NvrtcInfo::supports(const std::string& arch) const {
  return std::find(archs.begin(), archs.end(), arch_number(arch)) != archs.end();
}

namespace {
std::mutex loaded_mutex;
std::set<std::string> loaded_paths;
}  // namespace

bool Nvrtc::loaded_by_us(const std::string& path) {
  const std::lock_guard lock(loaded_mutex);
  return loaded_paths.count(path) != 0;
}

std::shared_ptr<const Nvrtc> Nvrtc::load(const std::string& path, std::string& why_not) {
  void* before = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (before != nullptr) dlclose(before);
  void* lib = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (lib == nullptr) {
    const char* e = dlerror();
    why_not = e != nullptr ? e : "cannot be loaded";
    return nullptr;
  }
  auto api = std::make_shared<Api>();
  if (!api->resolve_all(lib)) {
    why_not = "lacks a function of NVRTC 11.2 or newer";
    return nullptr;
  }
  auto self = std::make_shared<Nvrtc>();
  NvrtcInfo& info = self->info_;
  int count = 0;
  if (api->version(&info.major, &info.minor) != kSuccess || api->num_archs(&count) != kSuccess || count < 1) {
    why_not = "does not tell its version and architectures";
    return nullptr;
  }
  info.archs.resize(static_cast<std::size_t>(count));
  if (api->archs(info.archs.data()) != kSuccess) info.archs.clear();
  std::sort(info.archs.begin(), info.archs.end());
  Dl_info where{};
  info.path = dladdr(reinterpret_cast<void*>(api->version), &where) != 0 && where.dli_fname ? where.dli_fname : path;
  if (before == nullptr) {
    const std::lock_guard lock(loaded_mutex);
    loaded_paths.insert(info.path);
  }
  std::error_code ignored;
  info.file_bytes = std::filesystem::file_size(info.path, ignored);
  self->api_ = api;
  return self;
}

NvrtcOutput Nvrtc::compile(const std::string& source, const std::string& file_name,
                           const std::vector<std::string>& options) const {
  NvrtcOutput out;
  Program program = nullptr;
  int r = api_->create(&program, source.c_str(), file_name.c_str(), 0, nullptr, nullptr);
  if (r != kSuccess) {
    out.log = std::string("nvrtcCreateProgram: ") + api_->error_string(r);
    return out;
  }
  std::vector<const char*> argv;
  for (const std::string& o : options) argv.push_back(o.c_str());
  r = api_->compile(program, static_cast<int>(argv.size()), argv.data());
  out.log = Api::text(program, api_->log_size, api_->log);
  while (!out.log.empty() && (out.log.back() == '\0' || out.log.back() == '\n')) out.log.pop_back();
  out.ok = r == kSuccess;
  if (out.ok) {
    out.ptx = Api::text(program, api_->ptx_size, api_->ptx);
    while (!out.ptx.empty() && out.ptx.back() == '\0') out.ptx.pop_back();
    out.cubin = Api::text(program, api_->cubin_size, api_->cubin);
    out.ok = !out.cubin.empty();
    if (!out.ok) out.log += "\nNVRTC returned no cubin";
  } else if (out.log.empty()) {
    out.log = std::string("nvrtcCompileProgram: ") + api_->error_string(r);
  }
  api_->destroy(&program);
  return out;
}

std::shared_ptr<const Nvrtc> loaded_nvrtc(const NvrtcInfo& info) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Nvrtc>> libraries;
  const std::lock_guard lock(mutex);
  auto& slot = libraries[info.path];
  std::string why_not;
  if (!slot) slot = Nvrtc::load(info.path, why_not);
  if (!slot) fail(Code::COMPILE_NVRTC, "NVRTC at " + info.path + " cannot be used", {"loader: " + why_not});
  return slot;
}

}  // namespace graphene::runtime
