// A fragment's TV layout cut into modes that each move along one dimension.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/stmt.h"

namespace graphene::build {

struct AxisMode {
  std::int64_t extent = 1;
  std::size_t dim = 0;
  std::int64_t step = 0;   // coordinates along `dim`; 0: the same element again
  std::int64_t place = 1;  // of its digit in the thread's rank or the register's number
};
struct AxisModes {
  std::vector<AxisMode> threads, values;
};

// Throws LayoutError REDUCE_FRAGMENT: a mode moves along several dimensions at once.
[[nodiscard]] AxisModes axis_modes(const ir::Fragment& f);

}  // namespace graphene::build
