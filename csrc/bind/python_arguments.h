// The arguments of a Python call as a source of the one reader (call/reader.h): quickly, where they are plain tensors
// on a GPU, and in full, where they may be anything and what is wrong is to be said.
#pragma once

#include <Python.h>

#include <string>
#include <utility>
#include <vector>

#include "bind/bind.h"
#include "bind/tensor_reader.h"
#include "call/reader.h"
#include "call/room.h"

namespace graphene::bind {

// The interned names of parameters.
class Names {
 public:
  explicit Names(const std::vector<call::Param>& params);
  ~Names() {
    for (PyObject* n : names_) Py_DECREF(n);
  }
  Names(const Names&) = delete;
  Names& operator=(const Names&) = delete;
  [[nodiscard]] std::size_t size() const { return names_.size(); }

  enum class Wrong : std::uint8_t { TooMany, Unknown, Twice, Missing };

  // The objects of a vectorcall in the order of the parameters, `stream` apart. `complain(Wrong, name or null)` may
  // throw; false where something is wrong.
  template <class Complain>
  bool order(PyObject* const* args, std::size_t count, PyObject* keyword_names, PyObject** out, PyObject*& stream,
             Complain&& complain) const {
    const std::size_t want = names_.size();
    if (count > want) return complain(Wrong::TooMany, nullptr), false;
    for (std::size_t i = 0; i < want; ++i) out[i] = i < count ? args[i] : nullptr;
    std::size_t filled = count;
    const Py_ssize_t keywords = keyword_names == nullptr ? 0 : PyTuple_GET_SIZE(keyword_names);
    for (Py_ssize_t k = 0; k < keywords; ++k) {
      PyObject* const name = PyTuple_GET_ITEM(keyword_names, k);
      PyObject* const value = args[count + static_cast<std::size_t>(k)];
      const std::size_t i = find(name, count);
      if (i < want) {
        if (out[i] != nullptr) return complain(Wrong::Twice, name), false;
        out[i] = value;
        ++filled;
      } else if (names_stream(name)) {
        stream = value;
      } else {
        return complain(Wrong::Unknown, name), false;
      }
    }
    return filled == want || (complain(Wrong::Missing, nullptr), false);
  }

 private:
  // The place of a name, looked for from `first` on first; size() where there is none.
  [[nodiscard]] std::size_t find(PyObject* name, std::size_t first) const {
    for (std::size_t i = first; i < names_.size(); ++i)  // names in calls are interned
      if (names_[i] == name) return i;
    return find_text(name);
  }
  [[nodiscard]] std::size_t find_text(PyObject* name) const;
  [[nodiscard]] static bool names_stream(PyObject* name);

  std::vector<PyObject*> names_;
};

// The scalars of a call, and the lengths of its lists.
class PythonScalars {
 public:
  PythonScalars(PyObject* const* objects, const std::string& callee) : objects_(objects), callee_(callee) {}
  [[nodiscard]] bool absent(std::size_t i) const { return objects_[i] == Py_None; }
  call::Read integer(std::size_t i, const call::Param& p, std::int64_t& out);
  call::Read boolean(std::size_t i, const call::Param& p, std::int64_t& out);
  call::Read dtype(std::size_t i, const call::Param& p, std::int64_t& out);
  call::Read number(std::size_t i, const call::Param& p, double& out);
  call::Read text(std::size_t i, const call::Param& p, std::string_view& out);
  call::Read packed(std::size_t i, const call::Param& p, std::uint64_t& out);
  call::Read list(std::size_t i, const call::Param& p, std::size_t& out);
  call::Read item(std::size_t i, std::size_t k, const call::Param& p, std::int64_t& out);
  call::Read item(std::size_t i, std::size_t k, const call::Param& p, std::string_view& out);

 protected:
  [[noreturn]] void wrong(const call::Param& p, const char* want, PyObject* object) const;

  PyObject* const* objects_;
  const std::string& callee_;
};

// Plain tensors on a GPU of a library with an exchange table; NotHere for all else, without a word. `Rules`:
//
//   bool takes(PyTypeObject*)
//   bool allows(PyObject*, const KnownType&, const dlpack::Tensor&, const call::Param&)
template <class Rules>
class QuickSource : public PythonScalars {
 public:
  QuickSource(PyObject* const* objects, const std::string& callee, Rules& rules)
      : PythonScalars(objects, callee), rules_(rules) {}

