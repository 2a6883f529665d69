// graphene._core.Operator: an operator that Python calls directly, and that PyTorch's dispatcher calls through its C
// shim. A plain C type with a vectorcall, because the time before the launch is what a user pays for every call.
#include <Python.h>
#include <structmember.h>

#include <array>
#include <cstddef>

#include "bind/torch_host.h"
#include "bind/torch_recipe.h"
#include "torch/boxed.h"

namespace graphene::bind {

namespace {

namespace gt = graphene::torch;
namespace rt = graphene::runtime;

constexpr std::size_t kMaxParams = 16;

struct OperatorObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  gt::Operator* op;  // lives for good: PyTorch's dispatcher may hold it
  std::size_t returned;
  PyObject* otherwise;  // called where PyTorch's dispatcher must see the call; null: NotImplemented is returned
};

// Reading calls.

enum class Read : std::uint8_t { Yes, NotOurs, Error };

// A scalar argument; Error: a Python error is set.
Read add_scalar(const gt::Operator& op, const gt::Param& p, PyObject* object, gt::Call& call) {
  const auto wrong = [&](const char* want) {
    fail(Code::OP_ARGUMENT, op.name() + ": argument '" + p.name + "' is not " + want,
         {"got:  " + std::string(Py_TYPE(object)->tp_name)}, "pass " + std::string(want));
  };
  rt::Scalar s;
  switch (p.kind) {
    case gt::ParamKind::Int:
      if (read_scalar(object, s) && s.kind == rt::Scalar::Kind::Int) {
        call.add(s.i);
        return Read::Yes;
      }
      if (PyIndex_Check(object) == 0) wrong("an integer");
      return Read::NotOurs;  // a tensor, perhaps, or what is too large: the checks in Python know
    case gt::ParamKind::Bool:
      if (PyBool_Check(object) == 0) wrong("a bool");
      call.add(std::int64_t{object == Py_True});
      return Read::Yes;
    case gt::ParamKind::OptionalFloat:
      if (object == Py_None) {
        call.add(gt::kNone);
        return Read::Yes;
      }
      [[fallthrough]];
    case gt::ParamKind::Float:
      if (!read_scalar(object, s)) wrong("a number");
      if (s.kind == rt::Scalar::Kind::TooLarge) return Read::NotOurs;  // likewise
      call.add(s.kind == rt::Scalar::Kind::Float  ? s.f
               : s.kind == rt::Scalar::Kind::UInt ? static_cast<double>(s.u)
                                                  : static_cast<double>(s.i));
      return Read::Yes;
    case gt::ParamKind::OptionalString: {
      if (object == Py_None) {
        call.add(gt::kNone);
        return Read::Yes;
      }
      if (PyUnicode_Check(object) == 0) wrong("a string or None");
      Py_ssize_t n = 0;
      const char* text = PyUnicode_AsUTF8AndSize(object, &n);
      if (text == nullptr) return Read::Error;
      call.add(p, std::string_view(text, static_cast<std::size_t>(n)), op.name());
      return Read::Yes;
    }
    case gt::ParamKind::OptionalDtype:
      if (object == Py_None) {
        call.add(gt::kNone);
        return Read::Yes;
      }
      for (const auto& [dtype, number] : torch_names().numbers)
        if (dtype == object) {
          call.add(number);
          return Read::Yes;
        }
      return Read::NotOurs;
    case gt::ParamKind::IntList: {
      const bool one = PyLong_Check(object) != 0;
      if (!one && PyTuple_Check(object) == 0 && PyList_Check(object) == 0) return Read::NotOurs;
      const Py_ssize_t n = one ? 1 : PySequence_Fast_GET_SIZE(object);
      call.add(std::int64_t{n});
      for (Py_ssize_t i = 0; i < n && call.fits(); ++i) {
        PyObject* item = one ? object : PySequence_Fast_GET_ITEM(object, i);
        int overflow = 0;
        if (PyLong_Check(item) == 0) return Read::NotOurs;
        call.add(std::int64_t{PyLong_AsLongLongAndOverflow(item, &overflow)});
        if (overflow != 0) return Read::NotOurs;  // no extent is so large: the checks in Python say which it is not
      }
      return Read::Yes;
    }
    case gt::ParamKind::BoolList:
    case gt::ParamKind::StringList: {
      if (PyTuple_Check(object) == 0 && PyList_Check(object) == 0) return Read::NotOurs;
      const Py_ssize_t n = PySequence_Fast_GET_SIZE(object);
      call.add_length(static_cast<std::size_t>(n));
      for (Py_ssize_t i = 0; i < n && call.fits(); ++i) {
        PyObject* item = PySequence_Fast_GET_ITEM(object, i);
        if (p.kind == gt::ParamKind::BoolList) {
          if (PyBool_Check(item) == 0) return Read::NotOurs;
          call.add(std::int64_t{item == Py_True});
          continue;
        }
        if (PyUnicode_Check(item) == 0) return Read::NotOurs;
        Py_ssize_t length = 0;
        const char* text = PyUnicode_AsUTF8AndSize(item, &length);
        if (text == nullptr) return Read::Error;
        call.add_text(std::string_view(text, static_cast<std::size_t>(length)));
      }
      return Read::Yes;
    }
    default:
      return Read::NotOurs;
  }
}

// Whether PyTorch may negate the tensor when it reads it: what it does so is the imaginary part of complex numbers,
// whose strides are even. Asking PyTorch costs more than reading the tensor.
bool may_be_negated(const dlpack::Tensor& t) {
  for (int d = 0; d < t.ndim; ++d)
    if (t.strides != nullptr && t.strides[d] % 2 != 0 && t.shape[d] > 1) return false;
  return true;
}

// A tensor that may go past the dispatcher.
Read add_fast(PyObject* object, gt::Call& call, const dlpack::ExchangeApi*& api, bool gradients) {
  const TorchNames& names = torch_names();
  PyTypeObject* type = Py_TYPE(object);
  if (type != names.tensor && type != names.parameter) return Read::NotOurs;
  const dlpack::ExchangeApi* a = exchange_api(type);
  if (a == nullptr) return Read::NotOurs;
  dlpack::Tensor t;
  if (a->view_from_object(object, &t) != 0) {
    PyErr_Clear();  // no plain storage: PyTorch's dispatcher knows what it is
    return Read::NotOurs;
  }
  if (t.device.type != rt::kCuda || (may_be_negated(t) && negated_lazily(object))) return Read::NotOurs;
  if (gradients && names.wants_gradient(object)) return Read::NotOurs;
  api = a;
  const rt::TensorArg arg = tensor_arg(t);
  if (arg.data == nullptr && arg.numel() != 0) return Read::NotOurs;
  call.add(arg);
  return Read::Yes;
}

// The arguments of a call that may go past the dispatcher: plain tensors on a GPU, none of which wants a gradient.
Read read_fast(const gt::Operator& op, PyObject* const* args, gt::Call& call, const dlpack::ExchangeApi*& api,
               bool gradients) {
  const auto& params = op.params();
  for (std::size_t i = 0; i < params.size(); ++i) {
    PyObject* object = args[i];
    Read r = Read::Yes;
    if (!params[i].holds_tensors()) {
      r = add_scalar(op, params[i], object, call);
    } else if (!params[i].is_tensor()) {
      if (PyList_CheckExact(object) == 0 && PyTuple_CheckExact(object) == 0) return Read::NotOurs;
      const Py_ssize_t n = PySequence_Fast_GET_SIZE(object);
      call.add_length(static_cast<std::size_t>(n));
      for (Py_ssize_t k = 0; k < n && r == Read::Yes && call.fits(); ++k)
        r = add_fast(PySequence_Fast_GET_ITEM(object, k), call, api, gradients);
    } else if (object == Py_None && params[i].kind == gt::ParamKind::OptionalTensor) {
      call.add_absent();
    } else {
      r = add_fast(object, call, api, gradients);
    }
    if (r != Read::Yes) return r;
  }
  return call.fits() ? Read::Yes : Read::NotOurs;
}

// A tensor of the same elements, row-major.
py::object row_major(PyObject* tensor) {
  py::object copy = py::handle(tensor).attr("contiguous")();
  return copy.ptr() == tensor ? copy.attr("clone")() : copy;  // row-major, but of an address that no kernel takes
}

// A null object: PyTorch's dispatcher must see the call.
py::object call_fast(OperatorObject* self, PyObject* const* args) {
  const TorchNames& names = torch_names();
  gt::Operator& op = *self->op;
  if (!names.known() || names.watched()) return {};
  const bool gradients = names.gradients_enabled();
  std::array<PyObject*, kMaxParams> objects;
  std::copy_n(args, op.params().size(), objects.begin());
  std::vector<py::object> copies;  // empty, as a rule
  for (;;) {
    gt::Call call;
    const dlpack::ExchangeApi* api = nullptr;
    const Read r = read_fast(op, objects.data(), call, api, gradients);
    if (r == Read::Error) throw py::error_already_set();
    if (r == Read::NotOurs || api == nullptr) return {};
    PythonHost host(api);
    gt::TensorMask mask;
    switch (op.run(call, host, mask)) {
      case gt::Outcome::Launch: {
        PyObject* made = host.results(self->returned);
        if (made == nullptr) throw py::error_already_set();
        return py::reinterpret_steal<py::object>(made);
      }
      case gt::Outcome::Torch:
        return {};
      case gt::Outcome::Copy:
        break;
    }
    std::size_t tensor = 0;
    for (std::size_t i = 0; i < op.params().size(); ++i) {
      const gt::Param& p = op.params()[i];
      if (p.is_tensor()) {
        if (!mask[tensor++]) continue;
        copies.push_back(row_major(objects[i]));
        objects[i] = copies.back().ptr();
      } else if (p.holds_tensors()) {
        py::list items(py::reinterpret_borrow<py::object>(objects[i]));
        for (std::size_t k = 0; k < items.size(); ++k)
          if (mask[tensor++]) items[k] = row_major(py::object(items[k]).ptr());
        copies.push_back(items);
        objects[i] = copies.back().ptr();
      }
    }
  }
}

// Runs `f`, turning exceptions into Python errors.
template <class F>
PyObject* guarded(F&& f) {
  try {
    return f();
  } catch (const Error& e) {
    set_python_error(e);
  } catch (py::error_already_set& e) {
    e.restore();
  } catch (const py::builtin_exception& e) {
    e.set_error();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
  return nullptr;
}

bool wrong_arity(const OperatorObject* self, std::size_t count) {
  if (count == self->op->params().size()) return false;
  PyErr_Format(PyExc_TypeError, "%s takes %zu arguments, all by position, got %zu", self->op->name().c_str(),
               self->op->params().size(), count);
  return true;
}

PyObject* operator_call(PyObject* object, PyObject* const* args, std::size_t nargsf, PyObject* keyword_names) {
  auto* self = reinterpret_cast<OperatorObject*>(object);
  if (keyword_names != nullptr || wrong_arity(self, static_cast<std::size_t>(PyVectorcall_NARGS(nargsf)))) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_TypeError, "an operator takes its arguments by position");
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    if (py::object made = call_fast(self, args)) return made.release().ptr();
    if (self->otherwise == nullptr) return Py_NewRef(Py_NotImplemented);
    return PyObject_Vectorcall(self->otherwise, args, self->op->params().size(), nullptr);
  });
}

