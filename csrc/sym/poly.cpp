// Sums and products: the canonical polynomial form.
#include <vector>

#include "sym/internal.h"

namespace graphene::sym {

namespace {

constexpr std::size_t kDistributeLimit = 64;  // terms of a product of two sums

using Factors = SmallVec<Expr, 8>;

Expr make_mul(std::span<const Expr> sorted) {
  if (sorted.empty()) return 1;
  if (sorted.size() == 1) return sorted[0];
  return make_node({.op = Op::Mul, .args = sorted});
}

Expr mono_mul_atoms(const Expr& a, const Expr& b) {
  return make_mul(order(a, b) <= 0 ? std::array{a, b} : std::array{b, a});
}

std::size_t term_count(const Expr& e) {
  const TermView v(e);
  return v.size() + (v.constant() != 0 ? 1 : 0);
}

// coef * base // c, exact by facts: c * coef * (base // c) becomes coef * base, and so do common factors of c and coef.
bool cancel_exact_quotients(Poly& p) {
  for (const Term& t : p.terms) {
    if ((t.m.node()->flags & kHasDiv) == 0) continue;
    const auto fs = factors(t.m);
    for (std::size_t i = 0; i < fs.size(); ++i) {
      if (fs[i].op() != Op::FloorDiv || !fs[i].node()->args[1].is_const()) continue;
      const Expr dividend = fs[i].node()->args[0];
      const std::int64_t c = fs[i].node()->args[1].value();
      const std::int64_t g = gcd_int(t.c, c);
      if (g <= 1 || c <= 0 || divisor(dividend) % c != 0) continue;
      Factors rest;
      for (std::size_t j = 0; j < fs.size(); ++j)
        if (j != i) rest.push_back(fs[j]);
      const Expr value = make_mul(rest) * floor_div(dividend, c / g);
      const Term old = t;
      p.add_term(old.m, -old.c);
      p.add(value, old.c / g);
      return true;
    }
  }
  return false;
}

}  // namespace

TermView::TermView(const Expr& e) : self_(settled(e)) {
  if (self_.is_const()) {
    k_ = self_.value();
  } else if (self_.op() == Op::Add) {
    m_ = self_.node()->args;
    c_ = self_.node()->coef;
    k_ = self_.node()->constant;
  } else {
    m_ = {&self_, 1};
    c_ = {&one_, 1};
  }
}

Expr mono_mul(const Expr& a, const Expr& b) {
  if (a.is_const(1)) return b;
  if (b.is_const(1)) return a;
  const auto x = factors(a);
  const auto y = factors(b);
  Factors out;
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < x.size() || j < y.size()) {
    const bool take_x = j == y.size() || (i < x.size() && order(x[i], y[j]) <= 0);
    out.push_back(take_x ? x[i++] : y[j++]);
  }
  return make_mul(out);
}

std::optional<Expr> mono_div(const Expr& m, const Expr& f) {
  if (f.is_const(1)) return m;
  if (identical(m, f)) return Expr(1);
  const auto x = factors(m);
  const auto y = factors(f);
  if (y.size() > x.size()) return std::nullopt;
  Factors out;
  std::size_t j = 0;
  for (const Expr& e : x) {
    if (j < y.size() && identical(e, y[j]))
      ++j;
    else
      out.push_back(e);
  }
  if (j != y.size()) return std::nullopt;
  return make_mul(out);
}

void Poly::add(const Expr& e, std::int64_t scale) {
  const TermView v(e);
  if (std::int64_t c = 0; __builtin_mul_overflow(v.constant(), scale, &c) || __builtin_add_overflow(k, c, &k))
    overflow = true;
  if (v.size() == 0 || scale == 0) return;
  if (v.size() == 1) {
    std::int64_t c = 0;
    overflow |= __builtin_mul_overflow(v[0].c, scale, &c);
    add_term(v[0].m, c);
    return;
  }
  SmallVec<Term, 12> out;
  std::size_t i = 0;
  for (std::size_t j = 0; j < v.size(); ++j) {
    Term t = v[j];
    overflow |= __builtin_mul_overflow(t.c, scale, &t.c);
    while (i < terms.size() && order(terms[i].m, t.m) < 0) out.push_back(terms[i++]);
    if (i < terms.size() && identical(terms[i].m, t.m)) overflow |= __builtin_add_overflow(t.c, terms[i++].c, &t.c);
    if (t.c != 0) out.push_back(t);
  }
  while (i < terms.size()) out.push_back(terms[i++]);
  terms = out;
}

