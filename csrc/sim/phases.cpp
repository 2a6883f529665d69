#include "sim/phases.h"

#include <bit>

namespace graphene::sim {

namespace {

PhaseFault stands(std::int64_t known, const PhaseCount& count) {
  if (known < 0) return PhaseFault::Uninitialised;
  return known != count.phases ? PhaseFault::Elsewhere : PhaseFault::None;
}

}  // namespace

PhaseFault PhaseRules::arrive(int warp, int lane, int mbarrier, const PhaseCount& count, Passes passes, int copies) {
  if (const PhaseFault f = stands(order_.known_phases(warp, lane, mbarrier), count); f != PhaseFault::None) return f;
  if (count.arrivals >= count.wanted) return PhaseFault::Arrivals;
  if (copies >= 0) {
    order_.arrive_after_copies(warp, 1U << lane, mbarrier, copies);
  } else {
    order_.arrive(warp, 1U << lane, mbarrier, passes);
  }
  return PhaseFault::None;
}

PhaseFault PhaseRules::copy(int warp, int lane, int mbarrier, const PhaseCount& count) {
  const PhaseFault f = stands(order_.known_phases(warp, lane, mbarrier), count);
  if (f == PhaseFault::None) order_.arrive(warp, 1U << lane, mbarrier, Passes::Happened);
  return f;
}

PhaseFault PhaseRules::over(int mbarrier, const PhaseCount& count, HappensBefore::Wait& unseen) {
  if (count.arrivals == count.wanted && count.bytes > count.expected) return PhaseFault::Bytes;
  if (!count.is_over()) return PhaseFault::None;
  unseen = order_.unseen_wait(mbarrier);
  if (unseen.warp >= 0) return PhaseFault::Unseen;
  order_.complete_phase(mbarrier);
  return PhaseFault::None;
}

PhaseFault PhaseRules::wait(int warp, Mask lanes, int mbarrier, const PhaseCount& count, int& lane, bool beyond) {
  for (Mask m = lanes; m != 0; m &= m - 1) {
    lane = std::countr_zero(m);
    const std::int64_t known = order_.known_phases(warp, lane, mbarrier);
    if (known < 0) return PhaseFault::Uninitialised;
    if (count.phases != known && count.phases != known + 1) return PhaseFault::Elsewhere;
  }
  order_.wait_phase(warp, lanes, mbarrier, beyond);
  return PhaseFault::None;
}

}  // namespace graphene::sim