  using PythonScalars::item;
  call::Read tensor(std::size_t i, const call::Param& p, runtime::TensorArg& out) { return read(objects_[i], p, out); }
  call::Read item(std::size_t i, std::size_t k, const call::Param& p, runtime::TensorArg& out) {
    if (PyList_Check(objects_[i]) != 0 && k >= static_cast<std::size_t>(PyList_GET_SIZE(objects_[i])))
      return call::Read::NotHere;  // reading an item has changed the list
    return read(PySequence_Fast_GET_ITEM(objects_[i], static_cast<Py_ssize_t>(k)), p, out);
  }
  // The exchange table of the first tensor; null before there was one.
  [[nodiscard]] const dlpack::ExchangeApi* api() const { return api_; }

 private:
  call::Read read(PyObject* object, const call::Param& p, runtime::TensorArg& out) {
    PyTypeObject* const type = Py_TYPE(object);
    if (!rules_.takes(type)) return call::Read::NotHere;
    const KnownType known = known_type(type);
    if (known.api == nullptr) return call::Read::NotHere;
    dlpack::Tensor t;
    if (known.api->view_from_object(object, &t) != 0) {
      PyErr_Clear();  // no plain storage: the other way meets it again and explains it
      return call::Read::NotHere;
    }
    if (t.device.type != runtime::kCuda || !rules_.allows(object, known, t, p)) return call::Read::NotHere;
    if (api_ == nullptr) api_ = known.api;
    describe(t, out);
    return out.data != nullptr || out.numel() == 0 ? call::Read::Yes : call::Read::NotHere;
  }

  Rules& rules_;
  const dlpack::ExchangeApi* api_ = nullptr;
};

// The device of a call: that of the first CUDA tensor; nullopt: none is on a GPU. Lists are looked into.
[[nodiscard]] std::optional<int> device_of_call(PyObject* const* args, std::size_t count);

// The arguments of one call of a kernel, read in full. The views live as long as the arguments and `keep`.
struct CallArgs {
  Keep keep;
  std::vector<runtime::ArgValue> values;      // in the manifest's order; what cannot be read is their `problem`
  PyObject* stream = nullptr;                 // borrowed; the `stream` keyword
  const dlpack::ExchangeApi* api = nullptr;   // of the first tensor on a GPU that has one
  bool old_torch = false;                     // a torch.Tensor without an exchange table
  std::optional<std::intptr_t> owner_stream;  // the one stream that tensors say their data is ready on
  bool owner_streams_differ = false;
  std::vector<std::pair<std::string, PyObject*>> written;  // PyTorch's tensors that the kernel writes; borrowed
};

// Fills `out` as well, for a call without problems. Throws Error LAUNCH_ARITY (with LAUNCH_STREAM for a `stream` that
// is none). `keyword_names`: as in a vectorcall, a tuple of str or null. `take_stream`: `stream=` is not an argument of
// the kernel but where it runs (without it, None is as good as nothing).
[[nodiscard]] CallArgs read_call(const runtime::LaunchManifest& m, const std::vector<call::Param>& params,
                                 const Names& names, PyObject* const* args, std::size_t count, PyObject* keyword_names,
                                 bool take_stream, call::Arguments& out);

// The same of Python's `*args, **named`, for a call that runs nothing on a GPU.
[[nodiscard]] CallArgs read_call(const runtime::LaunchManifest& m, const py::tuple& args, const py::dict& named);

// The arguments of an operator, tensors on any device. Throws Error for the first that cannot be read.
void read_operator_call(const std::vector<call::Param>& params, PyObject* const* objects, const std::string& callee,
                        Keep& keep, call::Arguments& out);

// An integer handle, None (0, the default stream), or an object with __cuda_stream__, cuda_stream (PyTorch) or ptr
// (CuPy). Throws Error LAUNCH_STREAM.
[[nodiscard]] std::intptr_t read_stream(PyObject* object, const std::string& kernel);

}  // namespace graphene::bind
