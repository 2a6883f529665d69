// Floor division and remainder. Quotient and remainder of one pair of operands are reduced by the same steps, so that
// recombine() finds them together again.
#include "sym/internal.h"

namespace graphene::sym {

namespace {

// The operands once everything that divides evenly is taken out: a == b * out + rest.
struct Reduced {
  Expr out;
  Expr rest;
};

// coef * m // c for |coef| < c, known to be exact.
Expr exact_quotient(std::int64_t coef, const Expr& m, std::int64_t c) {
  const std::int64_t g = gcd_int(coef, c);
  coef /= g;
  c /= g;
  Expr r = coef;
  for (const Expr& f : factors(m)) {
    const std::int64_t part = gcd_int(c, divisor(f));
    r = r * floor_div(f, part);
    c /= part;
  }
  GR_ASSERT(c == 1, "an exact quotient with a remainder");
  return r;
}

// Terms that are multiples of c leave, coefficients come below c and the constant into [0, c).
Reduced reduce_const(const Expr& a, std::int64_t c) {
  const TermView v(a);
  Poly out;
  Poly rest;
  for (std::size_t i = 0; i < v.size(); ++i) {
    const auto [m, k] = v[i];
    out.add(m, k / c);
    const std::int64_t r = k % c;
    if (r == 0) continue;
    if (scaled_divisor(r, divisor(m)) % c == 0 &&
        !(v.size() == 1 && factors(m).size() == 1 && r == 1 && v.constant() == 0))
      out.add(exact_quotient(r, m, c));
    else
      rest.add_term(m, r);
  }
  out.add_constant(floor_div_int(v.constant(), c));
  rest.add_constant(mod_int(v.constant(), c));
  return {out.finish(), rest.finish()};
}

// The quotient that every value of e has by c > 0, if there is one.
std::optional<std::int64_t> constant_quotient(const Expr& e, std::int64_t c) {
  const std::int64_t lo = lower_bound(e);
  const std::int64_t hi = upper_bound(e);
  if (lo != kMinInt && hi != kMaxInt && floor_div_int(lo, c) == floor_div_int(hi, c)) return floor_div_int(lo, c);
  if (e.is_const()) return floor_div_int(e.value(), c);
  if ((e.node()->flags & kSymbolic) == 0) return std::nullopt;
  if (prove_nonneg(e) && prove_negative(e - c)) return 0;
  return std::nullopt;
}

// a == high + low, where g divides `high` and low // g is the constant q; g divides c.
struct Parts {
  Expr high;
  Expr low;
  std::int64_t g = 0;
  std::int64_t q = 0;
};

std::optional<Parts> split_low(const Expr& a, std::int64_t c) {
  const TermView v(a);
  SmallVec<std::int64_t, 12> divs;
  for (std::size_t i = 0; i < v.size(); ++i) {
    const std::int64_t g = gcd_int(c, scaled_divisor(v[i].c, divisor(v[i].m)));
    if (g > 1 && g < c) divs.push_back(g);
  }
  std::sort(divs.begin(), divs.end(), std::greater<>());
  divs.resize_down(static_cast<std::size_t>(std::unique(divs.begin(), divs.end()) - divs.begin()));
  for (const std::int64_t g : divs) {
    Poly high;
    Poly low;
    for (std::size_t i = 0; i < v.size(); ++i)
      (scaled_divisor(v[i].c, divisor(v[i].m)) % g == 0 ? high : low).add_term(v[i].m, v[i].c);
    low.k = mod_int(v.constant(), g);
    high.k = v.constant() - low.k;
    if (low.terms.empty() && low.k == 0) continue;
    const Expr rest = low.finish();
    if (const auto q = constant_quotient(rest, g)) return Parts{high.finish(), rest, g, *q};
  }
  return std::nullopt;
}

std::int64_t content(const Expr& a, std::int64_t c) {  // gcd of the coefficients, the constant and c
  const TermView v(a);
  std::int64_t g = gcd_int(c, v.constant());
  for (std::size_t i = 0; i < v.size() && g > 1; ++i) g = gcd_int(g, v[i].c);
  return g;
}

// Shifts and masks go through ^; taken where it makes at least one operand vanish or meet a simpler form.
std::optional<Expr> through_xor(const Expr& a, std::int64_t c, bool quotient) {
  if (a.is_const() || a.op() != Op::Xor || !is_power_of_two(c)) return std::nullopt;
  Expr r = 0;
  bool simpler = false;
  for (const Expr& x : a.node()->args) {
    const Expr part = quotient ? floor_div(x, c) : mod(x, c);
    const bool raw =
        !part.is_const() && (part.op() == Op::FloorDiv || part.op() == Op::Mod) && identical(part.node()->args[0], x);
    simpler = simpler || (!raw && !(x.is_const() && !part.is_const(0)));
    r = bit_xor(r, part);
  }
  return simpler ? std::optional(r) : std::nullopt;
}

// a = base // d + k for a constant k.
struct Shifted {
  Expr base;
  Expr by;
  std::int64_t k = 0;
};
std::optional<Shifted> as_shifted(const Expr& a, Op op) {
  const TermView v(a);
  if (v.size() != 1 || v[0].c != 1 || v[0].m.op() != op) return std::nullopt;
  return Shifted{v[0].m.node()->args[0], v[0].m.node()->args[1], v.constant()};
}

bool all_negative(const Expr& a) {
  const TermView v(a);
  for (std::size_t i = 0; i < v.size(); ++i)
    if (v[i].c > 0) return false;
  return v.size() > 0;
}

Expr div_const(const Expr& a, std::int64_t c) {
  if (const auto q = constant_quotient(a, c)) return *q;
  const Reduced r = reduce_const(a, c);
  if (!identical(r.rest, a)) return r.out + floor_div(r.rest, c);
  if (all_negative(a)) return -1 - floor_div(-a - 1, c);
  if (const auto p = split_low(a, c)) return floor_div(p->high + p->q * p->g, c);
  if (const std::int64_t g = content(a, c); g > 1) return floor_div(divide_through(a, g), c / g);
  if (const auto s = as_shifted(a, Op::FloorDiv)) {
    if (s->by.is_const() ? s->by.value() > 0 : lower_bound(s->by) >= 0)
      return floor_div(s->base + s->by * s->k, s->by * c);
  }
  if (const auto s = as_shifted(a, Op::Mod); s && s->k == 0 && divisor(s->by) % c == 0 && lower_bound(s->by) >= 0)
    return mod(floor_div(s->base, c), floor_div(s->by, c));
  if (const auto x = through_xor(a, c, true)) return *x;
  return make_node(Op::FloorDiv, a, c);
}

// Remainders inside a remainder: scale * (x % m) is scale * x when c divides scale * m.
std::optional<Expr> unwrap_mods(const Expr& a, std::int64_t c) {
  const TermView v(a);
  for (std::size_t i = 0; i < v.size(); ++i) {
    if ((v[i].m.node()->flags & kHasMod) == 0) continue;
    const auto fs = factors(v[i].m);
    for (std::size_t j = 0; j < fs.size(); ++j) {
      if (fs[j].op() != Op::Mod) continue;
      std::int64_t known = scaled_divisor(v[i].c, divisor(fs[j].node()->args[1]));
      Expr others = 1;
      for (std::size_t k = 0; k < fs.size(); ++k) {
        if (k == j) continue;
        known = scaled_divisor(known, divisor(fs[k]));
        others = mono_mul(others, fs[k]);
      }
      if (known % c != 0) continue;
      Poly p(a);
      p.add_term(v[i].m, -v[i].c);
      p.add(fs[j].node()->args[0] * others, v[i].c);
      return p.finish();
    }
  }
  return std::nullopt;
}

Expr mod_const(const Expr& a, std::int64_t c) {
  if (const auto q = constant_quotient(a, c)) return *q == 0 ? a : a - Expr(*q) * c;
  const Reduced r = reduce_const(a, c);
  if (!identical(r.rest, a)) return mod(r.rest, c);
  if (divisor(a) % c == 0) return 0;
  if (all_negative(a)) return c - 1 - mod(-a - 1, c);
  if (const auto u = unwrap_mods(a, c)) return mod(*u, c);
  if (const auto p = split_low(a, c)) {
    const std::int64_t skip = p->q * p->g;
    return mod(p->high + skip, c) + (p->low - skip);
  }
  if (const std::int64_t g = content(a, c); g > 1) return mod(divide_through(a, g), c / g) * g;
  if (const auto x = through_xor(a, c, false)) return *x;
  return make_node(Op::Mod, a, c);
}

// Symbolic divisors.

struct Common {
  Expr a;
  Expr b;
  Expr factor;  // the operands were factor times these
};

// Cancels the factors, numeric and symbolic, that every term of both operands has.
std::optional<Common> cancel(const Expr& a, const Expr& b) {
  const TermView x(a);
  const TermView y(b);
  if (x.size() == 0) return std::nullopt;
  std::int64_t g = gcd_int(x.constant(), y.constant());
  for (std::size_t i = 0; i < x.size(); ++i) g = gcd_int(g, x[i].c);
  for (std::size_t i = 0; i < y.size(); ++i) g = gcd_int(g, y[i].c);
  Expr shared = 1;
  if (x.constant() == 0 && y.constant() == 0) {
    const Expr first = y[0].m;
    for (const Expr& f : factors(first)) {
      const Expr with = mono_mul(shared, f);
      bool all = true;
      for (std::size_t i = 0; i < x.size() && all; ++i) all = mono_div(x[i].m, with).has_value();
      for (std::size_t i = 0; i < y.size() && all; ++i) all = mono_div(y[i].m, with).has_value();
      if (all) shared = with;
    }
  }
  if (g <= 1 && shared.is_const()) return std::nullopt;
  g = std::max<std::int64_t>(g, 1);
  const auto reduce = [&](const TermView& v) {
    Poly p;
    p.k = v.constant() / g;
    for (std::size_t i = 0; i < v.size(); ++i) p.add(*mono_div(v[i].m, shared), v[i].c / g);
    return p.finish();
  };
  return Common{reduce(x), reduce(y), shared * g};
}

// a == out * b + rest by polynomial division on one term of b, where that makes a shorter.
std::optional<Reduced> reduce_symbolic(const Expr& a, const Expr& b) {
  const TermView x(a);
  const TermView y(b);
  std::size_t lead = 0;
  for (std::size_t i = 1; i < y.size(); ++i)
    if (factors(y[i].m).size() > factors(y[lead].m).size()) lead = i;
  const bool monomial = y.size() == 1 && y.constant() == 0;
  const Term l = y[lead];
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto m = mono_div(x[i].m, l.m);
    if (!m || l.c == kMinInt || x[i].c / l.c == 0) continue;
    const Expr q = *m * Expr(x[i].c / l.c);
    const Expr rest = a - q * b;
    const TermView r(rest);
    const auto length = [](const TermView& v) { return v.size() + (v.constant() != 0 ? 1 : 0); };
    if (monomial || length(r) < length(x)) return Reduced{q, rest};
  }
  return std::nullopt;
}

bool below(const Expr& e, const Expr& limit) { return prove_nonneg(e) && prove_negative(e - limit); }

// Terms of a that some factor f > 0 of b divides, when the others stay in [0, f).
std::optional<Parts> split_low_symbolic(const Expr& a, const Expr& b) {
  const TermView x(a);
  const TermView y(b);
  if (y.size() != 1 || y.constant() != 0) return std::nullopt;
  SmallVec<Expr, 8> candidates;
  if (y[0].c > 1) candidates.push_back(y[0].c);
  for (const Expr& f : factors(y[0].m)) {
    if (lower_bound(f) < 0) continue;
    candidates.push_back(f);
    if (y[0].c > 1) candidates.push_back(f * Expr(y[0].c));
  }
  for (const Expr& f : candidates) {
    const TermView fv(f);
    if (!f.is_const() && (fv.size() != 1 || fv.constant() != 0)) continue;
    Poly high;
    Poly low;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const bool divides =
          f.is_const() ? x[i].c % f.value() == 0 : x[i].c % fv[0].c == 0 && mono_div(x[i].m, fv[0].m).has_value();
      (divides ? high : low).add_term(x[i].m, x[i].c);
    }
    low.k = f.is_const() ? mod_int(x.constant(), f.value()) : x.constant();
    high.k = x.constant() - low.k;
    if (high.terms.empty() || (low.terms.empty() && low.k == 0)) continue;
    const Expr rest = low.finish();
    if (below(rest, f)) return Parts{high.finish(), rest, 0, 0};
  }
  return std::nullopt;
}

