#include "runtime/nvrtc.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <set>

#include "base/diag.h"
#include "base/fork.h"
#include "runtime/library.h"

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
  std::string builtins;  // the file of the library that NVRTC loads when it compiles, where it lies beside it
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
  int (*flow_callback)(Program, int (*)(void*, void*), void*);  // null before NVRTC 12.9

  bool resolve_all(void* lib) {
    resolve(lib, "nvrtcSetFlowCallback", flow_callback);
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
ForkMutex loaded_mutex(ForkMutex::kLoaded), libraries_mutex(ForkMutex::kLibraries);
std::set<std::string> loaded_paths;
}  // namespace

bool Nvrtc::loaded_by_us(const std::string& path) {
  const std::lock_guard lock(loaded_mutex);
  return loaded_paths.count(path) != 0;
}

std::shared_ptr<const Nvrtc> Nvrtc::load(const std::string& path, std::string& why_not) {
  if (!may_be_library(path, why_not)) return nullptr;
  void* before = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (before != nullptr) dlclose(before);
  void* lib = open_library(path, why_not);
  if (lib == nullptr) return nullptr;
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
  const auto beside = std::filesystem::path(info.path).parent_path() / ("libnvrtc-builtins.so." + info.version());
  if (std::filesystem::exists(beside, ignored)) api->builtins = beside.string();
  self->api_ = api;
  return self;
}

// One compilation, which the thread that asked for it may give up: whoever is last frees it.
struct Job {
  std::shared_ptr<const Nvrtc::Api> api;
  std::function<NvrtcInfo()> find;  // gives the library where `api` is null
  std::string source, file_name;
  std::vector<std::string> options;

  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  NvrtcOutput out;
  std::atomic<bool> cancelled{false};

  void run();

 private:
  static int is_cancelled(void* job, void*) { return static_cast<Job*>(job)->cancelled ? 1 : 0; }

  NvrtcOutput compiled() {
    NvrtcOutput x;
    if (!api) api = loaded_nvrtc(find())->api_;
    if (cancelled) return x;
    // NVRTC asks for this library by its name alone. Some of its wheels name no folder, so that it finds none but one
    // that is loaded already.
    if (!api->builtins.empty()) static_cast<void>(dlopen(api->builtins.c_str(), RTLD_NOW | RTLD_LOCAL));
    Program program = nullptr;
    int r = api->create(&program, source.c_str(), file_name.c_str(), 0, nullptr, nullptr);
    if (r != kSuccess) {
      x.log = std::string("nvrtcCreateProgram: ") + api->error_string(r);
      return x;
    }
    if (api->flow_callback != nullptr) static_cast<void>(api->flow_callback(program, is_cancelled, this));
    std::vector<const char*> argv;
    for (const std::string& o : options) argv.push_back(o.c_str());
    r = api->compile(program, static_cast<int>(argv.size()), argv.data());
    x.log = Nvrtc::Api::text(program, api->log_size, api->log);
    while (!x.log.empty() && (x.log.back() == '\0' || x.log.back() == '\n')) x.log.pop_back();
    x.ok = r == kSuccess;
    if (x.ok) {
      x.ptx = Nvrtc::Api::text(program, api->ptx_size, api->ptx);
      while (!x.ptx.empty() && x.ptx.back() == '\0') x.ptx.pop_back();
      x.cubin = Nvrtc::Api::text(program, api->cubin_size, api->cubin);
      x.ok = !x.cubin.empty();
      if (!x.ok) x.log += "\nNVRTC returned no cubin";
    } else if (x.log.empty()) {
      x.log = std::string("nvrtcCompileProgram: ") + api->error_string(r);
    }
    api->destroy(&program);
    return x;
  }
};

namespace {

// Compilations that are under way in this process. A fork copies what NVRTC holds then, but not the thread that would
// give it back.
class UnderWay {
 public:
  static void begin() {
    const std::lock_guard lock(loaded_mutex);
    if (depth_ != fork_depth()) {
      depth_ = fork_depth();
      lost_ = lost_ || count_ != 0;
      count_ = 0;
    }
    if (lost_)
      fail(Code::COMPILE_FORK, "NVRTC was compiling in another thread when this process was forked: it cannot be used",
           {}, "compile before the fork, or start worker processes with multiprocessing's \"spawn\"");
    ++count_;
  }
  static void end() {
    const std::lock_guard lock(loaded_mutex);
    if (depth_ == fork_depth() && count_ > 0) --count_;
  }

