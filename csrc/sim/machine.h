// Runs bytecode: warps as resumable state, control flow, barriers, scheduling. What a leaf does to values is the
// derived class's: real values and hazards (interp.h), or the ghost run.
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
  enum class State : std::uint8_t { Ready, Waiting, Joining, Done };

  int id = 0;
  Mask lanes = 0;   // of the whole warp that exist
  Mask active = 0;  // that execute now
  int pc = 0;
  State state = State::Ready;
  int barrier = -1;  // Waiting: where
  int group = -1;    // Waiting: of which threads; -1: the block
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

  void run();
  void run_block(std::int64_t block);  // linear, x fastest

 protected:
  virtual void begin_block() = 0;
  virtual void end_block() = 0;
  virtual void leaf(Warp& w, const Leaf& f) = 0;
  virtual void synchronise(const ThreadGroup& members) = 0;  // all of them have arrived at a barrier
  virtual void group(Warp& w, const GroupSync& g) = 0;       // the active lanes commit or wait
  // Integers that the active lanes hold in a register; without data, some that keep the variable's facts.
  virtual void read_index(Warp& w, const SetCode& set, Lanes& to, const ir::Stmt* origin);
  // The active lanes have assigned to a scalar.
  virtual void check_facts(const Warp&, const SetCode&, const ir::Stmt*) const {}
  virtual void enter(Warp&, int) {}
  virtual void leave(Warp&, int) {}

  // Polls when it is time to; called where at most milliseconds have passed.
  void breathe() {
    if ((++steps_ & 0x7fU) == 0) breathe_deeply();
  }

  [[nodiscard]] const IntPlans& plans() const { return *code_.plans; }
  [[nodiscard]] std::string block_text() const { return block_text(block_); }
  [[nodiscard]] std::string block_text(std::int64_t block) const;
  // The barriers that synchronise now, by member of the group.
  [[nodiscard]] std::vector<const ir::Stmt*> waiting_at(const ThreadGroup& members) const;
  [[noreturn]] void divergent(const Warp& w, const ir::Stmt* origin, Mask want, const std::string& what) const;

  // What happened at an instruction: a loop went on, a condition did not hold for some lanes that asked.
  enum Happened : char { kWentOn = 1, kDidNotHold = 2 };
  std::vector<char> happened_;         // by instruction, ORed
  bool first_and_last_turns_ = false;  // of loops whose counter is the same for a warp, no others

  const Bytecode& code_;
  std::int64_t block_ = 0;   // linear index of the block that runs
  std::vector<Warp> warps_;  // whole, as they begin
  ThreadGroup everyone_;

 private:
  void breathe_deeply();
  void run_pieces();
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
  Mask loop_continues(const Warp& w, const LoopCode& loop) const;
  bool arrive(Warp& w, int barrier);  // false: the warp waits
  [[noreturn]] void deadlock() const;

  std::vector<std::unique_ptr<Warp>> pieces_;  // of the block that runs
  std::vector<Mask> ended_;                    // per warp
  std::mt19937_64 random_;
  bool shuffled_;
  std::uint32_t steps_ = 0;
  std::chrono::steady_clock::time_point polled_;
  const Warp* running_ = nullptr;
};

// "gemm.py:41", or "?" when unknown.
[[nodiscard]] std::string location_text(const ir::Stmt* stmt);
[[nodiscard]] std::string statement_text(const ir::Stmt* stmt);

}  // namespace graphene::sim
