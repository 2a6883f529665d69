#include "sim/roundings.h"

#include <algorithm>
#include <bit>

#include "base/diag.h"

namespace graphene::sim {

namespace {

using ir::ScalarType;

// Bits of the significand, and the exponents of the largest and the smallest number, subnormal ones included.
struct Range {
  int digits, largest, smallest;
};
Range range_of(ScalarType t) {
  switch (t) {
    case ScalarType::fp64:
      return {53, 1023, -1074};
    case ScalarType::fp32:
      return {24, 127, -149};
    case ScalarType::tf32:
      return {11, 127, -136};
    case ScalarType::fp16:
      return {11, 15, -24};
    case ScalarType::bf16:
      return {8, 127, -133};
    case ScalarType::fp8e4m3:
      return {4, 8, -9};
    case ScalarType::fp8e5m2:
      return {3, 15, -16};
    case ScalarType::fp6e2m3:
      return {4, 2, -3};
    case ScalarType::fp6e3m2:
      return {3, 4, -4};
    case ScalarType::fp4e2m1:
      return {2, 2, -1};
    default:
      return {0, 0, 0};  // no float: its values are what their maker says
  }
}

bool holds(ScalarType outer, ScalarType inner) {
  const Range o = range_of(outer);
  const Range i = range_of(inner);
  return i.digits == 0 || (o.digits >= i.digits && o.largest >= i.largest && o.smallest <= i.smallest);
}

}  // namespace

Tag Roundings::intern(std::vector<int> members) {
  const auto [it, fresh] = tags_.emplace(std::move(members), static_cast<Tag>(sets_.size()));
  if (fresh) {
    GR_ASSERT(sets_.size() < 0xffff, "too many sets of rounding points");
    sets_.push_back(it->first);
    unread_.push_back(std::any_of(it->first.begin(), it->first.end(), [&](int m) {
      const int p = members_[static_cast<std::size_t>(m)].point;
      return p >= 0 && found_[static_cast<std::size_t>(p)] == 0;
    }));
  }
  return it->second;
}

Tag Roundings::native(ScalarType t) {
  if (range_of(t).digits == 0) return 0;
  const auto [it, fresh] = native_members_.emplace(t, static_cast<int>(members_.size()));
  if (fresh) members_.push_back({t, -1});
  return intern({it->second});
}

Tag Roundings::narrowed(const Rounding& by) {
  const std::string line = by.origin != nullptr ? by.origin->loc.str() : "";
  const auto [it, fresh] =
      point_members_.emplace(Key{by.tensor, by.from, by.to, line}, static_cast<int>(members_.size()));
  if (fresh) {
    members_.push_back({by.to, static_cast<int>(points_.size())});
    points_.push_back(by);
    found_.push_back(0);
  }
  return intern({it->second});
}

Tag Roundings::join(Tag a, Tag b) {
  if (a == b || b == 0) return a;
  if (a == 0) return b;
  const auto key = std::minmax(a, b);
  if (const auto it = joins_.find(key); it != joins_.end()) return it->second;
  std::vector<int> both;
  std::set_union(sets_[a].begin(), sets_[a].end(), sets_[b].begin(), sets_[b].end(), std::back_inserter(both));
  const Tag t = intern(std::move(both));
  joins_.emplace(key, t);
  return t;
}

bool Roundings::fits(Tag tag, ScalarType t) const {
  return std::all_of(sets_[tag].begin(), sets_[tag].end(),
                     [&](int m) { return holds(t, members_[static_cast<std::size_t>(m)].type); });
}

void Roundings::find(const LaneTags& tags, Mask lanes) {
  for (Mask m = lanes; m != 0; m &= m - 1) {
    const Tag t = tags[static_cast<std::size_t>(std::countr_zero(m))];
    if (unread_[t] == 0) continue;
    for (const int member : sets_[t]) {
      const int p = members_[static_cast<std::size_t>(member)].point;
      if (p >= 0) found_[static_cast<std::size_t>(p)] = 1;
    }
    for (std::size_t s = 0; s < sets_.size(); ++s) {
      unread_[s] = std::any_of(sets_[s].begin(), sets_[s].end(), [&](int member) {
        const int p = members_[static_cast<std::size_t>(member)].point;
        return p >= 0 && found_[static_cast<std::size_t>(p)] == 0;
      });
    }
  }
}

std::vector<Rounding> Roundings::found() const {
  std::vector<Rounding> out;
  for (const auto& [key, member] : point_members_) {
    const auto p = static_cast<std::size_t>(members_[static_cast<std::size_t>(member)].point);
    if (found_[p] != 0) out.push_back(points_[p]);
  }
  return out;
}

}  // namespace graphene::sim
