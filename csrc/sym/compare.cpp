// Comparisons and logic. A comparison keeps its variable part on both sides with positive coefficients, divided by what
// divides it; the constant stands where it is positive. Le is used only for "left <= right" without a constant.
#include "sym/effort.h"
#include "sym/internal.h"

namespace graphene::sym {

namespace {

using Args = SmallVec<Expr, 8>;

// gcd of the terms by their facts, 0 without terms.
std::int64_t terms_divisor(const Poly& p) {
  std::int64_t g = 0;
  for (const Term& t : p.terms) g = gcd_int(g, scaled_divisor(t.c, divisor(t.m)));
  return g;
}

std::int64_t narrow(Int128 v) {
  if (v > kMaxInt || v < kMinInt) fail_overflow("a comparison of symbolic integers");
  return static_cast<std::int64_t>(v);
}

Int128 floor_div_wide(Int128 a, Int128 b) { return a / b - (a % b < 0 ? 1 : 0); }  // b > 0

// The terms with positive coefficients, and the others negated, each plus its constant.
struct Sides {
  Expr left;
  Expr right;
};
Sides sides_of(const Poly& p, std::int64_t left, std::int64_t right) {
  Poly l;
  Poly r;
  l.k = left;
  r.k = right;
  for (const Term& t : p.terms) {
    if (t.c == kMinInt) fail_overflow("a comparison of symbolic integers");
    if (t.c > 0)
      l.add_term(t.m, t.c);
    else
      r.add_term(t.m, -t.c);
  }
  return {l.finish(), r.finish()};
}

// Where the constant of "terms < bound" goes.
Sides place_constant(const Poly& p, std::int64_t bound) {
  bool has_left = false;
  bool has_right = false;
  for (const Term& t : p.terms) (t.c > 0 ? has_left : has_right) = true;
  const bool to_right = has_left && (!has_right || bound > 0);
  if (!to_right && bound == kMinInt) fail_overflow("a comparison of symbolic integers");
  return sides_of(p, to_right ? 0 : -bound, to_right ? bound : 0);
}

Expr negative(const Expr& d);

// high + low < bound, where g divides high and every value of low // g leaves the same question about high.
std::optional<Expr> drop_low(const Poly& p) {
  if (p.terms.size() < 2) return std::nullopt;
  SmallVec<std::int64_t, 12> divs;
  for (const Term& t : p.terms) divs.push_back(scaled_divisor(t.c, divisor(t.m)));
  SmallVec<std::int64_t, 12> sorted = divs;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  std::int64_t g = 0;
  const Int128 last = -Int128{p.k} - 1;  // high + low <= last
  for (const std::int64_t d : sorted) {
    if (gcd_int(g, d) == g) continue;
    g = gcd_int(g, d);
    if (g <= 1) return std::nullopt;
    Poly high;
    Poly low;
    for (std::size_t i = 0; i < divs.size(); ++i) (divs[i] % g == 0 ? high : low).add_term(p.terms[i].m, p.terms[i].c);
    if (low.terms.empty()) return std::nullopt;
    const Expr rest = low.finish();
    if (lower_bound(rest) == kMinInt || upper_bound(rest) == kMaxInt) continue;
    const Int128 q = floor_div_wide(last - upper_bound(rest), g);
    if (q != floor_div_wide(last - lower_bound(rest), g)) continue;
    high.k = narrow(-q * g - 1);
    return negative(high.finish());
  }
  return std::nullopt;
}

// f * high + low < 0 with 0 <= low < f is high < 0; with -f <= low < 0 it is high <= 0.
std::optional<Expr> drop_symbolic_factor(const Poly& p) {
  for (const Term& t : p.terms) {
    if (t.m.op() != Op::Mul) continue;
    for (const Expr& f : factors(t.m)) {
      if (lower_bound(f) < 1) continue;
      Poly high;
      Poly low;
      for (const Term& u : p.terms) {
        if (const auto q = mono_div(u.m, f))
          high.add(*q, u.c);
        else
          low.add_term(u.m, u.c);
      }
      low.k = p.k;
      if (high.terms.empty() && high.k == 0) continue;
      const Expr rest = low.finish();
      if (prove_nonneg(rest) && prove_negative(rest - f)) return negative(high.finish());
      if (prove_negative(rest) && prove_nonneg(rest + f)) return negative(high.finish() - 1);
    }
  }
  return std::nullopt;
}

bool proves_negative(const Expr& e) { return BoundsAlone::active() ? upper_bound(e) < 0 : prove_negative(e); }

// The condition d < 0.
Expr negative(const Expr& d) {
  if (d.is_const()) return d.value() < 0 ? 1 : 0;
  if (upper_bound(d) < 0) return 1;
  if (lower_bound(d) >= 0) return 0;
  if (proves_negative(d)) return 1;
  if (proves_negative(-d - 1)) return 0;
  Poly p(d);
  const std::int64_t g = terms_divisor(p);
  const Int128 q = floor_div_wide(-Int128{p.k} - 1, g);  // terms <= g * q
  std::int64_t shared = 0;
  bool has_left = false;
  bool has_right = false;
  for (const Term& t : p.terms) {
    shared = gcd_int(shared, t.c);
    (t.c > 0 ? has_left : has_right) = true;
  }
  for (Term& t : p.terms) t.c /= shared;
  const bool no_constant = q == 0 && has_left && has_right;
  const std::int64_t bound = no_constant ? 1 : narrow((q + 1) * (g / shared));  // terms < bound
  p.k = narrow(-Int128{bound});
  if (const Expr normal = p.finish(); !identical(normal, d)) return negative(normal);
  if (auto r = drop_low(p)) return *r;
  if (auto r = BoundsAlone::active() ? std::nullopt : drop_symbolic_factor(p)) return *r;
  if (no_constant) {
    const Sides s = sides_of(p, 0, 0);
    return make_node(Op::Le, s.left, s.right);
  }
  const Sides s = place_constant(p, bound);
  return make_node(Op::Lt, s.left, s.right);
}

// The condition d == 0.
Expr zero(const Expr& d) {
  if (d.is_const()) return d.value() == 0 ? 1 : 0;
  if (lower_bound(d) > 0 || upper_bound(d) < 0) return 0;
  if (proves_negative(d) || proves_negative(-d)) return 0;
  Poly p(d);
  const std::int64_t g = terms_divisor(p);
  if (p.k % g != 0) return 0;
  std::int64_t shared = p.k;
  for (const Term& t : p.terms) shared = gcd_int(shared, t.c);
  const std::int64_t sign = p.terms[0].c < 0 ? -shared : shared;
  for (Term& t : p.terms) {
    if (t.c == kMinInt) fail_overflow("a comparison of symbolic integers");
    t.c /= sign;
  }
  if (p.k == kMinInt) fail_overflow("a comparison of symbolic integers");
  const std::int64_t value = -(p.k / sign);
  if (p.terms.size() == 1 && is_condition(p.terms[0].m) && (value == 0 || value == 1))
    return value == 1 ? p.terms[0].m : logical_not(p.terms[0].m);
  const Sides s = place_constant(p, value);
  return make_node(Op::Eq, s.left, s.right);
}

// The condition whose value is below zero: Lt and Le as one form.
std::optional<Expr> as_negative(const Expr& c) {
  if (c.op() != Op::Lt && c.op() != Op::Le) return std::nullopt;
  return attempt([&] { return c.node()->args[0] - c.node()->args[1] - (c.op() == Op::Le ? 1 : 0); });
}

Expr truth(const Expr& operand) {
  const Expr e = settled(operand);
  if (lower_bound(e) >= 0 && upper_bound(e) <= 1) return e;
  return ne(e, 0);
}

enum class Relation { None, FirstImpliesSecond, SecondImpliesFirst, Excluded, Covering };

Relation relation(const Expr& a, const Expr& b) {
  Relation r = Relation::None;
  attempt([&] {
    const auto x = as_negative(a);
    const auto y = as_negative(b);
    if (!x || !y) return Expr(0);
    if (proves_negative(*y - *x - 1))
      r = Relation::FirstImpliesSecond;
    else if (proves_negative(*x - *y - 1))
      r = Relation::SecondImpliesFirst;
    else if (lower_bound(*x + *y) >= -1)
      r = Relation::Excluded;
    else if (upper_bound(*x + *y) < 0)
      r = Relation::Covering;
    return Expr(0);
  });
  return r;
}

Expr connect(Op op, const Expr& a, const Expr& b) {
  const Expr absorbing = op == Op::And ? 0 : 1;
  Args args;
  for (const Expr& e : {truth(a), truth(b)}) {
    if (identical(e, absorbing)) return absorbing;
    if (e.is_const()) continue;
    if (e.op() == op)
      args.append(e.node()->args);
    else
      args.push_back(e);
  }
  std::sort(args.begin(), args.end(), [](const Expr& x, const Expr& y) { return order(x, y) < 0; });
  Args kept;
  for (const Expr& e : args) {
    const Expr opposite = logical_not(e);
    bool implied = false;
    for (std::size_t i = 0; i < kept.size() && !implied;) {
      const Expr& k = kept[i];
      if (identical(k, opposite)) return absorbing;
      const Relation r = identical(k, e) ? Relation::FirstImpliesSecond : relation(k, e);
      if (r == (op == Op::And ? Relation::Excluded : Relation::Covering)) return absorbing;
      const bool stronger = r == Relation::FirstImpliesSecond || r == Relation::SecondImpliesFirst;
      if (!stronger) {
        ++i;
      } else if (identical(k, e) || (r == Relation::FirstImpliesSecond) == (op == Op::And)) {
        implied = true;  // e adds nothing to k
      } else {
        kept.erase(i);
      }
    }
    if (!implied) kept.push_back(e);
  }
  if (kept.empty()) return op == Op::And ? 1 : 0;
  if (kept.size() == 1) return kept[0];
  return make_node({.op = op, .args = kept});
}

Expr compare(Op op, const Expr& a, const Expr& b) {
  if (identical(a, b)) return op == Op::Lt ? 0 : 1;
  const bool below = upper_bound(a) < lower_bound(b);
  const bool above = lower_bound(a) > upper_bound(b);
  if (op == Op::Eq ? below || above : above) return 0;
  if (op != Op::Eq && below) return 1;
  const bool remembered = !BoundsAlone::active();
  if (const Expr* known = remembered ? ResultMemo::find(op, a, b) : nullptr) return *known;
  const auto r = attempt([&] {
    const Expr d = a - b;
    return op == Op::Eq ? zero(d) : negative(op == Op::Lt ? d : d - 1);
  });
  const Expr result = r ? *r : make_node(op, a, b);
  if (remembered) ResultMemo::store(op, a, b, result);
  return result;
}

}  // namespace

Expr lt(const Expr& a, const Expr& b) { return compare(Op::Lt, settled(a), settled(b)); }
Expr le(const Expr& a, const Expr& b) { return compare(Op::Le, settled(a), settled(b)); }
Expr eq(const Expr& a, const Expr& b) { return compare(Op::Eq, settled(a), settled(b)); }
Expr ne(const Expr& a, const Expr& b) { return logical_not(eq(a, b)); }

Expr logical_and(const Expr& a, const Expr& b) { return connect(Op::And, a, b); }
Expr logical_or(const Expr& a, const Expr& b) { return connect(Op::Or, a, b); }

Expr logical_not(const Expr& a) {
  const Expr e = truth(a);
  if (e.is_const()) return e.value() == 0 ? 1 : 0;
  const Node& n = *e.node();
  switch (n.op) {
    case Op::Lt:
      return le(n.args[1], n.args[0]);
    case Op::Le:
      return lt(n.args[1], n.args[0]);
    case Op::Eq:
      return make_node(Op::Ne, n.args[0], n.args[1]);
    case Op::Ne:
      return make_node(Op::Eq, n.args[0], n.args[1]);
    case Op::And:
    case Op::Or: {
      Expr r = n.op == Op::And ? 0 : 1;
      for (const Expr& x : n.args) r = n.op == Op::And ? logical_or(r, logical_not(x)) : logical_and(r, logical_not(x));
      return r;
    }
    default:
      return eq(e, 0);
  }
}

bool is_condition(const Expr& e) {
  if (e.is_const()) return e.is_const(0) || e.is_const(1);
  return e.op() >= Op::Lt;
}

}  // namespace graphene::sym
