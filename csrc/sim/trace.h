// What one block did, as a timeline. Time is counted in steps of each warp: one for every instruction; a barrier brings
// its warps to the same step. It says what waits for what, not how long it takes.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "sim/machine.h"

namespace graphene::sim {

struct TraceEvent {
  enum class Kind : std::uint8_t { Leaf, Barrier, Commit, Wait, Flight } kind = Kind::Leaf;
  int warp = 0;
  int domain = -1;  // Commit, Wait, Flight: of Bytecode::copy_domains; of a leaf: whose copies it issues
  const ir::Stmt* origin = nullptr;
  const lower::AtomCall* call = nullptr;  // Leaf, Flight
  std::int64_t start = 0, end = 0;        // steps [start, end)
  std::int64_t count = 1;                 // Leaf: executions in a row; Flight: instructions of the group
  bool landed = true;                     // Flight: it has been waited for
};

class Trace {
 public:
  static constexpr std::size_t kMaxEvents = std::size_t{1} << 18;

  // Records one block: the first that begins.
  void begin(int warps, int domains);
  void end();  // copies still in flight stay so
  [[nodiscard]] bool records() const { return state_ == State::Recording && events_.size() < kMaxEvents; }
  [[nodiscard]] const std::vector<TraceEvent>& events() const { return events_; }

  void leaf(const Warp& w, const Leaf& f);
  void barrier(const ThreadGroup& members, const std::vector<const ir::Stmt*>& where);
  void group(const Warp& w, const GroupSync& g);

 private:
  enum class State : std::uint8_t { Before, Recording, After } state_ = State::Before;
  struct Group {
    TraceEvent flight;
    bool open = false;
  };
  struct Timeline {
    std::int64_t now = 0;
    std::size_t last = 0;                   // 1 + its last event
    std::vector<Group> open;                // per domain
    std::vector<std::deque<Group>> closed;  // per domain, oldest first
  };
  [[nodiscard]] Timeline& at(int warp) { return warps_[static_cast<std::size_t>(warp)]; }
  void add(Timeline& t, TraceEvent e);

  std::vector<Timeline> warps_;
  std::vector<TraceEvent> events_;
};

}  // namespace graphene::sim
