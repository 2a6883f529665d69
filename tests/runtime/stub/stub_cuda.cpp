// A CUDA driver that launches nothing and records everything, and a tensor type on its devices that publishes a DLPack
// exchange table as PyTorch does. One shared library is both: the Python module `stub_cuda` and what
// $GRAPHENE_CUDA_DRIVER names.
#include <Python.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "../../../csrc/bind/dlpack.h"

namespace {

namespace dl = graphene::bind::dlpack;

struct Launch {
  std::uintptr_t function, stream, context;
  unsigned grid[3], block[3], shared, cluster[3];
  bool early;
  std::vector<std::string> params;
};

struct Global {
  std::vector<Launch> launches;
  std::vector<std::string> log;  // calls other than launches
  std::map<std::string, int> fail;
  std::vector<std::size_t> param_sizes;
  std::uintptr_t current = 0;
  std::map<int, std::uintptr_t> streams;  // what the tensor library works on, by device
  std::uintptr_t capturing = ~std::uintptr_t{0};
  std::uintptr_t next_handle = 0x1000;
  bool quick = false;  // record nothing: for timing
  std::uint64_t count = 0;
} g;

int result_of(const char* call) {
  const auto it = g.fail.find(call);
  return it == g.fail.end() ? 0 : it->second;
}

int note(const char* call, const std::string& detail = "") {
  g.log.push_back(detail.empty() ? call : std::string(call) + " " + detail);
  return result_of(call);
}

int record(std::uintptr_t f, const unsigned* grid, const unsigned* block, unsigned shared, std::uintptr_t stream,
           void** params, const unsigned* cluster, bool early) {
  if (g.quick) {
    ++g.count;
    return 0;
  }
  if (const int r = result_of("cuLaunchKernel")) return r;
  Launch l{f, stream, g.current, {}, {}, shared, {1, 1, 1}, early, {}};
  std::memcpy(l.grid, grid, sizeof l.grid);
  std::memcpy(l.block, block, sizeof l.block);
  if (cluster != nullptr) std::memcpy(l.cluster, cluster, sizeof l.cluster);
  for (std::size_t i = 0; i < g.param_sizes.size(); ++i)
    l.params.emplace_back(static_cast<const char*>(params[i]), g.param_sizes[i]);
  g.launches.push_back(l);
  return 0;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int cuInit(unsigned) {
  const char* r = std::getenv("STUB_CUDA_INIT");
  return r != nullptr ? std::atoi(r) : 0;
}
EXPORT int cuDriverGetVersion(int* v) { return *v = 13000, 0; }
EXPORT int cuDeviceGetCount(int* n) { return *n = 2, 0; }
EXPORT int cuDeviceGetName(char* name, int bytes, int id) {
  return std::snprintf(name, static_cast<std::size_t>(bytes), "Stub %d", id), 0;
}
EXPORT int cuDeviceGetAttribute(int* v, int which, int id) {
  if (id > 1) return 101;
  static const std::map<int, int> values = {{1, 1024},     {5, 2147483647}, {6, 65535}, {7, 65535},
                                            {16, 132},     {75, 9},         {76, 0},    {97, 232448},
                                            {13, 1980000}, {36, 3201000},   {37, 6144}};
  return *v = values.at(which), 0;
}
EXPORT int cuDevicePrimaryCtxRetain(void** c, int id) {
  *c = reinterpret_cast<void*>(std::uintptr_t{0xc0} + static_cast<unsigned>(id));
  return note("cuDevicePrimaryCtxRetain", std::to_string(id));
}
EXPORT int cuCtxGetCurrent(void** c) { return *c = reinterpret_cast<void*>(g.current), 0; }
EXPORT int cuCtxSetCurrent(void* c) {
  g.current = reinterpret_cast<std::uintptr_t>(c);
  return result_of("cuCtxSetCurrent");
}
EXPORT int cuModuleLoadData(void** m, const void*) {
  *m = reinterpret_cast<void*>(g.next_handle++);
  return note("cuModuleLoadData", "in " + std::to_string(g.current));
}
EXPORT int cuModuleGetFunction(void** f, void*, const char* name) {
  *f = reinterpret_cast<void*>(g.next_handle++);
  return note("cuModuleGetFunction", name);
}
EXPORT int cuFuncLoad(void*) { return note("cuFuncLoad"); }
EXPORT int cuFuncSetAttribute(void*, int which, int value) {
  return note("cuFuncSetAttribute", std::to_string(which) + "=" + std::to_string(value));
}
EXPORT int cuStreamIsCapturing(void* s, int* status) {
  *status = reinterpret_cast<std::uintptr_t>(s) == g.capturing ? 1 : 0;
  return 0;
}
EXPORT int cuGetErrorName(int r, const char** s) {
  *s = r == 700   ? "CUDA_ERROR_ILLEGAL_ADDRESS"
       : r == 900 ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
       : r == 100 ? "CUDA_ERROR_NO_DEVICE"
       : r == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
                  : "CUDA_ERROR_INVALID_VALUE";
  return 0;
}
EXPORT int cuGetErrorString(int, const char** s) { return *s = "the stub was told to fail", 0; }
EXPORT int cuLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void* stream, void** params, void**) {
  const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
  return record(reinterpret_cast<std::uintptr_t>(f), grid, block, shared, reinterpret_cast<std::uintptr_t>(stream),
                params, nullptr, false);
}
struct Config {
  unsigned grid[3], block[3], shared;
  void* stream;
  struct {
    int id;
    char pad[4];
    unsigned value[16];
  } * attributes;
  unsigned count;
};
EXPORT int cuLaunchKernelEx(const Config* c, void* f, void** params, void**) {
  const unsigned* cluster = nullptr;
  bool early = false;
  for (unsigned i = 0; i < c->count; ++i) {
    if (c->attributes[i].id == 4) cluster = c->attributes[i].value;
    if (c->attributes[i].id == 6) early = c->attributes[i].value[0] == 1;
  }
  return record(reinterpret_cast<std::uintptr_t>(f), c->grid, c->block, c->shared,
                reinterpret_cast<std::uintptr_t>(c->stream), params, cluster, early);
}

// The words of a map are its address, then everything else that it was encoded from.
EXPORT int cuTensorMapEncodeTiled(void* map, int dtype, unsigned rank, void* address, const std::uint64_t* extents,
                                  const std::uint64_t* strides, const std::uint32_t* box, const std::uint32_t* steps,
                                  int interleave, int swizzle, int promotion, int fill) {
  std::string detail;
  for (unsigned i = 0; i < rank; ++i) detail += " " + std::to_string(extents[i]);
  detail += " by";
  for (unsigned i = 0; i + 1 < rank; ++i) detail += " " + std::to_string(strides[i]);
  detail += " box";
  for (unsigned i = 0; i < rank; ++i) detail += " " + std::to_string(box[i] * steps[i]);
  detail +=
      " swizzle " + std::to_string(swizzle) + " of " + std::to_string(dtype) + (interleave + fill != 0 ? "?" : "");
  std::memset(map, 0, 128);
  std::memcpy(map, &address, sizeof address);
  static_cast<char*>(map)[8] = static_cast<char>(promotion);
  return note("cuTensorMapEncodeTiled", detail.substr(1));
}

namespace {

// Tensor(address, shape, strides, (code, bits), (device type, device id))

struct TensorObject {
  PyObject_HEAD dl::Tensor t;
  std::int64_t dims[16];
};

PyObject* tensor_new(PyTypeObject* type, PyObject* args, PyObject*) {
  unsigned long long address = 0;
  PyObject *shape = nullptr, *strides = nullptr;
  int code = 0, bits = 0, device_type = 0, device = 0;
  if (PyArg_ParseTuple(args, "KO!O!(ii)(ii)", &address, &PyTuple_Type, &shape, &PyTuple_Type, &strides, &code, &bits,
                       &device_type, &device) == 0)
    return nullptr;
  auto* self = reinterpret_cast<TensorObject*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  const Py_ssize_t n = PyTuple_GET_SIZE(shape);
  for (Py_ssize_t i = 0; i < n; ++i) {
    self->dims[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, i));
    self->dims[8 + i] = PyLong_AsLongLong(PyTuple_GET_ITEM(strides, i));
  }
  self->t = {reinterpret_cast<void*>(address),
             {device_type, device},
             static_cast<std::int32_t>(n),
             {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1},
             self->dims,
             self->dims + 8,
             0};
  return reinterpret_cast<PyObject*>(self);
}

int view_from_object(void* object, dl::Tensor* out) {
  *out = reinterpret_cast<TensorObject*>(object)->t;
  if (out->device.type == 99) {
    PyErr_SetString(PyExc_RuntimeError, "Cannot access data pointer of Tensor that doesn't have storage\nat frame 0");
    return -1;
  }
  return 0;
}

int current_stream(std::int32_t, std::int32_t device, void** out) {
  *out = reinterpret_cast<void*>(g.streams.count(device) != 0 ? g.streams[device] : 0);
  return 0;
}

dl::ExchangeApi api = {{1, 3}, nullptr, nullptr, nullptr, nullptr, view_from_object, current_stream};

PyObject* take_launches(PyObject*, PyObject*) {
  PyObject* out = PyList_New(0);
  for (const Launch& l : g.launches) {
    PyObject* params = PyList_New(0);
    for (const std::string& p : l.params) {
      PyObject* b = PyBytes_FromStringAndSize(p.data(), static_cast<Py_ssize_t>(p.size()));
      PyList_Append(params, b);
      Py_DECREF(b);
    }
    PyObject* row = Py_BuildValue(
        "{s:K,s:K,s:K,s:(III),s:(III),s:I,s:(III),s:O,s:N}", "function", static_cast<unsigned long long>(l.function),
        "stream", static_cast<unsigned long long>(l.stream), "context", static_cast<unsigned long long>(l.context),
        "grid", l.grid[0], l.grid[1], l.grid[2], "block", l.block[0], l.block[1], l.block[2], "shared", l.shared,
        "cluster", l.cluster[0], l.cluster[1], l.cluster[2], "early", l.early ? Py_True : Py_False, "params", params);
    PyList_Append(out, row);
    Py_DECREF(row);
  }
  g.launches.clear();
  return out;
}

PyObject* take_log(PyObject*, PyObject*) {
  PyObject* out = PyList_New(0);
  for (const std::string& s : g.log) {
    PyObject* o = PyUnicode_FromString(s.c_str());
    PyList_Append(out, o);
    Py_DECREF(o);
  }
  g.log.clear();
  return out;
}

PyObject* set_fail(PyObject*, PyObject* args) {
  const char* call = nullptr;
  int code = 0;
  if (PyArg_ParseTuple(args, "si", &call, &code) == 0) return nullptr;
  if (code == 0)
    g.fail.erase(call);
  else
    g.fail[call] = code;
  Py_RETURN_NONE;
}

PyObject* set_params(PyObject*, PyObject* args) {
  g.param_sizes.clear();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i)
    g.param_sizes.push_back(PyLong_AsSize_t(PyTuple_GET_ITEM(args, i)));
  Py_RETURN_NONE;
}

