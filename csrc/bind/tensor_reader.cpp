#include "bind/tensor_reader.h"

#include <array>
#include <cstring>
#include <utility>

#include "base/scalars.h"
#include "bind/bind.h"
#include "bind/torch_written.h"

namespace graphene::bind {

namespace {

using runtime::TensorArg;

// Interned for the life of the process.
PyObject* interned(const char* text) { return PyUnicode_InternFromString(text); }

// First line of a Python error's text.
std::string text_of(const py::error_already_set& e) {
  std::string text = "an error without text";
  try {
    text = printable_text(py::str(e.value()));
  } catch (const py::error_already_set&) {
  }
  return text.substr(0, text.find('\n'));
}

std::string type_name(PyObject* o) {
  const py::object type = py::type::of(py::handle(o));
  const std::string module = printable_text(py::str(py::getattr(type, "__module__", py::str(""))));
  const std::string name = printable_text(py::str(py::getattr(type, "__qualname__", py::str("?"))));
  return module.empty() || module == "builtins" ? name : module + "." + name;
}

bool set_named_type(const std::string& name, TensorArg& t) {
  if (name == "float8_e4m3fnuz") {  // no kernel takes it: it is named so that a message can say what was passed
    t.code = 11;
    t.bits = 8;
    return true;
  }
  const Scalar* s = find_array_scalar(name);
  if (s == nullptr) return false;
  t.code = s->dlpack;
  t.bits = static_cast<std::uint8_t>(s->bits);
  return true;
}

// The attribute, or nothing where there is none; any other error is the object's own and is thrown.
std::optional<py::object> attribute(py::handle o, const char* name) {
  PyObject* v = PyObject_GetAttrString(o.ptr(), name);
  if (v != nullptr) return py::reinterpret_steal<py::object>(v);
  if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) throw py::error_already_set();
  PyErr_Clear();
  return std::nullopt;
}

// What one reading attempt needs.
struct Context {
  PyObject* object;
  const std::string& kernel;
  const std::string& name;
  Keep& keep;

