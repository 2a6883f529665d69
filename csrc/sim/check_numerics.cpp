#include "sim/check_numerics.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace graphene::sim {

namespace {

double epsilon_of(ir::ScalarType t) {
  switch (t) {
    case ir::ScalarType::fp16:
    case ir::ScalarType::tf32:
      return 0x1p-11;
    case ir::ScalarType::bf16:
      return 0x1p-8;
    case ir::ScalarType::fp8e4m3:
      return 0x1p-4;
    case ir::ScalarType::fp8e5m2:
      return 0x1p-3;
    case ir::ScalarType::fp64:
      return 0x1p-53;
    default:
      return 0x1p-24;
  }
}

struct Values {
  std::vector<std::int64_t> extents;
  std::vector<double> v;
};

class Comparison {
 public:
  Comparison(const Bytecode& code, const std::vector<std::vector<char>>& before,
             const std::vector<std::vector<char>>& after)
      : code_(code), before_(before), after_(after), map_(make_cell_map(code)) {
    warp_.lanes = 1;
    warp_.ints.uniform.resize(static_cast<std::size_t>(code.plans->uniform_slots()));
    warp_.ints.varying.resize(static_cast<std::size_t>(code.plans->varying_slots()));
    epsilon_ = 0x1p-53;
    for (const ir::ScalarType t : code.register_types) {
      if (is_float(t)) epsilon_ = std::max(epsilon_, epsilon_of(t));
    }
  }

  void run(Numerics& result) {
    for (const Scope& s : code_.scopes) {
      const lower::SpecScope& spec = *s.spec;
      const bool whole = spec.blocks != nullptr && !spec.blocks->levels.empty() && !spec.blocks->size().is_const(1);
      if (!whole || s.means.kind != ir::SpecKind::MatMul || spec.outs.size() != 1 || spec.ins.size() != 2) continue;
      const auto* a = std::get_if<ir::Tensor>(&spec.ins[0]);
      const auto* b = std::get_if<ir::Tensor>(&spec.ins[1]);
      if (a == nullptr || b == nullptr) continue;
      const auto x = values(*a, before_);
      const auto y = values(*b, before_);
      const auto c = values(spec.outs.front(), before_);
      const auto d = values(spec.outs.front(), after_);
      if (!x || !y || !c || !d || x->extents.size() != 2 || y->extents.size() != 2 || d->extents.size() != 2) continue;
      product(s, *x, *y, *c, *d, result);
    }
  }

 private:
  std::optional<Values> values(const ir::Tensor& t, const std::vector<std::vector<char>>& bytes) {
    const auto plan = plan_view(t, code_);
    if (!plan || plan->buffer < 0 || t.memory() != ir::Memory::GL || !is_float(t.dtype)) return std::nullopt;
    const View view = view_cells(*plan, code_, map_, warp_, 0, {0});
    const int n = bytes_of(t.dtype);
    const auto buffer = static_cast<std::size_t>(plan->buffer);
    Values out{view.extents, {}};
    for (const auto& cells : view.cells) {
      if (cells.empty()) return std::nullopt;
      const std::int64_t e = cells.front() - map_.buffer_first[buffer];
      out.v.push_back(decode(t.dtype, load_bits(bytes[buffer].data() + e * n, n)));
    }
    return out;
  }

  void product(const Scope& s, const Values& a, const Values& b, const Values& c, const Values& d, Numerics& result) {
    const std::int64_t m = d.extents[0];
    const std::int64_t n = d.extents[1];
    const std::int64_t k = a.extents[1];
    if (a.extents[0] != m || b.extents[0] != k || b.extents[1] != n) return;
    const auto it = s.means.attrs.find("accumulate");
    const auto* flag = it != s.means.attrs.end() ? std::get_if<bool>(&it->second) : nullptr;
    const bool accumulate = flag == nullptr || *flag;
    const double epsilon = std::max(epsilon_, epsilon_of(s.spec->outs.front().dtype));
    ++result.specs;
    double worst = -1;
    std::int64_t at = 0;
    double got = 0;
    double want = 0;
    for (std::int64_t e = 0; e < m * n; ++e) {
      double sum = accumulate ? c.v[static_cast<std::size_t>(e)] : 0;
      double size = std::fabs(sum);
      for (std::int64_t z = 0; z < k; ++z) {
        const double p = a.v[static_cast<std::size_t>(e % m + z * m)] * b.v[static_cast<std::size_t>(z + e / m * k)];
        sum += p;
        size += std::fabs(p);
      }
      const double x = d.v[static_cast<std::size_t>(e)];
      const double tolerance = static_cast<double>(k + 2) * epsilon * size;
      const double error = std::fabs(x - sum);
      const double ratio = error == 0 ? 0 : tolerance > 0 ? error / tolerance : HUGE_VAL;
      if (ratio <= worst) continue;
      worst = ratio;
      at = e;
      got = x;
      want = sum;
    }
    result.worst = std::max(result.worst, worst);
    if (worst <= 1) return;
    char numbers[160];
    std::snprintf(numbers, sizeof numbers, "got: %.9g", got);
    const std::string got_text = numbers;
    std::snprintf(numbers, sizeof numbers, "want: %.9g, with a tolerance of %.3g", want,
                  got == want ? 0.0 : std::fabs(got - want) / worst);
    Diagnostic p;
    p.code = Code::CHECK_NUMERICS;
    p.where = s.origin != nullptr ? s.origin->loc : SourceLoc{};
    p.message = "results are further from float64 than rounding explains";
    p.ir = {statement_text(s.origin)};
    p.details = {"the worst: " + coordinate_text(d.extents, at), numbers, got_text};
    p.fix = "accumulate in a wider type, or convert later";
    result.problems.push_back(std::move(p));
  }

  const Bytecode& code_;
  const std::vector<std::vector<char>>& before_;
  const std::vector<std::vector<char>>& after_;
  CellMap map_;
  Warp warp_;
  double epsilon_;
};

}  // namespace

Numerics check_numerics(const Bytecode& code, const std::vector<std::vector<char>>& before,
                        const std::vector<std::vector<char>>& after) {
  Numerics result;
  Comparison(code, before, after).run(result);
  return result;
}

}  // namespace graphene::sim
