// What the generated text needs declared before the kernel; only what it uses is printed.
#pragma once

#include <string>
#include <vector>

namespace graphene::emit {

// `body`: helpers of atoms and the kernel. Returns the declarations it needs, ending with an empty line if any.
[[nodiscard]] std::string prelude(const std::string& body);

// The functions of the atoms' helper texts that `body` calls, directly or not.
[[nodiscard]] std::string used_helpers(const std::vector<std::string>& helpers, const std::string& body);

}  // namespace graphene::emit
