// The Python type whose call is a launch.
#pragma once

#include <Python.h>

#include <memory>
#include <optional>
#include <string>

#include "bind/bind.h"
#include "runtime/launch.h"

namespace graphene::bind {

[[nodiscard]] PyTypeObject* launcher_type();

// What a launcher's hooks say, remembered: its manifest for an architecture, its kernel loaded on a device. `stream`:
// where it is needed now; a capture under way there is an error unless the kernel is loaded.
[[nodiscard]] std::shared_ptr<const runtime::LaunchManifest> launcher_manifest(PyObject* launcher,
                                                                               const std::string& arch);
[[nodiscard]] std::shared_ptr<runtime::Function> launcher_function(PyObject* launcher, const runtime::LaunchManifest& m,
                                                                   int device, std::optional<std::intptr_t> stream);
void register_launcher(py::module_& m);

}  // namespace graphene::bind
