// What the binding files share. Each layer has one file here with one register function.
#pragma once

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace graphene::bind {

namespace py = pybind11;

void register_base(py::module_& m);     // exceptions and the error catalogue
void register_runtime(py::module_& m);  // compiling, the disk cache, launching

}  // namespace graphene::bind
