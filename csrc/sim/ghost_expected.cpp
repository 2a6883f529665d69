// What a spec promises, evaluated over the numbers of the run.
#include "sim/ghost_expected.h"

#include <algorithm>

#include "sim/ghost.h"

namespace graphene::sim {

namespace {

constexpr std::int64_t kExactProducts = std::int64_t{1} << 24;  // beyond, products are checked against random vectors

// Columns that may be skipped, of rows that skip the same ones.
struct Rows {
  std::vector<bool> skipped;
  std::vector<std::int64_t> rows;
};

}  // namespace

std::string text_attr(const Scope& s, const char* name) {
  const auto it = s.means.attrs.find(name);
  const auto* t = it != s.means.attrs.end() ? std::get_if<std::string>(&it->second) : nullptr;
  return t != nullptr ? *t : std::string{};
}

// What a constant operand is a constant of: the other operand's type where they are compared, a truth value where it
// chooses, else the result's.
ir::ScalarType constant_type(const Scope& s, std::size_t k) {
  const ir::ScalarType out = s.spec->outs.front().dtype;
  Op op = Op::Cast;
  if (!op_from_name(text_attr(s, "op"), op)) return out;
  if (op == Op::Where && k == 0) return ir::ScalarType::pred;
  if (!is_comparison(op)) return out;
  for (const auto& in : s.spec->ins)
    if (const auto* t = std::get_if<ir::Tensor>(&in)) return t->dtype;
  return ir::ScalarType::fp32;
}

double number_attr(const Scope& s, const char* name) {
  const auto it = s.means.attrs.find(name);
  if (it == s.means.attrs.end()) return 0;
  if (const auto* d = std::get_if<double>(&it->second)) return *d;
  if (const auto* i = std::get_if<std::int64_t>(&it->second)) return static_cast<double>(*i);
  return 0;
}

bool accumulates(const Scope& s, bool fallback) {
  const auto it = s.means.attrs.find("accumulate");
  const auto* b = it != s.means.attrs.end() ? std::get_if<bool>(&it->second) : nullptr;
  return b != nullptr ? *b : fallback;
}

std::optional<ProductShape> product_shape(const View& out, const View& a, const View& b) {
  if (out.scattered) {  // what the threads hold together
    if (a.extents.size() != 2 || b.extents.size() != 2 || a.extents[1] != b.extents[0]) return std::nullopt;
    return ProductShape{1, a.extents[0], b.extents[1], a.extents[1]};
  }
  if (out.extents.size() != a.extents.size() || a.extents.size() != b.extents.size()) return std::nullopt;
  if (out.extents.size() == 2) {
    if (out.extents[0] != a.extents[0] || out.extents[1] != b.extents[1] || a.extents[1] != b.extents[0]) {
      return std::nullopt;
    }
    return ProductShape{1, out.extents[0], out.extents[1], a.extents[1]};
  }
  if (out.extents != a.extents || a.extents != b.extents) return std::nullopt;
  return ProductShape{out.size(), 1, 1, 1};
}

bool field_decides(const Scope& s) {
  if (!s.means.reference.empty() || s.own) return false;
  switch (s.means.kind) {
    case ir::SpecKind::Move:
    case ir::SpecKind::Init:
    case ir::SpecKind::MatMul:
      return true;
    case ir::SpecKind::UnaryPointwise:
    case ir::SpecKind::BinaryPointwise:
    case ir::SpecKind::TernaryPointwise:
    case ir::SpecKind::Reduction: {
      Op op = Op::Cast;
      return op_from_name(text_attr(s, "op"), op) && algebraic(op);
    }
    default:
      return false;
  }
}

bool reals_decide(const Scope& s) {
  if (field_decides(s)) return false;
  Op op = Op::Cast;
  if (s.own && (s.means.kind == ir::SpecKind::Move || s.means.kind == ir::SpecKind::Init)) return true;
  return !s.means.reference.empty() || (s.means.kind != ir::SpecKind::Spec && op_from_name(text_attr(s, "op"), op));
}

bool Ghost::missed(const Instance& i, std::int64_t cell) const {
  if (every_block_ || !scopes_[static_cast<std::size_t>(i.scope)].whole_grid) return false;
  const Seen* s = i.seen.find(cell);
  return s == nullptr || !s->accessed;
}

// Freivalds' test, row by row: out @ r == a @ (b @ r) for a random r, with an error probability of 2^-31 a row.
std::vector<std::int64_t> Ghost::suspicious_rows(const Instance& i, const std::vector<std::uint64_t>& a,
                                                 const std::vector<std::uint64_t>& b, bool difference) {
  const ProductShape shape = *product_shape(i.out, i.ins[0], i.ins[1]);
  const auto [batch, m, n, k] = shape;
  const auto cell = [&i, rows = m](std::int64_t row, std::int64_t col) -> std::int64_t {
    const auto& cells = i.out.cells[static_cast<std::size_t>(row + col * rows)];
    return cells.empty() ? -1 : cells.front();
  };
  std::vector<Rows> groups;
  for (std::int64_t row = 0; row < m; ++row) {
    std::vector<bool> skipped(static_cast<std::size_t>(n));
    for (std::int64_t col = 0; col < n; ++col) {
      const std::int64_t c = cell(row, col);
      skipped[static_cast<std::size_t>(col)] = c < 0 || missed(i, c);
    }
    const auto it = std::find_if(groups.begin(), groups.end(), [&](const Rows& g) { return g.skipped == skipped; });
    if (it != groups.end()) {
      it->rows.push_back(row);
    } else {
      groups.push_back({std::move(skipped), {row}});
    }
  }
  std::vector<std::uint64_t> r(static_cast<std::size_t>(n));
  for (std::size_t c = 0; c < r.size(); ++c) r[c] = field::hashed(0xf5e1, c, static_cast<std::uint64_t>(i.id));
  std::vector<std::int64_t> out;
  std::vector<std::uint64_t> w(static_cast<std::size_t>(k));
  for (const Rows& g : groups) {
    std::fill(w.begin(), w.end(), 0);
    for (std::int64_t col = 0; col < n; ++col) {
      if (g.skipped[static_cast<std::size_t>(col)]) continue;
      breathe();
      for (std::int64_t z = 0; z < k; ++z) {
        auto& x = w[static_cast<std::size_t>(z)];
        x = field::add(x, field::multiply(b[static_cast<std::size_t>(z + col * k)], r[static_cast<std::size_t>(col)]));
      }
    }
    for (const std::int64_t row : g.rows) {
      std::uint64_t got = 0;
      std::uint64_t want = 0;
      for (std::int64_t col = 0; col < n; ++col) {
        if (g.skipped[static_cast<std::size_t>(col)]) continue;
        const std::int64_t c = cell(row, col);
        const std::uint64_t x = difference ? field::subtract(after(i, c), before(i, c)) : after(i, c);
        got = field::add(got, field::multiply(x, r[static_cast<std::size_t>(col)]));
      }
      for (std::int64_t z = 0; z < k; ++z) {
        want =
            field::add(want, field::multiply(a[static_cast<std::size_t>(row + z * m)], w[static_cast<std::size_t>(z)]));
      }
      if (got != want) out.push_back(row);
    }
  }
  return out;
}

std::vector<std::uint64_t> Ghost::product(const Instance& i, const std::vector<std::uint64_t>& a,
                                          const std::vector<std::uint64_t>& b, bool difference) {
  const auto [batch, m, n, k] = *product_shape(i.out, i.ins[0], i.ins[1]);
  std::vector<std::uint64_t> want(static_cast<std::size_t>(batch * m * n), numbers_.of_int(0));
  std::vector<std::int64_t> rows;
  if (!numbers_.real && !i.out.scattered && m * n * k > kExactProducts) {
    rows = suspicious_rows(i, a, b, difference);
    // The other rows are right: what they hold is what they must hold.
    for (std::size_t e = 0; e < want.size(); ++e) {
      if (i.out.cells[e].empty()) continue;
      const std::int64_t c = i.out.cells[e].front();
      want[e] = difference ? field::subtract(after(i, c), before(i, c)) : after(i, c);
    }
  } else {
    for (std::int64_t row = 0; row < m; ++row) rows.push_back(row);
  }
  for (std::int64_t x = 0; x < batch; ++x) {
    for (const std::int64_t row : rows) {
      for (std::int64_t col = 0; col < n; ++col) {
        const auto e = static_cast<std::size_t>(x + row + col * m);
        // Elements that nobody touched in a part of the grid are not this run's.
        if (!i.out.scattered && (i.out.cells[e].empty() || missed(i, i.out.cells[e].front()))) continue;
        std::uint64_t sum = numbers_.of_int(0);
        breathe();
        for (std::int64_t z = 0; z < k; ++z) {
          const auto ia = static_cast<std::size_t>(batch > 1 ? x : row + z * m);
          const auto ib = static_cast<std::size_t>(batch > 1 ? x : z + col * k);
          sum = numbers_.add(sum, numbers_.multiply(a[ia], b[ib]));
        }
        want[e] = sum;
      }
    }
  }
  return want;
}

// What the outputs of a reduction must hold, of `sums` along the axis: one value each, combined with what was there
// where the reduction accumulates; or, with several outputs along the axis (each lane's share), any shares that combine
// to it.
std::optional<std::vector<std::uint64_t>> Ghost::reduced(const Instance& i, Op op, std::size_t axis,
                                                         std::vector<std::uint64_t> sums) const {
  const bool adds_to = accumulates(code_.scopes[static_cast<std::size_t>(i.scope)], false);
  const auto cell = [&](std::size_t e) { return i.out.cells[e].empty() ? -1 : i.out.cells[e].front(); };
  const auto share = static_cast<std::size_t>(std::max<std::int64_t>(i.out.extents[axis], 1));
  if (i.out.cells.size() != sums.size() * share) return std::nullopt;
  if (share > 1 && numbers_.real && algebraic(op)) return std::nullopt;  // the field has decided, without rounding
  std::size_t inner = 1;
  for (std::size_t d = 0; d < axis; ++d) inner *= static_cast<std::size_t>(i.out.extents[d]);
  std::vector<std::uint64_t> want(i.out.cells.size());
  for (std::size_t s = 0; s < sums.size(); ++s) {
    const std::size_t first = s / inner * inner * share + s % inner;
    std::optional<std::uint64_t> held;  // by all shares together
    bool known = true;
    for (std::size_t k = 0; k < share; ++k) {
      const std::size_t e = first + k * inner;
      const std::int64_t c = cell(e);
      known = known && c >= 0;
      if (c < 0) continue;
      if (adds_to) sums[s] = numbers_.apply(op, sums[s], before(i, c), 0);
      want[e] = after(i, c);
      held = held ? numbers_.apply(op, *held, want[e], 0) : want[e];
    }
    if (known && (share == 1 || held != sums[s])) want[first] = sums[s];
  }
  return want;
}

// The values that the output must have; `difference`: that it must have changed by. nullopt: not checked.
std::optional<std::vector<std::uint64_t>> Ghost::expected(const Instance& i, bool& difference) {
  const Scope& scope = code_.scopes[static_cast<std::size_t>(i.scope)];
  const lower::SpecScope& spec = *scope.spec;
  difference = false;
  for (const View& v : i.ins) {
    if (v.scattered) return std::nullopt;
  }
  const auto operand = [&](std::size_t k) -> std::vector<std::uint64_t> {
    if (std::holds_alternative<ir::Tensor>(spec.ins[k])) return input_values(i, k);
    const auto* d = std::get_if<double>(&spec.ins[k]);
    const auto* e = std::get_if<Expr>(&spec.ins[k]);
    const ir::Constant c = d != nullptr ? ir::Constant(*d) : e->is_const() ? ir::constant_of(e->value()) : 0.0;
    const std::uint64_t x = numbers_.of_constant(c, constant_type(scope, k));
    return std::vector<std::uint64_t>(static_cast<std::size_t>(i.out.size()), x);
  };
  for (const auto& in : spec.ins) {
    if (const auto* e = std::get_if<Expr>(&in); e != nullptr && !e->is_const()) return std::nullopt;
  }
  std::vector<std::uint64_t> want;
  switch (scope.means.kind) {
    case ir::SpecKind::Move:
      if (spec.ins.size() != 1) return std::nullopt;
      want = operand(0);
      if (const std::string combine = text_attr(scope, "combine"); !combine.empty()) {
        Op op = Op::Cast;
        if (!op_from_name(combine, op) || !algebraic(op) || !is_float(spec.outs.front().dtype)) return std::nullopt;
        for (std::size_t e = 0; e < want.size() && e < i.out.cells.size(); ++e) {
          const auto& cells = i.out.cells[e];
          if (!cells.empty() && !missed(i, cells.front()))
            want[e] = numbers_.apply(op, before(i, cells.front()), want[e], 0);
        }
      }
      break;
    case ir::SpecKind::Init:
      want.assign(static_cast<std::size_t>(i.out.size()),
                  numbers_.of_constant(ir::constant_attr(scope.means.attrs, "value"), spec.outs.front().dtype));
      break;
    case ir::SpecKind::MatMul: {
      if (i.ins.size() != 2 || !product_shape(i.out, i.ins[0], i.ins[1])) return std::nullopt;
      difference = accumulates(scope, i.accumulates);
      want = product(i, operand(0), operand(1), difference);
      break;
    }
    case ir::SpecKind::UnaryPointwise:
    case ir::SpecKind::BinaryPointwise:
    case ir::SpecKind::TernaryPointwise: {
      Op op = Op::Cast;
      if (!op_from_name(text_attr(scope, "op"), op) || (!numbers_.real && !algebraic(op))) return std::nullopt;
      const bool to_float = is_float(spec.outs.front().dtype);
      if (!to_float && !(numbers_.real && is_comparison(op))) return std::nullopt;
      for (const auto& in : spec.ins) {
        const auto* t = std::get_if<ir::Tensor>(&in);
        if (t != nullptr && !is_float(t->dtype) && op != Op::Where) return std::nullopt;
      }
      std::vector<std::vector<std::uint64_t>> in;
      for (std::size_t k = 0; k < spec.ins.size(); ++k) {
        in.push_back(operand(k));
        if (in.back().size() != static_cast<std::size_t>(i.out.size())) return std::nullopt;
      }
      for (std::size_t e = 0; e < static_cast<std::size_t>(i.out.size()); ++e) {
        const std::uint64_t y = in.size() > 1 ? in[1][e] : 0;
        const std::uint64_t z = in.size() > 2 ? in[2][e] : 0;
        want.push_back(op == Op::Where ? (in[0][e] != 0 ? y : z) : numbers_.apply(op, in[0][e], y, z));
      }
      break;
    }
    case ir::SpecKind::Reduction: {
      Op op = Op::Cast;
      if (!op_from_name(text_attr(scope, "op"), op)) return std::nullopt;
      if (i.ins.empty() || !is_float(spec.outs.front().dtype)) return std::nullopt;
      const View& in = i.ins[0];
      const auto axis = static_cast<std::size_t>(number_attr(scope, "axis"));
      if (axis >= in.extents.size()) return std::nullopt;
      const std::vector<std::uint64_t> x = operand(0);
      std::int64_t inner = 1;
      for (std::size_t d = 0; d < axis; ++d) inner *= in.extents[d];
      const std::int64_t n = in.extents[axis];
      if (n == 0) return std::nullopt;
      const std::int64_t outer = in.size() / (inner * n);
      for (std::int64_t o = 0; o < outer; ++o) {
        for (std::int64_t r = 0; r < inner; ++r) {
          std::uint64_t v = x[static_cast<std::size_t>(o * inner * n + r)];
          for (std::int64_t z = 1; z < n; ++z)
            v = numbers_.apply(op, v, x[static_cast<std::size_t>((o * n + z) * inner + r)], 0);
          want.push_back(v);
        }
      }
      if (i.out.scattered) return accumulates(scope, false) ? std::nullopt : std::optional(std::move(want));
      if (axis >= i.out.extents.size())
        return accumulates(scope, false) ? std::nullopt : std::optional(std::move(want));
      return reduced(i, op, axis, std::move(want));
    }
    default:
      return std::nullopt;
  }
  return want;
}

}  // namespace graphene::sim
