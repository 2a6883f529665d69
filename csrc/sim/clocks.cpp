#include "sim/clocks.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace graphene::sim {

namespace {

template <class F>
void for_lanes(Mask lanes, F&& f) {
  for (; lanes != 0; lanes &= lanes - 1) f(std::countr_zero(lanes));
}

}  // namespace

Clock::Exceptions::const_iterator Clock::first_of(std::uint32_t owner) const {
  return std::lower_bound(exceptions_.begin(), exceptions_.end(), owner,
                          [](const Exception& e, std::uint32_t o) { return e.owner < o; });
}

bool Clock::knows(std::uint32_t owner, Mask lanes, Epoch epoch) const {
  if (epoch <= base_[owner]) return true;
  Mask covered = 0;
  for (auto e = first_of(owner); e != exceptions_.end() && e->owner == owner && e->epoch >= epoch; ++e) {
    covered |= e->lanes;
  }
  return (lanes & ~covered) == 0;
}

void Clock::merge(Mask full, Exceptions::const_iterator& a, Exceptions::const_iterator a_end,
                  Exceptions::const_iterator& b, Exceptions::const_iterator b_end, std::uint32_t owner,
                  Exceptions& out) {
  const std::size_t begin = out.size();
  Epoch& base = base_[owner];
  Mask covered = 0;
  while (true) {
    const bool in_a = a != a_end && a->owner == owner;
    const bool in_b = b != b_end && b->owner == owner;
    if (!in_a && !in_b) return;
    const Exception& e = in_a && (!in_b || a->epoch >= b->epoch) ? *a++ : *b++;
    if (e.epoch <= base) continue;
    const Mask fresh = e.lanes & ~covered;
    covered |= fresh;
    if (covered == full) {  // a lane set that covers the owner moves into the base
      base = e.epoch;
      while (out.size() > begin && out.back().epoch <= base) out.pop_back();
    } else if (fresh != 0) {
      out.push_back({owner, fresh, e.epoch});
    }
  }
}

void Clock::raise(const std::vector<Mask>& full, std::uint32_t owner, Mask lanes, Epoch epoch) {
  if (lanes == 0 || knows(owner, lanes, epoch)) return;
  const auto begin = first_of(owner);
  auto old = begin;
  const Exceptions one = {{owner, lanes, epoch}};
  auto added = one.begin();
  Exceptions mine;
  merge(full[owner], old, exceptions_.end(), added, one.end(), owner, mine);
  exceptions_.insert(exceptions_.erase(begin, old), mine.begin(), mine.end());
}

void Clock::join(const std::vector<Mask>& full, const Clock& other, std::size_t first) {
  for (std::size_t i = first; i < base_.size(); ++i) base_[i] = std::max(base_[i], other.base_[i]);
  if (exceptions_.empty() && other.exceptions_.empty()) return;
  Exceptions::const_iterator a = exceptions_.begin();
  Exceptions::const_iterator b = other.first_of(static_cast<std::uint32_t>(first));
  const Exceptions::const_iterator a_end = exceptions_.end();
  const auto b_end = other.exceptions_.end();
  const auto same = [](const Exception& x, const Exception& y) {
    return x.owner == y.owner && x.lanes == y.lanes && x.epoch == y.epoch;
  };
  // Mostly the other knows nothing of lanes apart that is not known here.
  if (b == b_end || std::equal(first_of(static_cast<std::uint32_t>(first)), a_end, b, b_end, same)) {
    std::erase_if(exceptions_, [&](const Exception& e) { return e.epoch <= base_[e.owner]; });
    return;
  }
  Exceptions both;
  both.reserve(static_cast<std::size_t>((a_end - a) + (b_end - b)));
  // An owner that only one of them knows lanes of is taken as it is.
  const auto take = [&](Exceptions::const_iterator& from, Exceptions::const_iterator end, std::uint32_t until) {
    for (; from != end && from->owner < until; ++from) {
      if (from->epoch > base_[from->owner]) both.push_back(*from);
    }
  };
  while (a != a_end && b != b_end) {
    if (a->owner < b->owner) {
      take(a, a_end, b->owner);
    } else if (b->owner < a->owner) {
      take(b, b_end, a->owner);
    } else {
      merge(full[a->owner], a, a_end, b, b_end, a->owner, both);
    }
  }
  take(a, a_end, std::numeric_limits<std::uint32_t>::max());
  take(b, b_end, std::numeric_limits<std::uint32_t>::max());
  exceptions_ = std::move(both);
}

