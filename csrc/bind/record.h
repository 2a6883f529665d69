// Results with named fields: Python classes made from C++ structs, as frozen dataclasses are made in Python.
#pragma once

#include <array>
#include <string>
#include <utility>

#include "bind/bind.h"

namespace graphene::bind {

template <class T, class V>
struct Field {
  const char* name;
  V T::*member;
};
template <class T, class V>
Field<T, V> field(const char* name, V T::*member) {
  return {name, member};
}

// Read-only fields, made by position or by name; equal where all fields are; printed and pickled by their values.
template <class T, class... V>
void register_record(py::module_& m, const char* name, const char* doc, Field<T, V>... fields) {
  const auto values = [fields...](const T& r) { return py::make_tuple(r.*fields.member...); };
  py::class_<T> c(m, name, doc);
  c.def(py::init([fields...](V... given) {
          T r;
          ((r.*fields.member = std::move(given)), ...);
          return r;
        }),
        py::arg(fields.name)...);
  (c.def_readonly(fields.name, fields.member), ...);
  c.attr("__match_args__") = py::make_tuple(fields.name...);
  c.def("__reduce__",
        [values](const py::object& self) { return py::make_tuple(py::type::of(self), values(self.cast<const T&>())); });
  c.def("__eq__", [values](const T& r, const py::object& other) -> py::object {
    if (!py::isinstance<T>(other)) return py::reinterpret_borrow<py::object>(Py_NotImplemented);
    return py::bool_(values(r).equal(values(other.cast<const T&>())));
  });
  c.def("__hash__", [values](const T& r) { return py::hash(values(r)); });
  c.def("__repr__", [name = std::string(name), values, fields...](const T& r) {
    const std::array<const char*, sizeof...(V)> names{fields.name...};
    const py::tuple all = values(r);
    std::string text = name + "(";
    for (std::size_t i = 0; i < names.size(); ++i) {
      text += (i > 0 ? ", " : "") + std::string(names[i]) + "=" + std::string(py::str(py::repr(all[i])));
    }
    return text + ")";
  });
}

}  // namespace graphene::bind
