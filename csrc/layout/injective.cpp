#include <algorithm>

#include "layout/facts.h"

namespace graphene::layout {

namespace {

constexpr std::int64_t kMaxEnumerated = std::int64_t{1} << 24;

// By increasing |stride|, each mode a step clear of everything below it.
bool separated(const std::vector<std::pair<std::int64_t, std::int64_t>>& stride_size) {
  __int128 reach = 0;
  for (const auto& [d, s] : stride_size) {
    if (d <= reach) return false;
    reach += static_cast<__int128>(s - 1) * d;
  }
  return true;
}

bool enumerated(std::vector<std::pair<std::int64_t, std::int64_t>> modes, const Layout& l) {
  // Modes above the last clear step cannot collide with those below; only what interleaves is enumerated.
  while (!modes.empty()) {
    __int128 reach = 0;
    for (std::size_t i = 0; i + 1 < modes.size(); ++i)
      reach += static_cast<__int128>(modes[i].second - 1) * modes[i].first;
    if (modes.back().first <= reach) break;
    modes.pop_back();
  }
  std::vector<std::int64_t> offsets = {0};
  for (const auto& [d, s] : modes) {
    if (static_cast<__int128>(offsets.size()) * s > kMaxEnumerated)
      fail(Code::LAYOUT_LIMIT, "is_injective would have to enumerate more than 2^24 elements", {"layout: " + l.str()});
    const std::size_t n = offsets.size();
    offsets.reserve(n * static_cast<std::size_t>(s));
    for (std::int64_t k = 1; k < s; ++k)
      for (std::size_t i = 0; i < n; ++i) offsets.push_back(offsets[i] + k * d);
  }
  std::sort(offsets.begin(), offsets.end());
  return std::adjacent_find(offsets.begin(), offsets.end()) == offsets.end();
}

}  // namespace

bool is_injective(const Layout& l) {
  Flat f;
  const Flat all = flatten(l);
  for (std::size_t i = 0; i < all.rank(); ++i) {
    if (all.shape[i].is_const(0)) return true;
    if (!all.shape[i].is_const(1)) f.push(all.shape[i], all.stride[i]);
  }
  if (!l.is_static()) {
    static_cast<void>(nested_order(f, Facts("is_injective", {{"layout: ", &l}})));  // throws where it is open
    return true;
  }
  // |stride| and size: reversing a mode keeps the set of differences.
  std::vector<std::pair<std::int64_t, std::int64_t>> modes;
  Expr furthest = 0;
  for (std::size_t i = 0; i < f.rank(); ++i) {
    const std::int64_t d = f.stride[i].value();
    const Expr reach = f.stride[i] * (f.shape[i] - 1);
    if (d == sym::kMinInt || reach.is_const(sym::kMinInt))
      fail(Code::SYM_OVERFLOW, "integer arithmetic left the 64-bit range", {"layout: " + l.str()});
    furthest = furthest + (d < 0 ? -reach : reach);  // offsets that leave 64 bits are an error, not a wrong answer
    modes.emplace_back(d < 0 ? -d : d, f.shape[i].value());
  }
  std::sort(modes.begin(), modes.end());
  if (!modes.empty() && modes.front().first == 0) return false;
  return separated(modes) || enumerated(std::move(modes), l);
}

}  // namespace graphene::layout
