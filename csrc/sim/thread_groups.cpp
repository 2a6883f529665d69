#include "sim/thread_groups.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "sim/elements.h"

namespace graphene::sim {

namespace {

constexpr std::size_t kKnown = 1024;

}  // namespace

std::vector<std::int64_t> relative_members(std::span<const Layout> levels, const Bytecode& code) {
  std::vector<std::int64_t> members = {0};
  for (const Layout& level : levels) {
    const std::vector<std::int64_t> inner = layout_elements(level, code);
    std::vector<std::int64_t> next;
    next.reserve(members.size() * inner.size());
    for (const std::int64_t m : members) {
      for (const std::int64_t i : inner) next.push_back(m + i);
    }
    members = std::move(next);
  }
  return members;
}

std::shared_ptr<const GroupsOfThreads> thread_groups(const ir::ThreadTensor& threads, const Bytecode& code) {
  // Many statements of many kernels ask for the same groups.
  using Key = std::tuple<const sym::Node*, std::int64_t, std::vector<std::int64_t>, std::int64_t>;
  thread_local std::map<Key, std::shared_ptr<const GroupsOfThreads>> known;
  const Expr first = code.plans->resolve(threads.offset);
  std::vector<std::int64_t> relative = relative_members(threads.levels, code);
  std::sort(relative.begin(), relative.end());
  const std::int64_t count = code.program->block_threads;
  Key key(first.node(), first.value(), relative, count);
  if (const auto it = known.find(key); it != known.end()) return it->second;
  auto out = std::make_shared<GroupsOfThreads>();
  std::unordered_map<std::int64_t, int> by_first;
  for (std::int64_t tid = 0; tid < count; ++tid) {
    const std::int64_t base = code.plans->at_thread(first, tid);
    if (!std::binary_search(relative.begin(), relative.end(), tid - base)) {
      out->of.push_back(-1);
      continue;
    }
    const auto [it, fresh] = by_first.emplace(base, static_cast<int>(out->members.size()));
    out->of.push_back(it->second);
    if (!fresh) continue;
    std::vector<std::int64_t>& members = out->members.emplace_back(relative);
    for (std::int64_t& m : members) m += base;
  }
  if (known.size() >= kKnown) known.clear();
  return known[std::move(key)] = std::move(out);
}

std::shared_ptr<const Collective> alone(const Bytecode& code) {
  auto out = std::make_shared<Collective>();
  out->groups.resize(static_cast<std::size_t>(code.warps()));
  for (int warp = 0; warp < code.warps(); ++warp) {
    for (int l = 0; l < kLanes; ++l) {
      if ((code.lanes_of(warp) >> l & 1) != 0) out->groups[static_cast<std::size_t>(warp)].push_back({l});
    }
  }
  return out;
}

}  // namespace graphene::sim
