#include <pybind11/gil_safe_call_once.h>

#include <limits>
#include <unordered_map>

#include "bind/ir_common.h"
#include "ir/levels.h"

namespace graphene::bind {

py::object tensor_to_py(const ir::TensorPtr& t) { return py::cast(std::const_pointer_cast<ir::Tensor>(t)); }
py::object threads_to_py(const ir::ThreadPtr& t) { return py::cast(std::const_pointer_cast<ir::ThreadTensor>(t)); }

namespace {

[[noreturn]] void wrong_type(const char* what, const char* want, py::handle got) {
  throw py::type_error(std::string(what) + " must be " + want + ", got " + shown(got));
}

bool is_sequence(py::handle h) { return PyTuple_Check(h.ptr()) || PyList_Check(h.ptr()); }

}  // namespace

ir::TensorPtr tensor_from_py(py::handle h, const char* what) {
  if (!py::isinstance<ir::Tensor>(h)) wrong_type(what, "a tensor", h);
  return py::cast<std::shared_ptr<ir::Tensor>>(h);
}

ir::ThreadPtr threads_from_py(py::handle h, const char* what) {
  if (h.is_none()) return nullptr;
  if (!py::isinstance<ir::ThreadTensor>(h)) wrong_type(what, "a thread tensor", h);
  return py::cast<std::shared_ptr<ir::ThreadTensor>>(h);
}

Layout data_layout_from_py(py::handle h) {
  if (py::isinstance<Layout>(h)) return h.cast<Layout>();
  if (py::isinstance<py::str>(h)) return layout::parse_layout(printable_text(h));
  return Layout::row_major(int_tuple_from_py(h));
}

Layout column_layout_from_py(py::handle h) {
  if (py::isinstance<Layout>(h)) return h.cast<Layout>();
  if (py::isinstance<py::str>(h)) return layout::parse_layout(printable_text(h));
  return Layout(int_tuple_from_py(h));
}

layout::Tiler sizes_from_py(py::handle h) {
  auto entry = [](py::handle item) -> std::optional<Layout> {
    if (item.is_none()) return std::nullopt;
    if (is_sequence(item))
      wrong_type("a tile size", "a size, a Layout or None; write gr.Layout(...) for strides", item);
    return column_layout_from_py(item);
  };
  if (!is_sequence(h)) return {entry(h)};
  layout::Tiler out;
  for (const py::handle item : h) out.push_back(entry(item));
  return out;
}

std::vector<ir::IndexArg> index_from_py(py::handle h, const std::vector<Layout>& levels) {
  std::vector<ir::IndexArg> out;
  auto add = [&](py::handle item) {
    ir::IndexArg a;
    if (PySlice_Check(item.ptr())) {
      const py::object start = item.attr("start");
      const py::object stop = item.attr("stop");
      if (!item.attr("step").is_none()) wrong_type("an index", "an integer or a slice without a step", item);
      if (!start.is_none() || !stop.is_none()) {
        a.kind = ir::IndexArg::Kind::Slice;
        a.at = start.is_none() ? Expr(0) : expr_from_py(start);
        if (stop.is_none()) {
          const std::vector<Layout> modes = levels.empty() ? std::vector<Layout>{} : ir::modes_of(levels[0]);
          if (out.size() < modes.size()) a.stop = modes[out.size()].size();
        } else {
          a.stop = expr_from_py(stop);
        }
      }
    } else if (is_sequence(item)) {
      // A hierarchical coordinate: its colexicographic index in the mode.
      const std::vector<Layout> modes = levels.empty() ? std::vector<Layout>{} : ir::modes_of(levels[0]);
      if (out.size() >= modes.size()) wrong_type("an index", "an integer, a slice or ':'", item);
      a.kind = ir::IndexArg::Kind::At;
      const IntTuple coord = int_tuple_from_py(item);
      layout::check_coord(coord, modes[out.size()].shape());
      a.at = Layout(modes[out.size()].shape())(coord);
    } else {
      a.kind = ir::IndexArg::Kind::At;
      a.at = expr_from_py(item);
    }
    out.push_back(std::move(a));
  };
  if (PyTuple_Check(h.ptr())) {
    for (const py::handle item : h) add(item);
  } else {
    add(h);
  }
  return out;
}

std::optional<int> optional_int_from_py(py::handle h, const char* what) {
  if (h.is_none()) return std::nullopt;
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(h.ptr()));
  if (!index) {
    PyErr_Clear();
    wrong_type(what, "an integer", h);
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0 || value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max())
    wrong_type(what, "an integer of 32 bits", h);
  return static_cast<int>(value);
}

std::vector<Expr> exprs_from_py(const py::args& args) {
  std::vector<Expr> out;
  const bool one = args.size() == 1 && is_sequence(args[0]);
  for (const py::handle item : one ? py::reinterpret_borrow<py::object>(args[0]) : py::object(args))
    out.push_back(expr_from_py(item));
  return out;
}

ir::ScalarType dtype_from_py(py::handle h) {
  if (!py::isinstance<DType>(h)) wrong_type("a dtype", "one of gr.fp16, gr.fp32, gr.i32, ...", h);
  return h.cast<const DType&>().type;
}

