// An operator: from a call's configuration to launched kernels. The first call of a configuration asks `configure`;
// the first call of a form (exact shapes and strides) checks its arguments; every later one compares and launches.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <unordered_map>

#include "torch/recipe.h"

namespace graphene::torch {

// A tensor that a call makes. `kept` is for who allocates it.
struct Output {
  runtime::DType dtype;
  Shaped form;
  std::shared_ptr<void> kept;
};

// Who calls: PyTorch's dispatcher through its C shim, or Python directly.
class Host {
 public:
  Host() = default;
  virtual ~Host() = default;
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  // The address of a new tensor on the device; it belongs to the host, in the order of the calls.
  virtual void* allocate(Output& output, int device) = 0;
  virtual runtime::CuStream stream(int device) = 0;
};

class Operator {
 public:
  using Configure = std::function<std::shared_ptr<const Recipe>(const Call&)>;

  Operator(std::string name, std::vector<Param> params, Configure configure)
      : name_(std::move(name)),
        params_(std::move(params)),
        configure_(std::move(configure)),
        writes_(std::ranges::any_of(params_, &Param::written)) {}

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::vector<Param>& params() const { return params_; }

  // On CUDA tensors of one device. `copy_mask` is set with Outcome::Copy. Throws what configuring, checking and
  // launching throw.
  Outcome run(const Call& call, Host& host, TensorMask& copy_mask);

  // The recipe a call would use, its kernels asked whether they take the arguments. On any device.
  [[nodiscard]] std::shared_ptr<const Recipe> recipe(const Call& call);

  [[nodiscard]] std::uint64_t configured() const { return configured_; }  // how often `configure` was asked
  [[nodiscard]] std::size_t forms() const { return form_count_; }

 private:
  // A kernel's arguments, matched with what it declares.
  struct Bound {
    std::shared_ptr<const runtime::LaunchManifest> manifest;
    std::vector<int> sources;   // of its tensors
    std::vector<Shaped> views;  // which the values point into
    std::vector<runtime::ArgValue> values;
    runtime::BoundCall call;
  };
  struct Launch {
    std::shared_ptr<runtime::Plan> plan;
    std::vector<int> sources;         // of the kernel's tensors
    std::vector<std::size_t> firsts;  // of these, of each parameter: a list is one
    std::vector<std::uint64_t> scalars;
    std::shared_ptr<const runtime::LaunchManifest> manifest;
  };
  struct Form {
    std::vector<std::int64_t> key;
    Outcome outcome = Outcome::Launch;
    TensorMask copy_mask;
    int device = 0;
    std::vector<Output> outputs;
    std::vector<Launch> launches;

    [[nodiscard]] bool is_of(const Call& call) const;
  };

  Form* find(const Call& call, Host& host);
  Form* prepare(const Call& call, std::uint64_t hash, Host& host);
  // The recipe of the call's class that it can use: `take` throws what its kernels have against the arguments.
  std::shared_ptr<const Recipe> choose(const Call& call, const std::function<void(const Recipe&)>& take);
  Bound bind(const KernelCall& k, const Call& call, const std::vector<Output>& outputs, const std::string& arch,
             const runtime::DeviceLimits& limits) const;
  std::unique_ptr<Form> instantiate(const Recipe& r, const Call& call, Host& host);
  static void launch(Launch& l, const Call& call, void* const* addresses, runtime::CuStream stream);

  std::string name_;
  std::vector<Param> params_;
  Configure configure_;
  bool writes_;  // an argument
  std::unordered_map<std::uint64_t, std::vector<std::unique_ptr<Form>>> forms_;
  std::unordered_map<std::string, std::vector<std::shared_ptr<const Recipe>>> classes_;
  Form* last_ = nullptr;
  std::size_t form_count_ = 0;
  std::uint64_t configured_ = 0;
  int depth_ = 0;  // calls under way: an allocation may run Python, which may call again
};

}  // namespace graphene::torch
