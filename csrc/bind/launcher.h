// The Python type whose call is a launch.
#pragma once

#include <Python.h>

#include "bind/bind.h"

namespace graphene::bind {

[[nodiscard]] PyTypeObject* launcher_type();
void register_launcher(py::module_& m);

}  // namespace graphene::bind
