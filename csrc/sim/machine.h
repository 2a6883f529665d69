// Runs bytecode, a cluster of blocks at a time (mostly of one): warps as resumable state, control flow, barriers,
// scheduling. What a leaf does to values is the derived class's: real values and hazards (interp.h), or the ghost run.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "sim/bytecode.h"
#include "sim/phases.h"

namespace graphene::sim {

// A warp, or the lanes of one that go their own way since some of them wait inside of a branch.
struct Warp {
  struct Frame {
    Mask outer;            // active before the construct, of this piece
    Mask other = 0;        // of an if: the lanes of the else part, while the then part runs
    int alternative = -1;  // of an if: where the else part begins, while the then part runs
    int after = 0;         // where lanes go on behind the construct
    Mask whole = 0;        // the lanes that meet again behind it where the warp has come apart inside; 0: it has not
  };
  // Waiting: at a barrier. Phase: at a wait for a phase, which it looks at again.
  enum class State : std::uint8_t { Ready, Waiting, Phase, Joining, Done };

  int id = 0;       // in the cluster
  int rank = 0;     // of its block
  int local = 0;    // in its block
  Mask lanes = 0;   // of the whole warp that exist
  Mask active = 0;  // that execute now
  int pc = 0;
  State state = State::Ready;
  int barrier = -1;         // Waiting: where; Phase: at which of Bytecode::phase_syncs
  std::int64_t round = -1;  // of the named barrier that it waits at
  std::int64_t now = 0;     // the step of a trace (trace.h)
  int group = -1;           // Waiting: of which threads; -1: the block; kCluster: all of its cluster
  static constexpr int kCluster = -2;
  IntState ints;
  std::vector<Frame> frames;
};

class Machine {
 public:
  // `seed` 0: blocks and warps in order; others shuffle both.
  Machine(const Bytecode& code, std::uint64_t seed);
  virtual ~Machine() = default;
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  std::function<void()> poll;  // called some twenty times a second; may throw
  // Where wanted: called when a cluster has ended, with its mbarriers'.
  std::function<void(const std::vector<PhaseCount>&)> ended;

  void run();
  void run_block(std::int64_t block);                        // linear, x fastest; with those of its cluster
  void run_blocks(const std::vector<std::int64_t>& blocks);  // each cluster once

 protected:
  virtual void leaf(Warp& w, const Leaf& f) = 0;
  // What happens besides leaves: a derived class overrides what it looks at.
  virtual void begin_block() {}
  virtual void end_block() {}
  virtual void synchronise(const ThreadGroup&) {}  // all of its members have arrived at a barrier
  virtual void group(Warp&, const GroupSync&) {}   // the active lanes commit or wait
  // Before a lane's arrival counts; when all arrivals of a phase are there; when lanes have been told that one is over.
  virtual void judge_arrival(const Warp&, int, int, const PhaseSync&) {}
  virtual void judge_phase(int) {}
  virtual void judge_wait(Warp&, Mask, int, const PhaseSync&) {}
  virtual void arrived(Warp&, const PhaseSync&, int) {}  // at the last of the mbarriers
  virtual void meet(const ThreadGroup&) {}               // at a barrier that orders nothing
  virtual void fence(Warp&, const ProxyFence&) {}
  virtual void converge(Warp&) {}  // the active lanes have come together
  // Integers that the active lanes hold in a register; without data, some that keep the variable's facts.
  virtual void read_index(Warp& w, const SetCode& set, Lanes& to, const ir::Stmt* origin);
  // The active lanes have assigned to a scalar.
  virtual void check_facts(const Warp&, const SetCode&, const ir::Stmt*) const {}
  virtual void tell(Warp&, const TellCode&, const ir::Stmt*) {}
  // Lanes that a loop's bound has ended, though its condition holds.
  virtual void past_bound(const Warp&, Mask, const ir::Stmt*) const {}
  virtual void enter(Warp&, int) {}
  virtual void leave(Warp&, int) {}

  // Polls when it is time to; called where at most milliseconds have passed.
  void breathe() {
    if ((++steps_ & 0x7fU) == 0) breathe_deeply();
  }

