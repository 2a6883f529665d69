// Shared by the runtime's binding files.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

namespace graphene::bind {

// sys.path: where pip may have put NVRTC.
[[nodiscard]] std::vector<std::string> site_packages();

// Text of the core as Python's: bytes that are no UTF-8 (a file's name may be any bytes) as Python has them in names.
[[nodiscard]] pybind11::str text_to_py(const std::string& text);

// Issues the cache's complaints as RuntimeWarnings. Throws when the user made warnings errors.
void warn_about_cache();

}  // namespace graphene::bind