// m / b as an expression when b divides m as a monomial with coefficient.
std::optional<Expr> exact_ratio(const Expr& m, const Expr& b) {
  const TermView x(m);
  const TermView y(b);
  if (x.size() != 1 || y.size() != 1 || x.constant() != 0 || y.constant() != 0 || x[0].c % y[0].c != 0)
    return std::nullopt;
  const auto q = mono_div(x[0].m, y[0].m);
  return q ? std::optional(*q * Expr(x[0].c / y[0].c)) : std::nullopt;
}

Expr div_symbolic(const Expr& a, const Expr& b) {
  if (identical(a, b)) return 1;
  if (const auto c = cancel(a, b)) return floor_div(c->a, c->b);
  if (const auto r = reduce_symbolic(a, b)) return r->out + floor_div(r->rest, b);
  if (upper_bound(b) <= 0) return floor_div(-a, -b);
  if (lower_bound(b) < 0) return make_node(Op::FloorDiv, a, b);
  if (all_negative(a)) return -1 - floor_div(-a - 1, b);
  if (below(a, b)) return 0;
  if (const auto p = split_low_symbolic(a, b)) return floor_div(p->high, b);
  if (const auto s = as_shifted(a, Op::FloorDiv)) return floor_div(s->base + s->by * s->k, s->by * b);
  if (const auto s = as_shifted(a, Op::Mod); s && s->k == 0) {
    const auto q = exact_ratio(s->by, b);
    if (q && lower_bound(*q) >= 0) return mod(floor_div(s->base, b), *q);
  }
  return make_node(Op::FloorDiv, a, b);
}

