// Do two strided tensors share a byte? A bounded search over index differences.
#include <algorithm>
#include <cstdlib>
#include <map>

#include "runtime/args.h"

namespace graphene::runtime {

namespace {

// Bytes moved by one step, and how far the (combined) index may lie on either side of zero.
struct Term {
  std::int64_t step;
  std::int64_t low, high;
};

// Is there a choice of indices with  target - reach <= sum < target + reach', i.e. low < sum + base < high?
class Search {
 public:
  Search(std::vector<Term> terms, std::int64_t low, std::int64_t high)
      : terms_(std::move(terms)), low_(low), high_(high) {
    std::sort(terms_.begin(), terms_.end(), [](const Term& a, const Term& b) { return a.step > b.step; });
    rest_low_.assign(terms_.size() + 1, 0);
    rest_high_.assign(terms_.size() + 1, 0);
    for (std::size_t i = terms_.size(); i-- > 0;) {
      rest_low_[i] = rest_low_[i + 1] + terms_[i].low * terms_[i].step;
      rest_high_[i] = rest_high_[i + 1] + terms_[i].high * terms_[i].step;
    }
  }

  bool found(std::size_t i, std::int64_t sum) {
    if (sum + rest_high_[i] <= low_ || sum + rest_low_[i] >= high_) return false;
    if (i == terms_.size()) return true;
    if (--budget_ < 0) return true;
    const Term& t = terms_[i];
    // Only indices that the remaining terms can still correct.
    const std::int64_t need_low = low_ - sum - rest_high_[i + 1], need_high = high_ - sum - rest_low_[i + 1];
    const std::int64_t first = std::max(t.low, floor_div(need_low, t.step));
    const std::int64_t last = std::min(t.high, floor_div(need_high, t.step) + 1);
    for (std::int64_t k = first; k <= last; ++k)
      if (found(i + 1, sum + k * t.step)) return true;
    return false;
  }

 private:
  static std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b != 0 && a < 0 ? 1 : 0); }

  std::vector<Term> terms_;
  std::vector<std::int64_t> rest_low_, rest_high_;
  std::int64_t low_, high_;
  int budget_ = 4096;
};

}  // namespace

Span byte_span(const TensorArg& t) {
  if (t.numel() == 0) return {};
  const std::int64_t bytes = (std::int64_t{t.bits} * t.lanes + 7) / 8;
  Span s{0, bytes};
  for (int d = 0; d < t.ndim; ++d) {
    const std::int64_t reach = (t.shape[d] - 1) * t.stride(d) * bytes;
    (reach < 0 ? s.first : s.last) += reach;
  }
  return s;
}

bool overlap(const TensorArg& a, const TensorArg& b) {
  const Span sa = byte_span(a), sb = byte_span(b);
  if (sa.first == sa.last || sb.first == sb.last) return false;
  const auto pa = reinterpret_cast<std::intptr_t>(a.data), pb = reinterpret_cast<std::intptr_t>(b.data);
  if (pa + sa.last <= pb + sb.first || pb + sb.last <= pa + sa.first) return false;
  const std::int64_t a_bytes = (std::int64_t{a.bits} * a.lanes + 7) / 8,
                     b_bytes = (std::int64_t{b.bits} * b.lanes + 7) / 8;
  // address in a - address in b = (pa - pb) + sum_i i * step_a - sum_j j * step_b; they share a byte iff it lies in
  // (-a_bytes, b_bytes). Equal steps merge: their difference is one index.
  std::map<std::int64_t, Term> terms;
  const auto add = [&](std::int64_t step, std::int64_t low, std::int64_t high) {
    if (step == 0 || (low == 0 && high == 0)) return;
    if (step < 0) {
      step = -step;
      std::tie(low, high) = std::pair(-high, -low);
    }
    Term& t = terms.try_emplace(step, Term{step, 0, 0}).first->second;
    t.low += low;
    t.high += high;
  };
  for (int d = 0; d < a.ndim; ++d) add(a.stride(d) * a_bytes, 0, a.shape[d] - 1);
  for (int d = 0; d < b.ndim; ++d) add(b.stride(d) * b_bytes, -(b.shape[d] - 1), 0);
  std::vector<Term> list;
  for (const auto& [step, t] : terms) list.push_back(t);
  const std::int64_t base = pa - pb;
  return Search(std::move(list), -a_bytes - base, b_bytes - base).found(0, 0);
}

}  // namespace graphene::runtime
