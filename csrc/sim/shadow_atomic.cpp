// Atomic updates of an element: those of one kind are unordered with each other, and ordered with everything else.
// Reads that never learn of writes.
#include <algorithm>
#include <iterator>

#include "sim/shadow.h"

namespace graphene::sim {

Shadow::Verdict Shadow::update_atomically(const Issuer& by, Mask lanes, const std::int32_t* offsets, std::uint32_t site,
                                          const AtomicKind& kind, ReadSets& sets) {
  auto own = std::find_if(atomics_.begin(), atomics_.end(), [&](const Atomics& a) {
    return a.kind.operation == kind.operation && a.kind.of_block == kind.of_block;
  });
  if (own == atomics_.end()) {
    atomics_.push_back({kind, CountedVector<ReadSets::Id>(writes_.size(), 0)});
    own = std::prev(atomics_.end());
  }
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
    if (!bad && by.agent && e != 0) {
      bad = !order.fenced(by.warp, l, owner_of(written), 1U << lane_of(written), e, by.global);
      if (bad) c.why = Conflict::Why::Unfenced;
    }
    if (!bad && reads_[at] != 0 && !sets.ordered(reads_[at], by, l)) {
      bad = true;
      c = sets.conflict(reads_[at], by, l);
    }
    for (const Atomics& other : atomics_) {
      const ReadSets::Id id = other.sets[at];
      if (bad || id == 0) continue;
      const bool same = other.kind.operation == kind.operation;
      if (same ? sets.foreign(id) && (other.kind.of_block || kind.of_block) : !sets.ordered(id, by, l, Did::Wrote)) {
        bad = true;
        c = sets.conflict(id, by, l, Did::Wrote);
        c.earlier_wrote = true;
        c.why = same ? Conflict::Why::Scope : Conflict::Why::Kinds;
      }
    }
    if (bad) {
      c.offset = offsets[l];
      if (v.conflict == 0) v.first = c;
      v.conflict |= 1U << l;
    }
    if ((written & kUndefinedBit) != 0) v.undefined |= 1U << l;
    own->sets[at] = sets.add(own->sets[at], by, 1U << l, site, Did::Wrote);
  }
  return v;
}

bool Shadow::updated_atomically(std::int32_t offset) const {
  return std::ranges::any_of(atomics_, [&](const Atomics& a) { return a.sets[static_cast<std::size_t>(offset)] != 0; });
}

void Shadow::check_atomics(const Issuer& by, Mask lanes, const std::int32_t* offsets, const ReadSets& sets,
                           Verdict& v) const {
  for (const Atomics& a : atomics_) {
    for (Mask m = lanes; m != 0; m &= m - 1) {
      const int l = std::countr_zero(m);
      const ReadSets::Id id = a.sets[static_cast<std::size_t>(offsets[l])];
      if (id == 0 || sets.ordered(id, by, l, Did::Wrote)) continue;
      if (v.conflict == 0) {
        v.first = sets.conflict(id, by, l, Did::Wrote);
        v.first.offset = offsets[l];
        v.first.earlier_wrote = true;
      }
      v.conflict |= 1U << l;
    }
  }
}

void Shadow::forget_atomics(Mask lanes, const std::int32_t* offsets) {
  for (Atomics& a : atomics_) {
    for (Mask m = lanes; m != 0; m &= m - 1) a.sets[static_cast<std::size_t>(offsets[std::countr_zero(m)])] = 0;
  }
}

bool Shadow::freeze(const Issuer& by, Mask lanes, const std::int32_t* offsets, std::uint32_t site, const ReadSets& sets,
                    Conflict& conflict) {
  if (frozen_.empty()) frozen_.assign(writes_.size(), 0);
  for (Mask m = lanes; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const auto at = static_cast<std::size_t>(offsets[l]);
    Stamp written = epoch_of(writes_[at]) != 0 ? writes_[at] : 0;
    for (const Atomics& a : atomics_) {
      if (a.sets[at] != 0) written = sets.representative(a.sets[at]);
    }
    if (written != 0) {
      conflict = {.why = Conflict::Why::Incoherent,
                  .lane = l,
                  .offset = offsets[l],
                  .earlier = written,
                  .earlier_wrote = true,
                  .other_block = epoch_of(written) < by.order->first_epoch()};
      return false;
    }
    if (frozen_[at] == 0) frozen_[at] = by.stamps[static_cast<std::size_t>(l)] | (Stamp{site} << kSiteShift);
  }
  return true;
}

bool Shadow::frozen(const Issuer& by, Mask lanes, const std::int32_t* offsets, Conflict& conflict) const {
  if (frozen_.empty()) return false;
  for (Mask m = lanes; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const Stamp read = frozen_[static_cast<std::size_t>(offsets[l])];
    if (read == 0) continue;
    conflict = {.why = Conflict::Why::Incoherent,
                .lane = l,
                .offset = offsets[l],
                .earlier = read,
                .earlier_wrote = false,
                .other_block = epoch_of(read) < by.order->first_epoch()};
    return true;
  }
  return false;
}

}  // namespace graphene::sim