// Reads the arguments, tensors on any device.
void read_any(OperatorObject* self, PyObject* args, gt::Call& call, Keep& keep) {
  const gt::Operator& op = *self->op;
  if (wrong_arity(self, static_cast<std::size_t>(PyTuple_GET_SIZE(args)))) throw py::error_already_set();
  const auto add = [&](PyObject* object, const std::string& name) {
    ReadResult r = read_tensor(object, op.name(), name, keep, std::nullopt);
    if (r.problem) throw Error(*r.problem);
    call.add(*r.tensor);
  };
  for (std::size_t i = 0; i < op.params().size(); ++i) {
    const gt::Param& p = op.params()[i];
    PyObject* object = PyTuple_GET_ITEM(args, static_cast<Py_ssize_t>(i));
    if (!p.holds_tensors()) {
      const Read r = add_scalar(op, p, object, call);
      if (r == Read::Error) throw py::error_already_set();
      if (r == Read::NotOurs)
        fail(Code::OP_ARGUMENT, op.name() + ": argument '" + p.name + "' cannot be read",
             {"got:  " + std::string(Py_TYPE(object)->tp_name)}, "pass what the operator's documentation says");
    } else if (!p.is_tensor()) {
      if (PyList_Check(object) == 0 && PyTuple_Check(object) == 0)
        fail(Code::OP_ARGUMENT, op.name() + ": argument '" + p.name + "' is not a list of tensors",
             {"got:  " + std::string(Py_TYPE(object)->tp_name)}, "pass a list or a tuple");
      const auto items = py::cast<std::vector<py::object>>(py::handle(object));
      call.add_length(items.size());
      for (std::size_t k = 0; k < items.size(); ++k) add(items[k].ptr(), p.name + "[" + std::to_string(k) + "]");
    } else if (object == Py_None && p.kind == gt::ParamKind::OptionalTensor) {
      call.add_absent();
    } else {
      add(object, p.name);
    }
  }
  if (call.fits()) gt::check_written(call, op.params(), op.name());
}

