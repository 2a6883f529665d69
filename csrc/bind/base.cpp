#include <array>
#include <memory>

#include "base/diag.h"
#include "base/stages.h"
#include "bind/bind.h"

namespace graphene::bind {

namespace {

// graphene/errors.py defines the classes; they are looked up once, on the first error.
py::object exception_class(ErrorClass cls) {
  static constexpr std::array<const char*, 7> kNames = {
      "LayoutError", "VerifyError", "SelectError", "CompileError", "LaunchError", "SimulationError", "InternalError"};
  return py::module_::import("graphene.errors").attr(kNames.at(static_cast<std::size_t>(cls)));
}

py::list diagnostics_list(const Error& e) {
  py::list out;
  for (const Diagnostic& d : e.diagnostics()) {
    py::dict row;
    row["code"] = code_info(d.code).name;
    row["file"] = d.where.known() ? py::object(py::str(*d.where.file)) : py::none();
    row["line"] = d.where.line;
    row["message"] = d.message;
    row["ir"] = d.ir;
    row["details"] = d.details;
    row["fix"] = d.fix;
    out.append(row);
  }
  return out;
}

}  // namespace

void set_python_error(const Error& e) noexcept {
  try {
    py::object cls = exception_class(e.error_class());
    py::object exc = cls(e.what(), diagnostics_list(e));
    PyErr_SetObject(cls.ptr(), exc.ptr());
  } catch (py::error_already_set& failure) {
    failure.restore();
  } catch (const std::exception& failure) {
    PyErr_SetString(PyExc_RuntimeError, failure.what());
  }
}

void check_signals() {
  const py::gil_scoped_acquire held;
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
      [](const std::string& code, const std::string& message, const std::vector<std::string>& details,
         const std::string& fix) {
        for (std::size_t i = 0; i < all_codes().size(); ++i) {
          if (all_codes()[i].name == code) fail(static_cast<Code>(i), message, details, fix);
        }
        throw py::value_error("no error code is called " + code);
      },
      py::arg("code"), py::arg("message"), py::arg("details") = std::vector<std::string>{}, py::arg("fix") = "",
      "Raises the exception of a code: what Python finds wrong, told as the core tells it.");
  m.def(
      "stage_times",
      [] {
        py::list out;
        for (const StageTime& t : stage_times()) out.append(py::make_tuple(t.name, t.ms, t.calls));
        return out;
      },
      "(name, milliseconds without those of stages within it, calls) in the order in which stages were first entered.");
  m.def("stages_timed", &stages_timed, "Whether stages are timed.");
  m.def("time_stages", &time_stages, py::arg("on"), "Times stages from now on, or no longer.");
  m.def("forget_stage_times", &forget_stage_times, "Starts from zero.");
  m.def("error_codes", [] {
    py::list out;
    for (const CodeInfo& c : all_codes()) out.append(py::make_tuple(c.name, static_cast<int>(c.cls), c.summary));
    return out;
  });
}

}  // namespace graphene::bind
