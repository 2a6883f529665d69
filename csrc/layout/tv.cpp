#include "layout/tv.h"

#include <algorithm>
#include <numeric>

#include "layout/facts.h"

namespace graphene::layout {

namespace {

constexpr std::int64_t kMaxEntries = std::int64_t{1} << 24;

std::vector<std::int64_t> offsets(const Layout& l) {
  if (l.size().is_const(0)) return {};
  const Flat f = flatten(l);
  std::vector<std::int64_t> out = {0};
  for (std::size_t i = 0; i < f.rank(); ++i) {
    const std::size_t n = out.size();
    const std::int64_t size = f.shape[i].value();
    out.reserve(n * static_cast<std::size_t>(size));
    for (std::int64_t k = 1; k < size; ++k) {
      const Expr step = f.stride[i] * k;
      for (std::size_t j = 0; j < n; ++j) out.push_back((step + out[j]).value());
    }
  }
  return out;
}

std::string holder_str(int thread, int value) {
  return "thread " + std::to_string(thread) + ", value " + std::to_string(value);
}

}  // namespace

TvTable::TvTable(const Layout& tv, std::int64_t elements, const std::string& what) : elements_(elements), what_(what) {
  if (!tv.is_static() || tv.rank() != 2 || tv.shape().is_leaf())
    fail(Code::LAYOUT_TV, what + " must have two modes (threads, values) of plain integers, got " + tv.str());
  const std::int64_t largest = std::max({tv.mode(0).size().value(), tv.mode(1).size().value(), tv.size().value()});
  if (elements < 0 || elements > kMaxEntries || largest > kMaxEntries)
    fail(Code::LAYOUT_LIMIT, what + " is too large to be tabulated", {"layout: " + tv.str()});
  const std::vector<std::int64_t> of_thread = offsets(tv.mode(0));
  const std::vector<std::int64_t> of_value = offsets(tv.mode(1));
  threads_ = static_cast<int>(of_thread.size());
  values_ = static_cast<int>(of_value.size());
  element_.reserve(of_thread.size() * of_value.size());
  first_.assign(static_cast<std::size_t>(elements) + 1, 0);
  for (int v = 0; v < values_; ++v) {
    for (int t = 0; t < threads_; ++t) {
      const std::int64_t e = of_thread[static_cast<std::size_t>(t)] + of_value[static_cast<std::size_t>(v)];
      if (e < 0 || e >= elements)
        fail(Code::LAYOUT_TV,
             what + ": " + holder_str(t, v) + " is element " + std::to_string(e) + ", outside of the " +
                 std::to_string(elements) + " elements of the tile",
             {"layout: " + tv.str()});
      element_.push_back(e);
      ++first_[static_cast<std::size_t>(e) + 1];
    }
  }
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  holders_.resize(element_.size());
  std::vector<std::int32_t> next(first_.begin(), first_.end() - 1);
  for (int t = 0; t < threads_; ++t)
    for (int v = 0; v < values_; ++v)
      holders_[static_cast<std::size_t>(next[static_cast<std::size_t>(element(t, v))]++)] = {t, v};
}

void TvTable::check_element(std::int64_t element) const {
  if (element < 0 || element >= elements_)
    fail(Code::LAYOUT_BOUNDS, what_ + ": element " + std::to_string(element) + " is outside of the " +
                                  std::to_string(elements_) + " elements of the tile");
}

std::vector<Holder> TvTable::holders(std::int64_t element) const {
  check_element(element);
  const auto e = static_cast<std::size_t>(element);
  return {holders_.begin() + first_[e], holders_.begin() + first_[e + 1]};
}

int TvTable::holder_count(std::int64_t element) const {
  check_element(element);
  const auto e = static_cast<std::size_t>(element);
  return first_[e + 1] - first_[e];
}

std::optional<std::int64_t> TvTable::first_hole() const {
  for (std::size_t e = 0; e + 1 < first_.size(); ++e)
    if (first_[e] == first_[e + 1]) return static_cast<std::int64_t>(e);
  return std::nullopt;
}

std::optional<int> TvTable::replication() const {
  if (elements_ == 0) return std::nullopt;
  const int n = first_[1] - first_[0];
  for (std::size_t e = 0; e + 1 < first_.size(); ++e)
    if (first_[e + 1] - first_[e] != n) return std::nullopt;
  return n;
}

bool TvTable::repeats_within_thread() const {
  for (std::size_t e = 0; e + 1 < first_.size(); ++e)
    for (std::int32_t i = first_[e] + 1; i < first_[e + 1]; ++i)
      if (holders_[static_cast<std::size_t>(i)].thread == holders_[static_cast<std::size_t>(i) - 1].thread) return true;
  return false;
}

void TvTable::require_cover() const {
  if (const auto hole = first_hole())
    fail(Code::LAYOUT_TV, what_ + ": no thread holds element " + std::to_string(*hole) + " of the " +
                              std::to_string(elements_) + " elements of the tile");
}

void require_two_modes(const Layout& tv, const std::string& what) {
  const std::vector<std::string> details = {"tv: " + tv.str()};
  if (!tv.is_static() || tv.rank() != 2 || tv.shape().is_leaf())
    fail(Code::LAYOUT_TV, what + ": a TV layout has constant sizes and two modes, threads and values", details);
  for (int m = 0; m < 2; ++m) {
    for (const Expr& size : tv.mode(m).shape().leaves()) {
      if (size.value() > 0) continue;
      fail(Code::LAYOUT_TV, what + (m == 0 ? " is for no threads" : " gives a thread no values"),
           {details[0], std::string("want: sizes of at least 1 in the mode of ") + (m == 0 ? "threads" : "values"),
            "got: " + tv.mode(m).str()},
           m == 0 ? "" : "one value that all threads share is gr.Layout(1, 0)");
    }
  }
}

void require_holders(const Layout& tv, std::int64_t elements, const std::string& what) {
  require_two_modes(tv, what);
  const std::vector<std::string> details = {"tv: " + tv.str()};
  for (const Expr& e : tv.stride().leaves()) {
    if (e.value() < 0)
      fail(Code::LAYOUT_TV, what + ": a TV layout has elements before the first", {details[0], "stride: " + e.str()},
           "count elements from 0, with strides that are not negative");
  }
  const Expr reach = tv.mode(0).cosize() + tv.mode(1).cosize() - 1;
  const TvTable table(tv, std::max(elements, reach.value()), what);
  // Threads that differ along modes of stride 0 only are one holder: the first of them.
  const Flat thread = flatten(tv.mode(0));
  const auto first_copy = [&](int t) {
    std::int64_t first = 0;
    std::int64_t place = 1;
    for (std::size_t i = 0; i < thread.rank(); ++i) {
      const std::int64_t size = thread.shape[i].value();
      if (!thread.stride[i].is_const(0)) first += t / place % size * place;
      place *= size;
    }
    return static_cast<int>(first);
  };
  for (std::int64_t e = 0; e < table.elements(); ++e) {
    const std::vector<Holder> holders = table.holders(e);
    if (holders.empty() && e < elements)
      fail(Code::LAYOUT_TV,
           what + ": no thread holds element " + std::to_string(e) + " of its " + std::to_string(elements), details,
           "cover the whole shape: sizes times strides reach every element");
    for (std::size_t i = 1; i < holders.size(); ++i) {
      if (holders[i].value == holders[0].value && first_copy(holders[i].thread) == holders[0].thread) continue;
      fail(Code::LAYOUT_INJECTIVE, what + ": element " + std::to_string(e) + " has two places",
           {details[0], holder_str(holders[0].thread, holders[0].value),
            holder_str(holders[i].thread, holders[i].value)},
           "give each element one place; threads that hold copies differ along a thread mode of stride 0");
    }
  }
}

bool tv_equal(const Layout& a, const Layout& b) {
  return a.rank() == 2 && b.rank() == 2 && equal_as_functions(a.mode(0), b.mode(0)) &&
         equal_as_functions(a.mode(1), b.mode(1));
}

std::vector<std::int64_t> tv_quotient(const TvTable& f, const std::vector<int>& values, const TvTable& d,
                                      int first_thread) {
  if (static_cast<int>(values.size()) != d.values())
    fail(Code::LAYOUT_TV, "the atom takes " + std::to_string(d.values()) + " values a thread, got a group of " +
                              std::to_string(values.size()));
  for (const int v : values)
    if (v < 0 || v >= f.values())
      fail(Code::LAYOUT_TV,
           "value " + std::to_string(v) + " of a fragment with " + std::to_string(f.values()) + " values a thread");
  if (first_thread < 0 || first_thread > f.threads() - d.threads())
    fail(Code::LAYOUT_TV, "the atom takes " + std::to_string(d.threads()) + " threads from thread " +
                              std::to_string(first_thread) + " of a fragment on " + std::to_string(f.threads()));
  std::vector<std::int64_t> out(static_cast<std::size_t>(d.elements()), -1);
  for (int v = 0; v < d.values(); ++v) {
    for (int t = 0; t < d.threads(); ++t) {
      const std::int64_t e = d.element(t, v);
      const std::int64_t is = f.element(first_thread + t, values[static_cast<std::size_t>(v)]);
      std::int64_t& slot = out[static_cast<std::size_t>(e)];
      if (slot >= 0 && slot != is)
        fail(Code::LAYOUT_TV, "element " + std::to_string(e) + " of the atom's tile would be elements " +
                                  std::to_string(slot) + " and " + std::to_string(is) + " of the fragment (" +
                                  holder_str(t, v) + ")");
      slot = is;
    }
  }
  return out;
}

std::optional<OffsetLayout> layout_from_table(const std::vector<std::int64_t>& table) {
  if (table.empty()) return OffsetLayout{0, Layout(0, 0)};
  const std::int64_t base = table.front();
  Flat out;
  // Each mode: the stride is the first difference, the size how long the line through it lasts.
  for (std::size_t unit = 1; unit < table.size();) {
    const std::int64_t d = (Expr(table[unit]) - base).value();
    std::size_t n = 1;
    while (n * unit < table.size() && table[n * unit] == base + static_cast<__int128>(n) * d) ++n;
    out.push(static_cast<std::int64_t>(n), d);
    unit *= n;
    if (table.size() % unit != 0) return std::nullopt;
  }
  OffsetLayout result{base, out.layout()};
  const std::vector<std::int64_t> check = offsets(result.layout);
  for (std::size_t i = 0; i < table.size(); ++i)
    if (static_cast<__int128>(check[i]) + base != table[i]) return std::nullopt;
  return result;
}

std::int64_t max_common_vector(const Layout& a, const Layout& b) {
  const Layout r = right_inverse(b);
  if (a.is_static() && r.is_static()) {
    const std::int64_t most = std::min(r.size().value(), a.size().value());
    std::int64_t n = 0;
    while (n < most) {
      const Expr i = r(n);
      if (i.value() >= a.size().value() || !a(i).is_const(n)) break;
      ++n;
    }
    return std::max<std::int64_t>(n, 1);
  }
  // Symbolic: the modes of stride 1 of both, where they count the same coordinates. A size that is a multiple of d
  // counts as d: it may be no more.
  const auto contiguous = [](const Layout& l) -> std::pair<Expr, Expr> {
    const Flat f = coalesced(flatten(l));
    Expr below = 1;
    for (std::size_t i = 0; i < f.rank(); ++i) {
      if (f.stride[i].is_const(1)) return {f.shape[i], below};
      below = below * f.shape[i];
    }
    return {1, 0};
  };
  const auto [n, below_n] = contiguous(a);
  const auto [m, below_m] = contiguous(b);
  if (!identical(below_n, below_m)) return 1;
  if (n.is_const() && m.is_const()) return std::max<std::int64_t>(std::min(n.value(), m.value()), 1);
  return std::max<std::int64_t>(std::gcd(sym::divisor(n), sym::divisor(m)), 1);
}

std::int64_t max_vector(const Layout& l, int mode) {
  const Flat along = coalesced(flatten(l.mode(mode)));
  if (!along.stride[0].is_const(1)) return 1;
  std::int64_t v = sym::divisor(along.shape[0]);
  for (std::size_t i = 1; i < along.rank(); ++i) v = std::gcd(v, sym::divisor(along.stride[i]));
  for (int m = 0; m < l.rank(); ++m) {
    if (m == mode) continue;
    const Flat other = coalesced(flatten(l.mode(m)));
    for (std::size_t i = 0; i < other.rank(); ++i)
      if (!other.shape[i].is_const(1)) v = std::gcd(v, sym::divisor(other.stride[i]));
  }
  return std::max<std::int64_t>(v, 1);
}

std::int64_t max_vector(const ComposedLayout& l, int mode) {
  std::int64_t v = std::gcd(max_vector(l.layout, mode), sym::divisor(l.offset));
  if (!l.swizzle.trivial()) v = std::gcd(v, std::int64_t{1} << l.swizzle.base);
  return std::max<std::int64_t>(v, 1);
}

}  // namespace graphene::layout
