// Positional and keyword arguments of Python calls -> what parameters declare.
#include "bind/python_arguments.h"

#include "bind/torch_host.h"

namespace graphene::bind {

namespace {

namespace rt = graphene::runtime;
using call::Param;
using call::ParamKind;
using call::Read;

std::string signature(const rt::LaunchManifest& m) {
  std::string s;
  for (const rt::ArgSpec& a : m.args) s += (s.empty() ? "" : ", ") + a.name;
  return m.kernel_name + "(" + s + ")";
}

[[noreturn]] void bad_arity(const rt::LaunchManifest& m, const std::string& what) {
  throw Error(rt::launch_problem(Code::LAUNCH_ARITY, m.kernel_name, what, {"signature: " + signature(m)},
                                 "pass each argument once, in this order or by name"));
}

std::string got(PyObject* object) { return "got:  " + std::string(Py_TYPE(object)->tp_name); }

// A Python string's characters, which it keeps.
Read read_text(PyObject* object, std::string_view& out) {
  Py_ssize_t n = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object, &n);
  if (text == nullptr) return Read::Error;
  out = std::string_view(text, static_cast<std::size_t>(n));
  return Read::Yes;
}

// The objects in declaration order.
std::vector<PyObject*> in_order(const rt::LaunchManifest& m, const Names& names, PyObject* const* args,
                                std::size_t count, PyObject* keyword_names, bool take_stream, PyObject*& stream) {
  std::vector<PyObject*> out(m.args.size(), nullptr);
  names.order(args, count, keyword_names, out.data(), stream, [&](Names::Wrong wrong, PyObject* name) {
    const std::string text = name == nullptr ? "" : printable_text(name);
    std::string missing;
    switch (wrong) {
      case Names::Wrong::TooMany:
        bad_arity(m, "takes " + std::to_string(out.size()) + " arguments, got " + std::to_string(count));
      case Names::Wrong::Unknown:
        bad_arity(m, "has no argument '" + text + "'");
      case Names::Wrong::Twice:
        bad_arity(m, "got argument '" + text + "' twice");
      case Names::Wrong::Missing:
        for (std::size_t i = 0; i < out.size(); ++i)
          if (out[i] == nullptr) missing += (missing.empty() ? "'" : ", '") + m.args[i].name + "'";
        bad_arity(m, "misses " + missing);
    }
  });
  if (stream != nullptr && stream != Py_None && !take_stream)
    throw Error(rt::launch_problem(Code::LAUNCH_STREAM, m.kernel_name,
                                   "stream= is where a GPU runs the kernel, and these arguments are for the simulator",
                                   {}, "leave stream= out, or pass CUDA tensors"));
  return out;
}

// `f(object)` for each argument and each item of a list, until one is true.
template <class F>
void each_object(PyObject* const* args, std::size_t count, F&& f) {
  for (std::size_t i = 0; i < count; ++i) {
    if (PyList_Check(args[i]) == 0 && PyTuple_Check(args[i]) == 0) {
      if (f(args[i])) return;
      continue;
    }
    for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(args[i]); ++k)
      if (f(PySequence_Fast_GET_ITEM(args[i], k))) return;
  }
}

// The first tensor on a GPU that has an exchange table.
struct OnGpu {
  const dlpack::ExchangeApi* api = nullptr;
  int device = 0;
};
OnGpu first_on_gpu(PyObject* const* args, std::size_t count) {
  OnGpu found;
  each_object(args, count, [&](PyObject* o) {
    const dlpack::ExchangeApi* const api = exchange_api(Py_TYPE(o));
    dlpack::Tensor t;
    if (api == nullptr) return false;
    if (api->view_from_object(o, &t) != 0)
      PyErr_Clear();
    else if (tensor_arg(t).device.on_cuda())
      found = {api, t.device.id};
    return found.api != nullptr;
  });
  return found;
}

// The arguments of a kernel, whatever they are: what is wrong with one becomes its problem, and the others are read.
class CheckedSource : public PythonScalars {
 public:
  CheckedSource(const rt::LaunchManifest& m, const std::vector<PyObject*>& objects, CallArgs& call)
      : PythonScalars(objects.data(), m.kernel_name), count_(objects.size()), call_(call) {
    call_.values.resize(objects.size());
  }