  [[nodiscard]] ReadResult problem(Code code, const std::string& what, std::vector<std::string> details,
                                   std::string fix) const {
    ReadResult r;
    r.problem =
        runtime::launch_problem(code, kernel, "argument '" + name + "' " + what, std::move(details), std::move(fix));
    return r;
  }
  [[nodiscard]] ReadResult negated() const {
    return problem(Code::LAUNCH_STORAGE, "is negated lazily: its memory holds the numbers with the other sign", {},
                   "pass " + name + ".resolve_neg()");
  }
  [[nodiscard]] ReadResult no_storage(const std::string& why) const {
    return problem(Code::LAUNCH_STORAGE, "is a tensor without storage",
                   {"got:  " + type_name(object), "its library says: " + why},
                   "call the kernel on real tensors: outside of vmap, grad and tracing, or as a registered operator");
  }
};

// "<f2" of the array interfaces. NumPy knows no bfloat16: ml_dtypes' types are opaque ("<V2") and have a name.
std::optional<Diagnostic> set_type_string(const Context& c, const std::string& type, TensorArg& t) {
  const int bytes = type.size() > 2 ? std::atoi(type.c_str() + 2) : 0;
  t.bits = static_cast<std::uint8_t>(bytes <= 16 ? bytes * 8 : 0);
  const char kind = type.size() > 1 ? type[1] : '?';
  if (!type.empty() && type[0] == '>' && bytes > 1)
    return c
        .problem(Code::LAUNCH_DTYPE, "has bytes in big-endian order", {"got:  " + type},
                 "pass " + c.name + ".astype(" + c.name + ".dtype.newbyteorder('='))")
        .problem;
  switch (kind) {
    case 'f':
      if (bytes == 1) break;  // one of several 8-bit formats: the name says which
      t.code = 2;
      return std::nullopt;
    case 'i':
      t.code = 0;
      return std::nullopt;
    case 'u':
      t.code = 1;
      return std::nullopt;
    case 'b':
      t.code = 6;
      return std::nullopt;
    case 'c':
      t.code = 5;
      return std::nullopt;
    default:
      break;
  }
  const py::object dtype = py::getattr(py::handle(c.object), "dtype", py::none());
  const std::string name = printable_text(py::str(py::getattr(dtype, "name", py::str(type))));
  if (set_named_type(name, t)) return std::nullopt;
  return c
      .problem(Code::LAUNCH_DTYPE, "has elements that are not numbers", {"got:  " + name},
               "pass an array of a numeric dtype, such as " + c.name + ".astype(np.float32)")
      .problem;
}

// Shape and byte strides of an array interface -> elements.
std::optional<Diagnostic> set_shape(const Context& c, const py::dict& d, TensorArg& t) {
  const auto shape = py::cast<std::vector<std::int64_t>>(d["shape"]);
  t.ndim = static_cast<int>(shape.size());
  t.shape = c.keep.list(shape);
  const std::int64_t bytes = t.bits / 8;
  if (!d.contains("strides") || d["strides"].is_none() || bytes == 0) return std::nullopt;
  auto strides = py::cast<std::vector<std::int64_t>>(d["strides"]);
  if (strides.size() != shape.size())
    return c.problem(Code::LAUNCH_TYPE, "describes itself wrongly: shape and strides differ in length", {}, "").problem;
  for (std::size_t i = 0; i < strides.size(); ++i) {
    if (strides[i] % bytes != 0 && shape[i] > 1)
      return c
          .problem(Code::LAUNCH_STRIDE, "has strides that are not whole elements",
                   {"stride: " + std::to_string(strides[i]) + " bytes, element: " + std::to_string(bytes) + " bytes"},
                   "pass a copy")
          .problem;
    strides[i] /= bytes;
  }
  t.strides = c.keep.list(std::move(strides));
  return std::nullopt;
}

ReadResult read_array_interface(const Context& c, const py::dict& d, bool cuda) {
  TensorArg t;
  t.raw_bits = true;
  if (auto p = set_type_string(c, py::cast<std::string>(d["typestr"]), t))
    return {.tensor = {}, .problem = p, .stream = {}};
  if (auto p = set_shape(c, d, t)) return {.tensor = {}, .problem = p, .stream = {}};
  if (!d.contains("data") || d["data"].is_none()) return c.problem(Code::LAUNCH_TYPE, "has no data of its own", {}, "");
  const auto data = py::cast<py::tuple>(d["data"]);
  t.data = reinterpret_cast<void*>(data[0].is_none() ? 0 : py::cast<std::uintptr_t>(data[0]));
  t.readonly = py::cast<bool>(data[1]);
  ReadResult r;
  if (cuda) {
    t.device = {runtime::kCuda, 0};
    const py::object device = py::getattr(py::handle(c.object), "device", py::none());
    for (const char* attribute : {"id", "index"})  // CuPy's Device.id; others name it index
      if (py::hasattr(device, attribute) && py::isinstance<py::int_>(device.attr(attribute)))
        t.device.id = py::cast<std::int32_t>(device.attr(attribute));
    if (d.contains("stream") && !d["stream"].is_none()) r.stream = py::cast<std::intptr_t>(d["stream"]);
  }
  r.tensor = t;
  return r;
}

// torch.Tensor before the exchange table.
ReadResult read_torch(const Context& c) {
  const py::handle o(c.object);
  TensorArg t;
  std::string dtype = printable_text(py::str(o.attr("dtype")));
  if (dtype.starts_with("torch.")) dtype = dtype.substr(6);
  if (!set_named_type(dtype, t))
    return c.problem(Code::LAUNCH_DTYPE, "has a dtype that kernels do not take", {"got:  " + dtype},
                     "pass a tensor of a numeric dtype, such as " + c.name + ".float()");
  const auto kind = py::cast<std::string>(o.attr("device").attr("type"));
  const py::object index = o.attr("device").attr("index");
  if (kind == "cuda")
    t.device = {runtime::kCuda, index.is_none() ? 0 : py::cast<std::int32_t>(index)};
  else if (kind != "cpu")
    return kind == "meta"
               ? c.no_storage("device 'meta'")
               : c.problem(Code::LAUNCH_DEVICE, "is on a device that kernels do not run on", {"got:  " + kind},
                           "pass CUDA tensors, or CPU tensors and NumPy arrays for the simulator");
  if (py::hasattr(o, "is_neg") && py::cast<bool>(o.attr("is_neg")())) return c.negated();
  t.shape = c.keep.list(py::cast<std::vector<std::int64_t>>(py::tuple(o.attr("shape"))));
  t.strides = c.keep.list(py::cast<std::vector<std::int64_t>>(py::tuple(o.attr("stride")())));
  t.ndim = static_cast<int>(py::len(o.attr("shape")));
  t.data = reinterpret_cast<void*>(py::cast<std::uintptr_t>(o.attr("data_ptr")()));
  return {.tensor = t, .problem = {}, .stream = {}};
}

ReadResult read_dlpack(const Context& c, std::optional<std::intptr_t> stream) {
  const py::handle o(c.object);
  const auto device = py::cast<std::pair<int, int>>(o.attr("__dlpack_device__")());
  py::dict kw;
  // 1 names the default stream; 0 would be ambiguous and is not allowed.
  if (device.first == runtime::kCuda) kw["stream"] = stream.value_or(0) == 0 ? 1 : *stream;
  py::object capsule;
  try {
    py::dict versioned(**kw);
    versioned["max_version"] = py::make_tuple(1, 0);
    capsule = o.attr("__dlpack__")(**versioned);
  } catch (py::error_already_set& e) {
    if (!e.matches(PyExc_TypeError)) throw;
    capsule = o.attr("__dlpack__")(**kw);
  }
  c.keep.object(capsule.inc_ref().ptr());
  const dlpack::Tensor* t = nullptr;
  bool readonly = false;
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
    const auto* m =
        static_cast<const dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (m->version.major == 1) t = &m->tensor;
    readonly = (m->flags & dlpack::kReadOnly) != 0;
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor") != 0) {
    t = &static_cast<const dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor;
  }
  if (t == nullptr) return c.problem(Code::LAUNCH_TYPE, "exports DLPack of an unknown version", {}, "");
  ReadResult r;
  r.tensor = tensor_arg(*t);
  r.tensor->readonly = readonly;
  return r;
}