// What a call would do.
py::object plan_of(OperatorObject* self, PyObject* args) {
  gt::Operator& op = *self->op;
  gt::Call call;
  Keep keep;
  read_any(self, args, call, keep);
  py::dict out;
  if (!call.fits()) {
    out["outcome"] = "torch";
    out["reason"] = "more tensors or dimensions than a call may have";
    return out;
  }
  const auto recipe = op.recipe(call);
  static constexpr std::array<const char*, 3> kNames = {"launch", "copy", "torch"};
  out["outcome"] = kNames.at(static_cast<std::size_t>(recipe->outcome));
  out["reason"] = recipe->reason;
  py::list copies, outputs, launches;
  for (std::size_t i = 0; i < call.tensor_count(); ++i)
    if (recipe->copy_mask[i]) copies.append(i);
  std::vector<gt::Shaped> shaped;
  for (const gt::OutputSpec& o : recipe->outputs) {
    shaped.push_back(gt::evaluate(o, call));
    outputs.append(py::make_tuple(o.dtype.name, py::tuple(py::cast(shaped.back().shape))));
  }
  for (const gt::KernelCall& k : recipe->launches) {
    py::list views;
    for (const auto& a : k.args) {
      if (std::holds_alternative<rt::Scalar>(a)) {
        const auto& s = std::get<rt::Scalar>(a);
        views.append(s.kind == rt::Scalar::Kind::Float ? py::object(py::float_(s.f)) : py::object(py::int_(s.i)));
        continue;
      }
      const auto evaluated = [&](const gt::View& v) {
        const auto view = gt::evaluate(v, call, shaped);
        GR_ASSERT(view.has_value(), op.name() + ": a recipe whose views exist");
        return py::make_tuple(v.source, py::tuple(py::cast(view->shape)), py::tuple(py::cast(view->strides)));
      };
      if (std::holds_alternative<gt::View>(a)) {
        views.append(evaluated(std::get<gt::View>(a)));
        continue;
      }
      py::list list;
      for (const gt::View& v : std::get<std::vector<gt::View>>(a)) list.append(evaluated(v));
      views.append(list);
    }
    launches.append(py::make_tuple(kernel_of(*k.kernel), views));
  }
  out["copies"] = copies;
  out["outputs"] = outputs;
  out["returned"] = recipe->returned;
  out["launches"] = launches;
  return out;
}

