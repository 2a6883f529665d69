// What a table over the threads of a group is as a function of their coordinates.
#pragma once

#include <optional>
#include <vector>

#include "build/affine.h"
#include "build/nest.h"

namespace graphene::build {

// table[t][d] - table[0][d] per column d, for the executing thread, in its coordinates in `group` (all levels, or its
// innermost level only). nullopt: no sum of digits of the coordinates. Records indices() unless the table is constant.
[[nodiscard]] std::optional<std::vector<Expr>> lane_sums(Nest& nest, const ir::ThreadPtr& group, bool whole_group,
                                                         const std::vector<Row>& table);

}  // namespace graphene::build