ReadResult read_buffer(const Context& c) {
  auto view = py::reinterpret_steal<py::object>(PyMemoryView_FromObject(c.object));
  if (!view) throw py::error_already_set();
  const Py_buffer* b = PyMemoryView_GET_BUFFER(view.ptr());
  c.keep.object(view.inc_ref().ptr());
  TensorArg t;
  t.raw_bits = true;
  const std::string format = b->format != nullptr ? b->format : "B";
  const char kind = format.size() == 1                                             ? format[0]
                    : format.size() == 2 && (format[0] == '<' || format[0] == '=') ? format[1]
                                                                                   : '?';
  t.bits = static_cast<std::uint8_t>(b->itemsize * 8);
  if (std::strchr("efd", kind) != nullptr)
    t.code = 2;
  else if (std::strchr("bhilqn", kind) != nullptr)
    t.code = 0;
  else if (std::strchr("BHILQN", kind) != nullptr)
    t.code = 1;
  else if (kind == '?' && format == "?")
    t.code = 6;
  else
    return c.problem(Code::LAUNCH_DTYPE, "has elements that are not numbers", {"got:  format '" + format + "'"},
                     "pass memory whose format is a number's, such as 'f' or 'i'");
  t.data = b->buf;
  t.readonly = b->readonly != 0;
  t.ndim = b->ndim;
  t.shape = c.keep.list(std::vector<std::int64_t>(b->shape, b->shape + b->ndim));
  std::vector<std::int64_t> strides(b->strides, b->strides + b->ndim);
  for (auto& s : strides) s /= b->itemsize;
  t.strides = c.keep.list(std::move(strides));
  return {.tensor = t, .problem = {}, .stream = {}};
}

KnownType ask_type(PyTypeObject* type) {
  static PyObject* const table = interned("__dlpack_c_exchange_api__");
  static PyObject* const is_neg = interned("is_neg");
  KnownType k{type, nullptr, nullptr, is_torch_tensor(type)};
  PyObject* capsule = PyObject_GetAttr(reinterpret_cast<PyObject*>(type), table);
  if (capsule != nullptr) {
    if (PyCapsule_IsValid(capsule, "dlpack_exchange_api") != 0)
      k.api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    Py_DECREF(capsule);
  }
  PyErr_Clear();
  if (k.api != nullptr && (k.api->version.major != 1 || k.api->view_from_object == nullptr)) k.api = nullptr;
  if (k.api != nullptr) k.is_neg = PyObject_GetAttr(reinterpret_cast<PyObject*>(type), is_neg);
  PyErr_Clear();
  return k;
}

// Types are few and kept alive, so that an address never comes to mean another type.
std::array<KnownType, 8> known_types{};

ReadResult read_slowly(const Context& c, std::optional<std::intptr_t> stream) {
  const py::handle o(c.object);
  if (const auto d = attribute(o, "__array_interface__")) {
    // NumPy's masked arrays show the memory under their mask.
    if (attribute(o, "mask") && attribute(o, "filled"))
      return c.problem(
          Code::LAUNCH_TYPE, "is a masked array, and kernels know no masks", {"got:  " + type_name(c.object)},
          "pass " + c.name + ".data, the numbers without the mask; of what is only read, " + c.name + ".filled(0)");
    return read_array_interface(c, py::cast<py::dict>(*d), false);
  }
  if (attribute(o, "data_ptr") && attribute(o, "stride")) return read_torch(c);
  if (const auto d = attribute(o, "__cuda_array_interface__"))
    return read_array_interface(c, py::cast<py::dict>(*d), true);
  if (attribute(o, "__dlpack__") && attribute(o, "__dlpack_device__")) return read_dlpack(c, stream);
  if (PyObject_CheckBuffer(c.object) != 0) return read_buffer(c);
  return c.problem(Code::LAUNCH_TYPE, "is not a tensor", {"got:  " + type_name(c.object)},
                   "pass a torch.Tensor, a NumPy array, or anything with __dlpack__ or __cuda_array_interface__");
}

}  // namespace

