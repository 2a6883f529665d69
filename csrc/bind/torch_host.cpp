#include "bind/torch_host.h"

#include "torch/shim.h"

namespace graphene::bind {

namespace {

// A call without arguments; PyTorch's own functions are called without the detour.
PyObject* call(PyObject* f) {
  if (PyCFunction_CheckExact(f) != 0 && (PyCFunction_GET_FLAGS(f) & METH_NOARGS) != 0)
    return PyCFunction_GET_FUNCTION(f)(PyCFunction_GET_SELF(f), nullptr);
  return PyObject_CallNoArgs(f);
}

// The call's answer as a truth; an error counts as true, the cautious answer, and is forgotten.
bool ask(PyObject* f) {
  PyObject* answer = call(f);
  if (answer == nullptr) {
    PyErr_Clear();
    return true;
  }
  const bool yes = PyObject_IsTrue(answer) != 0;
  Py_DECREF(answer);
  return yes;
}

// What a new tensor is made with, kept beside its description.
struct Kept {
  PyObject* positional = nullptr;  // (shape, strides, dtype)
  PyObject* shaped = nullptr;      // (shape, strides)
  PyObject* named = nullptr;       // dtype=, device=
  Kept() = default;
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  ~Kept() {
    if (Py_IsInitialized() == 0) return;
    Py_XDECREF(positional);
    Py_XDECREF(shaped);
    Py_XDECREF(named);
  }
};

std::shared_ptr<Kept> keep(const call::Output& o, int device) {
  const TorchNames& t = torch_names();
  const std::int64_t number = torch::scalar_type(o.dtype.code, o.dtype.bits);
  PyObject* dtype = nullptr;
  for (const auto& [object, n] : t.numbers)
    if (n == number) dtype = object;
  GR_ASSERT(dtype != nullptr, "an output of a type that PyTorch has");
  const py::tuple shape = py::cast(o.form.shape).cast<py::tuple>(),
                  strides = py::cast(o.form.strides).cast<py::tuple>();
  auto kept = std::make_shared<Kept>();
  kept->positional = py::make_tuple(shape, strides, py::handle(dtype)).release().ptr();
  kept->shaped = py::make_tuple(shape, strides).release().ptr();
  py::dict named;
  named["dtype"] = py::handle(dtype);
  named["device"] = "cuda:" + std::to_string(device);
  kept->named = named.release().ptr();
  return kept;
}

}  // namespace

TorchNames& torch_names() {
  static TorchNames names;
  return names;
}

bool TorchNames::watched() const {
  if (state.known()) {
    if (state.dispatch_modes(false) || state.traces() || state.casts()) return true;
    const std::int64_t modes = state.function_modes();
    if (modes > 1 || (modes == 1 && !only_a_device_mode())) return true;
  } else if (ask(dispatch_modes) || ask(function_modes) || ask(tracing_state) || ask(autocast)) {
    return true;
  }
  static PyObject* const level = PyUnicode_InternFromString("_current_level");
  PyObject* now = PyDict_GetItemWithError(forward_ad, level);
  return now != nullptr && PyLong_Check(now) != 0 && PyLong_AsLong(now) >= 0;
}

bool TorchNames::only_a_device_mode() const {
  PyObject* zero = PyLong_FromLong(0);
  PyObject* mode = zero == nullptr ? nullptr : PyObject_CallOneArg(function_mode_at, zero);
  Py_XDECREF(zero);
  const bool yes = mode != nullptr && Py_TYPE(mode) == device_mode;
  Py_XDECREF(mode);
  PyErr_Clear();
  return yes;
}

bool TorchNames::gradients_enabled() const { return state.known() ? state.grad_enabled() : ask(grad_enabled); }

namespace {
const void* pointer_at(PyObject* object, std::size_t offset) {
  return *reinterpret_cast<void* const*>(reinterpret_cast<const char*>(object) + offset);
}
}  // namespace

void TorchNames::find_implementation(const py::object& plain, const py::object& wanting) {
  impl_offset = 0;
  if (!state.known()) return;
  const auto address = [](const py::object& t) { return PyLong_AsVoidPtr(py::object(t.attr("_cdata")).ptr()); };
  const void *a = address(plain), *b = address(wanting);
  for (std::size_t offset = sizeof(PyObject); offset + sizeof(void*) <= static_cast<std::size_t>(tensor->tp_basicsize);
       offset += sizeof(void*))
    if (pointer_at(plain.ptr(), offset) == a && pointer_at(wanting.ptr(), offset) == b && !state.requires_grad(a) &&
        state.requires_grad(b)) {
      impl_offset = offset;
      return;
    }
}

bool TorchNames::wants_gradient(PyObject* tensor) const {
  if (impl_offset != 0) return state.requires_grad(pointer_at(tensor, impl_offset));
  PyObject* answer = nullptr;
  if (Py_TYPE(requires_grad) == &PyGetSetDescr_Type) {
    const PyGetSetDef* def = reinterpret_cast<PyGetSetDescrObject*>(requires_grad)->d_getset;
    answer = def->get(tensor, def->closure);
  } else {
    answer = PyObject_GetAttrString(tensor, "requires_grad");
  }
  if (answer == nullptr) PyErr_Clear();
  const bool no = answer == Py_False;
  Py_XDECREF(answer);
  return !no;
}

PythonHost::~PythonHost() {
  for (std::size_t i = 0; i < count_; ++i) Py_XDECREF(made_[i]);
}

void* PythonHost::allocate(call::Output& output, int device) {
  const TorchNames& t = torch_names();
  if (!output.kept) output.kept = keep(output, device);
  const auto& k = *static_cast<Kept*>(output.kept.get());
  GR_ASSERT(count_ < made_.size(), "the outputs of an operator are few");
  dlpack::Tensor view;
  const auto take = [&](PyObject* made) {
    if (made == nullptr) throw py::error_already_set();
    made_[count_] = made;
    if (api_->view_from_object(made, &view) == 0) return view.device.id == device;
    Py_DECREF(made);
    throw py::error_already_set();
  };
  // The quick way allocates on the current device, which is this one, as a rule.
  PyObject* f = t.empty_strided_cuda;
  bool here = false;
  if (f != nullptr) {
    const bool direct = PyCFunction_CheckExact(f) != 0 && PyCFunction_GET_FLAGS(f) == METH_VARARGS;
    here = take(direct ? PyCFunction_GET_FUNCTION(f)(PyCFunction_GET_SELF(f), k.positional)
                       : PyObject_CallObject(f, k.positional));
    if (!here) Py_DECREF(made_[count_]);
  }
  if (!here) take(PyObject_Call(t.empty_strided, k.shaped, k.named));
  ++count_;
  return tensor_arg(view).data;
}

runtime::CuStream PythonHost::stream(int device) {
  if (!stream_) stream_ = stream_of_library(*api_, device);
  return *stream_;
}

PyObject* PythonHost::results(std::size_t count) {
  if (count == 0) Py_RETURN_NONE;
  if (count == 1) return std::exchange(made_[0], nullptr);
  PyObject* out = PyTuple_New(static_cast<Py_ssize_t>(count));
  if (out == nullptr) return nullptr;
  for (std::size_t i = 0; i < count; ++i)
    PyTuple_SET_ITEM(out, static_cast<Py_ssize_t>(i), std::exchange(made_[i], nullptr));
  return out;
}

}  // namespace graphene::bind
