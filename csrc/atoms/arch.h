// The architectures that kernels are lowered for.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace graphene::atoms {

// What a multiprocessor holds at a time; all 0 where that is not published.
struct Multiprocessor {
  int warps = 0, blocks = 0;
  std::int64_t shared_kib = 0;
  int reserved_bytes = 0, shared_unit = 0;  // of shared memory: what the system takes of each block's, and its steps
};

struct Arch {
  const char* name;         // without the suffix of an exact one: "sm_90"
  std::int64_t shared_kib;  // what one block may have; 0: not published
  const char* suffixes;     // letters that may follow: "a" this chip's own instructions, "f" its family's
  Multiprocessor sm = {};
};

// In the order of their numbers.
[[nodiscard]] std::span<const Arch> archs();

// Null where there is none of that name. "sm_90a" is sm_90's row.
[[nodiscard]] const Arch* find_arch(const std::string& name);

// Throws ARCH_UNKNOWN with the names that there are; `shown` is how the caller wrote it.
const Arch& require_arch(const std::string& name, const std::string& shown);

}  // namespace graphene::atoms