void Clock::copy_part(const std::vector<Mask>& full, std::uint32_t from, std::uint32_t to, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) raise(full, to + i, full[to + i], base_[from + i]);
  const std::vector<Exception> now = exceptions_;
  for (const Exception& e : now) {
    if (e.owner >= from && e.owner < from + count) raise(full, to + (e.owner - from), e.lanes, e.epoch);
  }
}

HappensBefore::HappensBefore(std::vector<Mask> warp_lanes, Counts counts, Epoch last_epoch)
    : full_(std::move(warp_lanes)),
      async_domains_(counts.async_domains),
      domains_(counts.copy_domains),
      first_(last_epoch + 1),
      counter_(last_epoch + 1) {
  const std::size_t warps = full_.size();
  const auto domains = static_cast<std::size_t>(counts.copy_domains);
  const auto others = static_cast<std::size_t>(counts.mbarriers + counts.agents);
  full_.reserve((1 + domains) * warps + others);
  for (std::size_t w = 0; w < domains * warps; ++w) full_.push_back(full_[w]);
  full_.insert(full_.end(), others, 1U);
  owners_ = static_cast<std::uint32_t>(full_.size());
  active_.assign(owners_, 0);
  if (others != 0 || async_domains_ != 0) {
    happened_ = owners_;
    fenced_ = 2 * owners_;
    events_ = 4 * owners_;
    full_.resize(events_ + warps, 0);
    for (std::size_t o = owners_; o < full_.size(); ++o) full_[o] = full_[o % owners_];
    full_.insert(full_.end(), static_cast<std::size_t>(counts.mbarriers), 1U);
  }
  std::fill_n(active_.begin(), warps, 1);
  mbarriers_.resize(static_cast<std::size_t>(counts.mbarriers));
  for (MBarrier& m : mbarriers_) {
    m.current = m.done = make_clock();
    m.epoch = ++counter_;
  }
  agents_.resize(static_cast<std::size_t>(counts.agents));
  for (Agent& a : agents_) a = {make_clock(), ++counter_, {}};
  warps_.resize(warps);
  for (std::size_t w = 0; w < warps; ++w) {
    Warp& warp = warps_[w];
    warp.shared = make_clock();
    warp.own.resize(kLanes);
    warp.copies.resize(domains);
    warp.epoch = warp.first = ++counter_;
    refresh(static_cast<int>(w));
  }
}

const Clock& HappensBefore::view(int warp, int lane) const {
  const Warp& w = at(warp);
  const auto& own = w.own[static_cast<std::size_t>(lane)];
  return own ? *own : w.shared;
}

bool HappensBefore::before(int warp, int lane, std::uint32_t owner, Mask lanes, Epoch epoch, Did did) const {
  if (owner == static_cast<std::uint32_t>(warp)) {
    lanes &= ~(1U << lane);  // program order
  } else if (is_thread(owner) && warp_of(owner) == warp && epoch <= copies_done(warp, lane, domain_of(owner))) {
    lanes &= ~(1U << lane);
  }
  return lanes == 0 || view(warp, lane).knows(owner + (did == Did::Read ? happened_ : 0), lanes, epoch);
}

bool HappensBefore::fenced(int warp, int lane, std::uint32_t owner, Mask lanes, Epoch epoch, bool global) const {
  if (fenced_ == 0 || is_agent(owner)) return true;
  return view(warp, lane).knows(fenced_ + (global ? owners_ : 0) + owner, lanes, epoch);
}

bool HappensBefore::knows_begun(int warp, int lane, int other) const {
  const Clock& c = view(warp, lane);
  const auto owner = happened_ + static_cast<std::uint32_t>(other);
  const Epoch first = at(other).first;
  if (c.base(owner) >= first) return true;
  bool known = false;
  for_lanes(lanes_of(other), [&](int l) { known = known || c.knows(owner, 1U << l, first); });
  return known;
}

void HappensBefore::activate(std::uint32_t owner) {
  if (active_[owner] != 0) return;
  active_[owner] = 1;
  for (int w = 0; w < warps(); ++w) refresh(w);
}

void HappensBefore::refresh(int warp) {
  Warp& w = at(warp);
  w.version = ++versions_;
  w.alike = std::all_of(w.own.begin(), w.own.end(), [](const auto& own) { return own == nullptr; });
  Epoch floor = counter_;
  for (std::size_t o = 0; o < owners_; ++o) {
    if (active_[o] != 0) floor = std::min(floor, w.shared.base(static_cast<std::uint32_t>(o)));
  }
  w.floor = std::max(floor, first_);
}

void HappensBefore::new_epoch(int warp) {
  Warp& w = at(warp);
  w.epoch = ++counter_;
  w.version = ++versions_;
}

