// Python objects -> TensorArg and Scalar. What the launcher and the simulator take as arguments.
#pragma once

#include <Python.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind/dlpack.h"
#include "runtime/args.h"

namespace graphene::bind {

// The exchange table of a type, remembered; null when it has none. Never leaves a Python error set.
[[nodiscard]] const dlpack::ExchangeApi* exchange_api(PyTypeObject* type);

// Whether objects of the type are PyTorch's tensors, remembered.
[[nodiscard]] bool is_known_torch(PyTypeObject* type);

// Whether the elements are not what the memory holds: a view that PyTorch negates when it is read (`z.conj().imag`).
// The exchange table does not say. Of a type with an exchange table; never leaves a Python error set.
[[nodiscard]] bool negated_lazily(PyObject* object);

[[nodiscard]] inline runtime::TensorArg tensor_arg(const dlpack::Tensor& t) {
  runtime::TensorArg out;
  out.data = static_cast<char*>(t.data) + t.byte_offset;
  out.device = {t.device.type, t.device.id};
  out.code = t.dtype.code;
  out.bits = t.dtype.bits;
  out.lanes = t.dtype.lanes;
  out.ndim = t.ndim;
  out.shape = t.shape;
  out.strides = t.strides;
  return out;
}

// What borrowed descriptions need kept alive until the call is over.
class Keep {
 public:
  Keep() = default;
  ~Keep() {
    for (PyObject* o : objects_) Py_DECREF(o);
  }
  Keep(const Keep&) = delete;
  Keep& operator=(const Keep&) = delete;
  Keep(Keep&& other) noexcept : objects_(std::move(other.objects_)), lists_(std::move(other.lists_)) {
    other.objects_.clear();
  }
  PyObject* object(PyObject* owned) {
    objects_.push_back(owned);
    return owned;
  }
  const std::int64_t* list(std::vector<std::int64_t> v) {
    lists_.push_back(std::move(v));
    return lists_.back().data();
  }

 private:
  std::vector<PyObject*> objects_;
  std::deque<std::vector<std::int64_t>> lists_;
};

struct ReadResult {
  std::optional<runtime::TensorArg> tensor;
  std::optional<Diagnostic> problem;  // set when `tensor` is not; with it, when the data cannot be used as they lie
  // The stream the owner's data is ready on, when it says so (`__cuda_array_interface__`).
  std::optional<std::intptr_t> stream;
};

// Reads anything that is a tensor, in this order: the DLPack exchange table; NumPy's `__array_interface__`; the
// attributes of an older torch.Tensor; `__cuda_array_interface__`; `__dlpack__` (told `stream`, where its data must be
// ready); the buffer protocol. `name` is the argument's, for messages.
[[nodiscard]] ReadResult read_tensor(PyObject* object, const std::string& kernel, const std::string& name, Keep& keep,
                                     std::optional<std::intptr_t> stream);

// Python's numbers and whatever has __index__ or __float__, but no tensor.
[[nodiscard]] bool read_scalar(PyObject* object, runtime::Scalar& out);

// The arguments of one call in the manifest's order, read. The views live as long as the arguments and `keep`.
struct CallArgs {
  Keep keep;
  std::vector<runtime::ArgValue> values;
  PyObject* stream = nullptr;                // borrowed; the `stream` keyword
  const dlpack::ExchangeApi* api = nullptr;  // of the first tensor that has one, and where that tensor is
  runtime::Device api_device;
  bool old_torch = false;                     // a torch.Tensor without an exchange table
  std::optional<std::intptr_t> owner_stream;  // the one stream that tensors say their data is ready on
  bool owner_streams_differ = false;
  std::vector<std::pair<std::string, PyObject*>> written;  // PyTorch's tensors that the kernel writes; borrowed
};

// Throws Error LAUNCH_ARITY (with LAUNCH_STREAM for a `stream` that is none). What cannot be read becomes
// ArgValue::problem. `keyword_names`: as in a vectorcall, a tuple of str or null. `take_stream`: `stream=` is not an
// argument of the kernel but where it runs (without it, None is as good as nothing).
[[nodiscard]] CallArgs read_call(const runtime::LaunchManifest& m, PyObject* const* args, std::size_t count,
                                 PyObject* keyword_names, bool take_stream);

// An integer handle, None (0, the default stream), or an object with __cuda_stream__, cuda_stream (PyTorch) or ptr
// (CuPy). Throws Error LAUNCH_STREAM.
[[nodiscard]] std::intptr_t read_stream(PyObject* object, const std::string& kernel);

}  // namespace graphene::bind
