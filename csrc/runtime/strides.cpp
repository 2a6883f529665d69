// One search over index differences: do two elements of strided tensors meet?
#include "runtime/strides.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <vector>

namespace graphene::runtime {

namespace {

constexpr int kPairSteps = 4096;    // of a pair of arguments, which a launch may ask for
constexpr int kOwnSteps = 1 << 22;  // of one tensor with itself: some hundredths of a second

// What one step moves, and how far the (combined) index may lie on either side of zero.
struct Term {
  std::int64_t step;  // positive
  std::int64_t low, high;
};

// Is there a choice of indices with low < sum of index * step < high? With `moved` false one of them must differ from
// 0; ranges and bounds are symmetric then, so that of two opposite choices one is enough.
class Search {
 public:
  Search(std::vector<Term> terms, std::int64_t low, std::int64_t high, int steps)
      : terms_(std::move(terms)), low_(low), high_(high), steps_(steps) {
    std::sort(terms_.begin(), terms_.end(), [](const Term& a, const Term& b) { return a.step > b.step; });
    rest_low_.assign(terms_.size() + 1, 0);
    rest_high_.assign(terms_.size() + 1, 0);
    divisor_.assign(terms_.size() + 1, 0);
    for (std::size_t i = terms_.size(); i-- > 0;) {
      rest_low_[i] = rest_low_[i + 1] + terms_[i].low * terms_[i].step;
      rest_high_[i] = rest_high_[i + 1] + terms_[i].high * terms_[i].step;
      divisor_[i] = std::gcd(divisor_[i + 1], terms_[i].step);
    }
  }

  Meet run(bool moved) { return found(0, 0, moved) ? Meet::Yes : steps_ < 0 ? Meet::Unknown : Meet::No; }

 private:
  bool found(std::size_t i, std::int64_t sum, bool moved) {
    if (sum + rest_high_[i] <= low_ || sum + rest_low_[i] >= high_) return false;
    if (i == terms_.size()) return moved;
    if (--steps_ < 0) return false;
    // All that is left moves by multiples of the divisor.
    if ((floor_div(low_ - sum, divisor_[i]) + 1) * divisor_[i] >= high_ - sum) return false;
    const Term& t = terms_[i];
    // Only indices that the remaining terms can still correct.
    const std::int64_t need_low = low_ - sum - rest_high_[i + 1], need_high = high_ - sum - rest_low_[i + 1];
    const std::int64_t first = std::max(moved ? t.low : 0, floor_div(need_low, t.step));
    const std::int64_t last = std::min(t.high, floor_div(need_high, t.step) + 1);
    for (std::int64_t k = first; k <= last && steps_ >= 0; ++k)
      if (found(i + 1, sum + k * t.step, moved || k != 0)) return true;
    return false;
  }

  static std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b != 0 && a < 0 ? 1 : 0); }

  std::vector<Term> terms_;
  std::vector<std::int64_t> rest_low_, rest_high_, divisor_;
  std::int64_t low_, high_;
  int steps_;
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
  return Search(std::move(list), -a_bytes - base, b_bytes - base, kPairSteps).run(true) != Meet::No;
}

Meet elements_meet(const TensorArg& t) {
  std::vector<Term> terms;
  for (int d = 0; d < t.ndim; ++d) {
    if (t.shape[d] == 0) return Meet::No;
    if (t.shape[d] == 1) continue;
    terms.push_back({std::abs(t.stride(d)), 1 - t.shape[d], t.shape[d] - 1});
  }
  for (const Term& x : terms)
    if (x.step == 0) return Meet::Yes;
  return Search(std::move(terms), -1, 1, kOwnSteps).run(false);
}

}  // namespace graphene::runtime
