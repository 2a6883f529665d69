// Atomic updates of an element: unordered with each other, ordered with everything else.
#include <algorithm>

#include "sim/shadow.h"

namespace graphene::sim {

Shadow::Verdict Shadow::update_atomically(const Issuer& by, Mask lanes, const std::int32_t* offsets, std::uint32_t site,
                                          ReadSets& sets) {
  if (atomics_.empty()) atomics_.assign(writes_.size(), 0);
  Verdict v;
  const HappensBefore& order = *by.order;
  for (Mask m = lanes; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const auto at = static_cast<std::size_t>(offsets[l]);
    const Stamp written = writes_[at];
    const Epoch e = epoch_of(written);
    const bool foreign = e != 0 && e < order.first_epoch();
    Conflict c{.lane = l, .offset = offsets[l], .earlier = written, .earlier_wrote = true, .other_block = foreign};
    bool bad = foreign || (e != 0 && !order.before(by.warp, l, owner_of(written), 1U << lane_of(written), e));
    if (!bad && reads_[at] != 0 && !sets.ordered(reads_[at], by, l)) {
      bad = true;
      c = sets.conflict(reads_[at], by, l);
      c.offset = offsets[l];
    }
    if (bad) {
      if (v.conflict == 0) v.first = c;
      v.conflict |= 1U << l;
    }
    if ((written & kUndefinedBit) != 0) v.undefined |= 1U << l;
    atomics_[at] = sets.add(atomics_[at], by, 1U << l, site);
  }
  return v;
}

void Shadow::check_atomics(const Issuer& by, Mask lanes, const std::int32_t* offsets, const ReadSets& sets,
                           Verdict& v) const {
  for (Mask m = lanes; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const ReadSets::Id id = atomics_[static_cast<std::size_t>(offsets[l])];
    if (id == 0 || sets.ordered(id, by, l)) continue;
    if (v.conflict == 0) {
      v.first = sets.conflict(id, by, l);
      v.first.offset = offsets[l];
      v.first.earlier_wrote = true;
    }
    v.conflict |= 1U << l;
  }
}

void Shadow::forget_atomics(Mask lanes, const std::int32_t* offsets) {
  for (Mask m = lanes; m != 0; m &= m - 1) atomics_[static_cast<std::size_t>(offsets[std::countr_zero(m)])] = 0;
}

}  // namespace graphene::sim
