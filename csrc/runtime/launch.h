// Kernels loaded on a device, and what a checked call launches them with.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "runtime/args.h"
#include "runtime/driver.h"

namespace graphene::runtime {

// A kernel loaded into a device's primary context. Loaded modules stay for the life of the process: a captured graph
// may still launch them. Equal cubins are loaded once.
struct Function {
  CuFunction handle = nullptr;
  const DeviceInfo* device = nullptr;
  std::int64_t static_shared_bytes = 0;
  std::int64_t dynamic_shared_limit = 48 * 1024;  // what the function has been allowed so far
  bool prefers_shared = false;                    // over the L1 cache: has been said
};

// Throws LAUNCH_MANIFEST when the cubin's kernel takes other parameters than the manifest says (it would read garbage),
// LAUNCH_DRIVER when the driver refuses the cubin.
[[nodiscard]] std::shared_ptr<Function> load_function(int device_id, const std::string& cubin, const LaunchManifest& m);

// A tensor map that is encoded for the addresses of calls: a few recent ones are kept.
class Map {
 public:
  Map(const BoundMap& map, std::string kernel) : map_(map), kernel_(std::move(kernel)) {}

  struct alignas(64) Words {
    std::array<std::uint64_t, kMapBytes / 8> words;  // written by the driver; a launch does not clear room for 28
  };
  // Throws LAUNCH_MAP with what the driver says.
  [[nodiscard]] Words at(const Driver& d, void* address);
  [[nodiscard]] std::size_t tensor() const { return map_.tensor; }

 private:
  struct Encoded {
    void* address = nullptr;
    Words words;
  };
  BoundMap map_;
  std::string kernel_;
  std::array<Encoded, 4> recent_;
  std::size_t next_ = 0;
};

// What a checked call launches with: its grid, its symbols, its function. It holds for every call of the same form.
class PreparedLaunch {
 public:
  PreparedLaunch(const LaunchManifest& m, BoundCall bound);

  // Allows the function the dynamic shared memory that the launch needs. Throws LAUNCH_DRIVER, LAUNCH_GRID.
  void attach(std::shared_ptr<Function> f, const LaunchManifest& m);
  [[nodiscard]] const Function* function() const { return function_.get(); }

  [[nodiscard]] bool empty() const { return bound_.empty(); }
  // The driver's result. `params`: addresses of the kernel's parameters up to the symbols, with room for own_params().
  [[nodiscard]] int launch(const Driver& d, CuStream stream, void** params, std::size_t param_count) const;

  // Parameters behind those of the call: symbols and maps.
  [[nodiscard]] std::size_t own_params() const { return symbols_.size() + maps_.size(); }

 private:
  BoundCall bound_;
  std::vector<std::uint64_t> symbols_;  // the symbols that are parameters
  mutable std::vector<Map> maps_;
  unsigned block_threads_ = 1;
  unsigned cluster_[3] = {1, 1, 1};
  bool has_cluster_ = false;
  bool early_ = false;  // it may start before the kernels ahead of it have ended
  std::shared_ptr<Function> function_;
};

// Which scalar arguments (in the order of scalars) occur in extents, strides, facts, grid or shared memory.
[[nodiscard]] std::vector<bool> scalars_in_sizes(const LaunchManifest& m);

}  // namespace graphene::runtime
