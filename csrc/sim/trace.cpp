#include "sim/trace.h"

#include <algorithm>

namespace graphene::sim {

void Trace::begin(int warps, int domains) {
  if (state_ != State::Before) return;
  state_ = State::Recording;
  warps_.resize(static_cast<std::size_t>(warps));
  for (Timeline& t : warps_) {
    t.open.resize(static_cast<std::size_t>(domains));
    t.closed.resize(static_cast<std::size_t>(domains));
  }
}

void Trace::end() {
  if (state_ != State::Recording) return;
  state_ = State::After;
  for (Timeline& t : warps_) {
    for (std::size_t d = 0; d < t.open.size(); ++d) {
      if (t.open[d].open) t.closed[d].push_back(t.open[d]);
      for (Group& g : t.closed[d]) {
        if (!g.open) continue;  // a group without copies
        g.flight.end = t.now;
        g.flight.landed = false;
        events_.push_back(g.flight);
      }
    }
  }
}

void Trace::add(Timeline& t, TraceEvent e) {
  e.start = t.now;
  e.end = std::max(e.end, t.now + 1);
  t.now = e.end;
  events_.push_back(e);
  t.last = events_.size();
}

void Trace::leaf(const Warp& w, const Leaf& f) {
  Timeline& t = at(w.id);
  if (f.domain >= 0) {
    Group& g = t.open[static_cast<std::size_t>(f.domain)];
    if (!g.open) {
      g.open = true;
      g.flight = {.kind = TraceEvent::Kind::Flight,
                  .warp = w.id,
                  .domain = f.domain,
                  .origin = f.origin,
                  .call = f.call,
                  .start = t.now,
                  .count = 0};
    }
    ++g.flight.count;
  }
  if (t.last > 0) {
    TraceEvent& before = events_[t.last - 1];
    if (before.kind == TraceEvent::Kind::Leaf && before.origin == f.origin && before.end == t.now) {
      ++before.count;
      before.end = ++t.now;
      return;
    }
  }
  add(t, {.kind = TraceEvent::Kind::Leaf, .warp = w.id, .domain = f.domain, .origin = f.origin, .call = f.call});
}

void Trace::barrier(const ThreadGroup& members, const std::vector<const ir::Stmt*>& where) {
  std::int64_t together = 0;
  for (const auto& p : members) together = std::max(together, at(p.warp).now + 1);
  for (std::size_t i = 0; i < members.size(); ++i) {
    add(at(members[i].warp),
        {.kind = TraceEvent::Kind::Barrier, .warp = members[i].warp, .origin = where[i], .end = together});
  }
}

void Trace::group(const Warp& w, const GroupSync& g) {
  Timeline& t = at(w.id);
  const auto domain = static_cast<std::size_t>(g.domain);
  if (g.commits) {
    t.closed[domain].push_back(t.open[domain]);
    t.open[domain] = {};
    if (!g.waits) add(t, {.kind = TraceEvent::Kind::Commit, .warp = w.id, .domain = g.domain, .origin = g.origin});
  }
  if (!g.waits) return;
  add(t, {.kind = TraceEvent::Kind::Wait, .warp = w.id, .domain = g.domain, .origin = g.origin});
  auto& closed = t.closed[domain];
  while (closed.size() > g.pending) {
    Group done = closed.front();
    closed.pop_front();
    if (!done.open) continue;
    done.flight.end = t.now;
    events_.push_back(done.flight);
  }
}

}  // namespace graphene::sim