  using PythonScalars::item;
  Read tensor(std::size_t i, const Param& p, rt::TensorArg& out) { return read(i, p, objects_[i], p.name, out); }
  Read item(std::size_t i, std::size_t k, const Param& p, rt::TensorArg& out) {
    const auto at = static_cast<Py_ssize_t>(k);
    if (at >= PySequence_Fast_GET_SIZE(objects_[i])) {  // reading an item has changed the list
      call_.values[i].tensors.emplace_back();
      return not_as_declared(i, p, at);
    }
    PyObject* const object = call_.keep.object(Py_NewRef(PySequence_Fast_GET_ITEM(objects_[i], at)));
    return read(i, p, object, p.name + "[" + std::to_string(k) + "]", out);
  }
  Read list(std::size_t i, const Param& p, std::size_t& out) {
    out = 0;
    if (PyList_Check(objects_[i]) == 0 && PyTuple_Check(objects_[i]) == 0)
      return wrong(i, p, "is not a list of tensors",
                   {"want: " + std::to_string(p.count) + " tensors", got(objects_[i])}, "pass a list");
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(objects_[i]);
    if (n != p.count) return not_as_declared(i, p, n);
    out = static_cast<std::size_t>(n);
    return Read::Yes;
  }
  Read packed(std::size_t i, const Param& p, std::uint64_t& out) {
    rt::ScalarArg& scalar = call_.values[i].scalar;
    if (!read_scalar(objects_[i], scalar))
      return wrong(i, p, "is not a number", {"want: a Python number for " + p.dtype.name, got(objects_[i])},
                   "pass a number; of a tensor, tensor.item()");
    out = rt::pack_scalar(p.dtype, scalar).value_or(0);  // what does not fit is said where calls are checked
    return Read::Yes;
  }

 private:
  Read wrong(std::size_t i, const Param& p, const std::string& what, std::vector<std::string> details,
             std::string fix) {
    call_.values[i].problem = rt::launch_problem(Code::LAUNCH_TYPE, callee_, "argument '" + p.name + "' " + what,
                                                 std::move(details), std::move(fix));
    return Read::Yes;
  }
  Read not_as_declared(std::size_t i, const Param& p, Py_ssize_t n) {
    return wrong(i, p, "has the wrong number of tensors",
                 {"want: " + std::to_string(p.count), "got:  " + std::to_string(n)}, "pass as many as declared");
  }

  Read read(std::size_t i, const Param& p, PyObject* object, const std::string& name, rt::TensorArg& out) {
    rt::ArgValue& value = call_.values[i];
    if (p.written && is_known_torch(Py_TYPE(object))) call_.written.emplace_back(name, object);
    const dlpack::ExchangeApi* const api = exchange_api(Py_TYPE(object));
    // What has no table is told where its data must be ready.
    ReadResult r =
        read_tensor(object, callee_, name, call_.keep, api != nullptr ? std::nullopt : stream_of_the_others());
    value.tensors.emplace_back();
    out = {};
    if (r.problem) {
      if (!value.problem) value.problem = std::move(r.problem);
      return Read::Yes;
    }
    out = value.tensors.back() = *r.tensor;
    const bool on_cuda = r.tensor->device.on_cuda();
    if (api != nullptr && call_.api == nullptr && on_cuda) call_.api = api;
    if (r.stream) {
      call_.owner_streams_differ =
          call_.owner_streams_differ || (call_.owner_stream && *call_.owner_stream != *r.stream);
      call_.owner_stream = r.stream;
    }
    call_.old_torch = call_.old_torch || (api == nullptr && on_cuda && py::hasattr(py::handle(object), "data_ptr"));
    return Read::Yes;
  }

  const std::optional<std::intptr_t>& stream_of_the_others() {
    if (asked_) return stream_;
    asked_ = true;
    if (call_.stream != nullptr) {
      stream_ = read_stream(call_.stream, callee_);
    } else if (const OnGpu gpu = first_on_gpu(objects_, count_);
               gpu.api != nullptr && gpu.api->current_stream != nullptr) {
      void* s = nullptr;
      if (gpu.api->current_stream(rt::kCuda, gpu.device, &s) == 0)
        stream_ = reinterpret_cast<std::intptr_t>(s);
      else
        PyErr_Clear();
    }
    return stream_;
  }

  std::size_t count_;
  CallArgs& call_;
  bool asked_ = false;
  std::optional<std::intptr_t> stream_;
};

// The arguments of an operator: the first that cannot be read is an error.
class AnySource : public PythonScalars {
 public:
  AnySource(PyObject* const* objects, const std::string& callee, Keep& keep)
      : PythonScalars(objects, callee), keep_(keep) {}

  using PythonScalars::item;
  Read list(std::size_t i, const Param& p, std::size_t& out) {
    if (p.kind == ParamKind::TensorList && PyList_Check(objects_[i]) == 0 && PyTuple_Check(objects_[i]) == 0)
      fail(Code::OP_ARGUMENT, callee_ + ": argument '" + p.name + "' is not a list of tensors", {got(objects_[i])},
           "pass a list or a tuple");
    return PythonScalars::list(i, p, out);
  }
  Read tensor(std::size_t i, const Param& p, rt::TensorArg& out) { return read(objects_[i], p.name, out); }
  Read item(std::size_t i, std::size_t k, const Param& p, rt::TensorArg& out) {
    const auto at = static_cast<Py_ssize_t>(k);
    if (at >= PySequence_Fast_GET_SIZE(objects_[i])) return Read::NotHere;  // reading an item has changed the list
    PyObject* const object = keep_.object(Py_NewRef(PySequence_Fast_GET_ITEM(objects_[i], at)));
    return read(object, p.name + "[" + std::to_string(k) + "]", out);
  }

