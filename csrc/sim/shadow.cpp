#include "sim/shadow.h"

#include <algorithm>
#include <limits>

#include "sim/simd.h"

namespace graphene::sim {

namespace {

constexpr Mask kAllLanes = ~Mask{0};

// Nonzero when some lane's last write is not ordered before it by epoch alone. Epochs are compared relative to the
// block's first: those of other blocks wrap to large values and are never known.
GR_SIM_INLINE Mask unknown_writes(const Stamp* seen, const Stamp* own, Epoch first, Epoch floor) {
  std::uint64_t bad = 0;
  const Epoch known = floor - first;
  for (int l = 0; l < kLanes; ++l) {
    const Epoch e = static_cast<Epoch>(seen[l] >> 32);
    const Epoch relative = e - first;
    const bool mine = ((seen[l] ^ own[l]) & kWhoMask) == 0 && relative < 0x80000000U;
    bad |= static_cast<std::uint64_t>((e != 0) & (relative > known) & !mine);
  }
  return bad != 0 ? kAllLanes : 0;
}

GR_SIM_CLONES
Mask scan_writes(const Stamp* seen, const Stamp* own, Epoch first, Epoch floor, std::uint64_t* any_bits) {
  std::uint64_t any = 0;
  for (int l = 0; l < kLanes; ++l) any |= seen[l];
  *any_bits = any;
  return unknown_writes(seen, own, first, floor);
}

Mask undefined_lanes(const Stamp* seen, Mask lanes) {
  Mask m = 0;
  for (int l = 0; l < kLanes; ++l) m |= static_cast<Mask>((seen[l] & kUndefinedBit) != 0) << l;
  return m & lanes;
}

void fresh(AccessMemo& memo, const Issuer& by, bool grouped) {
  const std::uint64_t version = by.order->version(by.warp);
  if (by.generic && memo.version == version && memo.grouped == grouped) return;
  memo.grouped = grouped;
  memo.version = by.generic ? version : 0;  // an agent's epochs change without the warp's version
  memo.from.fill(~0U);
  memo.to.fill(~0U);
  memo.lanes.fill(0);
}

}  // namespace

void LaneGroups::build(Mask lanes, const std::int32_t* offsets) {
  leaders.clear();
  masks.clear();
  run = 1;
  period = kLanes;
  distinct = true;
  std::int64_t last = std::numeric_limits<std::int64_t>::min();
  for (Mask m = lanes; m != 0 && distinct; m &= m - 1) {  // most patterns rise from lane to lane
    const int l = std::countr_zero(m);
    distinct = offsets[l] > last;
    last = offsets[l];
  }
  if (distinct) {
    for (Mask m = lanes; m != 0; m &= m - 1) {
      leaders.push_back(std::countr_zero(m));
      masks.push_back(m & -m);
    }
    return;
  }
  distinct = true;
  for (Mask rest = lanes; rest != 0;) {
    const int leader = std::countr_zero(rest);
    Mask same = 0;
    for (int l = 0; l < kLanes; ++l) same |= static_cast<Mask>(offsets[l] == offsets[leader]) << l;
    same &= rest;
    distinct = distinct && std::has_single_bit(same);
    leaders.push_back(leader);
    masks.push_back(same);
    rest &= ~same;
  }
  if (distinct || lanes != kAllLanes) return;
  const auto shared = [&](int n) {
    for (int l = 0; l < kLanes; ++l) {
      if (offsets[l] != offsets[l - l % n]) return false;
    }
    return true;
  };
  const auto repeats = [&](int n) {
    for (int l = n; l < kLanes; ++l) {
      if (offsets[l] != offsets[l - n]) return false;
    }
    return true;
  };
  for (int n = 2; n <= kLanes; n *= 2) {
    if (shared(n)) run = n;
    if (period == kLanes && n < kLanes && repeats(n)) period = n;
  }
}

void ReadSets::begin_block() {
  forget();
  block_first_ = next_;
  agents_ = false;
}

void ReadSets::settle() {
  if (!agents_) forget();
}

void ReadSets::forget() {
  sets_.clear();
  reads_.clear();
  hashed_ = 0;
  first_ = next_;
}

std::span<const ReadSets::Read> ReadSets::find(Id id) const {
  id &= ~kForeignFlag;
  if (id < first_) return {};
  const Set& s = sets_[id - first_];
  return {reads_.data() + s.first, s.count};
}

Stamp ReadSets::representative(Id id) const {
  id &= ~kForeignFlag;
  return id + kKept <= next_ || id % kKept >= recent_.size() ? 0 : recent_[id % kKept];
}

// Where the set's id stands, or would.
std::size_t ReadSets::slot(std::uint64_t hash, std::span<const Read> set) const {
  const std::size_t last = index_.size() - 1;
  auto i = static_cast<std::size_t>(hash ^ hash >> 32) & last;
  for (; index_[i] >= first_; i = (i + 1) & last) {
    const Set& s = sets_[index_[i] - first_];
    if (s.hash == hash && std::ranges::equal(find(index_[i]), set)) break;
  }
  return i;
}

void ReadSets::remember(Id id, const Read& r) {
  const std::size_t at = id % kKept;
  if (at >= recent_.size()) recent_.resize(std::clamp<std::size_t>(2 * at, 1024, kKept));
  recent_[at] = make_stamp(r.epoch, r.owner, std::countr_zero(r.lanes)) | (Stamp{r.site} << kSiteShift);
}

ReadSets::Id ReadSets::intern(std::span<const Read> set, bool foreign) {
  std::uint64_t h = 1469598103934665603ULL;
  for (const Read& r : set) {
    const std::uint64_t who = std::uint64_t{r.owner} << 32 | r.site;
    for (const std::uint64_t x : {who, std::uint64_t{r.lanes} << 32 | r.epoch}) {
      h = (h ^ x) * 0xff51afd7ed558ccdULL;
      h ^= h >> 32;
    }
  }
  const Id flag = foreign ? kForeignFlag : 0;
  if (2 * ++hashed_ > index_.size()) {
    index_.assign(std::max<std::size_t>(4 * index_.size(), 64), 0);
    for (std::size_t i = 0; i < sets_.size(); ++i) {
      if (sets_[i].hash == kNoHash) continue;
      const Id id = first_ + static_cast<Id>(i);
      index_[slot(sets_[i].hash, find(id))] = id;
    }
  }
  Id& at = index_[slot(h, set)];
  if (at >= first_) {
    --hashed_;
    return at | flag;
  }
  at = next_++;
  remember(at, set.front());
  sets_.push_back({.first = reads_.size(), .count = set.size(), .hash = h});
  reads_.insert(reads_.end(), set.begin(), set.end());
  return at | flag;
}

// The set of nothing but one read by threads themselves.
ReadSets::Id ReadSets::only(const Issuer& by, Mask lanes, std::uint32_t site, bool foreign, bool each) {
  const int leader = std::countr_zero(lanes);
  const Stamp stamp = by.stamps[static_cast<std::size_t>(leader)];
  Read r{owner_of(stamp), lanes, epoch_of(stamp), site};
  if (!each) {
    made_.assign(1, r);
    return intern(made_, foreign);
  }
  if (site >= single_.size()) single_.resize(site + 1);
  Single& s = single_[site];
  if (s.first < first_ || s.owner != r.owner || s.epoch != r.epoch) {
    s = {.first = next_, .owner = r.owner, .epoch = r.epoch};
    for (int l = 0; l < kLanes; ++l) {
      r.lanes = 1U << l;
      remember(next_++, r);
      sets_.push_back({.first = reads_.size(), .count = 1, .hash = kNoHash});
      reads_.push_back(r);
    }
  }
  return (s.first + static_cast<Id>(leader)) | (foreign ? kForeignFlag : 0);
}

ReadSets::Id ReadSets::add(Id old, const Issuer& by, Mask lanes, std::uint32_t site, Did did, bool each) {
  const int leader = std::countr_zero(lanes);
  agents_ = agents_ || !by.generic;
  if (by.generic && find(old).empty()) return only(by, lanes, site, foreign(old), each);
  std::vector<Read>& fresh = fresh_;  // the lanes' copies may be of groups opened at different times
  fresh.clear();
  made_.clear();
  const auto same = [](std::vector<Read>& in, std::uint32_t owner, Epoch epoch) {
    return std::find_if(in.begin(), in.end(), [&](const Read& r) { return r.owner == owner && r.epoch == epoch; });
  };
  for (Mask m = lanes; m != 0; m &= m - 1) {
    const Stamp stamp = by.stamps[static_cast<std::size_t>(std::countr_zero(m))];
    const Mask bit = 1U << lane_of(stamp);
    if (const auto it = same(fresh, owner_of(stamp), epoch_of(stamp)); it != fresh.end()) {
      it->lanes |= bit;
    } else {
      fresh.push_back({owner_of(stamp), bit, epoch_of(stamp), site});
    }
  }
  for (Read r : find(old)) {
    if (const auto it = same(fresh, r.owner, r.epoch); it != fresh.end()) {
      r.lanes |= it->lanes;
      fresh.erase(it);
    } else {
      // Whoever is ordered after the new reads is ordered after what is ordered before them.
      if (r.owner == static_cast<std::uint32_t>(by.warp)) r.lanes &= ~lanes;
      if (r.lanes == 0) continue;
      const bool settled = by.order->before(by.warp, leader, r.owner, r.lanes, r.epoch, did);
      if (settled && (!by.agent || by.order->fenced(by.warp, leader, r.owner, r.lanes, r.epoch, by.global))) continue;
    }
    made_.push_back(r);
  }
  made_.insert(made_.end(), fresh.begin(), fresh.end());
  return intern(made_, foreign(old));
}

bool ReadSets::ordered(Id id, const Issuer& by, int lane, Did did) const {
  if (foreign(id)) return false;
  return std::ranges::all_of(find(id), [&](const Read& r) {
    return by.order->before(by.warp, lane, r.owner, r.lanes, r.epoch, did) &&
           (!by.agent || by.order->fenced(by.warp, lane, r.owner, r.lanes, r.epoch, by.global));
  });
}

Conflict ReadSets::conflict(Id id, const Issuer& by, int lane, Did did) const {
  Conflict c;
  c.lane = lane;
  for (const Read& r : find(id)) {
    const bool before = by.order->before(by.warp, lane, r.owner, r.lanes, r.epoch, did);
    if (before && (!by.agent || by.order->fenced(by.warp, lane, r.owner, r.lanes, r.epoch, by.global))) continue;
    Mask other = r.lanes;
    if (!before && r.owner == static_cast<std::uint32_t>(by.warp) && other != (1U << lane)) other &= ~(1U << lane);
    c.earlier = make_stamp(r.epoch, r.owner, std::countr_zero(other)) | (Stamp{r.site} << kSiteShift);
    if (before) c.why = Conflict::Why::Unfenced;
    return c;
  }
  c.other_block = true;
  c.earlier = representative(id);
  return c;
}

void Shadow::reset(Stamp initial) {
  std::fill(writes_.begin(), writes_.end(), initial);
  std::fill(reads_.begin(), reads_.end(), 0);
  atomics_.clear();
  any_reads_ = false;
}

void Shadow::set_undefined(std::int32_t offset, bool undefined) {
  Stamp& s = writes_[static_cast<std::size_t>(offset)];
  s = undefined ? s | kUndefinedBit : s & ~kUndefinedBit;
}

void Shadow::explain_writes(const Issuer& by, Mask lanes, const std::int32_t* offsets, const Stamp* seen,
                            Verdict& v) const {
  const HappensBefore& order = *by.order;
  for (Mask m = lanes; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const Epoch e = epoch_of(seen[l]);
    if (e == 0) continue;
    const bool foreign = e < order.first_epoch();
    if (!foreign && order.all_know(by.warp, owner_of(seen[l]), e)) continue;
    if (!foreign && order.before(by.warp, l, owner_of(seen[l]), 1U << lane_of(seen[l]), e)) continue;
    if (v.conflict == 0) {
      v.first = {.lane = l, .offset = offsets[l], .earlier = seen[l], .earlier_wrote = true, .other_block = foreign};
    }
    v.conflict |= 1U << l;
  }
}

void Shadow::check_reads(const Issuer& by, Mask lanes, const std::int32_t* offsets, const std::uint32_t* seen,
                         ReadSets& sets, AccessMemo& memo, Verdict& v) const {
  fresh(memo, by, false);
  for (Mask m = lanes; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const auto lane = static_cast<std::size_t>(l);
    if (seen[l] == 0 || seen[l] == memo.to[lane]) continue;
    if (sets.ordered(seen[l], by, l)) {
      memo.to[lane] = seen[l];
      continue;
    }
    if (v.conflict == 0 || l < v.first.lane) {
      v.first = sets.conflict(seen[l], by, l);
      v.first.offset = offsets[l];
    }
    v.conflict |= 1U << l;
  }
}

Shadow::Verdict Shadow::read(const Issuer& by, Mask lanes, const std::int32_t* offsets, const LaneGroups& groups,
                             std::uint32_t site, ReadSets& sets, AccessMemo& memo, const AccessMemo* hint) {
  alignas(64) Stamp seen[kLanes];
  alignas(64) std::uint32_t old[kLanes];
  Verdict v;
  if (lanes != kAllLanes) {
    std::fill_n(seen, kLanes, Stamp{0});
    for (Mask m = lanes; m != 0; m &= m - 1) {
      const int l = std::countr_zero(m);
      seen[l] = writes_[static_cast<std::size_t>(offsets[l])];
    }
  } else {
    for (int l = 0; l < kLanes; ++l) seen[l] = writes_[static_cast<std::size_t>(offsets[l])];
  }
  std::uint64_t any = 0;
  const HappensBefore& order = *by.order;
  if (scan_writes(seen, by.self.data(), order.first_epoch(), order.floor(by.warp), &any) != 0) {
    explain_writes(by, lanes, offsets, seen, v);
  }
  if ((any & kUndefinedBit) != 0) v.undefined = undefined_lanes(seen, lanes);
  if (!atomics_.empty()) check_atomics(by, lanes, offsets, sets, v);

  const bool each = groups.distinct && lanes == kAllLanes;
  fresh(memo, by, !each);
  any_reads_ = true;
  if (hint != nullptr && (memo.version == 0 || hint->version != memo.version || hint->grouped != memo.grouped)) {
    hint = nullptr;
  }
  const auto next = [&](std::uint32_t from, std::size_t lane, Mask mask) {
    if (hint != nullptr && hint->from[lane] == from && (each || hint->lanes[lane] == mask)) return hint->to[lane];
    return sets.add(from, by, mask, site, Did::Read, each);
  };
  if (each) {
    std::uint32_t changed = 0;
    for (int l = 0; l < kLanes; ++l) {
      old[l] = reads_[static_cast<std::size_t>(offsets[l])];
      changed |= old[l] ^ memo.to[static_cast<std::size_t>(l)];
    }
    if (changed == 0) return v;
    for (int l = 0; l < kLanes; ++l) {
      const auto lane = static_cast<std::size_t>(l);
      if (old[l] == memo.to[lane]) continue;
      if (old[l] != memo.from[lane]) {
        memo.from[lane] = old[l];
        memo.to[lane] = next(old[l], lane, 1U << l);
      }
      reads_[static_cast<std::size_t>(offsets[l])] = memo.to[lane];
    }
    return v;
  }
  for (std::size_t g = 0; g < groups.leaders.size(); ++g) {
    const int l = groups.leaders[g];
    const auto lane = static_cast<std::size_t>(l);
    std::uint32_t& id = reads_[static_cast<std::size_t>(offsets[l])];
    if (memo.lanes[lane] != groups.masks[g]) {
      memo.lanes[lane] = groups.masks[g];
      memo.from[lane] = memo.to[lane] = ~0U;
    }
    if (id == memo.to[lane]) continue;
    if (id != memo.from[lane]) {
      memo.from[lane] = id;
      memo.to[lane] = next(id, lane, groups.masks[g]);
    }
    id = memo.to[lane];
  }
  return v;
}

bool Shadow::scan(const Issuer& by, Mask lanes, const std::int32_t* offsets, std::uint32_t site, bool whole,
                  ReadSets& sets, AccessMemo& memo, Verdict& v, std::uint32_t& had_reads) const {
  alignas(64) Stamp seen[kLanes];
  alignas(64) std::uint32_t old[kLanes];
  const Stamp tag = Stamp{site} << kSiteShift;
  if (whole) {
    std::uint64_t changed = 0;
#pragma GCC unroll 8
    for (int l = 0; l < kLanes; ++l) {
      seen[l] = writes_[static_cast<std::size_t>(offsets[l])];
      changed |= seen[l] ^ (by.stamps[static_cast<std::size_t>(l)] | tag);
    }
    if (any_reads_) {
      for (int l = 0; l < kLanes; ++l) {
        old[l] = reads_[static_cast<std::size_t>(offsets[l])];
        changed |= old[l];
      }
    } else {
      std::fill_n(old, kLanes, 0U);
    }
    if (changed == 0 && by.generic && atomics_.empty()) return true;
  } else {
    std::fill_n(seen, kLanes, Stamp{0});
    std::fill_n(old, kLanes, 0U);
    for (Mask m = lanes; m != 0; m &= m - 1) {
      const int l = std::countr_zero(m);
      seen[l] = writes_[static_cast<std::size_t>(offsets[l])];
      old[l] = reads_[static_cast<std::size_t>(offsets[l])];
    }
  }
  std::uint64_t any = 0;
  const HappensBefore& order = *by.order;
  if (scan_writes(seen, by.self.data(), order.first_epoch(), order.floor(by.warp), &any) != 0) {
    explain_writes(by, lanes, offsets, seen, v);
  }
  if ((any & kUndefinedBit) != 0) v.undefined = undefined_lanes(seen, lanes);
  had_reads = 0;
  for (const std::uint32_t id : old) had_reads |= id;
  if (had_reads != 0) check_reads(by, lanes, offsets, old, sets, memo, v);
  if (!atomics_.empty()) check_atomics(by, lanes, offsets, sets, v);
  return false;
}

Shadow::Verdict Shadow::write(const Issuer& by, Mask lanes, const std::int32_t* offsets, const LaneGroups& groups,
                              std::uint32_t site, Mask undefined, ReadSets& sets, AccessMemo& memo) {
  Verdict v;
  const Stamp tag = Stamp{site} << kSiteShift;
  const bool whole = groups.distinct && lanes == kAllLanes && undefined == 0;
  std::uint32_t had_reads = 0;
  if (scan(by, lanes, offsets, site, whole, sets, memo, v, had_reads)) return v;
  v.undefined = 0;  // it is overwritten
  if (!atomics_.empty()) forget_atomics(lanes, offsets);
  if (whole) {
    for (int l = 0; l < kLanes; ++l) {
      writes_[static_cast<std::size_t>(offsets[l])] = by.stamps[static_cast<std::size_t>(l)] | tag;
    }
    if (had_reads != 0) {
      for (int l = 0; l < kLanes; ++l) reads_[static_cast<std::size_t>(offsets[l])] = 0;
    }
    return v;
  }
  for (Mask m = lanes; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const auto at = static_cast<std::size_t>(offsets[l]);
    writes_[at] = by.stamps[static_cast<std::size_t>(l)] | tag | ((undefined >> l & 1) != 0 ? kUndefinedBit : 0);
    reads_[at] = 0;
  }
  return v;
}

Shadow::Verdict Shadow::check_update(const Issuer& by, Mask lanes, const std::int32_t* offsets, std::uint32_t site,
                                     ReadSets& sets, AccessMemo& memo) {
  Verdict v;
  std::uint32_t had_reads = 0;
  v.unchanged = scan(by, lanes, offsets, site, lanes == kAllLanes, sets, memo, v, had_reads);
  return v;
}

void Shadow::commit_update(const Issuer& by, Mask lanes, const std::int32_t* offsets, std::uint32_t site,
                           Mask undefined) {
  const Stamp tag = Stamp{site} << kSiteShift;
  if (!atomics_.empty()) forget_atomics(lanes, offsets);
  for (Mask m = lanes; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const auto at = static_cast<std::size_t>(offsets[l]);
    writes_[at] = by.stamps[static_cast<std::size_t>(l)] | tag | ((undefined >> l & 1) != 0 ? kUndefinedBit : 0);
    if (any_reads_) reads_[at] = 0;
  }
}

}  // namespace graphene::sim
