// Random traces of accesses and synchronisation: the compact engine against a dense reference with one clock per thread
// and the full history of every element. usage: happens_before_fuzz [traces] [seed]; exit status 1 on a mismatch.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "sim/clocks.h"
#include "sim/shadow.h"

namespace {

using graphene::sim::AccessMemo;
using graphene::sim::Epoch;
using graphene::sim::HappensBefore;
using graphene::sim::Issuer;
using graphene::sim::kLanes;
using graphene::sim::LaneGroups;
using graphene::sim::Mask;
using graphene::sim::ReadSets;
using graphene::sim::Shadow;

constexpr int kWarps = 3;
constexpr int kDomains = 2;
constexpr int kMBarriers = 2;
constexpr int kAgents = 1;
constexpr int kSlots = 3;

struct Dense {
  struct Access {
    int block, agent;
    unsigned clock;
    bool write;
  };
  using Vector = std::vector<unsigned>;

  explicit Dense(int threads)
      : threads(threads),
        agents(phase(0) + kMBarriers + kAgents),
        known(static_cast<std::size_t>(threads), Vector(static_cast<std::size_t>(agents), 0)),
        clock(static_cast<std::size_t>(agents), 1),
        groups(static_cast<std::size_t>(threads * kDomains)),
        current(kMBarriers, Vector(static_cast<std::size_t>(agents), 0)),
        done(current) {}

  [[nodiscard]] int copier(int thread, int domain) const { return (1 + domain) * threads + thread; }
  [[nodiscard]] int phase(int mbarrier) const { return (1 + kDomains) * threads + mbarrier; }

  [[nodiscard]] bool ordered(int block, int thread, const Access& a) const {
    if (a.block != block) return false;
    return a.agent == thread || a.clock <= known[static_cast<std::size_t>(thread)][static_cast<std::size_t>(a.agent)];
  }
  static void join(Vector& into, const Vector& from) {
    for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
  }
  void tick(int t) {
    const auto i = static_cast<std::size_t>(t);
    known[i][i] = clock[i]++;
  }
  void release(int t, Vector& into) {
    tick(t);
    join(into, known[static_cast<std::size_t>(t)]);
  }

  int threads, agents;
  std::vector<Vector> known;
  Vector clock;
  std::vector<Vector> groups;  // committed copy groups, per domain and thread
  std::vector<Vector> current, done;
  Vector group = Vector(static_cast<std::size_t>(agents), 0);  // of the one agent: the open group, and the closed ones
  std::vector<Vector> closed;
};

struct Counters {
  long accesses = 0, races = 0, mismatches = 0;
};

class Trace {
 public:
  Trace(std::mt19937& rng, Counters& counters) : rng_(rng), n_(counters), lanes_(pick(8) == 0 ? kLanes : 4) {
    elements_ = lanes_ == kLanes ? 40 : 5;
    memory_ = Shadow(static_cast<std::size_t>(elements_), graphene::sim::kInitial);
    history_.resize(static_cast<std::size_t>(elements_));
    memos_.resize(2 * kWarps * kSlots);
    begin_block(0);
  }

  bool run() {
    const int steps = 20 + pick(120);
    const int bias = 1 + pick(6);
    for (int s = 0; s < steps && ok_ && !raced_; ++s) {
      warp_ = pick(kWarps);
      mask_ = pick(3) == 0 ? 1U + static_cast<Mask>(pick(static_cast<int>(full() >> 1))) : full();
      if (pick(4) == 0) mask_ = 1U << pick(lanes_);
      if (pick(8) < bias) {
        synchronise();
      } else {
        access();
      }
    }
    return ok_;
  }

 private:
  int pick(int n) { return static_cast<int>(rng_() % static_cast<unsigned>(n)); }
  [[nodiscard]] Mask full() const { return lanes_ == kLanes ? ~Mask{0} : (1U << lanes_) - 1; }
  [[nodiscard]] int thread(int lane) const { return warp_ * lanes_ + lane; }

  void begin_block(Epoch first) {
    order_ = std::make_unique<HappensBefore>(std::vector<Mask>(kWarps, full()),
                                             HappensBefore::Counts{kDomains, kMBarriers, kAgents}, first);
    dense_ = std::make_unique<Dense>(kWarps * lanes_);
    settled_ = 0;
    for (AccessMemo& m : memos_) m = AccessMemo{};
    ++block_;
  }