void HappensBefore::raise(Clock& into, std::uint32_t owner, Mask lanes, Epoch epoch, Passes passes) const {
  if (passes == Passes::All) into.raise(full_, owner, lanes, epoch);
  if (happened_ != 0 && passes != Passes::Events) into.raise(full_, happened_ + owner, lanes, epoch);
}

void HappensBefore::add_past(int warp, Mask lanes, Clock& into, Passes passes) const {
  const Warp& w = at(warp);
  const std::size_t first = first_of(passes);
  into.join(full_, w.shared, first);
  for_lanes(lanes, [&](int l) {
    const auto lane = static_cast<std::size_t>(l);
    if (w.own[lane]) into.join(full_, *w.own[lane], first);
  });
  for (int d = 0; d < domains_ && passes != Passes::Events; ++d) {
    const auto& done = w.copies[static_cast<std::size_t>(d)].done;
    for (Mask rest = lanes; rest != 0;) {  // lanes that have waited for the same group together
      const Epoch epoch = done[static_cast<std::size_t>(std::countr_zero(rest))];
      Mask same = 0;
      for_lanes(rest, [&](int l) { same |= static_cast<Mask>(done[static_cast<std::size_t>(l)] == epoch) << l; });
      raise(into, copies_of(warp, d), same, epoch, passes);
      rest &= ~same;
    }
  }
  raise(into, static_cast<std::uint32_t>(warp), lanes, w.epoch, passes);
  if (events_ != 0) into.raise(full_, waits_of(warp), lanes, w.epoch);
}

void HappensBefore::release(int warp, Mask lanes, Clock& into, Passes passes) {
  if (happened_ == 0 && passes != Passes::All) return;
  add_past(warp, lanes, into, passes);
  new_epoch(warp);
}

void HappensBefore::acquire(int warp, Mask lanes, const Clock& from) {
  Warp& w = at(warp);
  if (lanes == lanes_of(warp)) {
    w.shared.join(full_, from);
    for (auto& own : w.own) {
      if (own) own->join(full_, from);
    }
  } else {
    for_lanes(lanes, [&](int l) {
      auto& own = w.own[static_cast<std::size_t>(l)];
      if (!own) own = std::make_unique<Clock>(w.shared);
      own->join(full_, from);
    });
  }
  refresh(warp);
}

void HappensBefore::sync_warp(int warp, Mask lanes) { barrier({{warp, lanes}}); }

void HappensBefore::barrier(const std::vector<Participant>& members) {
  Clock all = make_clock();
  int whole = 0;
  for (const Participant& p : members) {
    add_past(p.warp, p.lanes, all, Passes::All);
    whole += static_cast<int>(p.lanes == lanes_of(p.warp));
  }
  if (whole == warps() && happened_ == 0) ++settled_;  // beside agents, reads may still lack a fence
  for (const Participant& p : members) {
    Warp& w = at(p.warp);
    if (p.lanes == lanes_of(p.warp)) {
      w.shared = all;
      for (auto& own : w.own) own.reset();
    } else {
      for_lanes(p.lanes, [&](int l) { w.own[static_cast<std::size_t>(l)] = std::make_unique<Clock>(all); });
    }
    new_epoch(p.warp);
  }
  for (const Participant& p : members) refresh(p.warp);
}

void HappensBefore::converge(int warp, Mask lanes) {
  if (events_ == 0) return;
  Clock all = make_clock();
  release(warp, lanes, all, Passes::Events);
  acquire(warp, lanes, all);
}

void HappensBefore::fence_proxy(int warp, Mask lanes, bool global) {
  if (fenced_ == 0) return;
  Warp& w = at(warp);
  const std::uint32_t part = fenced_ + (global ? owners_ : 0);
  const auto fence = [&](Clock& c, Mask own) {
    c.copy_part(full_, happened_, part, owners_);
    c.raise(full_, part + static_cast<std::uint32_t>(warp), own, w.epoch);
    for (int d = 0; d < domains_; ++d) {
      for_lanes(own, [&](int l) {
        c.raise(full_, part + copies_of(warp, d), 1U << l,
                w.copies[static_cast<std::size_t>(d)].done[static_cast<std::size_t>(l)]);
      });
    }
  };
  if (lanes == lanes_of(warp)) {
    fence(w.shared, lanes);
    for_lanes(lanes, [&](int l) {
      if (auto& own = w.own[static_cast<std::size_t>(l)]) fence(*own, lanes);
    });
  } else {
    for_lanes(lanes, [&](int l) {
      auto& own = w.own[static_cast<std::size_t>(l)];
      if (!own) own = std::make_unique<Clock>(w.shared);
      fence(*own, 1U << l);
    });
  }
  new_epoch(warp);
  refresh(warp);
}

