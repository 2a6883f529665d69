// What one cluster of blocks did (mostly of one), as a timeline. Time is counted in steps, by these rules:
//
// 1. An instruction of a warp takes one step; what decides control flow takes none. A barrier brings its warps to the
//    same step, and so does an instruction of several warps.
// 2. A wait ends in the step after the one in which what it waits for is over. Copies of threads (cp.async) are over
//    when they are issued.
// 3. Bytes that agents copy go one copy after the other, kBytesAStep in a step, into and out of a block separately. The
//    first ones arrive kLatency steps after the copy was issued; of a store the results arrive so long after the last
//    bytes were read.
// 4. Products of a block's warpgroups go one after the other: multiply-adds of 2-byte elements at kMultiplyAdds in a
//    step, of others at as many as fit the same bytes.
// 5. Among the warps that can go on, the one in the earliest step does.
//
// It says what waits for what, not how long it takes.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "sim/machine.h"

namespace graphene::sim {

struct TraceEvent {
  enum class Kind : std::uint8_t { Leaf, Barrier, Commit, Wait, Flight, Arrive, Fence, Copy, Product, Phase };
  struct Use {  // of shared memory
    int buffer = -1;
    int stage = -1;  // -1: the buffer has none
    bool writes = false;
    friend bool operator==(const Use&, const Use&) = default;
  };
  Kind kind = Kind::Leaf;
  int warp = -1;    // in the cluster; of Copy, Product: that issued it; -1: Phase
  int block = 0;    // of the cluster: of the warp; of Copy: the one that receives; of Phase: the barrier's
  int domain = -1;  // Commit, Wait, Flight: of Bytecode::copy_domains, kProducts; of a leaf: whose copies it issues
  const ir::Stmt* origin = nullptr;
  const lower::AtomCall* call = nullptr;  // Leaf, Flight, Copy, Product
  std::int64_t start = 0, end = 0;        // steps [start, end); of Copy, Product: from the issue to the completion
  std::int64_t count = 1;                 // Leaf, Product: executions in a row; Flight: instructions of the group
  bool landed = true;                     // Flight: it has been waited for
  std::int64_t begin = 0, until = 0;      // Copy, Product: when the agent is at it
  std::int64_t bytes = 0;                 // Copy
  std::int64_t flops = 0;                 // Product
  int barrier = -1;                       // Arrive, Wait, Copy, Phase: number in the block of the mbarrier
  std::int64_t phase = 0;                 // of that barrier
  std::vector<Use> uses = {};             // of Leaf, Flight, Copy, Product
};

class Trace {
 public:
  static constexpr std::size_t kMaxEvents = std::size_t{1} << 18;
  static constexpr std::int64_t kBytesAStep = 128, kLatency = 500, kMultiplyAdds = 2048;
  static constexpr int kProducts = -2;

  // Records one cluster: the first that begins.
  void begin(const Bytecode& code);
  void end();  // copies still in flight stay so
  [[nodiscard]] bool records() const { return state_ == State::Recording && events_.size() < kMaxEvents; }
  [[nodiscard]] const std::vector<TraceEvent>& events() const { return events_; }

  // Each moves the clock of its warps on.
  void leaf(Warp& w, const Leaf& f, std::vector<TraceEvent::Use> uses);
  void barrier(const std::vector<Warp*>& members, const std::vector<const ir::Stmt*>& where);
  void fence(Warp& w, const ProxyFence& f);
  void arrive(Warp& w, const PhaseSync& s, int mbarrier, std::int64_t phase);
  void wait(Warp& w, const PhaseSync& s, int mbarrier, std::int64_t phase);
  void group(Warp& w, const GroupSync& g);
  // `closes`: it is the first of its warpgroup that commits; `done`: groups that are over for the warp then.
  void products(Warp& w, const GroupSync& g, bool closes, std::size_t done);
  static void meet(const std::vector<Warp*>& members);

  // What an agent does for a leaf, before leaf(). A copy arrives at the mbarriers (numbers in the cluster) of one or
  // several blocks; a store at none.
  void copy(const Warp& w, const Leaf& f, std::int64_t bytes, const std::vector<int>& mbarriers, std::int64_t phase,
            const std::vector<TraceEvent::Use>& uses);
  void product(const Warp& w, const Leaf& f, std::vector<TraceEvent::Use> uses);
  // An arrival in the warp's step counts; a phase is over.
  void counts(const Warp& w, int mbarrier);
  void phase(int mbarrier, std::int64_t number);

 private:
  enum class State : std::uint8_t { Before, Recording, After } state_ = State::Before;
  struct Group {
    TraceEvent flight;
    bool open = false;
    std::int64_t over = 0;  // Of agents' copies: when it is
  };
  struct Timeline {
    std::size_t last = 0;                   // 1 + its last event
    std::int64_t now = 0;                   // of the piece of the warp that is furthest
    std::vector<Group> open;                // per domain
    std::vector<std::deque<Group>> closed;  // per domain, oldest first
  };
  struct Barrier {
    std::int64_t latest = 0;  // of what its phase waits for
    std::int64_t ended = 0;   // its last phase
  };
  struct Warpgroup {
    std::size_t last = 0;            // 1 + the last event of its products
    std::int64_t latest = 0;         // end of its last product
    std::vector<std::int64_t> over;  // per group
  };
  [[nodiscard]] Timeline& at(int warp) { return warps_[static_cast<std::size_t>(warp)]; }
  [[nodiscard]] Warpgroup& group_of(const Warp& w) { return warpgroups_[static_cast<std::size_t>(w.id / 4)]; }
  [[nodiscard]] Barrier& barrier_at(int mbarrier) { return barriers_[static_cast<std::size_t>(mbarrier)]; }
  void add(Warp& w, TraceEvent e, std::int64_t until = 0);

  const Bytecode* code_ = nullptr;
  std::vector<Timeline> warps_;
  std::vector<Warpgroup> warpgroups_;
  std::vector<Barrier> barriers_;
  std::vector<std::int64_t> in_, out_, multiply_;  // per block: when these paths are free
  std::vector<TraceEvent> events_;
};

// The shared memory that a leaf accesses for the first of the lanes.
[[nodiscard]] std::vector<TraceEvent::Use> shared_uses(const Bytecode& code, const Warp& w, const Leaf& f, Mask lanes);

}  // namespace graphene::sim
