// Facts an entry needs of an operand in memory: proven, refuted, or left to the launch.
#pragma once

#include <string>
#include <vector>

#include "atoms/match.h"

namespace graphene::atoms {

// What is wrong ("" : nothing), appending to `launch` what only the arguments decide. `consecutive`: how many values
// lie side by side in one access.
struct FactProblem {
  std::string text;
  std::string fix;
};
[[nodiscard]] FactProblem check_alignment(const ir::Tensor& t, const OperandInstance& operand, const std::string& atom,
                                          std::vector<LaunchFact>* launch);

}  // namespace graphene::atoms
