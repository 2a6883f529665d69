// What a generic Spec means: the text of `means`. Either a built-in kind with its attributes, "MatMul" or
// "Reduction(op=add, axis=1)", or the name of a reference function that the caller evaluates.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ir/stmt.h"

namespace graphene::sim {

struct Meaning {
  ir::SpecKind kind = ir::SpecKind::Spec;
  ir::Attrs attrs;
  std::string reference;  // "": the kind says it
};
// Throws SimulationError CHECK_MEANS for a kind with malformed attributes.
[[nodiscard]] Meaning parse_means(const std::string& text, const SourceLoc& where);

// An operand as numbers, the first dimension fastest.
struct ReferenceArray {
  std::vector<std::int64_t> extents;
  std::vector<double> values;
};
struct ReferenceResult {
  std::string problem;                       // why there is none, in words; "": there is
  std::vector<std::vector<double>> outputs;  // per output
};
using Reference = std::function<ReferenceResult(const std::string& name, const std::vector<ReferenceArray>& inputs,
                                                const std::vector<std::vector<std::int64_t>>& outputs)>;

}  // namespace graphene::sim
