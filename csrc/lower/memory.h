// Where buffers live: kernel arguments, shared memory, registers.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "lower/lowered.h"

namespace graphene::lower {

struct Buffers {
  std::vector<RegArray> registers;
  std::vector<MemBuffer> memory;
  std::map<int, int> array_of;   // id of the declaring tensor -> index in `registers`
  std::map<int, int> memory_of;  // -> index in `memory`
  std::int64_t shared_bytes = 0;
};

// Lays out every declaration of the kernel. Problems (a size that is not constant, `over` that does not fit) go to
// `problems`; the buffer is then left out.
// `align_bytes`: what some instructions need of allocations, by the id of the declaring tensor.
[[nodiscard]] Buffers place_buffers(const ir::Kernel& kernel, std::vector<Diagnostic>& problems,
                                    const std::map<int, std::int64_t>& align_bytes = {});

// Bytes of shared memory that one block may have on an architecture; 0: unknown.
[[nodiscard]] std::int64_t shared_limit_bytes(const std::string& arch);

}  // namespace graphene::lower
