// The extension module graphene._core: one register_*(m) per layer, in the order of the layers.
#include "bind/bind.h"

namespace {

namespace py = pybind11;

// `T.__new__(T)` without __init__ would be an object around nothing, whose first use reads memory that nobody wrote. A
// call of the class does not look `__new__` up, so it stays as fast as it was.
PyObject* refuse_new(PyObject*, PyObject* args, PyObject*) {
  PyObject* cls = PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0) : Py_None;
  PyErr_Format(PyExc_TypeError, "%R cannot be made without being initialised: call the class, or what returns it", cls);
  return nullptr;
}

PyMethodDef refuse_new_method = {"__new__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&refuse_new)),
                                 METH_VARARGS | METH_KEYWORDS | METH_STATIC, nullptr};

// For protocols 0 and 1 copyreg calls pybind11's base class, whose constructor ends the process.
PyObject* refuse_reduce(PyObject* self, PyObject*) {
  PyErr_Format(PyExc_TypeError, "cannot pickle '%s' object", Py_TYPE(self)->tp_name);
  return nullptr;
}

PyMethodDef refuse_reduce_method = {"__reduce_ex__", &refuse_reduce, METH_VARARGS, nullptr};

void seal_classes(const py::module_& m) {
  const py::object reduce = py::module_::import("builtins").attr("object").attr("__reduce__");
  for (const auto& [name, value] : m.attr("__dict__").cast<py::dict>()) {
    if (PyType_Check(value.ptr()) == 0 ||
        py::detail::get_type_info(reinterpret_cast<PyTypeObject*>(value.ptr())) == nullptr)
      continue;
    auto* type = reinterpret_cast<PyTypeObject*>(value.ptr());
    const auto refuse = py::reinterpret_steal<py::object>(PyCFunction_New(&refuse_new_method, nullptr));
    if (!refuse || PyDict_SetItemString(type->tp_dict, "__new__", refuse.ptr()) != 0) throw py::error_already_set();
    if (value.attr("__reduce__").ptr() == reduce.ptr()) {
      const auto refused = py::reinterpret_steal<py::object>(PyDescr_NewMethod(type, &refuse_reduce_method));
      if (!refused || PyDict_SetItemString(type->tp_dict, "__reduce_ex__", refused.ptr()) != 0)
        throw py::error_already_set();
    }
    type->tp_flags &= ~static_cast<unsigned long>(Py_TPFLAGS_BASETYPE);  // a subclass would call it
    PyType_Modified(type);
  }
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "Graphene's C++ core. The public names are those of the package `graphene`.";
  graphene::bind::register_base(m);
  graphene::bind::register_sym(m);
  graphene::bind::register_layout(m);
  graphene::bind::register_plan(m);
  graphene::bind::register_ir(m);
  graphene::bind::register_pointwise(m);
  graphene::bind::register_ir_text(m);
  graphene::bind::register_atoms(m);
  graphene::bind::register_lower(m);
  graphene::bind::register_sim(m);
  graphene::bind::register_runtime(m);
  graphene::bind::register_torch(m);
  seal_classes(m);
}
