// Shared by the runtime's binding files.
#pragma once

#include <string>
#include <vector>

namespace graphene::bind {

// sys.path: where pip may have put NVRTC.
[[nodiscard]] std::vector<std::string> site_packages();

// Issues the cache's complaints as RuntimeWarnings. Throws when the user made warnings errors.
void warn_about_cache();

}  // namespace graphene::bind
