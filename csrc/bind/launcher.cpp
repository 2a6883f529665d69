// graphene._core.Launcher: the type whose call is a launch. A plain C type with a vectorcall, because the time between
// the call and cuLaunchKernel is what a user pays for every kernel.
#include "bind/launcher.h"

#include <Python.h>
#include <structmember.h>

#include <cstddef>
#include <limits>
#include <memory>

#include "base/stages.h"
#include "bind/python_arguments.h"
#include "bind/torch_written.h"
#include "call/launcher.h"
#include "runtime/compile.h"

namespace graphene::bind {

namespace {

namespace gc = graphene::call;
namespace rt = graphene::runtime;

// What a hook returned, as the class it must be.
template <class T>
std::shared_ptr<T> hook_result(const py::object& value, const char* hook, const char* want) {
  if (!py::isinstance<T>(value))
    fail(Code::LAUNCH_MANIFEST, std::string("the hook ") + hook + " returned something else than a " + want,
         {"got:  " + shown(value)});
  return py::cast<std::shared_ptr<T>>(value);
}

// A launcher's hooks.
class PythonKernel : public gc::Kernel {
 public:
  explicit PythonKernel(PyObject* launcher) : launcher_(launcher) {}
  [[nodiscard]] py::handle launcher() const { return launcher_; }
  [[nodiscard]] std::string simulated_arch() override {
    return launcher().attr("lowered")().attr("arch").cast<std::string>();
  }

 protected:
  [[nodiscard]] std::shared_ptr<const rt::LaunchManifest> make_manifest(const std::string& arch) override {
    return hook_result<rt::LaunchManifest>(launcher().attr("_manifest")(arch), "_manifest", "LaunchManifest");
  }
  [[nodiscard]] std::string make_cubin(int device, const std::string& arch) override {
    return hook_result<rt::Binary>(launcher().attr("_prepare")(device, arch), "_prepare", "Binary")->cubin;
  }

 private:
  PyObject* launcher_;  // which it is a part of
};

struct State {
  explicit State(PyObject* launcher) : kernel(launcher) {}
  PythonKernel kernel;
  gc::Launcher calls{kernel};
  std::unique_ptr<Names> names;  // of the arguments, once they are declared
};

struct LauncherObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  State* state;
  unsigned long long calls;
};

// Tensors of any library that has an exchange table.
struct OfALibrary {
  gc::Room<PyObject*, 32> written;  // PyTorch's

  [[nodiscard]] static bool takes(PyTypeObject*) { return true; }
  [[nodiscard]] bool allows(PyObject* object, const KnownType& type, const dlpack::Tensor&, const gc::Param& p) {
    if (negated_lazily(object, type)) return false;
    if (!p.written || !type.torch) return true;
    written.push(object);
    return may_be_written(object);
  }
};

class QuickCaller : public gc::Caller {
 public:
  QuickCaller(const dlpack::ExchangeApi* api, const OfALibrary& tensors, PyObject* stream, const std::string& kernel)
      : api_(api), tensors_(tensors), stream_(stream), kernel_(kernel) {}
  rt::CuStream stream(int device) override {
    if (stream_ != nullptr) return reinterpret_cast<rt::CuStream>(read_stream(stream_, kernel_));
    return stream_of_library(*api_, device);
  }
  void announce_written() override {
    for (PyObject* t : tensors_.written) raise_version(t);
  }

