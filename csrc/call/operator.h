// An operator: from a call's configuration to launched kernels. The first call of a configuration asks `configure`;
// the first call of a form (exact shapes and strides) checks its arguments; every later one compares and launches.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "call/form.h"
#include "call/memo.h"

namespace graphene::call {

class Operator {
 public:
  using Configure = std::function<std::shared_ptr<const Recipe>(const Arguments&)>;

  Operator(std::string name, std::vector<Param> params, Configure configure)
      : name_(std::move(name)),
        params_(std::move(params)),
        configure_(std::move(configure)),
        writes_(std::ranges::any_of(params_, &Param::written)) {}

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::vector<Param>& params() const { return params_; }

  // On CUDA tensors of one device. `copy_mask` is set with Outcome::Copy. Throws what configuring, checking and
  // launching throw.
  Outcome run(const Arguments& call, Host& host, TensorMask& copy_mask);

  // The recipe a call would use, its kernels asked whether they take the arguments. On any device.
  [[nodiscard]] std::shared_ptr<const Recipe> recipe(const Arguments& call);

  [[nodiscard]] std::uint64_t configured() const { return configured_; }  // how often `configure` was asked
  [[nodiscard]] std::size_t forms() const { return forms_.size(); }

 private:
  // A kernel's arguments, matched with what it declares.
  struct Bound {
    std::shared_ptr<const runtime::LaunchManifest> manifest;
    std::vector<int> sources;   // of its tensors
    std::vector<Shaped> views;  // which the values point into
    std::vector<runtime::ArgValue> values;
    runtime::BoundCall call;
  };
  Form* prepare(const Arguments& call, Host& host);
  // The recipe of the call's class that it can use: `take` throws what its kernels have against the arguments.
  std::shared_ptr<const Recipe> choose(const Arguments& call, const std::function<void(const Recipe&)>& take);
  Bound bind(const KernelCall& k, const Arguments& call, const std::vector<Output>& outputs, const std::string& arch,
             const runtime::DeviceLimits& limits) const;
  std::unique_ptr<Form> instantiate(const Recipe& r, const Arguments& call, Host& host);

  std::string name_;
  std::vector<Param> params_;
  Configure configure_;
  bool writes_;  // an argument
  Memo<Form> forms_;
  std::unordered_map<std::string, std::vector<std::shared_ptr<const Recipe>>> classes_;
  std::uint64_t configured_ = 0;
};

}  // namespace graphene::call
