// The architectures that kernels are lowered for.
#pragma once

#include <cstdint>
#include <string>

namespace graphene::atoms {

struct Arch {
  const char* name;         // without the suffix of an exact one: "sm_90"
  std::int64_t shared_kib;  // what one block may have; 0: not published
  const char* suffixes;     // letters that may follow: "a" this chip's own instructions, "f" its family's
};

// Null where there is none of that name. "sm_90a" is sm_90's row.
[[nodiscard]] const Arch* find_arch(const std::string& name);

// Throws ARCH_UNKNOWN with the names that there are; `shown` is how the caller wrote it.
const Arch& require_arch(const std::string& name, const std::string& shown);

}  // namespace graphene::atoms
