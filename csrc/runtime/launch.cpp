#include "runtime/launch.h"

#include <array>
#include <bit>
#include <map>
#include <mutex>

#include "base/fork.h"
#include "base/stages.h"
#include "runtime/cubin.h"
#include "runtime/sha256.h"

namespace graphene::runtime {

namespace {

ForkMutex load_mutex(ForkMutex::kLaunch), maps_mutex(ForkMutex::kMaps);

constexpr std::int64_t kMuchShared = 48 * 1024;                                      // bytes of a block
constexpr int kMaxDynamicShared = 8, kSharedCarveout = 9, kNonPortableCluster = 14;  // cuda.h's CUfunction_attribute
constexpr int kClusterDimension = 4, kProgrammaticStreamSerialization = 6;           // cuda.h's CUlaunchAttributeID
// Since when kernels start early, in captured graphs, too.
constexpr int kEarlyStartDriver = 12030, kEarlyStartCapability = 90;

void check(int result, const std::string& kernel, const char* call) {
  if (result != kCudaSuccess) throw Error(driver_problem(result, kernel, call));
}

std::string list_text(const std::vector<std::int64_t>& v) {
  std::string s;
  for (const std::int64_t x : v) s += (s.empty() ? "" : ", ") + std::to_string(x);
  return s.empty() ? "none" : s;
}

void check_params(const std::string& cubin, const LaunchManifest& m) {
  const auto got = param_bytes(cubin, m.entry);
  const auto want = m.param_bytes();
  if (!got || *got == want) return;
  throw Error(launch_problem(
      Code::LAUNCH_MANIFEST, m.kernel_name, "the compiled kernel takes other parameters than its manifest says",
      {"want: " + list_text(want) + " bytes", "got:  " + list_text(*got) + " bytes"},
      "use the cubin and the manifest of one compilation: tensors come first, then scalars, then "
      "symbols"));
}

}  // namespace

std::shared_ptr<Function> load_function(int device_id, const std::string& cubin, const LaunchManifest& m) {
  check_params(cubin, m);
  const std::string &entry = m.entry, &kernel_name = m.kernel_name;
  static std::map<std::string, std::shared_ptr<Function>> loaded;
  const std::string key = std::to_string(device_id) + "/" + Sha256().field(entry).field(cubin).hex();
  const std::lock_guard lock(load_mutex);
  if (const auto it = loaded.find(key); it != loaded.end()) return it->second;
  const Stage stage("load the cubin");
  const Driver& d = driver();
  const DeviceInfo& info = device(device_id);
  const UseContext use(d, info.context);
  check(use.result(), kernel_name, "cuCtxSetCurrent");
  CuModule module = nullptr;
  check(d.module_load(&module, cubin.data()), kernel_name, "cuModuleLoadData");
  auto f = std::make_shared<Function>();
  f->device = &info;
  check(d.module_function(&f->handle, module, entry.c_str()), kernel_name, "cuModuleGetFunction");
  // Lazy loading would otherwise put the load into the first launch, perhaps inside a capture.
  if (d.function_load != nullptr) check(d.function_load(f->handle), kernel_name, "cuFuncLoad");
  f->static_shared_bytes = read_cubin(cubin, entry).shared_bytes;
  loaded[key] = f;
  return f;
}

std::vector<bool> scalars_in_sizes(const LaunchManifest& m) {
  std::vector<bool> out;
  for (const ArgSpec& s : m.args) {
    if (s.kind != ArgKind::Scalar) continue;
    bool used = false;
    const auto look = [&](const Expr& e) {
      used = used || (!e.is_const() && sym::depends_on(e, [&](const sym::VarInfo& v) { return v.name == s.name; }));
    };
    for (const ArgSpec& a : m.args)
      for (const auto* dims : {&a.dims, &a.flat})
        for (const Dim& d : *dims) look(d.extent), look(d.stride);
    for (const FactSpec& f : m.facts) look(f.condition);
    for (const Expr& e : m.grid) look(e);
    look(m.dynamic_shared_bytes);
    out.push_back(used);
  }
  return out;
}

Map::Words Map::at(const Driver& d, void* address) {
  const std::lock_guard lock(maps_mutex);
  for (const Encoded& e : recent_)
    if (e.address == address && address != nullptr) return e.words;
  if (d.encode_map == nullptr)
    fail(Code::LAUNCH_DRIVER, kernel_ + ": the driver is too old for tensor maps", {}, "install driver 12 or newer");
  // cuda.h's CUtensorMapDataType of these bits: what copies combine is of the type itself. Loads of tf32 round.
  static const std::map<std::string, int> types = {{"fp16", 6}, {"bf16", 9}, {"fp32", 7}, {"tf32", 11}, {"fp64", 8},
                                                   {"i32", 3},  {"u32", 2},  {"i64", 5},  {"u64", 4}};
  const auto known = types.find(map_.dtype.name);
  const int dtype = known != types.end() ? known->second : map_.dtype.bits == 16 ? 1 : 0;
  const int swizzle = map_.swizzle_bytes == 0 ? 0 : std::countr_zero(static_cast<unsigned>(map_.swizzle_bytes)) - 4;
  constexpr int kInterleaveNone = 0, kPromote128 = 2, kFillZeros = 0;
  constexpr std::array<std::uint32_t, kMapDims> kEach = {1, 1, 1, 1, 1};
  Encoded& e = recent_.at(next_++ % recent_.size());
  e.address = nullptr;
  const int r =
      d.encode_map(e.words.words.data(), dtype, map_.rank, address, map_.extents.data(), map_.stride_bytes.data() + 1,
                   map_.box.data(), kEach.data(), kInterleaveNone, swizzle, kPromote128, kFillZeros);
  if (r != kCudaSuccess) {
    std::string extents, strides, box;
    for (unsigned i = 0; i < map_.rank; ++i) {
      extents += (i > 0 ? ", " : "") + std::to_string(map_.extents.at(i));
      strides += (i > 1 ? ", " : "") + (i > 0 ? std::to_string(map_.stride_bytes.at(i)) : "");
      box += (i > 0 ? ", " : "") + std::to_string(map_.box.at(i));
    }
    Diagnostic problem = driver_problem(r, kernel_, "cuTensorMapEncodeTiled");
    problem.code = Code::LAUNCH_MAP;
    problem.details.push_back("extents: " + extents + "; strides in bytes: " + strides + "; box: " + box +
                              "; swizzle: " + std::to_string(map_.swizzle_bytes) + " bytes");
    throw Error(std::move(problem));
  }
  e.address = address;
  return e.words;
}

PreparedLaunch::PreparedLaunch(const LaunchManifest& m, BoundCall bound) : bound_(std::move(bound)) {
  for (std::size_t i = 0; i < m.symbols.size(); ++i)
    if (m.symbols[i].is_param) symbols_.push_back(static_cast<std::uint64_t>(bound_.symbols[i]));
  for (const BoundMap& map : bound_.maps) maps_.emplace_back(map, m.kernel_name);
  block_threads_ = static_cast<unsigned>(m.block_threads);
  for (std::size_t d = 0; d < 3; ++d) {
    cluster_[d] = static_cast<unsigned>(m.cluster[d]);
    has_cluster_ = has_cluster_ || m.cluster[d] != 1;
  }
}

void PreparedLaunch::attach(std::shared_ptr<Function> f, const LaunchManifest& m) {
  const std::int64_t bytes = bound_.dynamic_shared_bytes;
  if (bytes + f->static_shared_bytes > f->device->limits.shared_bytes)
    throw Error(launch_problem(
        Code::LAUNCH_GRID, m.kernel_name, "too much shared memory in a block",
        {"want: at most " + std::to_string(f->device->limits.shared_bytes) + " bytes",
         "got:  " + std::to_string(bytes) + " dynamic and " + std::to_string(f->static_shared_bytes) + " static"},
        "use smaller tiles or fewer stages"));
  const Driver& d = driver();
  const UseContext use(d, f->device->context);
  check(use.result(), m.kernel_name, "cuCtxSetCurrent");
  if (bytes > f->dynamic_shared_limit) {
    check(d.function_set(f->handle, kMaxDynamicShared, static_cast<int>(bytes)), m.kernel_name, "cuFuncSetAttribute");
    f->dynamic_shared_limit = bytes;
  }
  // The default split between shared memory and the L1 cache makes room for fewer blocks than an SM could run.
  if (!f->prefers_shared && bytes + f->static_shared_bytes >= kMuchShared) {
    check(d.function_set(f->handle, kSharedCarveout, 100), m.kernel_name, "cuFuncSetAttribute");
    f->prefers_shared = true;
  }
  if (has_cluster_) {
    if (d.launch_ex == nullptr)
      fail(Code::LAUNCH_DRIVER, m.kernel_name + ": the driver is too old for clusters", {},
           "install driver 12 or newer");
    if (cluster_[0] * cluster_[1] * cluster_[2] > 8)
      check(d.function_set(f->handle, kNonPortableCluster, 1), m.kernel_name, "cuFuncSetAttribute");
  }
  early_ = m.waits_itself && d.launch_ex != nullptr && d.version_number >= kEarlyStartDriver &&
           f->device->capability >= kEarlyStartCapability;
  function_ = std::move(f);
}

int PreparedLaunch::launch(const Driver& d, CuStream stream, void** params, std::size_t param_count) const {
  for (std::size_t i = 0; i < symbols_.size(); ++i) params[param_count + i] = const_cast<std::uint64_t*>(&symbols_[i]);
  const UseContext use(d, function_->device->context);
  if (use.result() != kCudaSuccess) return use.result();
  std::array<Map::Words, kMaxMaps> maps;
  for (std::size_t i = 0; i < maps_.size(); ++i) {
    maps.at(i) = maps_[i].at(d, *static_cast<void**>(params[maps_[i].tensor()]));
    params[param_count + symbols_.size() + i] = &maps.at(i);
  }
  const auto x = static_cast<unsigned>(bound_.grid[0]), y = static_cast<unsigned>(bound_.grid[1]),
             z = static_cast<unsigned>(bound_.grid[2]), shared = static_cast<unsigned>(bound_.dynamic_shared_bytes);
  if (!has_cluster_ && !early_)
    return d.launch(function_->handle, x, y, z, block_threads_, 1, 1, shared, stream, params, nullptr);
  std::array<CuLaunchAttribute, 2> attributes;
  unsigned count = 0;
  if (has_cluster_) {
    CuLaunchAttribute& cluster = attributes[count++];
    cluster.id = kClusterDimension;
    for (int i = 0; i < 3; ++i) cluster.value.cluster[i] = cluster_[i];
  }
  if (early_) {
    CuLaunchAttribute& early = attributes[count++];
    early.id = kProgrammaticStreamSerialization;
    early.value.programmatic = 1;
  }
  const CuLaunchConfig config{{x, y, z}, {block_threads_, 1, 1}, shared, stream, attributes.data(), count};
  return d.launch_ex(&config, function_->handle, params, nullptr);
}

}  // namespace graphene::runtime