PyObject* set_stream(PyObject*, PyObject* args) {
  int device = 0;
  unsigned long long s = 0;
  if (PyArg_ParseTuple(args, "iK", &device, &s) == 0) return nullptr;
  g.streams[device] = s;
  Py_RETURN_NONE;
}

PyObject* set_capturing(PyObject*, PyObject* o) {
  g.capturing = o == Py_None ? ~std::uintptr_t{0} : PyLong_AsSize_t(o);
  Py_RETURN_NONE;
}
PyObject* set_current(PyObject*, PyObject* o) { return g.current = PyLong_AsSize_t(o), Py_NewRef(Py_None); }
PyObject* get_current(PyObject*, PyObject*) { return PyLong_FromSize_t(g.current); }
PyObject* set_quick(PyObject*, PyObject* o) { return g.quick = o == Py_True, Py_NewRef(Py_None); }

PyMethodDef kMethods[] = {{"take_launches", take_launches, METH_NOARGS, nullptr},
                          {"take_log", take_log, METH_NOARGS, nullptr},
                          {"fail", set_fail, METH_VARARGS, nullptr},
                          {"param_sizes", set_params, METH_VARARGS, nullptr},
                          {"set_stream", set_stream, METH_VARARGS, nullptr},
                          {"set_capturing", set_capturing, METH_O, nullptr},
                          {"set_current", set_current, METH_O, nullptr},
                          {"current", get_current, METH_NOARGS, nullptr},
                          {"quick", set_quick, METH_O, nullptr},
                          {nullptr, nullptr, 0, nullptr}};
PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "stub_cuda", nullptr, -1, kMethods, nullptr, nullptr, nullptr, nullptr};
PyType_Slot kSlots[] = {{Py_tp_new, reinterpret_cast<void*>(tensor_new)}, {0, nullptr}};
PyType_Spec kSpec = {"stub_cuda.Tensor", sizeof(TensorObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, kSlots};

}  // namespace

PyMODINIT_FUNC PyInit_stub_cuda() {
  PyObject* m = PyModule_Create(&kModule);
  PyObject* type = PyType_FromSpec(&kSpec);
  PyObject_SetAttrString(type, "__dlpack_c_exchange_api__", PyCapsule_New(&api, "dlpack_exchange_api", nullptr));
  PyModule_AddObject(m, "Tensor", type);
  return m;
}