 private:
  const dlpack::ExchangeApi* api_;
  const OfALibrary& tensors_;
  PyObject* stream_;
  const std::string& kernel_;
};

// The call of a form that is known, launched; false: it has to be looked at in full.
bool launch_quickly(State& s, PyObject* const* args, std::size_t count, PyObject* keyword_names) {
  if (!s.names) return false;
  gc::Room<PyObject*, 48> ordered;
  PyObject* const* objects = args;
  PyObject* stream = nullptr;
  if (keyword_names != nullptr || count != s.names->size()) {
    ordered.reserve(s.names->size());
    if (!s.names->order(args, count, keyword_names, ordered.data(), stream, [](Names::Wrong, PyObject*) {}))
      return false;
    objects = ordered.data();
  }
  const std::string& name = s.calls.declared()->kernel_name;
  OfALibrary rules;
  QuickSource source(objects, name, rules);
  gc::Arguments call;
  if (gc::read(s.calls.params(), source, call, name) != gc::Read::Yes || source.api() == nullptr) return false;
  QuickCaller caller(source.api(), rules, stream, name);
  return s.calls.launch_known(call, caller);
}

class CheckedCaller : public gc::Caller {
 public:
  CheckedCaller(const CallArgs& call, const std::string& kernel) : call_(call), kernel_(kernel) {}
  rt::CuStream stream(int device) override {
    if (call_.stream != nullptr) return reinterpret_cast<rt::CuStream>(read_stream(call_.stream, kernel_));
    if (call_.api != nullptr && call_.api->current_stream != nullptr) return stream_of_library(*call_.api, device);
    if (call_.old_torch)
      return reinterpret_cast<rt::CuStream>(py::cast<std::intptr_t>(
          py::module_::import("torch").attr("cuda").attr("current_stream")(device).attr("cuda_stream")));
    if (call_.owner_streams_differ)
      throw Error(rt::launch_problem(Code::LAUNCH_STREAM, kernel_, "the arguments are ready on different streams", {},
                                     "pass stream= after making it wait for the others"));
    return reinterpret_cast<rt::CuStream>(call_.owner_stream.value_or(0));
  }
  void announce_written() override { bind::announce_written(call_, kernel_); }

 private:
  const CallArgs& call_;
  const std::string& kernel_;
};

std::shared_ptr<const rt::LaunchManifest> declare(State& s, const std::string& arch) {
  auto m = s.calls.manifest(arch);
  if (!s.names) s.names = std::make_unique<Names>(s.calls.params());
  return m;
}

// Everything is checked here, and what was checked is remembered.
void launch_in_full(State& s, int device, PyObject* const* args, std::size_t count, PyObject* keyword_names) {
  const Stage stage("check arguments");
  const auto m = declare(s, rt::device(device).arch);
  gc::Arguments call;
  const CallArgs read = read_call(*m, s.calls.params(), *s.names, args, count, keyword_names, true, call);
  CheckedCaller caller(read, m->kernel_name);
  s.calls.launch_checked(m, device, call, read.values, caller);
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
    if (launch_quickly(*self->state, args, count, keyword_names)) Py_RETURN_NONE;
    const std::size_t keywords =
        keyword_names == nullptr ? 0 : static_cast<std::size_t>(PyTuple_GET_SIZE(keyword_names));
    const auto device_id = device_of_call(args, count + keywords);
    if (!device_id) return call_host(object, args, count, keyword_names);
    launch_in_full(*self->state, *device_id, args, count, keyword_names);
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
  self->state = new (std::nothrow) State(reinterpret_cast<PyObject*>(self));
  if (self->state == nullptr) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  return reinterpret_cast<PyObject*>(self);
}

void launcher_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<LauncherObject*>(object);
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
    const auto m = declare(*self->state, rt::device(device_id).arch);
    static_cast<void>(self->state->kernel.function(*m, device_id, std::nullopt));
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

PyMemberDef kMembers[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(LauncherObject, vectorcall), READONLY, nullptr},
                          {"calls", T_ULONGLONG, offsetof(LauncherObject, calls), READONLY, "Calls so far."},
                          {nullptr, 0, 0, 0, nullptr}};

PyObject* get_misses(PyObject* object, void*) {
  return PyLong_FromUnsignedLongLong(reinterpret_cast<LauncherObject*>(object)->state->calls.misses());
}
PyGetSetDef kGetters[] = {
    {"misses", get_misses, nullptr,
     "Launches whose arguments had to be checked in full: a new form, or one that is not remembered.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

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

std::shared_ptr<gc::Kernel> launcher_kernel(const py::object& launcher) {
  const auto owner = std::make_shared<py::object>(launcher);
  return {owner, &reinterpret_cast<LauncherObject*>(launcher.ptr())->state->kernel};
}

py::object launcher_of(const gc::Kernel& kernel) {
  return py::reinterpret_borrow<py::object>(static_cast<const PythonKernel&>(kernel).launcher());
}

void register_launcher(py::module_& m) {
  static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(launcher_new)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(launcher_dealloc)},
                                {Py_tp_members, kMembers},
                                {Py_tp_getset, kGetters},
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