PyObject* operator_plan(PyObject* object, PyObject* args) {
  return guarded([&] { return plan_of(reinterpret_cast<OperatorObject*>(object), args).release().ptr(); });
}

PyObject* operator_check(PyObject* object, PyObject* args) {
  return guarded([&] {
    gt::Call call;
    Keep keep;
    read_any(reinterpret_cast<OperatorObject*>(object), args, call, keep);
    return Py_NewRef(Py_None);
  });
}

// The dispatcher may call without the GIL.
const gt::Interpreter kPython = {[] { return static_cast<int>(PyGILState_Ensure()); },
                                 [](int state) { PyGILState_Release(static_cast<PyGILState_STATE>(state)); },
                                 [] {
                                   try {
                                     throw;
                                   } catch (py::error_already_set& e) {
                                     throw std::runtime_error(printable_text(py::str(e.value())));
                                   }
                                 }};

PyObject* operator_register(PyObject* object, PyObject* args) {
  const char *space = nullptr, *name = nullptr, *own = nullptr, *key = nullptr;
  if (PyArg_ParseTuple(args, "ssss:register", &space, &name, &own, &key) == 0) return nullptr;
  auto* self = reinterpret_cast<OperatorObject*>(object);
  return guarded([&] {
    Py_INCREF(object);  // what it configures with must live as long as PyTorch may call it
    const std::string missing = gt::register_kernel(*self->op, space, name, own, key, kPython);
    return py::cast(missing).release().ptr();
  });
}

