// Proofs that an expression is negative: numeric bounds, then bounds of its terms by other expressions.
#include "sym/internal.h"

namespace graphene::sym {

namespace {

// Looks for an upper bound of a sum that is negative. Every step replaces a factor of one term by something the term
// cannot exceed; `budget` counts the steps.
class Search {
 public:
  explicit Search(int budget) : budget_(budget) {}

  bool negative(const Expr& e) {
    if (upper_bound(e) < 0) return true;
    if (e.is_const() || --budget_ < 0) return false;
    const TermView v(e);
    for (std::size_t i = 0; i < v.size(); ++i) {
      const auto fs = factors(v[i].m);
      for (std::size_t j = 0; j < fs.size(); ++j)
        if (relax(e, v[i], fs[j])) return true;
    }
    return false;
  }

 private:
  // e with `factor` of the term replaced.
  bool with(const Expr& e, const Term& t, const Expr& others, const Expr& replacement) {
    Poly p(e);
    p.add_term(t.m, -t.c);
    p.add(replacement * others, t.c);
    return negative(p.finish());
  }

  bool relax(const Expr& e, const Term& t, const Expr& factor) {
    if (t.c == kMinInt) return false;
    const Expr others = *mono_div(t.m, factor);
    const Node& n = *factor.node();
    if (n.op == Op::Var) {
      if (n.var->def) return with(e, t, others, *n.var->def);
      if (!n.var->hi && !n.var->lo) return false;
    }
    for (const Expr& f : factors(others))
      if (lower_bound(f) < 0) return false;
    const bool up = t.c > 0;
    switch (n.op) {
      case Op::Var: {
        const auto& limit = up ? n.var->hi : n.var->lo;
        return limit && with(e, t, others, *limit);
      }
      case Op::FloorDiv:
        return relax_quotient(e, t, others, n);
      case Op::Mod:
        if (!up || lower_bound(n.args[1]) < 0) return false;
        if (!n.args[1].is_const() && with(e, t, others, n.args[1] - 1)) return true;
        return lower_bound(n.args[0]) >= 0 && with(e, t, others, n.args[0]);
      case Op::Min:
      case Op::Max: {
        // Upwards a minimum is at most each of its arguments; a maximum is one of them.
        const bool any = (n.op == Op::Min) == up;
        for (const Expr& a : n.args)
          if (with(e, t, others, a) == any) return any;
        return !any;
      }
      default:
        return false;
    }
  }

  // b * (x // b) lies between x - b + 1 and x.
  bool relax_quotient(const Expr& e, const Term& t, const Expr& others, const Node& n) {
    const Expr& x = n.args[0];
    const Expr& b = n.args[1];
    const Expr limit = t.c > 0 ? x : x - b + 1;
    if (!b.is_const()) {
      if (lower_bound(b) < 0) return false;
      Poly p(e);
      p.add_term(t.m, -t.c);
      if (const auto without = mono_div(others, b)) {
        p.add(limit * *without, t.c);
        return negative(p.finish());
      }
      return negative(p.finish() * b + limit * others * Expr(t.c));  // b is positive: the sign stays
    }
    if (b.value() < 2) return false;
    const std::int64_t g = gcd_int(t.c, b.value());
    Poly p;
    p.add(e, b.value() / g);
    p.add_term(t.m, -p.coef(t.m));
    p.add(limit * others, t.c / g);
    return negative(p.finish());
  }

  int budget_;
};

bool worth_searching(const Expr& e) {
  if ((e.node()->flags & kSymbolic) != 0) return true;
  const TermView v(e);
  for (std::size_t i = 0; i < v.size(); ++i)
    for (const Expr& f : factors(v[i].m))
      if (f.op() == Op::FloorDiv || f.op() == Op::Mod || f.op() == Op::Min || f.op() == Op::Max) return true;
  return false;
}

}  // namespace

bool prove_negative(const Expr& e, int budget) {
  if (upper_bound(e) < 0) return true;
  if (e.is_const() || lower_bound(e) >= 0 || !worth_searching(e)) return false;
  if (const Expr* known = ResultMemo::find(Op::Not, e, budget)) return known->is_const(1);  // no node has this operator
  if (Nesting::too_deep()) return false;
  const Nesting nesting;
  bool result = false;
  {
    const Proof proof;
    const auto proved = attempt([&] { return Expr(Search(budget).negative(e) ? 1 : 0); });
    result = proved && proved->is_const(1);
  }
  ResultMemo::store(Op::Not, e, budget, result ? 1 : 0);
  return result;
}

bool prove_nonneg(const Expr& e) {
  if (lower_bound(e) >= 0) return true;
  if (e.is_const() || upper_bound(e) < 0 || !worth_searching(e)) return false;
  const auto below = attempt([&] { return Expr(prove_negative(-e - 1) ? 1 : 0); });
  return below && below->is_const(1);
}

std::optional<bool> decide(const Expr& condition) {
  if (condition.is_const()) return condition.value() != 0;
  const Node& n = *condition.node();
  switch (n.op) {
    case Op::Lt:
    case Op::Le:
    case Op::Eq:
    case Op::Ne: {
      // The constructors have tried with a smaller budget.
      constexpr int kBudget = 200;
      const std::int64_t slack = n.op == Op::Le ? 1 : 0;
      std::optional<bool> result;
      attempt([&] {
        const Expr d = n.args[0] - n.args[1] - slack;
        const bool inequality = n.op == Op::Lt || n.op == Op::Le;
        if (prove_negative(d, kBudget))
          result = inequality || n.op == Op::Ne;
        else if (prove_negative(inequality ? -d - 1 : -d, kBudget))
          result = n.op == Op::Ne;
        return Expr(0);
      });
      return result;
    }
    case Op::And:
    case Op::Or: {
      const bool absorbing = n.op == Op::Or;
      bool all = true;
      for (const Expr& a : n.args) {
        const auto r = decide(a);
        if (r == absorbing) return absorbing;
        all = all && r.has_value();
      }
      return all ? std::optional(!absorbing) : std::nullopt;
    }
    default:
      if (n.lo > 0 || n.hi < 0) return true;
      return std::nullopt;
  }
}

bool prove(const Expr& condition) { return decide(condition) == true; }

}  // namespace graphene::sym
