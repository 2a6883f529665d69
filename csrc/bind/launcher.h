// The Python type whose call is a launch.
#pragma once

#include <Python.h>

#include <memory>

#include "bind/bind.h"
#include "call/kernel.h"

namespace graphene::bind {

[[nodiscard]] PyTypeObject* launcher_type();

// The kernel of a launcher, which it keeps alive, and back.
[[nodiscard]] std::shared_ptr<call::Kernel> launcher_kernel(const py::object& launcher);
[[nodiscard]] py::object launcher_of(const call::Kernel& kernel);

void register_launcher(py::module_& m);

}  // namespace graphene::bind
