#include <array>
#include <memory>

#include "base/diag.h"
#include "base/stages.h"
#include "bind/bind.h"
#include "bind/gil.h"
#include "bind/ir_common.h"
#include "bind/record.h"

namespace graphene::bind {

namespace {

// graphene/errors.py defines the classes.
const char* class_name(ErrorClass cls) {
  static constexpr std::array<const char*, 7> kNames = {
      "LayoutError", "VerifyError", "SelectError", "CompileError", "LaunchError", "SimulationError", "InternalError"};
  return kNames.at(static_cast<std::size_t>(cls));
}

py::object exception_class(ErrorClass cls) { return py::module_::import("graphene.errors").attr(class_name(cls)); }

struct ErrorCode {
  std::string name, raises, meaning;
};

// Text that can be printed anywhere: what is not UTF-8 is shown as \xNN.
py::str printable(const std::string& text) {
  PyObject* s = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
  if (s == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(s);
}

py::list printable(const std::vector<std::string>& texts) {
  py::list out;
  for (const std::string& t : texts) out.append(printable(t));
  return out;
}

py::list diagnostics_list(const Error& e) {
  py::list out;
  for (const Diagnostic& d : e.diagnostics()) {
    py::dict row;
    row["code"] = code_info(d.code).name;
    row["file"] = d.where.known() ? py::object(text_to_py(*d.where.file)) : py::none();
    row["line"] = d.where.line;
    row["message"] = printable(d.message);
    row["ir"] = printable(d.ir);
    row["details"] = printable(d.details);
    row["fix"] = printable(d.fix);
    out.append(row);
  }
  return out;
}

}  // namespace

void set_python_error(const Error& e) noexcept {
  try {
    py::object cls = exception_class(e.error_class());
    py::object exc = cls(printable(e.what()), diagnostics_list(e));
    PyErr_SetObject(cls.ptr(), exc.ptr());
  } catch (py::error_already_set& failure) {
    failure.restore();
  } catch (const std::exception& failure) {
    PyErr_SetString(PyExc_RuntimeError, failure.what());
  }
}

py::str text_to_py(const std::string& text) {
  PyObject* s = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
  if (s == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(s);
}

std::string printable_text(py::handle text) {
  const auto bytes =
      py::reinterpret_steal<py::object>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  if (!bytes) throw py::error_already_set();
  return {PyBytes_AS_STRING(bytes.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.ptr()))};
}

namespace {

// Whether a repr ends soon: a tuple that holds one tuple many times over has exponentially many parts.
bool is_short(PyObject* object, int& parts, int depth = 0) {
  if (--parts < 0) return false;
  const bool tuple = PyTuple_CheckExact(object), list = PyList_CheckExact(object);
  if (!tuple && !list) return true;
  if (depth > 100) return true;  // Python's own bound on recursion, or a list in itself
  for (Py_ssize_t i = 0; i < (tuple ? PyTuple_GET_SIZE(object) : PyList_GET_SIZE(object)); ++i) {
    if (!is_short(tuple ? PyTuple_GET_ITEM(object, i) : PyList_GET_ITEM(object, i), parts, depth + 1)) return false;
  }
  return true;
}

}  // namespace

std::string shown(py::handle object) {
  constexpr std::size_t kMostBytes = 2000;
  int parts = 10000;
  if (!is_short(object.ptr(), parts)) return std::string("a ") + Py_TYPE(object.ptr())->tp_name + " of very many parts";
  auto text = py::reinterpret_steal<py::object>(PyObject_Repr(object.ptr()));
  if (text)
    text = py::reinterpret_steal<py::object>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  if (!text) {
    if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw py::error_already_set();  // Ctrl-C
    PyErr_Clear();
    return std::string("an object of type ") + Py_TYPE(object.ptr())->tp_name;
  }
  std::string s(PyBytes_AS_STRING(text.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(text.ptr())));
  if (s.size() > kMostBytes) s = s.substr(0, kMostBytes) + "...";
  return s;
}

void check_signals() {
  const GilHeld held;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// `with _core.Stage(name)`: a stage of Python's. Names are kept for the process.
struct PyStage {
  std::string name;
  std::vector<std::unique_ptr<Stage>> open;
};

void register_base(py::module_& m) {
  py::class_<PyStage>(m, "Stage", "with Stage(name): what runs within is timed under that name.")
      .def(py::init([](std::string name) {
             return PyStage{std::move(name), {}};
           }),
           py::arg("name"))
      .def("__enter__", [](PyStage& s) { s.open.push_back(std::make_unique<Stage>(s.name)); })
      .def("__exit__", [](PyStage& s, const py::args&) {
        if (!s.open.empty()) s.open.pop_back();
      });
  py::register_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const Error& e) {
      set_python_error(e);
    }
  });
  m.def(
      "fail",
      [](const std::string& code, const py::str& message, const std::vector<py::str>& details, const py::str& fix,
         bool located) {
        std::vector<std::string> lines;
        for (const py::str& line : details) lines.push_back(printable_text(line));
        for (std::size_t i = 0; i < all_codes().size(); ++i) {
          if (all_codes()[i].name == code)
            fail(static_cast<Code>(i), printable_text(message), lines, printable_text(fix),
                 located ? python_location() : SourceLoc{});
        }
        throw py::value_error("no error code is called " + code);
      },
      py::arg("code"), py::arg("message"), py::arg("details") = std::vector<py::str>{}, py::arg("fix") = "",
      py::arg("located") = false,
      "Raises the exception of a code, so that errors found in Python read like those of the core. With `located` it "
      "names the line of the program: the innermost frame outside of the package.");
  register_record(m, "StageTime", "One stage: milliseconds that were spent in it, and how often it was entered.",
                  field("name", &StageTime::name), field("ms", &StageTime::ms), field("calls", &StageTime::calls));
  m.def(
      "stage_times",
      [] {
        py::list out;
        for (const StageTime& t : stage_times()) out.append(py::cast(t));
        return out;
      },
      "The stages in the order in which they were first entered.");
  m.def("stages_timed", &stages_timed, "Whether stages are timed.");
  m.def("time_stages", &time_stages, py::arg("on"), "Times stages from now on, or no longer.");
  m.def("forget_stage_times", &forget_stage_times, "Starts from zero.");
  register_record(m, "ErrorCode", "One code: the class of its errors, and what it means.",
                  field("name", &ErrorCode::name), field("raises", &ErrorCode::raises),
                  field("meaning", &ErrorCode::meaning));
  m.def(
      "error_codes",
      [] {
        py::list out;
        for (const CodeInfo& c : all_codes()) out.append(py::cast(ErrorCode{c.name, class_name(c.cls), c.summary}));
        return out;
      },
      "All codes, in the order of csrc/base/codes.def.");
}

}  // namespace graphene::bind
