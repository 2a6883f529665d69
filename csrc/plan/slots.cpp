#include "plan/slots.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "base/diag.h"

namespace graphene::plan {

namespace {

constexpr std::int64_t kUnreached = std::numeric_limits<std::int64_t>::min() / 4;

// Raises slots until every dependence holds; nullopt where that never ends. Operations at kUnreached stay there unless
// something that is reached comes before them.
std::optional<std::vector<std::int64_t>> raised(std::vector<std::int64_t> slot, const std::vector<Dependence>& edges,
                                                std::int64_t barriers) {
  for (std::size_t round = 0; round <= slot.size(); ++round) {
    bool changed = false;
    for (const Dependence& e : edges) {
      const std::int64_t from = slot[static_cast<std::size_t>(e.from)];
      if (from == kUnreached) continue;
      const std::int64_t least = from + e.weight - barriers * e.distance;
      std::int64_t& to = slot[static_cast<std::size_t>(e.to)];
      if (to >= least) continue;
      to = least;
      changed = true;
    }
    if (!changed) return slot;
  }
  return std::nullopt;
}

// Gives operations at kUnreached from which others are reached the latest slots that all dependences allow.
void lower(std::vector<std::int64_t>& slot, const std::vector<Dependence>& edges, std::int64_t barriers) {
  const std::vector<std::int64_t> known = slot;
  for (bool changed = true; changed;) {
    changed = false;
    for (const Dependence& e : edges) {
      const std::int64_t to = slot[static_cast<std::size_t>(e.to)];
      std::int64_t& from = slot[static_cast<std::size_t>(e.from)];
      if (to == kUnreached || known[static_cast<std::size_t>(e.from)] != kUnreached) continue;
      const std::int64_t most = to - e.weight + barriers * e.distance;
      if (from != kUnreached && from <= most) continue;
      from = most;
      changed = true;
    }
  }
}

void check_edges(int operations, const std::vector<Dependence>& edges) {
  for (const Dependence& e : edges) {
    for (const int v : {e.from, e.to}) {
      if (v < 0 || v >= operations)
        fail(Code::PLAN_GRAPH, "a dependence of an operation that does not exist",
             {"want: 0 to " + std::to_string(operations - 1), "got: " + std::to_string(v)});
    }
    if (e.weight < 0 || e.distance < 0)
      fail(Code::PLAN_GRAPH, "weights and distances of dependences count from 0",
           {"got: weight " + std::to_string(e.weight) + ", distance " + std::to_string(e.distance)});
  }
}

}  // namespace

Slots fewest_barriers(int operations, const std::vector<Dependence>& edges, const std::vector<int>& early) {
  if (operations < 1) fail(Code::PLAN_GRAPH, "a schedule of no operations");
  check_edges(operations, edges);
  const auto n = static_cast<std::size_t>(operations);
  for (const int v : early) {
    if (v < 0 || v >= operations)
      fail(Code::PLAN_GRAPH, "an early operation that does not exist", {"got: " + std::to_string(v)});
  }
  std::int64_t most = 0;
  for (const Dependence& e : edges) most += e.weight;
  std::int64_t low = 0;
  std::int64_t high = most;  // a cycle with distance 1 needs no more
  const std::vector<std::int64_t> start(n, 0);
  if (!raised(start, edges, high)) {
    fail(Code::PLAN_GRAPH, "an operation that must come before itself in one iteration", {},
         "a cycle of dependences needs one with a distance of 1 or more, or no weight");
  }
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (raised(start, edges, middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const auto is_early = [&](std::size_t v) {
    return std::find(early.begin(), early.end(), static_cast<int>(v)) != early.end();
  };
  std::size_t anchor = 0;
  while (anchor < n && is_early(anchor)) ++anchor;
  std::vector<std::int64_t> slot(n, kUnreached);
  if (anchor == n) {
    slot = *raised(start, edges, low);
  } else {
    // The least slots behind the anchor: longest paths from it, which put every operation as early as it may stand.
    slot[anchor] = 0;
    slot = *raised(std::move(slot), edges, low);
    // What nothing holds back stands directly before its first reader; what nothing connects with that begins anew.
    for (;;) {
      lower(slot, edges, low);
      const auto free = std::find(slot.begin(), slot.end(), kUnreached);
      if (free == slot.end()) break;
      *free = 0;
      slot = *raised(std::move(slot), edges, low);
    }
  }
  const std::int64_t least = *std::min_element(slot.begin(), slot.end());
  Slots out{static_cast<int>(low), {}};
  for (const std::int64_t t : slot) out.slot.push_back(static_cast<int>(t - least));
  return out;
}

}  // namespace graphene::plan
