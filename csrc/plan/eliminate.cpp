#include "plan/eliminate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/diag.h"

namespace graphene::plan {

namespace {

constexpr double kForbidden = std::numeric_limits<double>::infinity();

std::int64_t entries(const std::vector<int>& scope, const std::vector<int>& sizes, std::int64_t limit) {
  std::int64_t n = 1;
  for (const int v : scope) n = n > limit ? n : n * sizes[static_cast<std::size_t>(v)];
  return n;
}

// The entry of a factor at the values of all variables.
double look_up(const Factor& f, const std::vector<int>& sizes, const std::vector<int>& values) {
  std::size_t at = 0;
  for (const int v : f.scope) {
    at = at * static_cast<std::size_t>(sizes[static_cast<std::size_t>(v)]) +
         static_cast<std::size_t>(values[static_cast<std::size_t>(v)]);
  }
  return f.table[at];
}

void check_factors(const std::vector<int>& sizes, const std::vector<Factor>& factors) {
  for (std::size_t v = 0; v < sizes.size(); ++v) {
    if (sizes[v] < 1) fail(Code::PLAN_GRAPH, "a choice without alternatives", {"variable: " + std::to_string(v)});
  }
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const Factor& f = factors[i];
    const std::string where = "factor: " + std::to_string(i);
    for (std::size_t k = 0; k < f.scope.size(); ++k) {
      if (f.scope[k] < 0 || f.scope[k] >= static_cast<int>(sizes.size()))
        fail(Code::PLAN_GRAPH, "a factor of a variable that does not exist",
             {where, "got: variable " + std::to_string(f.scope[k])});
      if (std::find(f.scope.begin(), f.scope.begin() + static_cast<std::ptrdiff_t>(k), f.scope[k]) !=
          f.scope.begin() + static_cast<std::ptrdiff_t>(k))
        fail(Code::PLAN_GRAPH, "a factor that names a variable twice",
             {where, "got: variable " + std::to_string(f.scope[k])});
    }
    const std::int64_t want = entries(f.scope, sizes, std::numeric_limits<std::int32_t>::max());
    if (want != static_cast<std::int64_t>(f.table.size()))
      fail(Code::PLAN_GRAPH, "a factor with a table of the wrong size",
           {where, "want: " + std::to_string(want) + " entries", "got: " + std::to_string(f.table.size())});
    for (const double c : f.table) {
      if (std::isnan(c) || c == -kForbidden)
        fail(Code::PLAN_GRAPH, "a cost is a number or infinity", {where, "got: " + std::to_string(c)});
    }
  }
}

struct Step {  // how the value of a variable follows from those that were eliminated after it
  int variable = 0;
  Factor best;  // over the others: the index of the variable's best value
};

}  // namespace

Choice eliminate(const std::vector<int>& sizes, const std::vector<Factor>& given, std::int64_t most_entries) {
  check_factors(sizes, given);
  std::vector<Factor> factors = given;
  std::vector<int> left(sizes.size());
  for (std::size_t v = 0; v < sizes.size(); ++v) left[v] = static_cast<int>(v);
  std::vector<Step> steps;
  Choice out;
  std::vector<int> values(sizes.size(), 0);
  const auto neighbours = [&](int v) {
    std::vector<int> scope;
    for (const Factor& f : factors) {
      if (std::find(f.scope.begin(), f.scope.end(), v) == f.scope.end()) continue;
      for (const int u : f.scope) {
        if (u != v && std::find(scope.begin(), scope.end(), u) == scope.end()) scope.push_back(u);
      }
    }
    std::sort(scope.begin(), scope.end());
    return scope;
  };
  while (!left.empty()) {
    std::size_t next = 0;
    std::int64_t least = -1;
    for (std::size_t i = 0; i < left.size(); ++i) {
      const std::int64_t n =
          entries(neighbours(left[i]), sizes, most_entries) * sizes[static_cast<std::size_t>(left[i])];
      if (least < 0 || n < least) {
        least = n;
        next = i;
      }
    }
    if (least > most_entries)
      fail(Code::PLAN_LIMIT, "choices that depend on each other too much",
           {"want: tables of at most " + std::to_string(most_entries) + " entries", "got: " + std::to_string(least)},
           "pin some of the choices");
    out.largest_table = std::max(out.largest_table, least);
    const int v = left[next];
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(next));
    const std::vector<int> scope = neighbours(v);
    std::vector<Factor> mine;
    std::vector<Factor> others;
    for (Factor& f : factors) {
      const bool has = std::find(f.scope.begin(), f.scope.end(), v) != f.scope.end();
      (has ? mine : others).push_back(std::move(f));
    }
    const auto n = static_cast<std::size_t>(entries(scope, sizes, most_entries));
    Factor cost{scope, std::vector<double>(n, kForbidden)};
    Factor best{scope, std::vector<double>(n, 0)};
    for (std::size_t at = 0; at < n; ++at) {
      std::size_t rest = at;
      for (std::size_t k = scope.size(); k-- > 0;) {
        const auto size = static_cast<std::size_t>(sizes[static_cast<std::size_t>(scope[k])]);
        values[static_cast<std::size_t>(scope[k])] = static_cast<int>(rest % size);
        rest /= size;
      }
      for (int x = 0; x < sizes[static_cast<std::size_t>(v)]; ++x) {
        values[static_cast<std::size_t>(v)] = x;
        double sum = 0;
        for (const Factor& f : mine) sum += look_up(f, sizes, values);
        if (sum < cost.table[at]) {
          cost.table[at] = sum;
          best.table[at] = x;
        }
      }
    }
    steps.push_back({v, std::move(best)});
    others.push_back(std::move(cost));
    factors = std::move(others);
  }
  out.cost = 0;
  for (const Factor& f : factors) out.cost += f.table[0];
  if (out.cost == kForbidden) return out;
  for (std::size_t i = steps.size(); i-- > 0;) {
    values[static_cast<std::size_t>(steps[i].variable)] = static_cast<int>(look_up(steps[i].best, sizes, values));
  }
  out.values = std::move(values);
  return out;
}

}  // namespace graphene::plan
