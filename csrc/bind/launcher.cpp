// graphene._core.Launcher: the type whose call is a launch. A plain C type with a vectorcall, because the time between
// the call and cuLaunchKernel is what a user pays for every kernel.
#include "bind/launcher.h"

#include <Python.h>
#include <structmember.h>

#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <memory>

#include "base/stages.h"
#include "bind/bind.h"
#include "bind/tensor_reader.h"
#include "bind/torch_written.h"
#include "runtime/compile.h"
#include "runtime/launch.h"

namespace graphene::bind {

namespace {

namespace rt = graphene::runtime;

constexpr std::size_t kMaxTensors = 32;  // of a call that takes the fast path
constexpr std::size_t kMaxParams = 64;
constexpr std::size_t kMaxPlans = 16;  // signatures remembered, the most recent first

struct State {
  std::map<std::string, std::shared_ptr<const rt::LaunchManifest>> manifests;  // by architecture
  std::map<int, std::shared_ptr<rt::Function>> functions;                      // by device
  std::vector<std::shared_ptr<rt::Plan>> plans;
  // Of any manifest: arguments do not depend on the architecture.
  std::shared_ptr<const rt::LaunchManifest> declared;
  std::vector<PyObject*> names;  // interned, of the arguments
  std::size_t tensors = 0;
  std::size_t params = 0;
  bool fast = false;
};

struct LauncherObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  State* state;
  unsigned long long calls;
  unsigned long long misses;
};

PyObject* stream_name() {
  static PyObject* const name = PyUnicode_InternFromString("stream");
  return name;
}

// Remembers what the fast path needs of the declaration.
void declare(State& s, std::shared_ptr<const rt::LaunchManifest> m) {
  if (s.declared) return;
  s.declared = std::move(m);
  s.params = s.declared->args.size();
  for (const rt::ArgSpec& a : s.declared->args) {
    s.names.push_back(PyUnicode_InternFromString(a.name.c_str()));
    if (a.kind == rt::ArgKind::Tensor) s.tensors += static_cast<std::size_t>(a.list_count == 0 ? 1 : a.list_count);
  }
  for (const rt::SymbolSpec& x : s.declared->symbols) s.params += x.is_param ? 1U : 0U;
  s.fast = s.tensors > 0 && s.tensors <= kMaxTensors && s.params <= kMaxParams;
}

// The objects in declaration order; false: let the slow path say what is wrong.
bool order_arguments(const State& s, PyObject* const* args, std::size_t count, PyObject* keyword_names,
                     std::array<PyObject*, kMaxParams>& out, PyObject*& stream) {
  const std::size_t want = s.names.size();
  if (count > want) return false;
  for (std::size_t i = 0; i < count; ++i) out[i] = args[i];
  for (std::size_t i = count; i < want; ++i) out[i] = nullptr;
  const Py_ssize_t keywords = keyword_names == nullptr ? 0 : PyTuple_GET_SIZE(keyword_names);
  std::size_t filled = count;
  for (Py_ssize_t k = 0; k < keywords; ++k) {
    PyObject* name = PyTuple_GET_ITEM(keyword_names, k);
    PyObject* value = args[count + static_cast<std::size_t>(k)];
    std::size_t i = count;
    while (i < want && s.names[i] != name) ++i;  // names in calls are interned
    if (i < want) {
      if (out[i] != nullptr) return false;
      out[i] = value;
      ++filled;
    } else if (name == stream_name()) {
      stream = value;
    } else {
      return false;
    }
  }
  return filled == want;
}

// Nothing here is initialised before it is used: clearing it would cost more than the comparison.
struct FastCall {
  alignas(rt::TensorArg) std::array<std::byte, kMaxTensors * sizeof(rt::TensorArg)> storage;
  std::array<void*, kMaxTensors> addresses;
  std::array<std::uint64_t, kMaxParams> scalars;
  std::array<void*, kMaxParams> params;
  std::array<PyObject*, kMaxTensors> written;  // PyTorch's tensors
  std::size_t tensor_count = 0, scalar_count = 0, param_count = 0, written_count = 0;
  const dlpack::ExchangeApi* api = nullptr;

  FastCall() {}  // NOLINT(modernize-use-equals-default): `= default` with () would clear the arrays

  [[nodiscard]] const rt::TensorArg* tensors() const { return reinterpret_cast<const rt::TensorArg*>(storage.data()); }