void HappensBefore::open_copies(int warp, Mask lanes, int domain) {
  activate(copies_of(warp, domain));
  auto& open = copies(warp, domain).open;
  Epoch fresh = 0;
  for_lanes(lanes, [&](int l) {
    Epoch& e = open[static_cast<std::size_t>(l)];
    if (e != 0) return;
    if (fresh == 0) fresh = ++counter_;
    e = fresh;
  });
}

void HappensBefore::commit_copies(int warp, Mask lanes, int domain) {
  open_copies(warp, lanes, domain);  // an empty group counts too
  Copies& c = copies(warp, domain);
  for_lanes(lanes, [&](int l) {
    const auto lane = static_cast<std::size_t>(l);
    c.groups[lane].push_back(c.open[lane]);
    c.open[lane] = 0;
  });
}

void HappensBefore::wait_copies(int warp, Mask lanes, int domain, std::size_t pending) {
  Copies& c = copies(warp, domain);
  for_lanes(lanes, [&](int l) {
    const auto lane = static_cast<std::size_t>(l);
    const auto& groups = c.groups[lane];
    if (groups.size() > pending) c.done[lane] = std::max(c.done[lane], groups[groups.size() - 1 - pending]);
  });
  refresh(warp);
}

Epoch HappensBefore::phase_epoch(int mbarrier) {
  activate(phase_of(mbarrier));
  return mbarrier_at(mbarrier).epoch;
}

void HappensBefore::arrive(int warp, Mask lanes, int mbarrier, Passes passes) {
  MBarrier& m = mbarrier_at(mbarrier);
  if (passes == Passes::Beyond) {
    if (m.beyond == nullptr) m.beyond = std::make_unique<Clock>(make_clock());
    add_past(warp, lanes, *m.beyond, Passes::All);
    passes = Passes::Happened;
  }
  release(warp, lanes, m.current, passes);
}

void HappensBefore::arrive_after_copies(int warp, Mask lanes, int mbarrier, int domain) {
  Clock& current = mbarrier_at(mbarrier).current;
  const Copies& c = copies(warp, domain);
  for_lanes(lanes, [&](int l) {
    const auto lane = static_cast<std::size_t>(l);
    Epoch last = c.open[lane];
    if (last == 0 && !c.groups[lane].empty()) last = c.groups[lane].back();
    raise(current, copies_of(warp, domain), 1U << l, last);
  });
  arrive(warp, lanes, mbarrier);
}

void HappensBefore::complete_phase(int mbarrier) {
  MBarrier& m = mbarrier_at(mbarrier);
  m.done.join(full_, m.current);
  if (m.beyond != nullptr) {
    if (m.beyond_done == nullptr) m.beyond_done = std::make_unique<Clock>(make_clock());
    m.beyond_done->join(full_, *m.beyond);
  }
  raise(m.done, phase_of(mbarrier), 1U, m.epoch);
  m.epoch = ++counter_;
  ++m.phases;
  m.waits.clear();
  m.done.raise(full_, over_of(mbarrier), 1U, m.phases + 1);
}

void HappensBefore::wait_phase(int warp, Mask lanes, int mbarrier, bool beyond) {
  MBarrier& m = mbarrier_at(mbarrier);
  acquire(warp, lanes, m.done);
  if (beyond && m.beyond_done != nullptr) acquire(warp, lanes, *m.beyond_done);
  m.waits.push_back({warp, lanes, at(warp).epoch});
}

std::int64_t HappensBefore::known_phases(int warp, int lane, int mbarrier) const {
  return std::int64_t{view(warp, lane).base(over_of(mbarrier))} - 1;
}

void HappensBefore::know_initialised(int warp, int mbarrier) {
  Warp& w = at(warp);
  w.shared.raise(full_, over_of(mbarrier), 1U, 1);
  for (auto& own : w.own) {
    if (own) own->raise(full_, over_of(mbarrier), 1U, 1);
  }
}

HappensBefore::Wait HappensBefore::unseen_wait(int mbarrier) const {
  const MBarrier& m = mbarriers_[static_cast<std::size_t>(mbarrier)];
  for (const Wait& w : m.waits) {
    if (!m.current.knows(waits_of(w.warp), w.lanes, w.epoch)) return w;
  }
  return {.warp = -1};
}

Epoch HappensBefore::group_epoch(int agent_index) {
  activate(agent(agent_index));
  return agent_at(agent_index).epoch;
}

std::size_t HappensBefore::close_group(int agent_index) {
  Agent& a = agent_at(agent_index);
  raise(a.current, agent(agent_index), 1U, a.epoch);
  a.epoch = ++counter_;
  a.closed.push_back(a.current);
  return a.closed.size() - 1;
}

}  // namespace graphene::sim