 private:
  Read read(PyObject* object, const std::string& name, rt::TensorArg& out) {
    ReadResult r = read_tensor(object, callee_, name, keep_, std::nullopt);
    if (r.problem) throw Error(*r.problem);
    out = *r.tensor;
    return Read::Yes;
  }

  Keep& keep_;
};

}  // namespace

Names::Names(const std::vector<Param>& params) {
  for (const Param& p : params) names_.push_back(PyUnicode_InternFromString(p.name.c_str()));
}

std::size_t Names::find_text(PyObject* name) const {
  for (std::size_t i = 0; i < names_.size(); ++i)
    if (names_[i] == name || PyUnicode_Compare(names_[i], name) == 0) return i;
  return names_.size();
}

bool Names::names_stream(PyObject* name) {
  static PyObject* const stream = PyUnicode_InternFromString("stream");
  return name == stream || PyUnicode_Compare(name, stream) == 0;
}

void PythonScalars::wrong(const Param& p, const char* want, PyObject* object) const {
  fail(Code::OP_ARGUMENT, callee_ + ": argument '" + p.name + "' is not " + want, {got(object)},
       "pass " + std::string(want));
}

Read PythonScalars::integer(std::size_t i, const Param& p, std::int64_t& out) {
  rt::ScalarArg s;
  if (read_scalar(objects_[i], s) && s.kind == rt::ScalarArg::Kind::Int) {
    out = s.i;
    return Read::Yes;
  }
  if (PyIndex_Check(objects_[i]) == 0) wrong(p, "an integer", objects_[i]);
  return Read::NotHere;  // a tensor, perhaps, or what is too large: the checks in Python know
}

Read PythonScalars::boolean(std::size_t i, const Param& p, std::int64_t& out) {
  if (PyBool_Check(objects_[i]) == 0) wrong(p, "a bool", objects_[i]);
  out = objects_[i] == Py_True ? 1 : 0;
  return Read::Yes;
}

Read PythonScalars::number(std::size_t i, const Param& p, double& out) {
  rt::ScalarArg s;
  if (!read_scalar(objects_[i], s)) wrong(p, "a number", objects_[i]);
  if (s.kind == rt::ScalarArg::Kind::TooLarge) return Read::NotHere;  // likewise
  out = s.kind == rt::ScalarArg::Kind::Float  ? s.f
        : s.kind == rt::ScalarArg::Kind::UInt ? static_cast<double>(s.u)
                                              : static_cast<double>(s.i);
  return Read::Yes;
}

Read PythonScalars::text(std::size_t i, const Param& p, std::string_view& out) {
  if (PyUnicode_Check(objects_[i]) == 0) wrong(p, "a string or None", objects_[i]);
  return read_text(objects_[i], out);
}

Read PythonScalars::dtype(std::size_t i, const Param&, std::int64_t& out) {
  for (const auto& [dtype, number] : torch_names().numbers)
    if (dtype == objects_[i]) {
      out = number;
      return Read::Yes;
    }
  return Read::NotHere;
}

Read PythonScalars::packed(std::size_t i, const Param& p, std::uint64_t& out) {
  rt::ScalarArg s;
  if (!read_scalar(objects_[i], s)) return Read::NotHere;
  const auto bits = rt::pack_scalar(p.dtype, s);
  if (!bits) return Read::NotHere;
  out = *bits;
  return Read::Yes;
}

Read PythonScalars::list(std::size_t i, const Param& p, std::size_t& out) {
  PyObject* const object = objects_[i];
  if (p.kind == ParamKind::IntList && PyLong_Check(object) != 0) {
    out = 1;
    return Read::Yes;
  }
  if (PyTuple_Check(object) == 0 && PyList_Check(object) == 0) return Read::NotHere;
  out = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(object));
  return p.count == 0 || out == static_cast<std::size_t>(p.count) ? Read::Yes : Read::NotHere;
}

