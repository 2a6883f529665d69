// The least sum of factors over variables of few values: how layouts and instructions are chosen together.
#pragma once

#include <cstdint>
#include <vector>

namespace graphene::plan {

// A cost that depends on the variables of `scope`. `table` has an entry for each of their values, the last variable
// fastest; infinity forbids a combination. No entry is NaN or minus infinity.
struct Factor {
  std::vector<int> scope;
  std::vector<double> table;
};

struct Choice {
  double cost = 0;                 // infinity: every combination is forbidden, and `values` is empty
  std::vector<int> values;         // of each variable
  std::int64_t largest_table = 0;  // entries of the largest table that elimination made
};

// Bucket elimination: exact and deterministic. Variables are eliminated in the order of the least table, ties by
// number, and an eliminated variable takes the earliest of its best values. PLAN_LIMIT where a table would have more
// than `most_entries`; PLAN_GRAPH for a factor that does not fit.
[[nodiscard]] Choice eliminate(const std::vector<int>& sizes, const std::vector<Factor>& factors,
                               std::int64_t most_entries = 4'000'000);

}  // namespace graphene::plan