  void access() {
    const int kind = pick(10);  // 0-3 read, 4-6 write, 7 copy by own group, 8 phase of an mbarrier, 9 agent's read
    Mask lanes = mask_;
    std::int32_t offsets[kLanes] = {};
    const int base = pick(elements_);
    const int stride = kind == 7 ? 1 + pick(2) : kind > 7 ? 0 : pick(3);  // copies: several lanes, whose groups differ
    const bool copy_reads = kind == 7 && pick(2) == 0;
    const bool write = kind >= 4 && kind != 9 && !copy_reads;
    if (stride == 0 && (write || kind == 9)) lanes = 1U << std::countr_zero(lanes);
    for (int l = 0; l < kLanes; ++l) offsets[l] = (base + stride * l) % elements_;
    LaneGroups groups;
    groups.build(lanes, offsets);
    if (write && !groups.distinct) {  // equal bits to one place: the leader stands for them
      Mask leaders = 0;
      for (const int l : groups.leaders) leaders |= 1U << l;
      lanes = leaders;
      groups.build(lanes, offsets);
    }
    const int mbarrier = pick(kMBarriers);
    Issuer by{.order = order_.get(), .warp = warp_};
    by.refresh();
    by.generic = kind < 7;
    const int lead = std::countr_zero(lanes);
    int agent = -1;
    const int domain = pick(kDomains);
    if (kind == 7) {
      order_->open_copies(warp_, lanes, domain);
      by.act_as_copies(domain);
    } else if (kind == 8) {
      by.stamps[static_cast<std::size_t>(lead)] =
          graphene::sim::make_stamp(order_->phase_epoch(mbarrier), order_->phase_of(mbarrier), 0);
      agent = dense_->phase(mbarrier);
    } else if (kind == 9) {
      by.stamps[static_cast<std::size_t>(lead)] =
          graphene::sim::make_stamp(order_->group_epoch(0), order_->agent(0), 0);
      agent = dense_->phase(kMBarriers);
    }

    Mask want = 0;
    for (int l = 0; l < kLanes; ++l) {
      if ((lanes >> l & 1) == 0) continue;
      ++n_.accesses;
      for (const Dense::Access& a : history_[static_cast<std::size_t>(offsets[l])]) {
        if ((write || a.write) && !dense_->ordered(block_, thread(l), a)) want |= 1U << l;
      }
    }
    if (want != 0) ++n_.races;
    raced_ = want != 0 && pick(100) < 3;
    // A racy access mostly is only judged, on a copy, and the trace goes on without it.
    Shadow copy = memory_;
    AccessMemo scratch;
    Shadow& target = want != 0 ? copy : memory_;
    AccessMemo& memo =
        want != 0 ? scratch : memos_[2 * static_cast<std::size_t>(warp_ * kSlots + pick(kSlots)) + (write ? 1 : 0)];
    const AccessMemo& hint = memos_[2 * static_cast<std::size_t>(warp_ * kSlots + pick(kSlots))];
    const Mask got =
        write ? target.write(by, lanes, offsets, groups, 1, 0, sets_, memo).conflict
              : target.read(by, lanes, offsets, groups, 1, sets_, memo, &hint != &memo ? &hint : nullptr).conflict;
    if (got != want) {
      ++n_.mismatches;
      std::printf("mismatch: %s kind %d, got %08x want %08x\n", write ? "write" : "read", kind, got, want);
      ok_ = false;
    }
    if (want != 0) return;
    for (int l = 0; l < kLanes; ++l) {
      if ((lanes >> l & 1) == 0) continue;
      const int who = agent >= 0 ? agent : kind == 7 ? dense_->copier(thread(l), domain) : thread(l);
      history_[static_cast<std::size_t>(offsets[l])].push_back(
          {block_, who, dense_->clock[static_cast<std::size_t>(who)], write});
    }
    if (kind == 8) {  // issuing publishes the issuer's past into the phase
      order_->arrive(warp_, 1U << lead, mbarrier);
      dense_->release(thread(lead), dense_->current[static_cast<std::size_t>(mbarrier)]);
    } else if (kind == 9) {
      order_->issue(warp_, 1U << lead, 0);
      dense_->release(thread(lead), dense_->group);
    }
  }