ir::Memory memory_from_py(py::handle h) {
  if (!py::isinstance<MemoryObject>(h)) wrong_type("a memory", "one of gr.GL, gr.SH, gr.RF", h);
  const ir::Memory memory = h.cast<const MemoryObject&>().memory;
  if (memory == ir::Memory::DSM) {  // nothing is declared there: t.of(rank) views what is
    fail(Code::TENSOR_TYPE, "nothing is declared in another block's shared memory", {"got: gr.DSM"},
         "allocate it in gr.SH, and view it in another block: t.of(rank)");
  }
  return memory;
}

ir::Constant constant_from_py(py::handle h) {
  if (PyFloat_Check(h.ptr())) return PyFloat_AS_DOUBLE(h.ptr());
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(h.ptr()));
  if (!index) {  // another type's floating-point number
    PyErr_Clear();
    const double d = PyFloat_AsDouble(h.ptr());
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    return d;
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow == 0) return ir::constant_of(value);
  const double d = PyLong_AsDouble(index.ptr());
  if (PyErr_Occurred() == nullptr && index.equal(py::reinterpret_steal<py::object>(PyLong_FromDouble(d)))) return d;
  PyErr_Clear();
  const auto text = py::repr(py::module_::import("builtins").attr("hex")(index)).cast<std::string>();
  fail(Code::CONSTANT_RANGE, "an integer constant that neither 64 bits with a sign nor a 64-bit float hold",
       {"want: from -9223372036854775808 to 9223372036854775807, or an integer that a 64-bit float equals",
        "got: " + text.substr(1, text.size() - 2)},
       "pass it to the kernel as a parameter, gr.param, or compute it from smaller constants", python_location());
}

ir::AttrValue attr_from_py(py::handle h) {
  if (PyBool_Check(h.ptr())) return h.cast<bool>();
  if (PyFloat_Check(h.ptr())) return h.cast<double>();
  if (PyUnicode_Check(h.ptr())) return printable_text(h);
  const Expr e = expr_from_py(h);
  if (e.is_const()) return e.value();
  return e;
}

ir::Attrs attrs_from_py(const py::dict& d) {
  ir::Attrs out;
  for (const auto& [key, value] : d)
    if (!value.is_none()) out[printable_text(key)] = attr_from_py(value);
  return out;
}

// ---- where the Python stands

namespace {

struct Package {
  std::string directory, kernels;
};
Package& package() {
  static Package p;
  return p;
}

// The package's own files are skipped, but for the library of kernels: those are programs like any user's.
bool is_internal(const std::string& file) {
  const Package& p = package();
  if (p.directory.empty() || file.compare(0, p.directory.size(), p.directory) != 0) return false;
  return file.compare(0, p.kernels.size(), p.kernels) != 0;
}

struct FileInfo {
  py::object name;  // keeps the string alive: its address is the key
  std::shared_ptr<const std::string> file;
  bool internal = false;
};

const FileInfo& file_info(PyObject* name) {
  static auto* known = new std::unordered_map<PyObject*, FileInfo>();
  const auto it = known->find(name);
  if (it != known->end()) return it->second;
  FileInfo f;
  f.name = py::reinterpret_borrow<py::object>(name);
  f.file = std::make_shared<const std::string>(printable_text(f.name));  // it may be any bytes
  f.internal = is_internal(*f.file);
  return known->emplace(name, std::move(f)).first->second;
}

struct UserFrame {
  py::object frame;  // null when there is none
  const FileInfo* file = nullptr;
};

UserFrame user_frame() {
  auto frame =
      py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  while (frame) {
    auto* f = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
    const FileInfo& info = file_info(reinterpret_cast<PyCodeObject*>(code.ptr())->co_filename);
    if (!info.internal) return {std::move(frame), &info};
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(f)));
  }
  return {};
}

}  // namespace

void set_package_directory(std::string directory) {
  package().kernels = directory + "/kernels/";
  package().directory = std::move(directory) + "/";
}

SourceLoc python_location() {
  const UserFrame f = user_frame();
  if (!f.frame) return {};
  return {f.file->file, PyFrame_GetLineNumber(reinterpret_cast<PyFrameObject*>(f.frame.ptr()))};
}

std::vector<std::string> assigned_names(const std::vector<std::vector<Expr>>& coords) {
  const UserFrame f = user_frame();
  std::vector<std::string> out;
  if (!f.frame) return out;
  py::list ranks;
  for (const auto& level : coords) ranks.append(level.size());
  // Importing runs Python, which may hand the interpreter to a thread that comes here too: no guard may be held then.
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> found;
  const py::object& read = found
                               .call_once_and_store_result(
                                   [] { return py::object(py::module_::import("graphene._names").attr("assigned")); })
                               .get_stored();
  const py::object names = read(f.frame, py::tuple(ranks));
  for (const py::handle n : names) out.push_back(n.cast<std::string>());
  return out;
}

void register_ir(py::module_& m) {
  // As files are known by: a path may be any bytes.
  m.def("set_package_directory", [](const py::str& d) { set_package_directory(printable_text(d)); });
  register_ir_values(m);
  register_ir_builder(m);
}

}  // namespace graphene::bind
