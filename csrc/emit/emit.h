// Lowered tree -> CUDA C++ text: header-free, one commented block per spec, readable. Printing only: every decision was
// taken by `lower`; an instruction's text is that of its atom.
#pragma once

#include <cstdint>
#include <string>

#include "lower/lowered.h"

namespace graphene::emit {

// Throws LayoutError TENSOR_INDEX for what lower::certainly_outside finds.
[[nodiscard]] std::string cuda_source(const lower::Program& program);

// Shared memory to ask for at launch: 0 where it is static.
[[nodiscard]] std::int64_t dynamic_shared_bytes(const lower::Program& program);

// The extern "C" symbol: the kernel's name as a legal identifier.
[[nodiscard]] std::string entry_name(const ir::Kernel& kernel);

}  // namespace graphene::emit