Expr mod_symbolic(const Expr& a, const Expr& b) {
  if (identical(a, b)) return 0;
  if (const auto c = cancel(a, b)) return mod(c->a, c->b) * c->factor;
  if (const auto r = reduce_symbolic(a, b)) return mod(r->rest, b);
  if (upper_bound(b) <= 0) return -mod(-a, -b);
  if (lower_bound(b) < 0) return make_node(Op::Mod, a, b);
  if (all_negative(a)) return b - 1 - mod(-a - 1, b);
  if (below(a, b)) return a;
  const TermView v(a);
  for (std::size_t i = 0; i < v.size(); ++i) {
    if (v[i].m.op() != Op::Mod) continue;
    const Expr m = v[i].m.node()->args[1];
    if (!exact_ratio(m * Expr(v[i].c), b)) continue;
    Poly p(a);
    p.add_term(v[i].m, -v[i].c);
    p.add(v[i].m.node()->args[0], v[i].c);
    return mod(p.finish(), b);
  }
  if (const auto p = split_low_symbolic(a, b)) return mod(p->high, b) + p->low;
  return make_node(Op::Mod, a, b);
}

Expr simplified(Op op, const Expr& a, const Expr& b) {
  const bool quotient = op == Op::FloorDiv;
  if (b.is_const()) {
    const std::int64_t c = b.value();
    if (c == kMinInt) return make_node(op, a, b);
    if (c == 1) return quotient ? a : Expr(0);
    if (c < 0) return quotient ? floor_div(-a, -c) : -mod(-a, -c);
    return quotient ? div_const(a, c) : mod_const(a, c);
  }
  if (a.is_const(0)) return 0;
  return quotient ? div_symbolic(a, b) : mod_symbolic(a, b);
}

