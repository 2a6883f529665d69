// The IR line a generated block implements.
#pragma once

#include <string>

#include "ir/stmt.h"

namespace graphene::emit {

// One line, "" for statements that generate nothing by themselves.
[[nodiscard]] std::string ir_line(const ir::Stmt& stmt);

}  // namespace graphene::emit
