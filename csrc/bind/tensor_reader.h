// Python objects -> TensorArg and ScalarArg. What the launcher and the simulator take as arguments.
#pragma once

#include <Python.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind/bind.h"
#include "bind/dlpack.h"
#include "runtime/args.h"
#include "runtime/driver.h"

namespace graphene::bind {

// What is asked of a type once, and remembered.
struct KnownType {
  PyTypeObject* type;
  const dlpack::ExchangeApi* api;  // its exchange table; null: none
  PyObject* is_neg;                // its method; null: none, or no exchange table
  bool torch;                      // a tensor of PyTorch's
};
// It holds until Python runs again. Never leaves a Python error set.
[[nodiscard]] const KnownType& known_type(PyTypeObject* type);

// The exchange table of a type, remembered; null when it has none. Never leaves a Python error set.
[[nodiscard]] const dlpack::ExchangeApi* exchange_api(PyTypeObject* type);

// Whether objects of the type are PyTorch's tensors, remembered.
[[nodiscard]] bool is_known_torch(PyTypeObject* type);

// Whether the elements are not what the memory holds: a view that PyTorch negates when it is read (`z.conj().imag`).
// The exchange table does not say. Of a type with an exchange table; never leaves a Python error set.
[[nodiscard]] bool negated_lazily(PyObject* object);
// ... by what is known of its type.
[[nodiscard]] bool negated_lazily(PyObject* object, const KnownType& type);

inline void describe(const dlpack::Tensor& t, runtime::TensorArg& out) {
  out.data = static_cast<char*>(t.data) + t.byte_offset;
  out.device.type = runtime::apart(t.device.type);
  out.device.id = runtime::apart(t.device.id);
  out.code = runtime::apart(t.dtype.code);
  out.bits = runtime::apart(t.dtype.bits);
  out.lanes = runtime::apart(t.dtype.lanes);
  out.ndim = t.ndim;
  out.shape = t.shape;
  out.strides = t.strides;
  out.readonly = false;
  out.raw_bits = false;
}
[[nodiscard]] inline runtime::TensorArg tensor_arg(const dlpack::Tensor& t) {
  runtime::TensorArg out;
  describe(t, out);
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

// The stream that a library of tensors works on now. Throws the library's Python error.
[[nodiscard]] inline runtime::CuStream stream_of_library(const dlpack::ExchangeApi& api, int device) {
  void* current = nullptr;
  if (api.current_stream(runtime::kCuda, device, &current) != 0) throw py::error_already_set();
  return static_cast<runtime::CuStream>(current);
}

// Python's numbers and whatever has __index__ or __float__, but no tensor.
[[nodiscard]] bool read_scalar(PyObject* object, runtime::ScalarArg& out);

}  // namespace graphene::bind