const std::pair<const char*, gt::ParamKind> kKinds[] = {{"Tensor", gt::ParamKind::Tensor},
                                                        {"Tensor?", gt::ParamKind::OptionalTensor},
                                                        {"int", gt::ParamKind::Int},
                                                        {"float", gt::ParamKind::Float},
                                                        {"bool", gt::ParamKind::Bool},
                                                        {"float?", gt::ParamKind::OptionalFloat},
                                                        {"str?", gt::ParamKind::OptionalString},
                                                        {"int[]", gt::ParamKind::IntList},
                                                        {"ScalarType?", gt::ParamKind::OptionalDtype},
                                                        {"Tensor[]", gt::ParamKind::TensorList},
                                                        {"bool[]", gt::ParamKind::BoolList},
                                                        {"str[]", gt::ParamKind::StringList}};

gt::Param param_of(const py::handle& row, const py::handle& rows) {
  const auto t = py::cast<py::tuple>(row);
  gt::Param p;
  p.name = py::cast<std::string>(t[0]);
  auto kind = py::cast<std::string>(t[1]);
  if (kind == "Tensor(a!)") {
    p.written = true;
    kind = "Tensor";
  }
  bool known = false;
  for (const auto& [text, k] : kKinds)
    if (kind == text) {
      p.kind = k;
      known = true;
    }
  if (!known) throw py::value_error("no parameter of an operator is of type " + kind);
  p.choices = py::cast<std::vector<std::string>>(t[2]);
  if (!py::isinstance<py::str>(t[3])) {
    p.exact_dims = py::cast<int>(t[3]);
    return p;
  }
  const auto all = py::cast<std::vector<py::tuple>>(rows);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i][0].equal(t[3]) && py::cast<std::string>(all[i][1]) == "int") p.exact_by = static_cast<int>(i);
  if (p.exact_by < 0) throw py::value_error("no int that names a dimension is called " + py::cast<std::string>(t[3]));
  return p;
}

PyObject* operator_new(PyTypeObject* type, PyObject* args, PyObject* named) {
  static const char* keywords[] = {"name", "params", "returned", "configure", "otherwise", nullptr};
  const char* name = nullptr;
  PyObject *params = nullptr, *configure = nullptr, *otherwise = Py_None;
  Py_ssize_t returned = 0;
  if (PyArg_ParseTupleAndKeywords(args, named, "sOnO|O:Operator", const_cast<char**>(keywords), &name, &params,
                                  &returned, &configure, &otherwise) == 0)
    return nullptr;
  return guarded([&]() -> PyObject* {
    std::vector<gt::Param> list;
    for (const auto& row : py::handle(params)) list.push_back(param_of(row, params));
    if (list.size() > kMaxParams) throw py::value_error("an operator has 16 parameters at most");
    const bool lists =
        std::ranges::any_of(list, [](const gt::Param& p) { return p.holds_tensors() && !p.is_tensor(); });
    if (lists && std::ranges::any_of(list, &gt::Param::written))
      throw py::value_error("an operator that writes an argument takes no lists of tensors");
    auto* self = reinterpret_cast<OperatorObject*>(type->tp_alloc(type, 0));
    if (self == nullptr) return nullptr;
    self->vectorcall = operator_call;
    self->op = new gt::Operator(name, list, configure_by(list, py::reinterpret_borrow<py::object>(configure)));
    self->returned = static_cast<std::size_t>(returned);
    self->otherwise = otherwise == Py_None ? nullptr : Py_NewRef(otherwise);
    return reinterpret_cast<PyObject*>(self);
  });
}

PyObject* get_configured(PyObject* object, void*) {
  return PyLong_FromUnsignedLongLong(reinterpret_cast<OperatorObject*>(object)->op->configured());
}
PyObject* get_forms(PyObject* object, void*) {
  return PyLong_FromSize_t(reinterpret_cast<OperatorObject*>(object)->op->forms());
}