Expr divide(Op op, const Expr& a, const Expr& b) {
  if (b.is_const(0))
    fail(Code::SYM_DIV_ZERO, (op == Op::FloorDiv ? "division of " : "remainder of ") + brief(a) + " by zero");
  if (a.is_const() && b.is_const()) {
    if (a.value() == kMinInt && b.value() == -1) {
      if (op == Op::Mod) return 0;
      fail_overflow(std::to_string(kMinInt) + " // -1");
    }
    return op == Op::FloorDiv ? floor_div_int(a.value(), b.value()) : mod_int(a.value(), b.value());
  }
  if (const Expr* known = ResultMemo::find(op, a, b)) return *known;
  if (Nesting::too_deep()) return make_node(op, a, b);
  const Nesting nesting;
  const auto r = attempt([&] { return simplified(op, a, b); });
  const Expr result = r ? *r : make_node(op, a, b);
  ResultMemo::store(op, a, b, result);
  return result;
}

}  // namespace

Expr floor_div(const Expr& a, const Expr& b) { return divide(Op::FloorDiv, settled(a), settled(b)); }
Expr mod(const Expr& a, const Expr& b) { return divide(Op::Mod, settled(a), settled(b)); }

Expr ceil_div(const Expr& a, const Expr& b) {
  if (b.is_const() && b.value() < 0) return -floor_div(a, -b);
  return floor_div(a + b - 1, b);
}

}  // namespace graphene::sym
