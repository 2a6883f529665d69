// Rules that every kernel keeps, checked before lowering. Each rule is one row of a table: a name, what it asks, a
// function. All are run over all statements; every problem is collected.
#pragma once

#include <set>
#include <vector>

#include "ir/stmt.h"

namespace graphene::verify {

struct Result {
  std::vector<Diagnostic> problems;
  std::set<int> statements;  // ids of those with problems of their own
};

[[nodiscard]] Result check(const ir::Kernel& kernel);

// For documentation: the table.
struct RuleInfo {
  const char* name;
  const char* doc;
};
[[nodiscard]] std::vector<RuleInfo> rules();

}  // namespace graphene::verify