const KnownType& known_type(PyTypeObject* type) {
  for (const KnownType& k : known_types)
    if (k.type == type) return k;
  static std::size_t next = 0;
  KnownType& slot = known_types[next];
  next = (next + 1) % known_types.size();
  const KnownType fresh = ask_type(type);
  Py_INCREF(type);
  const KnownType old = std::exchange(slot, fresh);
  Py_XDECREF(old.is_neg);
  Py_XDECREF(old.type);
  return slot;
}

const dlpack::ExchangeApi* exchange_api(PyTypeObject* type) { return known_type(type).api; }

bool is_known_torch(PyTypeObject* type) { return known_type(type).torch; }

bool negated_lazily(PyObject* object) { return negated_lazily(object, known_type(Py_TYPE(object))); }

bool negated_lazily(PyObject* object, const KnownType& type) {
  // Asked of every tensor of every launch, so without Python where that is possible.
  if (type.torch) {
    if (const auto said = negated_by_torch(object)) return *said;
  }
  PyObject* const method = type.is_neg;
  if (method == nullptr) return false;
  PyObject* answer = nullptr;
  if (Py_TYPE(method) == &PyMethodDescr_Type) {
    const PyMethodDef* def = reinterpret_cast<PyMethodDescrObject*>(method)->d_method;
    if ((def->ml_flags & METH_NOARGS) != 0) answer = def->ml_meth(object, nullptr);
  }
  if (answer == nullptr && PyErr_Occurred() == nullptr) answer = PyObject_CallOneArg(method, object);
  const bool yes = answer == Py_True;
  Py_XDECREF(answer);
  PyErr_Clear();
  return yes;
}

ReadResult read_tensor(PyObject* object, const std::string& kernel, const std::string& name, Keep& keep,
                       std::optional<std::intptr_t> stream) {
  const Context c{object, kernel, name, keep};
  if (const auto* api = exchange_api(Py_TYPE(object))) {
    dlpack::Tensor t;
    if (api->view_from_object(object, &t) != 0) return c.no_storage(text_of(py::error_already_set()));
    ReadResult r;
    r.tensor = tensor_arg(t);
    // A null address with elements is how a fake or functionalised torch tensor looks from here.
    if (r.tensor->data == nullptr && r.tensor->numel() > 0)
      r.problem = c.no_storage("the address of its data is null").problem;
    else if (negated_lazily(object))
      r.problem = c.negated().problem;
    return r;
  }
  try {
    return read_slowly(c, stream);
  } catch (const py::error_already_set& e) {
    return c.problem(Code::LAUNCH_TYPE, "cannot be read",
                     {"got:  " + type_name(object), "its library says: " + text_of(e)},
                     "pass a torch.Tensor, a NumPy array, or anything with __dlpack__ or __cuda_array_interface__");
  } catch (const py::cast_error& e) {
    return c.problem(Code::LAUNCH_TYPE, "describes itself wrongly", {"got:  " + type_name(object)}, "");
  }
}

bool read_scalar(PyObject* object, runtime::ScalarArg& out) {
  using Kind = runtime::ScalarArg::Kind;
  if (PyBool_Check(object)) {
    out.kind = Kind::Bool;
    out.i = object == Py_True ? 1 : 0;
    return true;
  }
  if (PyFloat_Check(object)) {
    out.kind = Kind::Float;
    out.f = PyFloat_AS_DOUBLE(object);
    return true;
  }
  if (!PyLong_Check(object)) {
    // A tensor would be read by waiting for its device: that is for the caller to ask for.
    if (exchange_api(Py_TYPE(object)) != nullptr) return false;
    if (PyIndex_Check(object) == 0) {
      if (Py_TYPE(object)->tp_as_number == nullptr || Py_TYPE(object)->tp_as_number->nb_float == nullptr) return false;
      out.kind = Kind::Float;
      out.f = PyFloat_AsDouble(object);
      if (PyErr_Occurred() == nullptr) return true;
      PyErr_Clear();
      return false;
    }
  }
  PyObject* index = PyNumber_Index(object);
  if (index == nullptr) {
    PyErr_Clear();
    return false;
  }
  int overflow = 0;
  out.kind = Kind::Int;
  out.i = PyLong_AsLongLongAndOverflow(index, &overflow);
  if (overflow > 0) {
    out.kind = Kind::UInt;
    out.u = PyLong_AsUnsignedLongLong(index);
  }
  if (overflow < 0 || PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    out.kind = Kind::Float;
    out.f = PyLong_AsDouble(index);
    if (PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      out.kind = Kind::TooLarge;
    }
  }
  Py_DECREF(index);
  return true;
}

}  // namespace graphene::bind