  bool read(PyObject* object, rt::Access access) {
    const dlpack::ExchangeApi* a = exchange_api(Py_TYPE(object));
    if (a == nullptr) return false;
    dlpack::Tensor t;
    if (a->view_from_object(object, &t) != 0) {
      PyErr_Clear();  // the slow path meets it again and explains it
      return false;
    }
    if (t.device.type != rt::kCuda || negated_lazily(object)) return false;
    if (api == nullptr) api = a;
    const auto* arg = new (storage.data() + tensor_count * sizeof(rt::TensorArg)) rt::TensorArg(tensor_arg(t));
    addresses[tensor_count++] = arg->data;
    if (access != rt::Access::Read && is_known_torch(Py_TYPE(object))) {
      if (!may_be_written(object)) return false;
      written[written_count++] = object;
    }
    return true;
  }

  bool read_all(const State& s, const std::array<PyObject*, kMaxParams>& objects) {
    const auto& args = s.declared->args;
    for (std::size_t i = 0; i < args.size(); ++i) {
      if (args[i].kind == rt::ArgKind::Scalar) continue;
      params[param_count++] = &addresses[tensor_count];
      if (args[i].list_count == 0) {
        if (!read(objects[i], args[i].access)) return false;
        continue;
      }
      if ((PyList_Check(objects[i]) == 0 && PyTuple_Check(objects[i]) == 0) ||
          PySequence_Fast_GET_SIZE(objects[i]) != args[i].list_count)
        return false;
      for (Py_ssize_t k = 0; k < args[i].list_count; ++k)
        if (!read(PySequence_Fast_GET_ITEM(objects[i], k), args[i].access)) return false;
    }
    for (std::size_t i = 0; i < args.size(); ++i) {
      if (args[i].kind == rt::ArgKind::Tensor) continue;
      rt::Scalar v;
      if (!read_scalar(objects[i], v)) return false;
      const auto bits = rt::pack_scalar(args[i].dtype, v);
      if (!bits) return false;
      scalars[scalar_count] = *bits;
      params[param_count++] = &scalars[scalar_count++];
    }
    return true;
  }
};

// Launches; throws Error with the driver's complaint.
void launch(State& s, const rt::Plan& plan, std::intptr_t stream, void** params, std::size_t param_count) {
  if (plan.empty()) return;
  const int r = plan.launch(rt::driver(), reinterpret_cast<rt::CuStream>(stream), params, param_count);
  if (r != rt::kCudaSuccess) throw Error(rt::driver_problem(r, s.declared->kernel_name, "the launch"));
}

// 1: launched; 0: not the fast path's case; -1: a Python error is set.
int try_fast(State& s, PyObject* const* args, std::size_t count, PyObject* keyword_names) {
  std::array<PyObject*, kMaxParams> objects;
  PyObject* stream_object = nullptr;
  if (!order_arguments(s, args, count, keyword_names, objects, stream_object)) return 0;
  FastCall call;
  if (!call.read_all(s, objects)) return 0;
  std::intptr_t stream = 0;
  if (stream_object != nullptr) {
    stream = read_stream(stream_object, s.declared->kernel_name);
  } else {
    void* current = nullptr;
    if (call.api->current_stream(rt::kCuda, call.tensors()->device.id, &current) != 0) return -1;
    stream = reinterpret_cast<std::intptr_t>(current);
  }
  for (std::size_t k = 0; k < call.written_count; ++k) raise_version(call.written[k]);
  // From here on no Python code runs: the plans stay as they are.
  for (std::size_t i = 0; i < s.plans.size(); ++i) {
    if (!s.plans[i]->fits(call.tensors(), call.tensor_count, call.scalars.data())) continue;
    if (i != 0) std::swap(s.plans[i], s.plans[i - 1]);
    launch(s, *s.plans[i == 0 ? 0 : i - 1], stream, call.params.data(), call.param_count);
    return 1;
  }
  return 0;
}

// The device of the call: that of the first CUDA tensor; nullopt: none is on a GPU. Lists are looked into.
std::optional<int> device_of_call(PyObject* const* args, std::size_t count) {
  const auto look = [](PyObject* o) -> std::optional<int> {
    if (PyLong_Check(o) != 0 || PyFloat_Check(o) != 0 || o == Py_None) return std::nullopt;
    Keep keep;
    const ReadResult r = read_tensor(o, "", "", keep, std::nullopt);
    return r.tensor && r.tensor->device.on_cuda() ? std::optional(r.tensor->device.id) : std::nullopt;
  };
  for (std::size_t i = 0; i < count; ++i) {
    if (PyList_Check(args[i]) != 0 || PyTuple_Check(args[i]) != 0) {
      for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(args[i]); ++k)
        if (const auto d = look(PySequence_Fast_GET_ITEM(args[i], k))) return d;
    } else if (const auto d = look(args[i])) {
      return d;
    }
  }
  return std::nullopt;
}

