// Places of objects in one memory, by the slots in which each is alive.
#pragma once

#include <cstdint>
#include <vector>

namespace graphene::plan {

struct Object {
  std::int64_t bytes = 0;
  std::int64_t align = 1;
  std::int64_t first = 0;  // the first slot in which it is alive
  std::int64_t end = 0;    // the first slot in which it is no longer
};

struct Packing {
  std::int64_t bytes = 0;        // that all objects need
  std::int64_t bound = 0;        // the most bytes that are alive at once: no packing needs fewer
  std::vector<std::int64_t> at;  // where each object starts
  bool optimal = false;          // proven: `bytes` is least
};

// Objects that are alive in one slot share no bytes. Branch and bound over the orders in which objects are put at the
// lowest place that is free, one of which is optimal; it looks at `most_nodes` partial packings at most. PLAN_GRAPH for
// sizes that are not positive, alignments that are not, and lifetimes that end before they begin.
[[nodiscard]] Packing pack(const std::vector<Object>& objects, std::int64_t most_nodes = 200'000);

}  // namespace graphene::plan
