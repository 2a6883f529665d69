// The rules of mbarriers on the ring of a clustered product: two blocks, each with a producer and two consumers, a copy
// of A for the own block and of half of B for both. Whatever the order of threads, the right protocol is clean, and
// each mistake is reported. usage: barrier_rules [schedules]; exit status 1 where a schedule says otherwise.
//
// A consumer is one thread, with a group of matrix instructions for every step; stores of threads do not occur.
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "sim/phases.h"
#include "sim/shadow.h"

namespace {

using namespace graphene::sim;

constexpr int kStages = 3;
constexpr int kSteps = 7;
constexpr int kTiles = 2;
constexpr int kThreads = 6;  // warps of one lane: producers of block 0 and 1, consumers 00, 01, 10, 11
constexpr int kIdle = 4000;

enum class Outcome { Runs, Fault, Race };

class Ring {
 public:
  Ring(unsigned seed, std::string mutant)
      : random_(seed),
        mutant_(std::move(mutant)),
        order_(std::vector<Mask>(kThreads, 1U), {.mbarriers = 4 * kStages, .agents = 4}, 0),
        rules_(order_),
        counts_(4 * kStages),
        shadow_(2 * kStages * 3, kInitial) {
    for (int b = 0; b < 4 * kStages; ++b) {
      counts_[static_cast<std::size_t>(b)].wanted = b < 2 * kStages               ? 1
                                                    : mutant_ == "count 3"        ? 3
                                                    : mutant_ == "own block only" ? 2
                                                                                  : 4;
      for (int w = 0; w < kThreads; ++w) order_.know_initialised(w, b);
    }
    for (int w = 0; w < kThreads; ++w) threads_.push_back({w});
  }

  // "clean", "deadlock", "fault" or "race".
  std::string run() {
    std::vector<int> alive;
    for (int w = 0; w < kThreads; ++w) alive.push_back(w);
    int idle = 0;
    while (!alive.empty()) {
      const std::size_t at = random_() % alive.size();
      Thread& t = threads_[static_cast<std::size_t>(alive[at])];
      moved_ = false;
      const bool ended = t.warp < 2 ? produce(t) : consume(t);
      if (outcome_ != Outcome::Runs) return outcome_ == Outcome::Race ? "race" : "fault";
      if (ended) alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(at));
      idle = moved_ || ended ? 0 : idle + 1;
      if (idle > kIdle) return "deadlock";
    }
    return "clean";
  }

 private:
  struct Thread {
    int warp;
    int step = 0, at = 0;  // of the loop; where in its body
    int stage = 0, phase = -1;
    int group = 0;
    std::deque<int> used = {};  // stages that a group reads
    std::vector<std::size_t> groups = {};
  };

  [[nodiscard]] bool is(const char* mutant) const { return mutant_ == mutant; }
  static int full(int block, int stage) { return block * kStages + stage; }
  static int empty(int block, int stage) { return (2 + block) * kStages + stage; }
  static int cell(int block, int stage, int part) { return (block * kStages + stage) * 3 + part; }
  PhaseCount& count(int b) { return counts_[static_cast<std::size_t>(b)]; }

  void judge(PhaseFault f) {
    if (f != PhaseFault::None && outcome_ == Outcome::Runs) outcome_ = Outcome::Fault;
  }
  void over(int b) {
    HappensBefore::Wait unseen;
    judge(rules_.over(b, count(b), unseen));
    if (outcome_ == Outcome::Runs && count(b).is_over()) count(b).next();
  }
  void arrive(const Thread& t, int b, int expect, bool own) {
    moved_ = true;
    judge(rules_.arrive(t.warp, 0, b, count(b), own ? Passes::All : Passes::Happened));
    ++count(b).arrivals;
    count(b).expected += expect;
    over(b);
  }
  void copy(const Thread& t, int b, int to) {
    moved_ = true;
    Issuer by{.order = &order_, .warp = t.warp, .generic = false, .agent = true};
    judge(rules_.copy(t.warp, 0, b, count(b)));
    if (outcome_ != Outcome::Runs) return;
    by.stamps.fill(make_stamp(order_.phase_epoch(b), order_.phase_of(b), 0));
    const std::int32_t offset = to;
    if (shadow_.write_bulk({.by = &by, .lane = 0, .lanes = 1U}, &offset, 1, 1, sets_).conflict)
      outcome_ = Outcome::Race;
    ++count(b).bytes;
    over(b);
  }
  bool wait(const Thread& t, int b, int parity) {
    if (!count(b).passes(parity)) return false;
    moved_ = true;
    int lane = 0;
    judge(rules_.wait(t.warp, 1U, b, count(b), lane));
    return true;
  }
  void read(const Thread& t, int from) {
    const int agent = t.warp - 2;
    Issuer by{.order = &order_, .warp = t.warp, .generic = false, .agent = true};
    by.stamps.fill(make_stamp(order_.group_epoch(agent), order_.agent(agent), 0));
    const std::int32_t offset = from;
    const auto v = shadow_.read_bulk({.by = &by, .lane = 0, .lanes = 1U}, &offset, 1, 2, sets_);
    if (v.conflict || epoch_of(shadow_.last_write(offset)) == 0) outcome_ = Outcome::Race;
  }
  static void advance(Thread& t) {
    if (++t.stage == kStages) t.stage = 0, t.phase ^= 1;
  }

