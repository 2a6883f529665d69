// What is remembered of a call's form: the tensors that it makes, and the kernels that it launches.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "call/recipe.h"
#include "runtime/strides.h"

namespace graphene::call {

// A tensor that a call makes. `kept` is for who allocates it.
struct Output {
  runtime::DType dtype;
  Shaped form;
  std::shared_ptr<void> kept;
};

// Who calls: PyTorch's dispatcher through its C shim, or Python directly.
class Caller {
 public:
  Caller() = default;
  virtual ~Caller() = default;
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  virtual runtime::CuStream stream(int device) = 0;
  // The arguments are right, and those that a kernel writes are about to be written. Throws LAUNCH_READONLY.
  virtual void announce_written() {}
};

// ... of an operator.
class Host : public Caller {
 public:
  // The address of a new tensor on the device; it belongs to the host, in the order of the calls.
  virtual void* allocate(Output& output, int device) = 0;
};

// A kernel of a call, and where its parameters come from.
struct Step {
  // `values`: of its arguments, `sources`: of their tensors.
  Step(std::shared_ptr<const runtime::LaunchManifest> m, const std::vector<runtime::ArgValue>& values,
       const std::vector<int>& sources);

  std::shared_ptr<const runtime::LaunchManifest> manifest;
  std::shared_ptr<runtime::PreparedLaunch> prepared;
  std::vector<std::size_t> tensors;  // of the call, or, from their number on, what it makes
  std::vector<std::size_t> lengths;  // how many of these each parameter takes: a list is one
  bool lists = false;                // whether any takes another number than one
  // Nothing: the words of the call.
  std::optional<std::vector<std::int64_t>> numbers;

  // `made`: addresses of what the call makes. Throws the driver's complaint.
  void launch(const Arguments& call, void* const* made, runtime::CuStream stream) const;
};

// Whether what a call writes shares memory with its other arguments: asked of every call, because addresses are not a
// part of its form.
class Reach {
 public:
  Reach() = default;
  Reach(const Arguments& call, const std::vector<Param>& params);
  [[nodiscard]] bool apart(const Arguments& call) const {
    for (const auto& [i, k] : pairs_) {
      const auto a = reinterpret_cast<std::int64_t>(call.tensor(i).data),
                 b = reinterpret_cast<std::int64_t>(call.tensor(k).data);
      if (a + spans_[i].first < b + spans_[k].last && b + spans_[k].first < a + spans_[i].last &&
          runtime::overlap(call.tensor(i), call.tensor(k)))
        return false;
    }
    return true;
  }

 private:
  std::vector<runtime::Span> spans_;
  std::vector<std::pair<std::size_t, std::size_t>> pairs_;  // tensors with elements, of which one is written
};

struct Form {
  Outcome outcome = Outcome::Launch;
  TensorMask copy_mask;
  int device = 0;
  std::vector<Output> outputs;
  std::vector<Step> steps;
  Reach reach;
};

}  // namespace graphene::call
