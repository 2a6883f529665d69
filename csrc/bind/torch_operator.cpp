// graphene._core.Operator: an operator that Python calls directly, and that PyTorch's dispatcher calls through its C
// shim. A plain C type with a vectorcall, because the time before the launch is what a user pays for every call.
#include <Python.h>
#include <structmember.h>

#include <array>
#include <cstddef>

#include "bind/launcher.h"
#include "bind/python_arguments.h"
#include "bind/record.h"
#include "bind/torch_host.h"
#include "bind/torch_recipe.h"
#include "torch/boxed.h"

namespace graphene::bind {

namespace {

namespace gc = graphene::call;
namespace gt = graphene::torch;
namespace rt = graphene::runtime;

constexpr std::size_t kMaxParams = 16;

// What a call would do.
struct CallDescription {
  std::string outcome, reason;
  py::list copies, outputs;
  std::size_t returned = 0;
  py::list launches;
};

struct TorchState {
  bool without_python = false, watched = false, gradients = false;
};

struct OperatorObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  gc::Operator* op;  // lives for good: PyTorch's dispatcher may hold it
  std::size_t returned;
  PyObject* otherwise;  // called where PyTorch's dispatcher must see the call; null: NotImplemented is returned
};

// What may go past the dispatcher: PyTorch's plain tensors, none of which wants a gradient.
struct PastTheDispatcher {
  const TorchNames& names = torch_names();
  bool gradients = names.gradients_enabled();

