// What an mbarrier counts, and the rules that make what happens at it independent of the schedule:
//
// 1. A phase is named by knowledge. An arrival, and a copy, means the phase after those that the one acting knows to be
//    over; a wait means that one, or the last one that it knows of. Where the barrier stands elsewhere, another order
//    of threads would have done something else.
// 2. A wait reads the phase, completing the next one writes it: the completion must know of every wait for the one
// before,
//    or a slow thread would miss a round.
// 3. Bytes belong to phases: one is over when its arrivals and exactly the bytes that they expect are there.
// 4. Arrivals release, waits acquire. A copy passes into its phase what has happened, and of memory its own writes
// alone.
#pragma once

#include <cstdint>

#include "sim/clocks.h"

namespace graphene::sim {

struct PhaseCount {
  std::int64_t wanted = 1;               // arrivals of a phase
  std::int64_t phases = 0;               // that are over
  std::int64_t arrivals = 0;             // of the current one
  std::int64_t expected = 0, bytes = 0;  // of the current one

  [[nodiscard]] bool is_over() const { return arrivals == wanted && bytes == expected; }
  // What a thread that waits for the phase of this parity is told.
  [[nodiscard]] bool passes(std::int64_t parity) const { return (phases & 1) != (parity & 1); }
  void next() {
    ++phases;
    arrivals = expected = bytes = 0;
  }
};

enum class PhaseFault : std::uint8_t {
  None,
  Uninitialised,  // the one acting does not know that the barrier has been initialised
  Elsewhere,      // the barrier stands at another phase than the one acting means
  Arrivals,       // more than a phase waits for
  Bytes,          // more than a phase expects
  Unseen          // a phase may end before somebody has seen the one before
};

// Each judges an act, and has it done in the clocks when it is right: the counts are the caller's.
class PhaseRules {
 public:
  explicit PhaseRules(HappensBefore& order) : order_(order) {}
  // One lane arrives. `copies`: once its copies of that domain have landed; -1: now.
  PhaseFault arrive(int warp, int lane, int mbarrier, const PhaseCount& count, Passes passes, int copies = -1);
  // A copy that the lane issues will complete here.
  PhaseFault copy(int warp, int lane, int mbarrier, const PhaseCount& count);
  // After an arrival or bytes, before PhaseCount::next: whether the phase may be over, when it is.
  PhaseFault over(int mbarrier, const PhaseCount& count, HappensBefore::Wait& unseen);
  // The lanes have been told that a phase is over.
  // `beyond`: and see what other blocks have released to it.
  PhaseFault wait(int warp, Mask lanes, int mbarrier, const PhaseCount& count, int& lane, bool beyond = false);

 private:
  HappensBefore& order_;
};

}  // namespace graphene::sim
