// Accesses of agents: whole tiles by one issuer, or by a group whose threads all must know what they meet.
#include <array>

#include "sim/shadow.h"

namespace graphene::sim {

namespace {

// Whether everybody who must know knows: each lane of the group, where it is more than one lane. Of lanes that know the
// same, two tell: one of them may be the one that did it, for which its own program's order stands.
template <class F>
bool everybody(const Bulk& bulk, F&& knows) {
  if (bulk.warps == 1 && bulk.lanes == 1U << bulk.lane) return knows(bulk.by->warp, bulk.lane);
  for (int w = 0; w < bulk.warps; ++w) {
    Mask asked = bulk.lanes;
    if (bulk.by->order->alike(bulk.by->warp + w)) asked = 1U << std::countr_zero(asked) | std::bit_floor(asked);
    for (Mask m = asked; m != 0; m &= m - 1) {
      if (!knows(bulk.by->warp + w, std::countr_zero(m))) return false;
    }
  }
  return true;
}

// What was found right of one access, so that equal ones are not asked for again: most elements of a tile have few.
class Judged {
 public:
  [[nodiscard]] bool has(Stamp s) const { return seen_[at(s)] == key(s); }
  void add(Stamp s) { seen_[at(s)] = key(s); }

 private:
  static std::size_t at(Stamp s) { return static_cast<std::size_t>(lane_of(s)); }
  static Stamp key(Stamp s) { return (s & ~(Stamp{kMaxSite} << kSiteShift)) | Stamp{1} << kSiteShift; }
  std::array<Stamp, kLanes> seen_{};
};

}  // namespace

// What an agent wrote has landed when it has happened, and may be overwritten; what a thread wrote only when it is
// visible, and what is read must be visible in any case.
bool Shadow::judge_write(const Bulk& bulk, Stamp written, bool reads, Conflict& c) const {
  const HappensBefore& order = *bulk.by->order;
  const Epoch e = epoch_of(written);
  if (e == 0) return true;
  c = {.lane = bulk.lane, .earlier = written, .earlier_wrote = true, .other_block = e < order.first_epoch()};
  if (c.other_block) return false;
  const std::uint32_t owner = owner_of(written);
  const Mask lane = 1U << lane_of(written);
  const Did did = !reads && order.is_agent(owner) ? Did::Read : Did::Wrote;
  if (!everybody(bulk, [&](int w, int l) { return order.before(w, l, owner, lane, e, did); })) return false;
  c.why = Conflict::Why::Unfenced;
  return everybody(bulk, [&](int w, int l) { return order.fenced(w, l, owner, lane, e, bulk.by->global); });
}

bool Shadow::judge_atomics(const Bulk& bulk, std::int32_t offset, const ReadSets& sets, Conflict& c) const {
  for (const Atomics& a : atomics_) {
    const ReadSets::Id id = a.sets[static_cast<std::size_t>(offset)];
    if (id == 0 || sets.ordered(id, *bulk.by, bulk.lane, Did::Wrote)) continue;
    c = sets.conflict(id, *bulk.by, bulk.lane, Did::Wrote);
    c.earlier_wrote = true;
    return false;
  }
  return true;
}

Shadow::BulkVerdict Shadow::read_bulk(const Bulk& bulk, const std::int32_t* offsets, std::size_t n, std::uint32_t site,
                                      ReadSets& sets) {
  BulkVerdict v;
  any_reads_ = true;
  Judged judged;
  ReadSets::Id from = ~0U;
  ReadSets::Id to = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(offsets[i]);
    const Stamp written = writes_[at];
    if ((written & kUndefinedBit) != 0 && v.undefined++ == 0) v.undefined_at = i;
    const bool right = judged.has(written) || judge_write(bulk, written, true, v.first);
    if (!right || (!atomics_.empty() && !judge_atomics(bulk, offsets[i], sets, v.first))) {
      v.conflict = true;
      v.first.offset = offsets[i];
      return v;
    }
    judged.add(written);
    if (reads_[at] != from) {
      from = reads_[at];
      to = sets.add(from, *bulk.by, 1U << bulk.lane, site);
    }
    reads_[at] = to;
  }
  return v;
}

Shadow::BulkVerdict Shadow::write_bulk(const Bulk& bulk, const std::int32_t* offsets, std::size_t n, std::uint32_t site,
                                       const ReadSets& sets) {
  BulkVerdict v;
  Judged judged;
  ReadSets::Id ordered = 0;
  const Stamp stamp = bulk.by->stamps[static_cast<std::size_t>(bulk.lane)] | Stamp{site} << kSiteShift;
  for (std::size_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(offsets[i]);
    bool right = judged.has(writes_[at]) || judge_write(bulk, writes_[at], false, v.first);
    if (right && reads_[at] != ordered && reads_[at] != 0) {
      right = everybody(bulk, [&](int w, int l) {
        Issuer other = *bulk.by;
        other.warp = w;
        return sets.ordered(reads_[at], other, l);
      });
      if (!right) v.first = sets.conflict(reads_[at], *bulk.by, bulk.lane);
    }
    if (!right || (!atomics_.empty() && !judge_atomics(bulk, offsets[i], sets, v.first))) {
      v.conflict = true;
      v.first.offset = offsets[i];
      return v;
    }
    judged.add(writes_[at]);
    ordered = reads_[at];
    writes_[at] = stamp;
    reads_[at] = 0;
    for (Atomics& a : atomics_) a.sets[at] = 0;
  }
  return v;
}

}  // namespace graphene::sim