  bool produce(Thread& t) {
    const int r = t.warp;
    if (t.phase < 0) t.phase = is("starting parity") ? 0 : 1;
    switch (t.at) {
      case 0:
        if (!is("no wait(empty)") && !wait(t, empty(r, t.stage), t.phase)) return false;
        arrive(t, full(r, t.stage), is("expect too little") ? 2 : is("expect too much") ? 4 : 3, true);
        break;
      case 1:
        copy(t, full(r, t.stage), cell(r, t.stage, 0));
        break;
      default:
        copy(t, full(t.at - 2, t.stage), cell(t.at - 2, t.stage, 1 + r));
    }
    if (++t.at < 4) return false;
    t.at = 0;
    advance(t);
    return ++t.step == kSteps * kTiles;
  }

  void release(Thread& t, int last) {
    if (!is("no wgmma wait")) {
      if (last >= 0) order_.wait_group(t.warp, 1U, t.warp - 2, static_cast<std::size_t>(last));
    }
    const int stage = t.used.front();
    t.used.pop_front();
    const int r = (t.warp - 2) / 2;
    for (int q = 0; q < 2; ++q) {
      if (q != r && (is("own block only") || is("remote arrive left out"))) continue;
      if (!(is("one consumer never arrives") && t.warp == 3)) arrive(t, empty(q, stage), 0, q == r);
    }
  }

  bool consume(Thread& t) {
    const int r = (t.warp - 2) / 2;
    if (t.phase < 0) t.phase = 0;
    switch (t.at++) {
      case 0:
        if (is("no wait(full)") || (is("one consumer's wait(full)") && t.warp == 4)) return false;
        if (!wait(t, full(r, t.stage), t.phase)) --t.at;
        return false;
      case 1:
        moved_ = true;
        for (int part = 0; part < 3; ++part) read(t, cell(r, t.stage, part));
        order_.issue(t.warp, 1U, t.warp - 2, Passes::Events);
        order_.close_group(t.warp - 2);
        ++t.group;
        t.used.push_back(t.stage);
        advance(t);
        return false;
      case 2:
        moved_ = true;
        if (is("arrive before the wait")) {
          release(t, t.group - 3);
        } else if (t.used.size() > 1) {
          release(t, t.group - 2);
        }
        return false;
      default:
        moved_ = true;
        ++t.step;
        t.at = 0;
        if (t.step % kSteps == 0) {
          while (!t.used.empty() && outcome_ == Outcome::Runs) release(t, t.group - 1);
        }
        return t.step == kSteps * kTiles;
    }
  }

  std::mt19937 random_;
  std::string mutant_;
  HappensBefore order_;
  PhaseRules rules_;
  std::vector<PhaseCount> counts_;
  Shadow shadow_;
  ReadSets sets_;
  std::vector<Thread> threads_;
  Outcome outcome_ = Outcome::Runs;
  bool moved_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  const int schedules = argc > 1 ? std::atoi(argv[1]) : 300;
  int wrong = 0;
  for (const char* mutant : {"", "no wait(empty)", "no wait(full)", "one consumer's wait(full)", "no wgmma wait",
                             "arrive before the wait", "expect too little", "expect too much", "starting parity",
                             "count 3", "own block only", "remote arrive left out", "one consumer never arrives"}) {
    std::map<std::string, int> found;
    for (int s = 0; s < schedules; ++s) ++found[Ring(static_cast<unsigned>(s), mutant).run()];
    std::printf("%-28s", *mutant != 0 ? mutant : "the protocol");
    for (const auto& [what, n] : found) std::printf(" %s: %d", what.c_str(), n);
    const int clean = found["clean"];
    const bool right = *mutant != 0 ? clean == 0 : clean == schedules;
    std::printf("%s\n", right ? "" : "  WRONG");
    wrong += static_cast<int>(!right);
  }
  return wrong != 0 ? 1 : 0;
}
