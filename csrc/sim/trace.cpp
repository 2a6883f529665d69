#include "sim/trace.h"

#include <algorithm>
#include <bit>

namespace graphene::sim {

namespace {

using Kind = TraceEvent::Kind;

std::int64_t steps(std::int64_t work, std::int64_t each) { return std::max<std::int64_t>((work + each - 1) / each, 1); }

void add_uses(std::vector<TraceEvent::Use>& to, const std::vector<TraceEvent::Use>& uses) {
  for (const TraceEvent::Use& u : uses) {
    if (std::find(to.begin(), to.end(), u) == to.end()) to.push_back(u);
  }
}

}  // namespace

std::vector<TraceEvent::Use> shared_uses(const Bytecode& code, const Warp& w, const Leaf& f, Mask lanes) {
  std::vector<TraceEvent::Use> out;
  for (const auto* list : {&f.in, &f.out}) {
    for (const Operand& o : *list) {
      if (o.kind != Operand::Kind::Memory) continue;
      const lower::MemBuffer& b = code.program->buffers[static_cast<std::size_t>(o.buffer)];
      if (b.memory != ir::Memory::SH) continue;
      TraceEvent::Use u{o.buffer, -1, list == &f.out};
      if (b.buffer->stages > 0 && b.buffer->stage_elems.is_const()) {
        const std::int64_t element = code.plans->at_lane(o.offset, w.ints, std::countr_zero(lanes));
        u.stage = static_cast<int>(element / b.buffer->stage_elems.value());
      }
      add_uses(out, {u});
    }
  }
  return out;
}

void Trace::begin(const Bytecode& code) {
  if (state_ != State::Before) return;
  state_ = State::Recording;
  code_ = &code;
  const auto blocks = static_cast<std::size_t>(code.cluster());
  warps_.resize(blocks * static_cast<std::size_t>(code.warps()));
  for (Timeline& t : warps_) {
    t.open.resize(code.copy_domains.size());
    t.closed.resize(code.copy_domains.size());
  }
  warpgroups_.resize(warps_.size() / 4 + 1);
  barriers_.resize(blocks * static_cast<std::size_t>(code.mbarrier_count));
  for (auto* path : {&in_, &out_, &multiply_}) path->resize(blocks);
}

void Trace::end() {
  if (state_ != State::Recording) return;
  state_ = State::After;
  for (Timeline& t : warps_) {
    for (std::size_t d = 0; d < t.open.size(); ++d) {
      if (t.open[d].open) t.closed[d].push_back(t.open[d]);
      for (Group& g : t.closed[d]) {
        if (!g.open || g.over > 0) continue;  // a group without copies, or of an agent's
        g.flight.end = t.now;
        g.flight.landed = false;
        events_.push_back(g.flight);
      }
    }
  }
}

void Trace::add(Warp& w, TraceEvent e, std::int64_t until) {
  Timeline& t = at(w.id);
  e.warp = w.id;
  e.block = w.rank;
  e.start = w.now;
  e.end = std::max(until, w.now + 1);
  w.now = e.end;
  t.now = std::max(t.now, w.now);
  events_.push_back(std::move(e));
  t.last = events_.size();
}

void Trace::leaf(Warp& w, const Leaf& f, std::vector<TraceEvent::Use> uses) {
  Timeline& t = at(w.id);
  if (f.domain >= 0 && !f.bulk) {
    Group& g = t.open[static_cast<std::size_t>(f.domain)];
    if (!g.open) {
      g.open = true;
      g.flight = {.kind = Kind::Flight,
                  .warp = w.id,
                  .block = w.rank,
                  .domain = f.domain,
                  .origin = f.origin,
                  .call = f.call,
                  .start = w.now,
                  .count = 0};
    }
    ++g.flight.count;
    add_uses(g.flight.uses, uses);
  }
  if (t.last > 0) {
    TraceEvent& before = events_[t.last - 1];
    if (before.kind == Kind::Leaf && before.origin == f.origin && before.end == w.now) {
      ++before.count;
      add_uses(before.uses, uses);
      before.end = ++w.now;
      t.now = std::max(t.now, w.now);
      return;
    }
  }
  add(w, {.kind = Kind::Leaf, .domain = f.domain, .origin = f.origin, .call = f.call, .uses = std::move(uses)});
}

void Trace::copy(const Warp& w, const Leaf& f, std::int64_t bytes, const std::vector<int>& mbarriers,
                 std::int64_t phase, const std::vector<TraceEvent::Use>& uses) {
  const std::int64_t issued = w.now + 1;
  const std::int64_t moves = steps(bytes, kBytesAStep);
  TraceEvent e{.kind = Kind::Copy,
               .warp = w.id,
               .block = w.rank,
               .domain = f.domain,
               .origin = f.origin,
               .call = f.call,
               .start = w.now,
               .bytes = bytes,
               .phase = phase,
               .uses = uses};
  if (mbarriers.empty()) {
    std::int64_t& path = out_[static_cast<std::size_t>(w.rank)];
    e.begin = std::max(issued, path);
    path = e.until = e.begin + moves;
    e.end = e.until + kLatency;
    Timeline& t = at(w.id);
    for (const int domain : {f.domain, f.reads}) {
      if (domain < 0) continue;
      Group& g = t.open[static_cast<std::size_t>(domain)];
      g.open = true;
      g.over = std::max(g.over, domain == f.domain ? e.end : e.until);
    }
    events_.push_back(std::move(e));
    return;
  }
  e.begin = issued + kLatency;
  const auto path = [&](int mbarrier) -> std::int64_t& {
    return in_[static_cast<std::size_t>(mbarrier / code_->mbarrier_count)];
  };
  for (const int m : mbarriers) e.begin = std::max(e.begin, path(m));
  e.until = e.end = e.begin + moves;
  for (const int m : mbarriers) {
    path(m) = e.until;
    barrier_at(m).latest = std::max(barrier_at(m).latest, e.end);
    e.block = m / code_->mbarrier_count;
    e.barrier = m % code_->mbarrier_count;
    events_.push_back(e);
  }
}

void Trace::product(const Warp& w, const Leaf& f, std::vector<TraceEvent::Use> uses) {
  const Einsum& x = *f.einsum;
  const std::int64_t work = std::int64_t{x.batch} * x.m * x.n * x.k;
  std::int64_t& path = multiply_[static_cast<std::size_t>(w.rank)];
  const std::int64_t begin = std::max(w.now + 1, path);
  path = begin + steps(work * f.in.front().bytes, 2 * kMultiplyAdds);
  Warpgroup& g = group_of(w);
  g.latest = path;
  if (g.last > 0) {
    TraceEvent& before = events_[g.last - 1];
    if (before.until == begin) {
      ++before.count;
      before.flops += 2 * work;
      before.until = before.end = path;
      add_uses(before.uses, uses);
      return;
    }
  }
  events_.push_back({.kind = Kind::Product,
                     .warp = w.id,
                     .block = w.rank,
                     .domain = kProducts,
                     .origin = f.origin,
                     .call = f.call,
                     .start = w.now,
                     .end = path,
                     .begin = begin,
                     .until = path,
                     .flops = 2 * work,
                     .uses = std::move(uses)});
  g.last = events_.size();
}

void Trace::products(Warp& w, const GroupSync& g, bool closes, std::size_t done) {
  Warpgroup& group = group_of(w);
  if (closes) {
    group.over.push_back(group.latest);
    group.last = 0;
  }
  const TraceEvent e{.kind = g.waits ? Kind::Wait : Kind::Commit, .domain = kProducts, .origin = g.origin};
  const bool known = g.waits && done > 0 && done <= group.over.size();
  add(w, e, known ? group.over[done - 1] + 1 : 0);
}

void Trace::barrier(const std::vector<Warp*>& members, const std::vector<const ir::Stmt*>& where) {
  std::int64_t together = 0;
  for (const Warp* w : members) together = std::max(together, w->now + 1);
  for (std::size_t i = 0; i < members.size(); ++i) {
    add(*members[i], {.kind = Kind::Barrier, .origin = where[i]}, together);
  }
}

void Trace::meet(const std::vector<Warp*>& members) {
  std::int64_t together = 0;
  for (const Warp* w : members) together = std::max(together, w->now);
  for (Warp* w : members) w->now = together;
}

void Trace::fence(Warp& w, const ProxyFence& f) { add(w, {.kind = Kind::Fence, .origin = f.origin}); }

void Trace::counts(const Warp& w, int mbarrier) {
  Barrier& b = barrier_at(mbarrier);
  b.latest = std::max(b.latest, w.now + 1);
}

void Trace::phase(int mbarrier, std::int64_t number) {
  Barrier& b = barrier_at(mbarrier);
  events_.push_back({.kind = Kind::Phase,
                     .block = mbarrier / code_->mbarrier_count,
                     .start = b.ended,
                     .end = std::max(b.latest, b.ended),
                     .barrier = mbarrier % code_->mbarrier_count,
                     .phase = number});
  b.ended = events_.back().end;
}

void Trace::arrive(Warp& w, const PhaseSync& s, int mbarrier, std::int64_t phase) {
  add(w, {.kind = Kind::Arrive, .origin = s.origin, .barrier = mbarrier % code_->mbarrier_count, .phase = phase});
}

void Trace::wait(Warp& w, const PhaseSync& s, int mbarrier, std::int64_t phase) {
  add(w, {.kind = Kind::Wait, .origin = s.origin, .barrier = mbarrier % code_->mbarrier_count, .phase = phase},
      barrier_at(mbarrier).ended + 1);
}

void Trace::group(Warp& w, const GroupSync& g) {
  Timeline& t = at(w.id);
  const int domain = g.domain >= 0 ? g.domain : g.reads;
  std::vector<Group> done;
  for (const int d : {g.domain, g.reads}) {
    if (d < 0) continue;
    const auto at = static_cast<std::size_t>(d);
    if (g.commits) {
      t.closed[at].push_back(t.open[at]);
      t.open[at] = {};
    }
    while (g.waits && t.closed[at].size() > g.pending) {
      done.push_back(t.closed[at].front());
      t.closed[at].pop_front();
    }
  }
  std::int64_t until = 0;
  for (const Group& d : done) until = std::max(until, d.over > 0 ? d.over + 1 : 0);
  add(w, {.kind = g.waits ? Kind::Wait : Kind::Commit, .domain = domain, .origin = g.origin}, until);
  for (Group& d : done) {
    if (!d.open || d.over > 0) continue;
    d.flight.end = w.now;
    events_.push_back(d.flight);
  }
}

}  // namespace graphene::sim
