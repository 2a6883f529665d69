// A kernel as calls see it: its manifest for each architecture, and the kernel loaded on each device.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "runtime/launch.h"

namespace graphene::call {

class Kernel {
 public:
  Kernel() = default;
  virtual ~Kernel() = default;
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  [[nodiscard]] std::shared_ptr<const runtime::LaunchManifest> manifest(const std::string& arch);
  // `stream`: where it is needed now. Throws LAUNCH_CAPTURE when that is being captured and the kernel is not loaded.
  [[nodiscard]] std::shared_ptr<runtime::Function> function(const runtime::LaunchManifest& m, int device,
                                                            std::optional<runtime::CuStream> stream);
  // The architecture whose code the simulator runs.
  [[nodiscard]] virtual std::string simulated_arch() = 0;

 protected:
  // Asked once for each architecture, and for each device.
  [[nodiscard]] virtual std::shared_ptr<const runtime::LaunchManifest> make_manifest(const std::string& arch) = 0;
  [[nodiscard]] virtual std::string make_cubin(int device, const std::string& arch) = 0;

 private:
  std::map<std::string, std::shared_ptr<const runtime::LaunchManifest>> manifests_;  // by architecture
  std::map<int, std::shared_ptr<runtime::Function>> functions_;                      // by device
};

}  // namespace graphene::call