void Poly::add_term(const Expr& m, std::int64_t c) {
  if (c == 0) return;
  std::size_t i = 0;
  while (i < terms.size() && order(terms[i].m, m) < 0) ++i;
  if (i < terms.size() && identical(terms[i].m, m)) {
    overflow |= __builtin_add_overflow(terms[i].c, c, &terms[i].c);
    if (terms[i].c == 0) terms.erase(i);
  } else {
    terms.insert(i, {m, c});
  }
}

std::int64_t Poly::coef(const Expr& m) const {
  for (const Term& t : terms)
    if (identical(t.m, m)) return t.c;
  return 0;
}

Expr Poly::finish() {
  std::uint8_t flags = 0;
  for (const Term& t : terms) flags |= t.m.node()->flags;
  if ((flags & (kHasDiv | kHasMod)) != 0 && !overflow && !Nesting::too_deep()) {
    const Nesting nesting;
    if ((flags & kHasDiv) != 0)
      while (!overflow && cancel_exact_quotients(*this)) {
      }
    if (terms.size() > 1 && !overflow) recombine(*this);
  }
  if (overflow) fail_overflow("a sum or product of symbolic integers");
  if (terms.empty()) return k;
  if (terms.size() == 1 && k == 0 && terms[0].c == 1) return terms[0].m;
  SmallVec<Expr, 12> args;
  SmallVec<std::int64_t, 12> coefs;
  for (const Term& t : terms) {
    args.push_back(t.m);
    coefs.push_back(t.c);
  }
  return make_node({.op = Op::Add, .args = args, .coef = coefs, .constant = k});
}

Expr divide_through(const Expr& a, std::int64_t g) {
  const TermView v(a);
  Poly p;
  for (std::size_t i = 0; i < v.size(); ++i) p.add_term(v[i].m, v[i].c / g);
  p.k = v.constant() / g;
  return p.finish();
}

Expr operator+(const Expr& a, const Expr& b) {
  if (a.is_const() && b.is_const()) {
    std::int64_t r = 0;
    if (__builtin_add_overflow(a.value(), b.value(), &r))
      fail_overflow(std::to_string(a.value()) + " + " + std::to_string(b.value()));
    return r;
  }
  if (a.is_const(0)) return b;
  if (b.is_const(0)) return a;
  Poly p(a);
  p.add(b);
  return p.finish();
}

Expr operator-(const Expr& a) { return a * Expr(-1); }

Expr operator-(const Expr& a, const Expr& b) {
  if (a.is_const() && b.is_const()) {
    std::int64_t r = 0;
    if (__builtin_sub_overflow(a.value(), b.value(), &r))
      fail_overflow(std::to_string(a.value()) + " - " + std::to_string(b.value()));
    return r;
  }
  if (b.is_const(0)) return a;
  if (identical(a, b)) return 0;
  Poly p(a);
  p.add(b, -1);
  return p.finish();
}

Expr operator*(const Expr& left, const Expr& right) {
  const Expr a = settled(left);
  const Expr b = settled(right);
  if (a.is_const() && b.is_const()) {
    std::int64_t r = 0;
    if (__builtin_mul_overflow(a.value(), b.value(), &r))
      fail_overflow(std::to_string(a.value()) + " * " + std::to_string(b.value()));
    return r;
  }
  if (a.is_const() || b.is_const()) {
    const std::int64_t c = a.is_const() ? a.value() : b.value();
    const Expr& e = a.is_const() ? b : a;
    if (c == 0) return 0;
    if (c == 1) return e;
    Poly p;
    p.add(e, c);
    return p.finish();
  }
  if (term_count(a) * term_count(b) > kDistributeLimit) {
    // Too many terms: distribute over the smaller sum at most. The other one is then a factor like any other.
    const bool a_larger = term_count(a) >= term_count(b);
    const Expr& large = a_larger ? a : b;
    const Expr& small = a_larger ? b : a;
    if (term_count(small) > kDistributeLimit / 8) return mono_mul_atoms(a, b);
    const TermView v(small);
    Poly p;
    for (std::size_t i = 0; i < v.size(); ++i) p.add_term(mono_mul(v[i].m, large), v[i].c);
    p.add(large, v.constant());
    return p.finish();
  }
  const TermView x(a);
  const TermView y(b);
  Poly p;
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t j = 0; j < y.size(); ++j) {
      std::int64_t c = 0;
      p.overflow |= __builtin_mul_overflow(x[i].c, y[j].c, &c);
      p.add_term(mono_mul(x[i].m, y[j].m), c);
    }
    std::int64_t c = 0;
    p.overflow |= __builtin_mul_overflow(x[i].c, y.constant(), &c);
    p.add_term(x[i].m, c);
  }
  p.add(b, x.constant());
  p.k = 0;
  p.overflow |= __builtin_mul_overflow(x.constant(), y.constant(), &p.k);
  return p.finish();
}

}  // namespace graphene::sym