 private:
  static unsigned depth_;
  static int count_;
  static bool lost_;
};
unsigned UnderWay::depth_ = 0;
int UnderWay::count_ = 0;
bool UnderWay::lost_ = false;

using Clock = std::chrono::steady_clock;

std::atomic<unsigned> cancellations{0};

// Compilations that may not have ended: nobody may wait for them any more, or a thread that ended with Python. The
// library must not be unloaded under them, so the process cancels them, and waits for their end before it ends itself.
std::mutex jobs_mutex;  // held while a compilation is under way, of which a forked child knows
std::vector<std::shared_ptr<Job>> started;

void end_jobs(int status, void*) {
  constexpr std::chrono::seconds kPatience(2);
  std::vector<std::shared_ptr<Job>> jobs;
  {
    const std::unique_lock lock(jobs_mutex, std::try_to_lock);
    if (lock.owns_lock() && fork_depth() == 0) jobs.swap(started);
  }
  for (const auto& job : jobs) job->cancelled = true;
  const auto until = Clock::now() + kPatience;
  for (const auto& job : jobs) {
    std::unique_lock lock(job->mutex);
    if (job->ended.wait_until(lock, until, [&] { return job->done; })) continue;
    // An NVRTC that cannot be cancelled: what remains of the process' end would destroy what the thread uses.
    std::fflush(nullptr);
    ::_exit(status);
  }
}

void watch(const std::shared_ptr<Job>& job) {
  static const int installed = ::on_exit(end_jobs, nullptr);
  static_cast<void>(installed);
  const std::lock_guard lock(jobs_mutex);
  std::erase_if(started, [](const std::shared_ptr<Job>& j) {
    const std::lock_guard held(j->mutex);
    return j->done;
  });
  started.push_back(job);
}

}  // namespace

void Job::run() {
  NvrtcOutput result;
  try {
    result = compiled();
  } catch (const std::exception& e) {
    result = {};
    result.log = std::string("NVRTC: ") + e.what();
  }
  UnderWay::end();
  const std::lock_guard lock(mutex);
  out = std::move(result);
  done = true;
  ended.notify_all();
}

namespace {

void* run_job(void* job) {
  const std::unique_ptr<std::shared_ptr<Job>> held(static_cast<std::shared_ptr<Job>*>(job));
  (*held)->run();
  return nullptr;
}

// False when the system has no thread to give. Signals are for the threads that were there.
bool start(const std::shared_ptr<Job>& job) {
  constexpr std::size_t kStackBytes = std::size_t{16} << 20;
  auto held = std::make_unique<std::shared_ptr<Job>>(job);
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) != 0) return false;
  static_cast<void>(::pthread_attr_setstacksize(&attributes, kStackBytes));
  static_cast<void>(::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED));
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread{};
  const bool started = ::pthread_create(&thread, &attributes, run_job, held.get()) == 0;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_attr_destroy(&attributes);
  if (started) static_cast<void>(held.release());
  return started;
}

}  // namespace

void cancel_compilations() { ++cancellations; }

namespace {

std::atomic<bool> begun{false};  // whether this process or an ancestor has used NVRTC
std::shared_ptr<Job> starting;   // of this process, where it is `starting_depth` forks away from the first
unsigned starting_depth = 0;

int processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace

bool nvrtc_start(const std::string& arch, const std::vector<std::string>& site_packages,
                 const std::vector<std::string>& options) {
  if (processors() < 2 || begun.exchange(true)) return false;
  const auto job = std::make_shared<Job>();
  job->find = [arch, site_packages] { return find_nvrtc(arch, site_packages); };
  job->source =
      "extern \"C\" __global__ void start(float* x, int n) {\n"
      "  for (int i = threadIdx.x; i < n; i += blockDim.x) asm volatile(\"neg.f32 %0, %0;\" : \"+f\"(x[i]));\n"
      "}\n";
  job->file_name = "start.cu";
  job->options = options;
  UnderWay::begin();
  watch(job);
  if (!start(job)) job->run();
  starting = job;
  starting_depth = fork_depth();
  return true;
}

void nvrtc_end_start() {
  constexpr std::chrono::seconds kPatience(2);
  if (!starting || starting_depth != fork_depth()) return;
  starting->cancelled = true;
  std::unique_lock lock(starting->mutex);
  starting->ended.wait_for(lock, kPatience, [] { return starting->done; });
}

NvrtcOutput Nvrtc::compile(const std::string& source, const std::string& file_name,
                           const std::vector<std::string>& options, const Poll& poll) const {
  constexpr std::chrono::milliseconds kPause(50);
  begun = true;
  const auto job = std::make_shared<Job>();
  job->api = api_;
  job->source = source;
  job->file_name = file_name;
  job->options = options;
  UnderWay::begin();
  watch(job);
  if (!start(job)) job->run();
  const unsigned since = cancellations;
  try {
    std::unique_lock lock(job->mutex);
    while (!job->ended.wait_for(lock, kPause, [&] { return job->done; })) {
      lock.unlock();
      if (since != cancellations) fail(Code::COMPILE_CANCELLED, "the compilation was given up");
      poll();
      lock.lock();
    }
  } catch (...) {
    job->cancelled = true;
    throw;
  }
  return std::move(job->out);
}

std::shared_ptr<const Nvrtc> loaded_nvrtc(const NvrtcInfo& info) {
  static std::map<std::string, std::shared_ptr<const Nvrtc>> libraries;
  const std::lock_guard lock(libraries_mutex);
  auto& slot = libraries[info.path];
  std::string why_not;
  if (!slot) slot = Nvrtc::load(info.path, why_not);
  if (!slot) fail(Code::COMPILE_NVRTC, "NVRTC at " + info.path + " cannot be used", {"loader: " + why_not});
  return slot;
}

}  // namespace graphene::runtime