  void synchronise() {
    const int j = pick(kMBarriers);
    const auto mb = static_cast<std::size_t>(j);
    Dense& d = *dense_;
    switch (pick(12)) {
      case 0:
        barrier({{warp_, mask_}});
        break;
      case 1:
      case 2: {
        std::vector<HappensBefore::Participant> members;
        const int set = 1 + pick((1 << kWarps) - 1);
        for (int w = 0; w < kWarps; ++w) {
          if ((set >> w & 1) != 0) members.push_back({w, pick(4) == 0 ? mask_ : full()});
        }
        barrier(members);
        break;
      }
      case 3:
      case 4:
        order_->arrive(warp_, mask_, j);
        for_mask([&](int t) { d.release(t, d.current[mb]); });
        break;
      case 5: {
        order_->complete_phase(j);
        const auto agent = static_cast<std::size_t>(d.phase(j));
        Dense::join(d.done[mb], d.current[mb]);
        d.done[mb][agent] = d.clock[agent]++;
        break;
      }
      case 6:
      case 7:
        order_->wait_phase(warp_, mask_, j);
        for_mask([&](int t) { Dense::join(d.known[static_cast<std::size_t>(t)], d.done[mb]); });
        break;
      case 8: {
        const int domain = pick(kDomains);
        order_->commit_copies(warp_, mask_, domain);
        for_mask([&](int t) {
          d.groups[static_cast<std::size_t>(domain * d.threads + t)].push_back(
              d.clock[static_cast<std::size_t>(d.copier(t, domain))]++);
        });
        break;
      }
      case 9: {
        const auto pending = static_cast<std::size_t>(pick(3));
        const int domain = pick(kDomains);
        order_->wait_copies(warp_, mask_, domain, pending);
        for_mask([&](int t) {
          const auto& g = d.groups[static_cast<std::size_t>(domain * d.threads + t)];
          if (g.size() <= pending) return;
          unsigned& k = d.known[static_cast<std::size_t>(t)][static_cast<std::size_t>(d.copier(t, domain))];
          k = std::max(k, g[g.size() - 1 - pending]);
        });
        break;
      }
      case 10: {
        if (pick(2) == 0) {
          order_->close_group(0);
          const auto agent = static_cast<std::size_t>(d.phase(kMBarriers));
          d.group[agent] = d.clock[agent]++;
          d.closed.push_back(d.group);
        } else if (!d.closed.empty()) {
          const auto g = static_cast<std::size_t>(pick(static_cast<int>(d.closed.size())));
          order_->wait_group(warp_, mask_, 0, g);
          for_mask([&](int t) { Dense::join(d.known[static_cast<std::size_t>(t)], d.closed[g]); });
        }
        break;
      }
      default:
        if (pick(20) != 0) break;
        sets_.begin_block();
        begin_block(order_->last_epoch());
    }
  }

  void barrier(const std::vector<HappensBefore::Participant>& members) {
    order_->barrier(members);
    if (order_->settled() != settled_) {
      settled_ = order_->settled();
      sets_.settle();
    }
    Dense::Vector all(static_cast<std::size_t>(dense_->agents), 0);
    const auto each = [&](auto&& f) {
      for (const auto& p : members) {
        for (int l = 0; l < lanes_; ++l) {
          if ((p.lanes >> l & 1) != 0) f(p.warp * lanes_ + l);
        }
      }
    };
    each([&](int t) { dense_->release(t, all); });
    each([&](int t) { dense_->known[static_cast<std::size_t>(t)] = all; });
  }

  template <class F>
  void for_mask(F&& f) {
    for (int l = 0; l < lanes_; ++l) {
      if ((mask_ >> l & 1) != 0) f(thread(l));
    }
  }

  std::mt19937& rng_;
  Counters& n_;
  int lanes_;
  int elements_ = 0;
  int block_ = 0;
  int warp_ = 0;
  Mask mask_ = 0;
  bool ok_ = true;
  bool raced_ = false;
  std::uint64_t settled_ = 0;
  std::unique_ptr<HappensBefore> order_;
  std::unique_ptr<Dense> dense_;
  Shadow memory_;
  ReadSets sets_;
  std::vector<AccessMemo> memos_;
  std::vector<std::vector<Dense::Access>> history_;
};

}  // namespace

int main(int argc, char** argv) {
  const long traces = argc > 1 ? std::atol(argv[1]) : 100000;
  std::mt19937 rng(argc > 2 ? static_cast<unsigned>(std::atol(argv[2])) : 1U);
  Counters n;
  for (long t = 0; t < traces && n.mismatches < 5; ++t) Trace(rng, n).run();
  std::printf("traces %ld accesses %ld races %ld mismatches %ld\n", traces, n.accesses, n.races, n.mismatches);
  return n.mismatches != 0 ? 1 : 0;
}
