#include "layout/injective.h"

#include <algorithm>
#include <numeric>

#include "layout/facts.h"

namespace graphene::layout {

namespace {

constexpr std::int64_t kMaxEnumerated = std::int64_t{1} << 24;
constexpr std::int64_t kMaxPlaces = std::int64_t{1} << 28;
constexpr std::size_t kPolledElems = std::size_t{1} << 16;

// By increasing |stride|, each mode a step clear of everything below it.
bool separated(const std::vector<std::pair<std::int64_t, std::int64_t>>& stride_size) {
  __int128 reach = 0;
  for (const auto& [d, s] : stride_size) {
    if (d <= reach) return false;
    reach += static_cast<__int128>(s - 1) * d;
  }
  return true;
}

using Modes = std::vector<std::pair<std::int64_t, std::int64_t>>;  // stride, size

// Offsets that are near one another: a bit for each place.
bool marked(const Modes& modes, std::int64_t step, __int128 reach, const std::function<void()>& poll) {
  std::vector<std::int64_t> offsets = {0};  // of all modes but the last
  for (std::size_t m = 0; m + 1 < modes.size(); ++m) {
    const std::size_t n = offsets.size();
    for (std::int64_t k = 1; k < modes[m].second; ++k)
      for (std::size_t i = 0; i < n; ++i) offsets.push_back(offsets[i] + k * (modes[m].first / step));
  }
  std::vector<bool> taken(static_cast<std::size_t>(reach / step + 1));
  std::size_t since = 0;
  for (std::int64_t k = 0; k < modes.back().second; ++k) {
    for (const std::int64_t o : offsets) {
      const auto place = static_cast<std::size_t>(o + k * (modes.back().first / step));
      if (taken[place]) return false;
      taken[place] = true;
      if (++since % kPolledElems == 0) poll();
    }
  }
  return true;
}

// Others stay sorted: a mode adds shifted copies of them, which are merged two by two. What collides is found at the
// first mode that it takes.
bool merged(const Modes& modes, const std::function<void()>& poll) {
  std::vector<std::int64_t> offsets = {0};
  for (const auto& [d, s] : modes) {
    const std::size_t n = offsets.size();
    const std::size_t all = n * static_cast<std::size_t>(s);
    offsets.resize(all);
    for (std::size_t i = n; i < all; ++i) offsets[i] = offsets[i - n] + d;
    const auto at = [&](std::size_t i) { return offsets.begin() + static_cast<std::ptrdiff_t>(std::min(i, all)); };
    for (std::size_t run = n; run < all; run *= 2) {
      for (std::size_t i = 0; i + run < all; i += 2 * run) {
        if (offsets[i + run] > offsets[i + run - 1]) continue;  // in order already
        if (run >= kPolledElems) poll();
        std::inplace_merge(at(i), at(i + run), at(i + 2 * run));
      }
      poll();
    }
    if (std::adjacent_find(offsets.begin(), offsets.end()) != offsets.end()) return false;
  }
  return true;
}

bool enumerated(std::vector<std::pair<std::int64_t, std::int64_t>> modes, const Layout& l,
                const std::function<void()>& poll) {
  // Modes above the last clear step cannot collide with those below; only what interleaves is enumerated.
  while (!modes.empty()) {
    __int128 reach = 0;
    for (std::size_t i = 0; i + 1 < modes.size(); ++i)
      reach += static_cast<__int128>(modes[i].second - 1) * modes[i].first;
    if (modes.back().first <= reach) break;
    modes.pop_back();
  }
  __int128 count = 1;
  __int128 reach = 0;
  std::int64_t step = 0;
  for (const auto& [d, s] : modes) {
    count *= s;
    if (count > kMaxEnumerated)
      fail(Code::LAYOUT_LIMIT, "is_injective would have to enumerate more than 2^24 elements", {"layout: " + l.str()});
    reach += static_cast<__int128>(s - 1) * d;
    step = std::gcd(step, d);
  }
  if (modes.empty()) return true;
  if (reach / step + 1 < count) return false;  // fewer places than elements
  return reach / step < kMaxPlaces ? marked(modes, step, reach, poll) : merged(modes, poll);
}

}  // namespace

bool is_injective(const Layout& l) {
  return is_injective(l, [] {});
}

bool is_injective(const Layout& l, const std::function<void()>& poll) {
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
  return separated(modes) || enumerated(std::move(modes), l, poll);
}

}  // namespace graphene::layout