Read PythonScalars::item(std::size_t i, std::size_t k, const Param& p, std::int64_t& out) {
  PyObject* const object = objects_[i];
  PyObject* const item =
      PyLong_Check(object) != 0 ? object : PySequence_Fast_GET_ITEM(object, static_cast<Py_ssize_t>(k));
  if (p.kind == ParamKind::BoolList) {
    out = item == Py_True ? 1 : 0;
    return PyBool_Check(item) != 0 ? Read::Yes : Read::NotHere;
  }
  int overflow = 0;
  if (PyLong_Check(item) == 0) return Read::NotHere;
  out = std::int64_t{PyLong_AsLongLongAndOverflow(item, &overflow)};
  return overflow == 0 ? Read::Yes : Read::NotHere;  // no extent is so large: the checks in Python say which it is not
}

Read PythonScalars::item(std::size_t i, std::size_t k, const Param&, std::string_view& out) {
  PyObject* const item = PySequence_Fast_GET_ITEM(objects_[i], static_cast<Py_ssize_t>(k));
  return PyUnicode_Check(item) == 0 ? Read::NotHere : read_text(item, out);
}

std::optional<int> device_of_call(PyObject* const* args, std::size_t count) {
  if (const OnGpu gpu = first_on_gpu(args, count); gpu.api != nullptr) return gpu.device;
  std::optional<int> found;
  each_object(args, count, [&](PyObject* o) {
    if (PyLong_Check(o) != 0 || PyFloat_Check(o) != 0 || o == Py_None || exchange_api(Py_TYPE(o)) != nullptr)
      return false;
    Keep keep;
    const ReadResult r = read_tensor(o, "", "", keep, std::nullopt);
    if (r.tensor && r.tensor->device.on_cuda()) found = r.tensor->device.id;
    return found.has_value();
  });
  return found;
}

std::intptr_t read_stream(PyObject* object, const std::string& kernel) {
  const auto handle_of = [](const py::handle& value) -> std::optional<std::intptr_t> {
    if (PyLong_Check(value.ptr()) == 0 || PyBool_Check(value.ptr()) != 0) return std::nullopt;
    void* p = PyLong_AsVoidPtr(value.ptr());
    if (PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      return std::nullopt;
    }
    return reinterpret_cast<std::intptr_t>(p);
  };
  if (object == Py_None) return 0;
  const py::handle o(object);
  try {
    if (const auto h = handle_of(o)) return *h;
    if (py::hasattr(o, "__cuda_stream__")) {
      const auto pair = py::cast<py::tuple>(o.attr("__cuda_stream__")());
      if (pair.size() == 2)
        if (const auto h = handle_of(pair[1])) return *h;
    }
    for (const char* attribute : {"cuda_stream", "ptr"})
      if (py::hasattr(o, attribute))
        if (const auto h = handle_of(py::object(o.attr(attribute)))) return *h;
  } catch (const py::error_already_set&) {
  } catch (const py::cast_error&) {
  }
  throw Error(rt::launch_problem(Code::LAUNCH_STREAM, kernel, "stream= is not a CUDA stream", {"got:  " + shown(o)},
                                 "pass a torch.cuda.Stream, a cupy.cuda.Stream, an object with __cuda_stream__, or the "
                                 "handle as an integer"));
}

CallArgs read_call(const rt::LaunchManifest& m, const std::vector<Param>& params, const Names& names,
                   PyObject* const* args, std::size_t count, PyObject* keyword_names, bool take_stream,
                   call::Arguments& out) {
  CallArgs call;
  const auto objects = in_order(m, names, args, count, keyword_names, take_stream, call.stream);
  CheckedSource source(m, objects, call);
  const Read r = call::read(params, source, out, m.kernel_name);
  GR_ASSERT(r == Read::Yes, m.kernel_name + ": what is wrong about an argument is its problem");
  return call;
}

CallArgs read_call(const rt::LaunchManifest& m, const py::tuple& args, const py::dict& named) {
  std::vector<PyObject*> objects;
  for (const py::handle a : args) objects.push_back(a.ptr());
  py::list names;
  for (const auto& [name, value] : named) {
    names.append(name);
    objects.push_back(value.ptr());
  }
  const py::tuple keywords(names);
  const auto params = call::params_of(m);
  call::Arguments out;
  return read_call(m, params, Names(params), objects.data(), args.size(), keywords.ptr(), false, out);
}

void read_operator_call(const std::vector<Param>& params, PyObject* const* objects, const std::string& callee,
                        Keep& keep, call::Arguments& out) {
  AnySource source(objects, callee, keep);
  for (std::size_t i = 0; i < params.size(); ++i) {
    const Read r = call::read_one(params[i], i, source, out, callee);
    if (r == Read::Error) throw py::error_already_set();
    if (r == Read::NotHere)
      fail(Code::OP_ARGUMENT, callee + ": argument '" + params[i].name + "' cannot be read",
           {"got:  " + std::string(Py_TYPE(objects[i])->tp_name)}, "pass what the operator's documentation says");
  }
}

}  // namespace graphene::bind
