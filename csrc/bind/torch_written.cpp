#include "bind/torch_written.h"

#include <cstring>

#include "bind/bind.h"
#include "runtime/args.h"
#include "torch/shim.h"

namespace graphene::bind {

namespace {

namespace rt = graphene::runtime;

// PyTorch's own functions, and where a Python tensor keeps its at::Tensor, a pointer to the implementation. An offset
// of 0: something is missing, and Python is asked.
struct Direct {
  torch::Versions f;
  std::size_t offset = 0;

  [[nodiscard]] const void* tensor(PyObject* object) const { return reinterpret_cast<const char*>(object) + offset; }
  [[nodiscard]] const void* impl(PyObject* object) const { return *static_cast<const void* const*>(tensor(object)); }
};

Direct find_direct(PyObject* object) {
  Direct d{torch::versions(), 0};
  PyObject* number = d.f.known() ? PyObject_GetAttrString(object, "_cdata") : nullptr;
  if (number != nullptr) {
    const void* address = PyLong_AsVoidPtr(number);
    Py_DECREF(number);
    const auto size = static_cast<std::size_t>(Py_TYPE(object)->tp_basicsize);
    for (std::size_t at = sizeof(PyObject); address != nullptr && at + sizeof(void*) <= size; at += sizeof(void*))
      if (std::memcmp(reinterpret_cast<const char*>(object) + at, &address, sizeof(address)) == 0) {
        d.offset = at;
        break;
      }
  }
  PyErr_Clear();
  return d;
}

const Direct& direct(PyObject* object) {
  static Direct found{};
  static bool asked = false;  // no guard of C++'s: a thread that waits for it would hold the GIL
  if (!asked) {
    found = find_direct(object);
    asked = true;
  }
  return found;
}

}  // namespace

bool is_torch_tensor(PyTypeObject* type) {
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");  // borrowed
  PyObject* tensor = module == nullptr ? nullptr : PyObject_GetAttrString(module, "Tensor");
  const bool yes = tensor != nullptr && PyType_Check(tensor) != 0 &&
                   PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(tensor)) != 0;
  Py_XDECREF(tensor);
  PyErr_Clear();
  return yes;
}

std::optional<bool> negated_by_torch(PyObject* torch_tensor) {
  const Direct& d = direct(torch_tensor);
  if (d.offset == 0 || d.f.is_neg == nullptr) return std::nullopt;
  return d.f.is_neg(d.tensor(torch_tensor));
}

bool may_be_written(PyObject* torch_tensor) {
  const Direct& d = direct(torch_tensor);
  if (d.offset != 0 && (!d.f.requires_grad(d.impl(torch_tensor)) || !d.f.grad_enabled())) return true;
  try {
    const py::handle t(torch_tensor);
    const auto wants = [](const py::handle& x) {
      return py::cast<bool>(x.attr("requires_grad")) && py::cast<bool>(x.attr("is_leaf"));
    };
    if (!py::cast<bool>(t.attr("requires_grad"))) return true;
    if (!py::cast<bool>(py::module_::import("torch").attr("is_grad_enabled")())) return true;
    const py::object base = t.attr("_base");
    return !wants(t) && (base.is_none() || !wants(base));
  } catch (const py::error_already_set&) {
    PyErr_Clear();
    return true;
  }
}

void raise_version(PyObject* torch_tensor) {
  const Direct& d = direct(torch_tensor);
  if (d.offset != 0) {
    if (!d.f.is_inference(d.tensor(torch_tensor))) d.f.bump(d.tensor(torch_tensor));
    return;
  }
  try {
    const py::handle t(torch_tensor);
    if (py::cast<bool>(t.attr("is_inference")())) return;
    py::module_::import("torch").attr("autograd").attr("graph").attr("increment_version")(t);
  } catch (const py::error_already_set&) {
    PyErr_Clear();
  }
}

void announce_written(const CallArgs& call, const std::string& kernel) {
  for (const auto& [name, object] : call.written)
    if (!may_be_written(object))
      throw Error(rt::launch_problem(
          Code::LAUNCH_READONLY, kernel,
          "argument '" + name + "' is written, and is a leaf of autograd's graph that requires grad, or a view of one",
          {}, "call the kernel under torch.no_grad(), or pass " + name + ".detach()"));
  for (const auto& [name, object] : call.written) raise_version(object);
}

}  // namespace graphene::bind
