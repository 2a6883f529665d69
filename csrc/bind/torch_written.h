// PyTorch's tensors that a kernel writes: autograd is told of it, as of an in-place operation of its own.
#pragma once

#include <Python.h>

#include <optional>
#include <string>

#include "bind/python_arguments.h"

namespace graphene::bind {

// Whether objects of the type are PyTorch's tensors; false while PyTorch is not imported. Never leaves a Python error.
[[nodiscard]] bool is_torch_tensor(PyTypeObject* type);

// Whether PyTorch negates the tensor's elements when it reads them, asked without Python; nothing where this PyTorch
// cannot be asked so.
[[nodiscard]] std::optional<bool> negated_by_torch(PyObject* torch_tensor);

// Whether PyTorch would let an in-place operation write the tensor: not a leaf that requires grad, nor a view of one,
// while gradients are recorded. Never leaves a Python error set.
[[nodiscard]] bool may_be_written(PyObject* torch_tensor);

// Raises the tensor's version: what autograd keeps of it for a gradient is not what it holds any more. Without effect
// on tensors of torch.inference_mode, which have none. Never leaves a Python error set.
void raise_version(PyObject* torch_tensor);

// Both for all tensors that a call writes. Throws Error LAUNCH_READONLY; then no version was raised.
void announce_written(const CallArgs& call, const std::string& kernel);

}  // namespace graphene::bind
