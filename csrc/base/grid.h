// What devices launch.
#pragma once

#include <array>
#include <cstdint>

namespace graphene {

// Blocks along the three dimensions of a grid.
inline constexpr std::array<std::int64_t, 3> kGridLimit = {2147483647, 65535, 65535};

}  // namespace graphene
