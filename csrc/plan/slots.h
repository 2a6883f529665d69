// The fewest barriers of a loop, or of straight-line code.
#pragma once

#include <vector>

namespace graphene::plan {

// Operation `to`, `distance` iterations after `from`, comes behind it; with `weight` 1 there is a barrier between them,
// because threads exchange data through shared memory there. Larger weights ask for more barriers.
struct Dependence {
  int from = 0;
  int to = 0;
  int weight = 0;
  int distance = 0;
};

// slot[v] counts the barriers before operation v; an iteration has `barriers` of them, and iteration i of v stands in
// slot slot[v] + i * barriers. Law: slot[to] + barriers * distance >= slot[from] + weight for every dependence.
struct Slots {
  int barriers = 0;
  std::vector<int> slot;  // the least is 0
};

// The least number of barriers an iteration: the largest ceil(sum of weights / sum of distances) of a cycle. Without
// distances it is straight-line code, whose barriers are the largest slot. Among those schedules the operations `early`
// (copies) stand as far ahead of the first other operation as they can, all others as early as they can behind it.
// PLAN_GRAPH: an operation that must come before itself; a dependence that names no operation.
[[nodiscard]] Slots fewest_barriers(int operations, const std::vector<Dependence>& edges,
                                    const std::vector<int>& early = {});

}  // namespace graphene::plan
