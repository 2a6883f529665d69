// What operators ask of PyTorch through Python: whether a call may go past its dispatcher, and new tensors.
#pragma once

#include <Python.h>

#include <optional>

#include "bind/bind.h"
#include "bind/tensor_reader.h"
#include "call/form.h"
#include "torch/shim.h"

namespace graphene::bind {

// PyTorch's functions and types, handed over once it is imported. All references are kept for good.
struct TorchNames {
  PyTypeObject* tensor = nullptr;
  PyTypeObject* parameter = nullptr;
  PyObject* grad_enabled = nullptr;                         // () -> bool
  PyObject* dispatch_modes = nullptr;                       // () -> number of modes
  PyObject* function_mode_at = nullptr;                     // (index) -> mode
  PyTypeObject* device_mode = nullptr;                      // the mode that only says where new tensors go
  PyObject* function_modes = nullptr;                       // () -> number of modes
  PyObject* tracing_state = nullptr;                        // () -> None unless TorchScript traces
  PyObject* autocast = nullptr;                             // () -> whether it is enabled on CUDA
  PyObject* requires_grad = nullptr;                        // the tensors' descriptor
  PyObject* forward_ad = nullptr;                           // the module torch.autograd.forward_ad's dictionary
  PyObject* empty_strided = nullptr;                        // (shape, strides, *, dtype, device)
  PyObject* empty_strided_cuda = nullptr;                   // (shape, strides, dtype) on the current device, or null
  PyObject* dtypes = nullptr;                               // dict: dtype -> PyTorch's number of it
  std::vector<std::pair<PyObject*, std::int64_t>> numbers;  // the same, by identity

  // Answers most questions without Python; used where it is complete.
  torch::ThreadState state{};
  std::size_t impl_offset = 0;  // where a tensor's Python object points to its implementation; 0: not known

  // Finds it out on two tensors, the second of which wants a gradient.
  void find_implementation(const py::object& plain, const py::object& wanting);

  [[nodiscard]] bool known() const { return tensor != nullptr; }
  // A mode, a trace, autocast or forward differentiation is under way, which must see the operator.
  [[nodiscard]] bool watched() const;
  [[nodiscard]] bool gradients_enabled() const;
  [[nodiscard]] bool only_a_device_mode() const;  // of one function mode
  [[nodiscard]] bool wants_gradient(PyObject* tensor) const;
};
[[nodiscard]] TorchNames& torch_names();

// Makes tensors by PyTorch's functions.
class PythonHost : public call::Host {
 public:
  explicit PythonHost(const dlpack::ExchangeApi* api) : api_(api) {}
  ~PythonHost() override;
  void* allocate(call::Output& output, int device) override;
  runtime::CuStream stream(int device) override;
  // The first `count` of the tensors made: None, one, or a tuple. A new reference; the others are released.
  PyObject* results(std::size_t count);

 private:
  const dlpack::ExchangeApi* api_;
  std::array<PyObject*, 8> made_;
  std::size_t count_ = 0;
  std::optional<runtime::CuStream> stream_;
};

}  // namespace graphene::bind
