// Calls of one kernel on the tensors that it is given.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "call/form.h"
#include "call/memo.h"

namespace graphene::call {

class Launcher {
 public:
  explicit Launcher(Kernel& kernel) : kernel_(kernel) {}

  // The manifest for an architecture. What it declares of the arguments is the same for all of them.
  [[nodiscard]] std::shared_ptr<const runtime::LaunchManifest> manifest(const std::string& arch);
  // Of any of the manifests; null before the first.
  [[nodiscard]] const runtime::LaunchManifest* declared() const { return declared_.get(); }
  [[nodiscard]] const std::vector<Param>& params() const { return params_; }

  // Launches where a call of this form was checked before; false: it was not, or what it writes shares memory.
  [[nodiscard]] bool launch_known(const Arguments& call, Caller& caller);

  // Checks everything, remembers the form and launches. `values`: the same arguments, with what is wrong about them.
  // Throws Error with all of it; then nothing was launched.
  void launch_checked(const std::shared_ptr<const runtime::LaunchManifest>& m, int device, const Arguments& call,
                      const std::vector<runtime::ArgValue>& values, Caller& caller);
  [[nodiscard]] std::uint64_t misses() const { return misses_; }  // how many calls were checked

 private:
  Kernel& kernel_;
  std::shared_ptr<const runtime::LaunchManifest> declared_;
  std::vector<Param> params_;
  Memo<Form> forms_;
  std::uint64_t misses_ = 0;
};

}  // namespace graphene::call
