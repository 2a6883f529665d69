// Elements of buffers by name: "sA[3, 5]".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/bytecode.h"

namespace graphene::sim {

// A layout with numbers for the sizes: shape and stride of its leaves, per top-level mode.
struct FlatModes {
  std::vector<std::vector<std::int64_t>> shape, stride;
};
[[nodiscard]] FlatModes flat_modes(const Layout& layout, const Bytecode& code);

// The element number of every coordinate, colexicographic.
[[nodiscard]] std::vector<std::int64_t> layout_elements(const Layout& layout, const Bytecode& code);

// "A[3, 5]", with the stage of a staged buffer first; the element number where no coordinate has it.
[[nodiscard]] std::string describe_element(const ir::Buffer& buffer, std::int64_t element, const Bytecode& code);

}  // namespace graphene::sim