  // The copies that these lanes issued have landed, as far as their mbarriers are concerned.
  void land(const Warp& w, const Leaf& f, Mask lanes);
  // The number of an mbarrier in the cluster.
  [[nodiscard]] int mbarrier(const Warp& w, const MBarrierRef& ref, int rank, int lane) const;
  [[nodiscard]] std::vector<int> ranks(const Warp& w, const Ranks& to) const;
  // By lane, the block of the cluster whose memory a remote operand is in. Throws SIM_OUT_OF_BOUNDS.
  void ranks(const Warp& w, const Leaf& f, const Operand& o, Mask lanes, Lanes& out) const;
  [[nodiscard]] int named_first() const;  // of a block's named barriers, which follow its mbarriers
  [[nodiscard]] std::string mbarrier_text(int mbarrier) const;  // "full[2]"
  [[nodiscard]] const PhaseCount& count(int mbarrier) const { return counts_[static_cast<std::size_t>(mbarrier)]; }
  [[nodiscard]] std::int64_t block_of(const Warp& w) const { return block_ + w.rank; }

  [[nodiscard]] const IntPlans& plans() const { return *code_.plans; }
  [[nodiscard]] std::string block_text(const Warp& w) const { return block_text(block_of(w)); }
  [[nodiscard]] std::string block_text(std::int64_t block) const;
  // The barriers that synchronise now, by member of the group.
  [[nodiscard]] std::vector<const ir::Stmt*> waiting_at(const ThreadGroup& members) const;
  [[nodiscard]] std::vector<Warp*> present(const ThreadGroup& members) const;  // their pieces
  [[noreturn]] void divergent(const Warp& w, const ir::Stmt* origin, Mask want, const std::string& what) const;

  // What happened at an instruction: a loop went on, a condition did not hold for some lanes that asked.
  enum Happened : char { kWentOn = 1, kDidNotHold = 2 };
  std::vector<char> happened_;         // by instruction, ORed
  bool in_steps_ = false;              // always the piece in the earliest step of a trace
  bool first_and_last_turns_ = false;  // of loops whose counter is the same for a warp, no others

  const Bytecode& code_;
  std::int64_t block_ = 0;   // linear index of the first block of the cluster that runs
  std::vector<Warp> warps_;  // whole, as they begin; those of block 0 first

 private:
  void breathe_deeply();
  void run_pieces();
  bool run_all();       // false: nothing could go on
  bool run_earliest();  // one step of it
  void run_warp(Warp& w);
  [[nodiscard]] bool runs_through() const;  // every piece has ended
  void end(Warp& w);
  // Behind a construct: false while other lanes are still inside of it.
  bool leave_construct(Warp& w, int pc);
  void come_apart(Warp& w, Mask waiting);
  static void keep(Warp& w, Mask lanes);
  Warp& add_piece(const Warp& w, Mask lanes, std::size_t frames, int pc, Warp::State state);
  bool join(Warp& w, bool without_the_rest);
  bool arrive_in_warp(Warp& w, int barrier, const Barrier& b);
  void loop_begin(Warp& w, const Instruction& i);
  bool loop_end(Warp& w, const Instruction& i);
  Mask loop_continues(const Warp& w, const LoopCode& loop, const ir::Stmt* origin) const;
  Mask below_bound(const Warp& w, const LoopCode& loop) const;
  bool arrive(Warp& w, int barrier);  // false: the warp waits
  void arrive_at_phase(Warp& w, const PhaseSync& s);
  bool wait_for_phase(Warp& w, const PhaseSync& s);  // false: it waits
  [[nodiscard]] bool may_go_on(const Warp& w) const;
  [[nodiscard]] bool passes(const Warp& w, const PhaseSync& s, int mbarrier, std::int64_t parity) const {
    return s.threads > 0 ? count(mbarrier).phases > w.round : count(mbarrier).passes(parity);
  }
  void end_phase(int mbarrier);
  [[nodiscard]] const ThreadGroup& members_of(const Warp& w, int group) const;
  [[nodiscard]] std::string members_text(const Warp& w) const;  // of the barrier at which it waits
  [[noreturn]] void deadlock() const;

  std::vector<std::unique_ptr<Warp>> pieces_;  // of the cluster that runs
  std::vector<ThreadGroup> groups_;            // Bytecode::groups of each block; then each block; then the cluster
  std::vector<PhaseCount> counts_;             // per mbarrier of each block
  std::vector<Mask> ended_;                    // per warp
  std::mt19937_64 random_;
  bool shuffled_;
  std::uint32_t steps_ = 0;
  std::chrono::steady_clock::time_point polled_;
  const Warp* running_ = nullptr;
};

// "0-15, 20".
[[nodiscard]] std::string lanes_text(Mask lanes);
// "gemm.py:41", or "?" when unknown.
[[nodiscard]] std::string location_text(const ir::Stmt* stmt);
[[nodiscard]] std::string statement_text(const ir::Stmt* stmt);

}  // namespace graphene::sim
