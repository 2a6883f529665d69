#include "call/kernel.h"

namespace graphene::call {

namespace rt = graphene::runtime;

std::shared_ptr<const rt::LaunchManifest> Kernel::manifest(const std::string& arch) {
  if (const auto it = manifests_.find(arch); it != manifests_.end()) return it->second;
  const auto m = make_manifest(arch);
  manifests_[arch] = m;
  return m;
}

std::shared_ptr<rt::Function> Kernel::function(const rt::LaunchManifest& m, int device,
                                               std::optional<rt::CuStream> stream) {
  if (const auto it = functions_.find(device); it != functions_.end()) return it->second;
  const rt::DeviceInfo& info = rt::device(device);
  if (stream) {
    const rt::UseContext use(rt::driver(), info.context);
    if (rt::is_capturing(*stream))
      throw Error(rt::launch_problem(
          Code::LAUNCH_CAPTURE, m.kernel_name,
          "the kernel would have to be compiled and loaded while its stream is being captured", {},
          "call the kernel once, or kernel.load(" + std::to_string(device) + "), before the capture starts"));
  }
  auto f = rt::load_function(device, make_cubin(device, info.arch), m);
  functions_[device] = f;
  return f;
}

}  // namespace graphene::call