// What a hook returned, as the class it must be.
template <class T>
std::shared_ptr<T> hook_result(const py::object& value, const char* hook, const char* want) {
  if (!py::isinstance<T>(value))
    fail(Code::LAUNCH_MANIFEST, std::string("the hook ") + hook + " returned something else than a " + want,
         {"got:  " + shown(value)});
  return py::cast<std::shared_ptr<T>>(value);
}

std::shared_ptr<const rt::LaunchManifest> manifest_for(LauncherObject* self, const std::string& arch) {
  State& s = *self->state;
  if (const auto it = s.manifests.find(arch); it != s.manifests.end()) return it->second;
  const py::handle me(reinterpret_cast<PyObject*>(self));
  const auto m = hook_result<rt::LaunchManifest>(me.attr("_manifest")(arch), "_manifest", "LaunchManifest");
  s.manifests[arch] = m;
  declare(s, m);
  return m;
}

// The loaded kernel, through the hook `_prepare(device_index, arch)` if this device has none yet.
std::shared_ptr<rt::Function> function_for(LauncherObject* self, const rt::LaunchManifest& m, int device_id,
                                           std::optional<std::intptr_t> stream) {
  State& s = *self->state;
  if (const auto it = s.functions.find(device_id); it != s.functions.end()) return it->second;
  const rt::DeviceInfo& info = rt::device(device_id);
  if (stream) {
    const rt::UseContext use(rt::driver(), info.context);
    if (rt::is_capturing(reinterpret_cast<rt::CuStream>(*stream)))
      throw Error(rt::launch_problem(
          Code::LAUNCH_CAPTURE, m.kernel_name,
          "the kernel would have to be compiled and loaded while its stream is being captured", {},
          "call the kernel once, or kernel.load(" + std::to_string(device_id) + "), before the capture starts"));
  }
  const py::handle me(reinterpret_cast<PyObject*>(self));
  const auto binary = hook_result<rt::Binary>(me.attr("_prepare")(device_id, info.arch), "_prepare", "Binary");
  auto f = rt::load_function(device_id, binary->cubin, m);
  s.functions[device_id] = f;
  return f;
}

std::intptr_t stream_of(const CallArgs& call, const rt::LaunchManifest& m, int device_id) {
  if (call.stream != nullptr) return read_stream(call.stream, m.kernel_name);
  if (call.api != nullptr && call.api->current_stream != nullptr) {
    void* current = nullptr;
    if (call.api->current_stream(rt::kCuda, device_id, &current) != 0) throw py::error_already_set();
    return reinterpret_cast<std::intptr_t>(current);
  }
  if (call.old_torch)
    return py::cast<std::intptr_t>(
        py::module_::import("torch").attr("cuda").attr("current_stream")(device_id).attr("cuda_stream"));
  if (call.owner_streams_differ)
    throw Error(rt::launch_problem(Code::LAUNCH_STREAM, m.kernel_name, "the arguments are ready on different streams",
                                   {}, "pass stream= after making it wait for the others"));
  return call.owner_stream.value_or(0);
}

