// Where NVRTC is looked for, and the memory of what was found.
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "base/diag.h"
#include "base/fork.h"
#include "runtime/cache.h"
#include "runtime/nvrtc.h"
#include "runtime/sha256.h"

namespace graphene::runtime {

namespace fs = std::filesystem;

namespace {

ForkMutex search_mutex(ForkMutex::kSearch);

std::string env(const char* name) {
  const char* v = std::getenv(name);
  return v != nullptr ? v : "";
}

bool is_nvrtc_name(const std::string& name) {
  return name.starts_with("libnvrtc") && name.find(".so") != std::string::npos &&
         name.find("builtins") == std::string::npos && name.find(".alt.") == std::string::npos;
}

// The files named libnvrtc*.so* of a directory, the highest version first, each real file once.
void add_directory(const fs::path& dir, const std::string& why, std::vector<NvrtcCandidate>& out) {
  std::error_code e;
  std::vector<std::string> found;
  for (fs::directory_iterator it(dir, e), end; !e && it != end; it.increment(e))
    if (is_nvrtc_name(it->path().filename().string())) found.push_back(it->path().string());
  std::sort(found.begin(), found.end(),
            [](const std::string& a, const std::string& b) { return strverscmp(a.c_str(), b.c_str()) > 0; });
  std::set<fs::path> real;
  for (const std::string& f : found) {
    const fs::path target = fs::canonical(f, e);
    if (!e && real.insert(target).second) out.push_back({f, why});
  }
}

void add_toolkit(const fs::path& root, const std::string& why, std::vector<NvrtcCandidate>& out) {
  for (const char* lib : {"lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"})
    add_directory(root / lib, why, out);
}

std::vector<fs::path> subdirectories(const fs::path& dir) {
  std::vector<fs::path> out;
  std::error_code e;
  for (fs::directory_iterator it(dir, e), end; !e && it != end; it.increment(e)) out.push_back(it->path());
  std::sort(out.begin(), out.end(),
            [](const fs::path& a, const fs::path& b) { return strverscmp(a.c_str(), b.c_str()) > 0; });
  return out;
}

int note_loaded(dl_phdr_info* info, std::size_t, void* out) {
  const fs::path path = info->dlpi_name != nullptr ? info->dlpi_name : "";
  if (is_nvrtc_name(path.filename().string()) && !Nvrtc::loaded_by_us(path.string()))
    static_cast<std::vector<NvrtcCandidate>*>(out)->push_back({path.string(), "already loaded"});
  return 0;
}

using Json = nlohmann::json;

std::string memo_name(const std::string& path) { return sha256_hex(path).substr(0, 32) + ".json"; }

// Size and time of the file a path leads to: what must not have changed since it was probed.
Json stamp(const std::string& path) {
  std::error_code e;
  const auto bytes = fs::file_size(path, e);
  if (e) return nullptr;
  const auto time = fs::last_write_time(path, e);
  if (e) return nullptr;
  return Json{{"path", path}, {"bytes", bytes}, {"time", time.time_since_epoch().count()}};
}

bool recall(const NvrtcCandidate& c, NvrtcInfo& info) {
  const Json now = stamp(c.path);
  std::string text;
  if (now.is_null() || !memo_load(memo_name(c.path), text)) return false;
  const Json j = Json::parse(text, nullptr, false);
  if (!j.is_object() || j.value("stamp", Json()) != now) return false;
  try {
    info = {.path = c.path,
            .why = c.why,
            .major = j.at("major"),
            .minor = j.at("minor"),
            .file_bytes = j.at("stamp").at("bytes"),
            .archs = j.at("archs").get<std::vector<int>>()};
  } catch (const Json::exception&) {
    return false;
  }
  return true;
}

void remember(const NvrtcCandidate& c, const NvrtcInfo& info) {
  const Json now = stamp(c.path);
  if (now.is_null()) return;
  const Json j = {{"stamp", now}, {"major", info.major}, {"minor", info.minor}, {"archs", info.archs}};
  memo_store(memo_name(c.path), j.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// Description of a candidate; false with the reason when it cannot be loaded.
bool describe(const NvrtcCandidate& c, NvrtcInfo& info, std::string& why_not) {
  static std::map<std::string, NvrtcInfo> known;
  const std::lock_guard lock(search_mutex);
  if (const auto it = known.find(c.path); it != known.end()) {
    info = it->second;
    info.why = c.why;
    return true;
  }
  if (!recall(c, info)) {
    const auto library = Nvrtc::load(c.path, why_not);
    if (!library) return false;
    info = library->info();
    info.why = c.why;
    remember(c, info);
  }
  known[c.path] = info;
  return true;
}

std::string list_archs(const NvrtcInfo& info) {
  std::string s;
  for (const int a : info.archs) s += (s.empty() ? "sm_" : " sm_") + std::to_string(a);
  return s;
}

}  // namespace

std::vector<NvrtcCandidate> nvrtc_candidates(const std::vector<std::string>& site_packages) {
  std::vector<NvrtcCandidate> out;
  if (const std::string named = env("GRAPHENE_NVRTC"); !named.empty()) {
    std::error_code e;
    if (fs::is_directory(named, e)) {
      add_directory(named, "$GRAPHENE_NVRTC", out);
      add_toolkit(named, "$GRAPHENE_NVRTC", out);
    } else {
      out.push_back({named, "$GRAPHENE_NVRTC"});
    }
    return out;
  }
  dl_iterate_phdr(note_loaded, &out);
  for (const std::string& root : site_packages) add_directory(fs::path(root) / "torch" / "lib", "torch", out);
  std::vector<NvrtcCandidate> wheels;  // of several versions the highest one first, whatever its folder is called
  for (const std::string& root : site_packages)
    for (const fs::path& wheel : subdirectories(fs::path(root) / "nvidia"))
      add_directory(wheel / "lib", "pip wheel", wheels);
  std::ranges::stable_sort(wheels, [](const NvrtcCandidate& a, const NvrtcCandidate& b) {
    return strverscmp(fs::path(a.path).filename().c_str(), fs::path(b.path).filename().c_str()) > 0;
  });
  out.insert(out.end(), wheels.begin(), wheels.end());
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"})
    if (const std::string root = env(name); !root.empty()) add_toolkit(root, std::string("$") + name, out);
  for (const char* soname : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"})
    out.push_back({soname, "ldconfig"});
  for (const fs::path& root : subdirectories("/usr/local"))
    if (root.filename().string().starts_with("cuda")) add_toolkit(root, "/usr/local", out);
  return out;
}

NvrtcInfo find_nvrtc(const std::string& arch, const std::vector<std::string>& site_packages) {
  static_cast<void>(arch_number(arch));
  std::vector<std::string> failures, unsuitable;
  for (const NvrtcCandidate& c : nvrtc_candidates(site_packages)) {
    NvrtcInfo info;
    std::string why_not;
    if (!describe(c, info, why_not)) {
      if (c.why != "ldconfig") failures.push_back(c.path + " (" + c.why + "): " + why_not);
      continue;
    }
    if (info.supports(arch)) return info;
    const std::string line = "NVRTC " + info.version() + " at " + info.path + ": " + list_archs(info);
    if (std::find(unsuitable.begin(), unsuitable.end(), line) == unsuitable.end()) unsuitable.push_back(line);
  }
  if (unsuitable.empty())
    fail(Code::COMPILE_NVRTC, "NVRTC, the CUDA compiler library, was not found", failures,
         env("GRAPHENE_NVRTC").empty()
             ? "pip install nvidia-cuda-nvrtc, or set GRAPHENE_NVRTC to a libnvrtc.so; `python -m graphene doctor` "
               "shows the search"
             : "correct GRAPHENE_NVRTC, or unset it to search the usual places");
  unsuitable.insert(unsuitable.end(), failures.begin(), failures.end());
  fail(Code::COMPILE_ARCH, "no NVRTC found supports " + arch, unsuitable,
       arch_number(arch) < 75 ? "NVRTC 12 has it: pip install nvidia-cuda-nvrtc-cu12"
                              : "install a newer NVRTC: pip install -U nvidia-cuda-nvrtc");
}

bool nvrtc_read_ahead(const std::vector<std::string>& site_packages) {
  for (const NvrtcCandidate& c : nvrtc_candidates(site_packages)) {
    const int fd = ::open(c.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) continue;  // a name for the dynamic loader
    const bool asked = ::posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED) == 0;
    ::close(fd);
    return asked;
  }
  return false;
}

std::vector<NvrtcInfo> all_nvrtc(const std::vector<std::string>& site_packages) {
  std::vector<NvrtcInfo> out;
  for (const NvrtcCandidate& c : nvrtc_candidates(site_packages)) {
    NvrtcInfo info;
    std::string why_not;
    if (!describe(c, info, why_not)) continue;
    std::error_code e;
    const bool seen = std::any_of(out.begin(), out.end(), [&](const NvrtcInfo& o) {
      return o.path == info.path || fs::equivalent(o.path, info.path, e);
    });
    if (!seen) out.push_back(info);
  }
  return out;
}

}  // namespace graphene::runtime