  [[nodiscard]] bool takes(PyTypeObject* type) const { return type == names.tensor || type == names.parameter; }
  [[nodiscard]] bool allows(PyObject* object, const KnownType& type, const dlpack::Tensor&, const gc::Param&) const {
    return !negated_lazily(object, type) && !(gradients && names.wants_gradient(object));
  }
};

// A tensor of the same elements, row-major.
py::object row_major(PyObject* tensor) {
  py::object copy = py::handle(tensor).attr("contiguous")();
  return copy.ptr() == tensor ? copy.attr("clone")() : copy;  // row-major, but of an address that no kernel takes
}

// A null object: PyTorch's dispatcher must see the call.
py::object call_fast(OperatorObject* self, PyObject* const* args) {
  const TorchNames& names = torch_names();
  gc::Operator& op = *self->op;
  if (!names.known() || names.watched()) return {};
  PastTheDispatcher rules;
  std::array<PyObject*, kMaxParams> objects;
  std::copy_n(args, op.params().size(), objects.begin());
  std::vector<py::object> copies;  // empty, as a rule
  for (;;) {
    gc::Arguments call;
    QuickSource source(objects.data(), op.name(), rules);
    const gc::Read r = gc::read(op.params(), source, call, op.name());
    if (r == gc::Read::Error) throw py::error_already_set();
    if (r == gc::Read::NotHere || source.api() == nullptr) return {};
    PythonHost host(source.api());
    gc::TensorMask mask;
    switch (op.run(call, host, mask)) {
      case gc::Outcome::Launch: {
        PyObject* made = host.results(self->returned);
        if (made == nullptr) throw py::error_already_set();
        return py::reinterpret_steal<py::object>(made);
      }
      case gc::Outcome::Torch:
        return {};
      case gc::Outcome::Copy:
        break;
    }
    std::size_t tensor = 0;
    for (std::size_t i = 0; i < op.params().size(); ++i) {
      const gc::Param& p = op.params()[i];
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
void read_any(OperatorObject* self, PyObject* args, gc::Arguments& call, Keep& keep) {
  const gc::Operator& op = *self->op;
  if (wrong_arity(self, static_cast<std::size_t>(PyTuple_GET_SIZE(args)))) throw py::error_already_set();
  read_operator_call(op.params(), &PyTuple_GET_ITEM(args, 0), op.name(), keep, call);
  gc::check_written(call, op.params(), op.name());
}

CallDescription description_of(OperatorObject* self, PyObject* args) {
  gc::Operator& op = *self->op;
  gc::Arguments call;
  Keep keep;
  read_any(self, args, call, keep);
  CallDescription out;
  if (call.tensor_count() > gc::kMaxTensors) {
    out.outcome = "torch";
    out.reason = "more tensors than a call may have";
    return out;
  }
  const auto recipe = op.recipe(call);
  static constexpr std::array<const char*, 3> kNames = {"launch", "copy", "torch"};
  out.outcome = kNames.at(static_cast<std::size_t>(recipe->outcome));
  out.reason = recipe->reason;
  out.returned = recipe->returned;
  for (std::size_t i = 0; i < call.tensor_count(); ++i)
    if (recipe->copy_mask[i]) out.copies.append(i);
  std::vector<gc::Shaped> shaped;
  for (const gc::OutputSpec& o : recipe->outputs) {
    shaped.push_back(gc::evaluate(o, call));
    out.outputs.append(py::make_tuple(o.dtype.name, py::tuple(py::cast(shaped.back().shape))));
  }
  for (const gc::KernelCall& k : recipe->launches) {
    py::list views;
    for (const auto& a : k.args) {
      if (std::holds_alternative<rt::ScalarArg>(a)) {
        const auto& s = std::get<rt::ScalarArg>(a);
        views.append(s.kind == rt::ScalarArg::Kind::Float ? py::object(py::float_(s.f)) : py::object(py::int_(s.i)));
        continue;
      }
      const auto evaluated = [&](const gc::View& v) {
        const auto view = gc::evaluate(v, call, shaped);
        GR_ASSERT(view.has_value(), op.name() + ": a recipe whose views exist");
        return py::make_tuple(v.source, py::tuple(py::cast(view->shape)), py::tuple(py::cast(view->strides)));
      };
      if (std::holds_alternative<gc::View>(a)) {
        views.append(evaluated(std::get<gc::View>(a)));
        continue;
      }
      py::list list;
      for (const gc::View& v : std::get<std::vector<gc::View>>(a)) list.append(evaluated(v));
      views.append(list);
    }
    out.launches.append(py::cast(RecipeLaunch{launcher_of(*k.kernel), views}));
  }
  return out;
}

PyObject* operator_described(PyObject* object, PyObject* args) {
  return guarded(
      [&] { return py::cast(description_of(reinterpret_cast<OperatorObject*>(object), args)).release().ptr(); });
}

PyObject* operator_check(PyObject* object, PyObject* args) {
  return guarded([&] {
    gc::Arguments call;
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

const std::pair<const char*, gc::ParamKind> kKinds[] = {{"Tensor", gc::ParamKind::Tensor},
                                                        {"Tensor?", gc::ParamKind::OptionalTensor},
                                                        {"int", gc::ParamKind::Int},
                                                        {"float", gc::ParamKind::Float},
                                                        {"bool", gc::ParamKind::Bool},
                                                        {"float?", gc::ParamKind::OptionalFloat},
                                                        {"str?", gc::ParamKind::OptionalString},
                                                        {"int[]", gc::ParamKind::IntList},
                                                        {"ScalarType?", gc::ParamKind::OptionalDtype},
                                                        {"Tensor[]", gc::ParamKind::TensorList},
                                                        {"bool[]", gc::ParamKind::BoolList},
                                                        {"str[]", gc::ParamKind::StringList}};

gc::Param param_of(const py::handle& row, const py::handle& rows) {
  const auto t = py::cast<py::tuple>(row);
  gc::Param p;
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
    std::vector<gc::Param> list;
    for (const auto& row : py::handle(params)) list.push_back(param_of(row, params));
    if (list.size() > kMaxParams) throw py::value_error("an operator has 16 parameters at most");
    const bool lists =
        std::ranges::any_of(list, [](const gc::Param& p) { return p.holds_tensors() && !p.is_tensor(); });
    if (lists && std::ranges::any_of(list, &gc::Param::written))
      throw py::value_error("an operator that writes an argument takes no lists of tensors");
    auto* self = reinterpret_cast<OperatorObject*>(type->tp_alloc(type, 0));
    if (self == nullptr) return nullptr;
    self->vectorcall = operator_call;
    self->op = new gc::Operator(name, list, configure_by(list, py::reinterpret_borrow<py::object>(configure)));
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
    {"described", operator_described, METH_VARARGS,
     "described(*args)\n--\n\nWhat a call with these arguments would do, tensors on any device: a CallDescription."},
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
  register_record(m, "CallDescription",
                  "What a call of an operator would do: launch, copy arguments first, or leave the call to PyTorch. In "
                  "launches a view is (source, shape, strides).",
                  field("outcome", &CallDescription::outcome), field("reason", &CallDescription::reason),
                  field("copies", &CallDescription::copies), field("outputs", &CallDescription::outputs),
                  field("returned", &CallDescription::returned), field("launches", &CallDescription::launches));
  register_record(m, "TorchState",
                  "What an operator asks PyTorch at a call: whether it asks without Python, whether "
                  "something must see operators, whether gradients are wanted.",
                  field("without_python", &TorchState::without_python), field("watched", &TorchState::watched),
                  field("gradients", &TorchState::gradients));
  m.def(
      "torch_state",
      [] {
        const TorchNames& t = torch_names();
        return TorchState{t.state.known() && t.impl_offset != 0, t.watched(), t.gradients_enabled()};
      },
      "What a call of an operator in this thread meets.");

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