PyMemberDef kMembers[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(OperatorObject, vectorcall), READONLY, nullptr},
                          {nullptr, 0, 0, 0, nullptr}};
PyGetSetDef kGetters[] = {{"configured", get_configured, nullptr, "How often `configure` was asked.", nullptr},
                          {"forms", get_forms, nullptr, "Forms of calls that are remembered.", nullptr},
                          {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMethodDef kMethods[] = {
    {"plan", operator_plan, METH_VARARGS,
     "plan(*args)\n--\n\nWhat a call with these arguments would do, tensors on any device: a dict."},
    {"check", operator_check, METH_VARARGS,
     "check(*args)\n--\n\nRaises OP_OUT unless what the operator writes lies apart and shares no memory with other "
     "arguments."},
    {"register", operator_register, METH_VARARGS,
     "register(space, name, own, key)\n--\n\nRegisters it as PyTorch's kernel of `space::name` for a dispatch key; "
     "`space::own` is called where no kernel\nfits. Returns the symbol that this PyTorch lacks, or ''."},
    {nullptr, nullptr, 0, nullptr}};

constexpr const char* kDoc =
    R"(An operator on PyTorch's CUDA tensors: Operator(name, params, returned, configure, otherwise=None).

`params`: (name, type as in a schema, choices of a string, which extents of a tensor a configuration knows by value:
the number of the last ones, or the name of the int that says the dimension) each; of type Tensor(a!), it is written. `configure` gets the arguments of the first call of a configuration, tensors as (shape, strides, dtype,
device, alignment of the address in bytes) and lists of tensors as lists of these, and returns a Recipe. A call takes all
arguments by position and returns the result. Where PyTorch's dispatcher must see the call (modes, tracing, gradients,
tensors that are not plain CUDA tensors, or where no kernel fits), it returns what `otherwise` returns for the same
arguments, or NotImplemented without one.)";

}  // namespace

void register_torch(py::module_& m) {
  register_recipe(m);
  m.def(
      "set_torch",
      [](const py::dict& d) {
        TorchNames& t = torch_names();
        const auto take = [&](const char* name) { return py::object(d[name]).release().ptr(); };
        t.grad_enabled = take("grad_enabled");
        t.dispatch_modes = take("dispatch_modes");
        t.function_modes = take("function_modes");
        t.function_mode_at = take("function_mode_at");
        t.device_mode = reinterpret_cast<PyTypeObject*>(take("device_mode"));
        t.tracing_state = take("tracing_state");
        t.autocast = take("autocast");
        t.requires_grad = take("requires_grad");
        t.forward_ad = take("forward_ad");
        t.empty_strided = take("empty_strided");
        t.empty_strided_cuda = d["empty_strided_cuda"].is_none() ? nullptr : take("empty_strided_cuda");
        t.dtypes = take("dtypes");
        t.numbers.clear();
        for (const auto& [dtype, number] : py::cast<py::dict>(py::handle(t.dtypes)))
          t.numbers.emplace_back(dtype.ptr(), py::cast<std::int64_t>(number));
        t.state = d["ask_python"].cast<bool>() ? gt::ThreadState{} : gt::thread_state();
        t.parameter = reinterpret_cast<PyTypeObject*>(take("parameter"));
        t.tensor = reinterpret_cast<PyTypeObject*>(take("tensor"));
        if (t.state.known()) t.find_implementation(d["plain"], d["wanting"]);
      },
      py::arg("names"), "Hands over PyTorch's functions and types that operators ask.");
  m.def(
      "torch_state",
      [] {
        const TorchNames& t = torch_names();
        return py::make_tuple(t.state.known() && t.impl_offset != 0, t.watched(), t.gradients_enabled());
      },
      "Of this thread: whether PyTorch is asked without Python, whether something must see operators, whether "
      "gradients "
      "are wanted.");

  static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(operator_new)},
                                {Py_tp_members, kMembers},
                                {Py_tp_getset, kGetters},
                                {Py_tp_methods, kMethods},
                                {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_doc, const_cast<char*>(kDoc)},
                                {0, nullptr}};
  static PyType_Spec spec = {"graphene._core.Operator", sizeof(OperatorObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, slots};
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  m.add_object("Operator", type);
}

}  // namespace graphene::bind