// Everything is checked here, and what was checked is remembered as a plan.
void launch_slowly(LauncherObject* self, int device_id, PyObject* const* args, std::size_t count,
                   PyObject* keyword_names) {
  const Stage stage("check arguments");
  State& s = *self->state;
  ++self->misses;
  const rt::DeviceInfo& info = rt::device(device_id);
  const auto m = manifest_for(self, info.arch);
  const CallArgs call = read_call(*m, args, count, keyword_names, true);
  rt::BoundCall bound = rt::bind_args(*m, call.values, info.limits);
  announce_written(call, m->kernel_name);
  const std::intptr_t stream = stream_of(call, *m, device_id);

  std::vector<rt::TensorArg> tensors;
  std::vector<void*> addresses;
  for (const rt::ArgValue& v : call.values)
    for (const rt::TensorArg& t : v.tensors) {
      tensors.push_back(t);
      addresses.push_back(t.data);
    }
  std::vector<std::uint64_t> scalars = bound.scalars;
  std::vector<void*> params;
  std::size_t at = 0;
  for (const rt::ArgValue& v : call.values) {
    if (v.tensors.empty()) continue;
    params.push_back(&addresses[at]);
    at += v.tensors.size();
  }
  for (std::uint64_t& x : scalars) params.push_back(&x);

  std::shared_ptr<rt::Plan> plan;
  for (const auto& p : s.plans)
    if (p->same_form(tensors.data(), tensors.size(), scalars.data())) plan = p;
  if (!plan) {
    const bool empty = bound.empty();
    plan = std::make_shared<rt::Plan>(*m, call.values, std::move(bound), rt::scalars_in_sizes(*m));
    if (!empty) plan->attach(function_for(self, *m, device_id, stream), *m);
    s.plans.insert(s.plans.begin(), plan);
    if (s.plans.size() > kMaxPlans) s.plans.pop_back();
  }
  const std::size_t n = params.size();
  params.resize(n + plan->symbol_count());
  launch(s, *plan, stream, params.data(), n);
}

PyObject* call_host(PyObject* self, PyObject* const* args, std::size_t count, PyObject* keyword_names) {
  PyObject* hook = PyObject_GetAttrString(self, "_call_host");
  if (hook == nullptr) return nullptr;
  PyObject* result = PyObject_Vectorcall(hook, args, count, keyword_names);
  Py_DECREF(hook);
  return result;
}

PyObject* launcher_call(PyObject* object, PyObject* const* args, std::size_t nargsf, PyObject* keyword_names) {
  auto* self = reinterpret_cast<LauncherObject*>(object);
  const auto count = static_cast<std::size_t>(PyVectorcall_NARGS(nargsf));
  try {
    ++self->calls;
    if (self->state->fast) {
      const int r = try_fast(*self->state, args, count, keyword_names);
      if (r > 0) Py_RETURN_NONE;
      if (r < 0) return nullptr;
    }
    const std::size_t keywords =
        keyword_names == nullptr ? 0 : static_cast<std::size_t>(PyTuple_GET_SIZE(keyword_names));
    const auto device_id = device_of_call(args, count + keywords);
    if (!device_id) return call_host(object, args, count, keyword_names);
    launch_slowly(self, *device_id, args, count, keyword_names);
    Py_RETURN_NONE;
  } catch (const Error& e) {
    set_python_error(e);
  } catch (py::error_already_set& e) {
    e.restore();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
  return nullptr;
}

PyObject* launcher_new(PyTypeObject* type, PyObject*, PyObject*) {
  auto* self = reinterpret_cast<LauncherObject*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->vectorcall = launcher_call;
  self->state = new (std::nothrow) State();
  if (self->state == nullptr) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  return reinterpret_cast<PyObject*>(self);
}

void launcher_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<LauncherObject*>(object);
  if (self->state != nullptr)
    for (PyObject* name : self->state->names) Py_DECREF(name);
  delete self->state;
  PyTypeObject* type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* hook_missing(const char* name) {
  PyErr_Format(PyExc_NotImplementedError, "a subclass of Launcher must define %s", name);
  return nullptr;
}
PyObject* default_manifest(PyObject*, PyObject*) { return hook_missing("_manifest(self, arch)"); }
PyObject* default_prepare(PyObject*, PyObject*) { return hook_missing("_prepare(self, device_index, arch)"); }
PyObject* default_call_host(PyObject*, PyObject*, PyObject*) {
  return hook_missing("_call_host(self, *args, **named)");
}

PyObject* launcher_load(PyObject* object, PyObject* args) {
  PyObject* number = nullptr;
  if (PyArg_ParseTuple(args, "|O:load", &number) == 0) return nullptr;
  auto* self = reinterpret_cast<LauncherObject*>(object);
  try {
    int device_id = 0;
    if (number != nullptr) {
      const long given = PyIndex_Check(number) != 0 ? PyLong_AsLong(number) : -1;
      PyErr_Clear();
      if (given < 0 || given > std::numeric_limits<int>::max())
        fail(Code::LAUNCH_DEVICE, "a CUDA device is named by its number", {"got: " + shown(number)},
             "load(0) is the first one");
      device_id = static_cast<int>(given);
    }
    const auto m = manifest_for(self, rt::device(device_id).arch);
    static_cast<void>(function_for(self, *m, device_id, std::nullopt));
    Py_RETURN_NONE;
  } catch (const Error& e) {
    set_python_error(e);
  } catch (py::error_already_set& e) {
    e.restore();
  }
  return nullptr;
}

// From Python 3.12 on a subclass inherits the flag; before, its calls would pack a tuple and unpack it again.
PyObject* launcher_init_subclass(PyObject* cls, PyObject*, PyObject*) {
  auto* type = reinterpret_cast<PyTypeObject*>(cls);
  PyObject* own_call = PyObject_GetAttrString(cls, "__call__");
  PyObject* base_call = PyObject_GetAttrString(reinterpret_cast<PyObject*>(launcher_type()), "__call__");
  if (own_call != nullptr && own_call == base_call) type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
  Py_XDECREF(own_call);
  Py_XDECREF(base_call);
  if (PyErr_Occurred() != nullptr) return nullptr;
  Py_RETURN_NONE;
}

PyMemberDef kMembers[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(LauncherObject, vectorcall), READONLY, nullptr},
    {"calls", T_ULONGLONG, offsetof(LauncherObject, calls), READONLY, "Calls so far."},
    {"misses", T_ULONGLONG, offsetof(LauncherObject, misses), READONLY,
     "Launches whose arguments had to be checked in full: a new form, or one that is not remembered."},
    {nullptr, 0, 0, 0, nullptr}};

