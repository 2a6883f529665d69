// Positional and keyword arguments -> the values of a manifest's arguments.
#include <algorithm>

#include "bind/bind.h"
#include "bind/tensor_reader.h"

namespace graphene::bind {

namespace {

namespace rt = graphene::runtime;

std::string signature(const rt::LaunchManifest& m) {
  std::string s;
  for (const rt::ArgSpec& a : m.args) s += (s.empty() ? "" : ", ") + a.name;
  return m.kernel_name + "(" + s + ")";
}

[[noreturn]] void bad_arity(const rt::LaunchManifest& m, const std::string& what) {
  throw Error(rt::launch_problem(Code::LAUNCH_ARITY, m.kernel_name, what, {"signature: " + signature(m)},
                                 "pass each argument once, in this order or by name"));
}

// The objects in declaration order.
std::vector<PyObject*> in_order(const rt::LaunchManifest& m, PyObject* const* args, std::size_t count,
                                PyObject* keyword_names, bool take_stream, PyObject*& stream) {
  std::vector<PyObject*> out(m.args.size(), nullptr);
  if (count > out.size())
    bad_arity(m, "takes " + std::to_string(out.size()) + " arguments, got " + std::to_string(count));
  std::copy(args, args + count, out.begin());
  const Py_ssize_t keywords = keyword_names == nullptr ? 0 : PyTuple_GET_SIZE(keyword_names);
  for (Py_ssize_t k = 0; k < keywords; ++k) {
    const auto name = py::cast<std::string>(py::handle(PyTuple_GET_ITEM(keyword_names, k)));
    PyObject* value = args[count + static_cast<std::size_t>(k)];
    const auto it = std::find_if(m.args.begin(), m.args.end(), [&](const rt::ArgSpec& a) { return a.name == name; });
    if (it == m.args.end()) {
      if (name == "stream" && (take_stream || value == Py_None)) {
        stream = value;
        continue;
      }
      if (name == "stream")
        throw Error(rt::launch_problem(Code::LAUNCH_STREAM, m.kernel_name,
                                       "stream= is where a GPU runs the kernel, and "
                                       "these arguments are for the simulator",
                                       {}, "leave stream= out, or pass CUDA tensors"));
      bad_arity(m, "has no argument '" + name + "'");
    }
    PyObject*& slot = out[static_cast<std::size_t>(it - m.args.begin())];
    if (slot != nullptr) bad_arity(m, "got argument '" + name + "' twice");
    slot = value;
  }
  std::string missing;
  for (std::size_t i = 0; i < out.size(); ++i)
    if (out[i] == nullptr) missing += (missing.empty() ? "'" : ", '") + m.args[i].name + "'";
  if (!missing.empty()) bad_arity(m, "misses " + missing);
  return out;
}

// One tensor of the call that has no exchange table: read once the stream is known.
struct Later {
  std::size_t arg, index;
  PyObject* object;
  std::string name;
};

}  // namespace

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

CallArgs read_call(const rt::LaunchManifest& m, PyObject* const* args, std::size_t count, PyObject* keyword_names,
                   bool take_stream) {
  CallArgs call;
  const auto objects = in_order(m, args, count, keyword_names, take_stream, call.stream);
  std::vector<Later> later;
  const auto start = [&](std::size_t arg, PyObject* object, std::string name) {
    rt::ArgValue& value = call.values[arg];
    value.tensors.emplace_back();
    if (m.args[arg].access != rt::Access::Read && is_known_torch(Py_TYPE(object)))
      call.written.emplace_back(name, object);
    const dlpack::ExchangeApi* api = exchange_api(Py_TYPE(object));
    if (api == nullptr) {
      later.push_back({arg, value.tensors.size() - 1, object, std::move(name)});
      return;
    }
    ReadResult r = read_tensor(object, m.kernel_name, name, call.keep, std::nullopt);
    if (r.problem) {
      if (!value.problem) value.problem = std::move(r.problem);
      return;
    }
    value.tensors.back() = *r.tensor;
    if (call.api == nullptr && r.tensor->device.on_cuda()) {
      call.api = api;
      call.api_device = r.tensor->device;
    }
  };
  call.values.resize(m.args.size());
  for (std::size_t i = 0; i < m.args.size(); ++i) {
    const rt::ArgSpec& spec = m.args[i];
    rt::ArgValue& value = call.values[i];
    const auto wrong = [&](const std::string& what, std::vector<std::string> details, std::string fix) {
      value.problem = rt::launch_problem(Code::LAUNCH_TYPE, m.kernel_name, "argument '" + spec.name + "' " + what,
                                         std::move(details), std::move(fix));
    };
    const std::string got = "got:  " + std::string(Py_TYPE(objects[i])->tp_name);
    if (spec.kind == rt::ArgKind::Scalar) {
      if (!read_scalar(objects[i], value.scalar))
        wrong("is not a number", {"want: a Python number for " + spec.dtype.name, got},
              "pass a number; of a tensor, tensor.item()");
      continue;
    }
    if (spec.list_count == 0) {
      start(i, objects[i], spec.name);
      continue;
    }
    if (PyList_Check(objects[i]) == 0 && PyTuple_Check(objects[i]) == 0) {
      wrong("is not a list of tensors", {"want: " + std::to_string(spec.list_count) + " tensors", got}, "pass a list");
      continue;
    }
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(objects[i]);
    if (n != spec.list_count) {
      wrong("has the wrong number of tensors",
            {"want: " + std::to_string(spec.list_count), "got:  " + std::to_string(n)}, "pass as many as declared");
      continue;
    }
    for (Py_ssize_t k = 0; k < n && k < PySequence_Fast_GET_SIZE(objects[i]); ++k)
      start(i, call.keep.object(Py_NewRef(PySequence_Fast_GET_ITEM(objects[i], k))),
            spec.name + "[" + std::to_string(k) + "]");
  }
  if (later.empty()) return call;

  std::optional<std::intptr_t> stream;
  if (call.stream != nullptr) {
    stream = read_stream(call.stream, m.kernel_name);
  } else if (call.api != nullptr && call.api->current_stream != nullptr) {
    void* s = nullptr;
    if (call.api->current_stream(rt::kCuda, call.api_device.id, &s) == 0)
      stream = reinterpret_cast<std::intptr_t>(s);
    else
      PyErr_Clear();
  }
  for (const Later& x : later) {
    rt::ArgValue& value = call.values[x.arg];
    ReadResult r = read_tensor(x.object, m.kernel_name, x.name, call.keep, stream);
    if (r.problem) {
      if (!value.problem) value.problem = std::move(r.problem);
      continue;
    }
    value.tensors[x.index] = *r.tensor;
    if (r.stream) {
      call.owner_streams_differ = call.owner_streams_differ || (call.owner_stream && *call.owner_stream != *r.stream);
      call.owner_stream = r.stream;
    }
    call.old_torch = call.old_torch || (r.tensor->device.on_cuda() && py::hasattr(py::handle(x.object), "data_ptr"));
  }
  return call;
}

}  // namespace graphene::bind