PyMethodDef kMethods[] = {
    {"load", launcher_load, METH_VARARGS,
     "load(device=0)\n--\n\nCompiles (or finds in the cache) and loads the kernel for a CUDA device, so that its first "
     "call does neither:\nbefore a stream capture, or to keep the first request of a service fast. Raises "
     "CompileError, "
     "LaunchError."},
    {"_manifest", default_manifest, METH_O, "Hook: the LaunchManifest for an architecture."},
    {"_prepare", default_prepare, METH_VARARGS, "Hook: the Binary for a device (index, architecture)."},
    {"_call_host", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(default_call_host)),
     METH_VARARGS | METH_KEYWORDS, "Hook: a call in which no argument is on a GPU."},
    {"__init_subclass__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(launcher_init_subclass)),
     METH_VARARGS | METH_KEYWORDS | METH_CLASS, "Lets subclasses be called without packing their arguments."},
    {nullptr, nullptr, 0, nullptr}};

constexpr const char* kDoc = R"(A callable that launches a kernel on the tensors it is given.

A subclass says how: `_manifest(arch)` returns the LaunchManifest, `_prepare(device_index, arch)` the Binary, and
`_call_host(*args, **named)` runs a call in which no argument is on a GPU. A call takes the arguments in the manifest's
order or by name, and `stream=` (an integer handle, a torch.cuda.Stream, a cupy.cuda.Stream or an object with
__cuda_stream__; default: the current stream of the tensors' library). It returns None; the kernel writes in place.
Raises LaunchError with everything that is wrong about the arguments; then nothing was launched.)";

PyTypeObject* type_object = nullptr;

}  // namespace

PyTypeObject* launcher_type() { return type_object; }

std::shared_ptr<const rt::LaunchManifest> launcher_manifest(PyObject* launcher, const std::string& arch) {
  return manifest_for(reinterpret_cast<LauncherObject*>(launcher), arch);
}

std::shared_ptr<rt::Function> launcher_function(PyObject* launcher, const rt::LaunchManifest& m, int device,
                                                std::optional<std::intptr_t> stream) {
  return function_for(reinterpret_cast<LauncherObject*>(launcher), m, device, stream);
}

void register_launcher(py::module_& m) {
  static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(launcher_new)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(launcher_dealloc)},
                                {Py_tp_members, kMembers},
                                {Py_tp_methods, kMethods},
                                {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_doc, const_cast<char*>(kDoc)},
                                {0, nullptr}};
  static PyType_Spec spec = {"graphene._core.Launcher", sizeof(LauncherObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_VECTORCALL, slots};
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  type_object = reinterpret_cast<PyTypeObject*>(type);
  m.add_object("Launcher", type);
}

}  // namespace graphene::bind
