// Quotients and remainders of one dividend, brought together inside a sum:
//   c * (x // c) + x % c              ->  x
//   x - c * (x // c)                  ->  x % c
//   a * ((x // a) % b) + x % a        ->  x % (a * b)
// each times any common factor. Every rule makes the sum smaller.
#include "sym/internal.h"

namespace graphene::sym {

namespace {

struct Split {
  Expr atom;  // one factor of a monomial
  Expr rest;  // the product of the others
};

Split split_at(const Expr& m, std::size_t i) {
  const auto fs = factors(m);
  if (fs.size() == 1) return {fs[0], 1};
  SmallVec<Expr, 8> rest;
  for (std::size_t j = 0; j < fs.size(); ++j)
    if (j != i) rest.push_back(fs[j]);
  return {fs[i], rest.size() == 1 ? rest[0] : make_node({.op = Op::Mul, .args = rest})};
}

bool contains(const Poly& p, const Poly& part) {
  if (part.overflow) return false;
  for (const Term& t : part.terms)
    if (p.coef(t.m) != t.c) return false;
  return true;
}

// scale * e * rest as a sum.
Poly times(const Expr& e, const Expr& rest, std::int64_t scale) {
  Poly p;
  p.add(rest.is_const(1) ? e : e * rest, scale);
  return p;
}

void subtract(Poly& p, const Poly& part) {
  for (const Term& t : part.terms) p.add_term(t.m, -t.c);
}

// c * (x // c) + x % c -> x
bool join_quotient(Poly& p, const Term& t, const Split& s) {
  const Expr x = s.atom.node()->args[0];
  const Expr c = s.atom.node()->args[1];
  const Expr q = floor_div(x, c);
  if (q.is_const()) return false;
  const Poly wanted = times(q * c, s.rest, t.c);
  if (wanted.terms.empty() || wanted.k != 0 || !contains(p, wanted)) return false;
  subtract(p, wanted);
  p.add_term(t.m, -t.c);
  p.add(s.rest.is_const(1) ? x : x * s.rest, t.c);
  return true;
}

// a * ((x // a) % b) + x % a -> x % (a * b), for constants a and b
bool join_digits(Poly& p, const Term& t, const Split& s) {
  const Expr x = s.atom.node()->args[0];
  const Expr a = s.atom.node()->args[1];
  if (!a.is_const() || a.value() < 2) return false;
  std::int64_t upper_coef = 0;
  if (__builtin_mul_overflow(t.c, a.value(), &upper_coef)) return false;
  for (const Term& u : p.terms) {
    if (u.c != upper_coef || (u.m.node()->flags & kHasMod) == 0) continue;
    const auto fs = factors(u.m);
    for (std::size_t i = 0; i < fs.size(); ++i) {
      if (fs[i].op() != Op::Mod || !fs[i].node()->args[1].is_const()) continue;
      const Split v = split_at(u.m, i);
      std::int64_t ab = 0;
      if (!identical(v.rest, s.rest) || __builtin_mul_overflow(a.value(), fs[i].node()->args[1].value(), &ab)) continue;
      if (ab < 4 || !identical(fs[i].node()->args[0], floor_div(x, a))) continue;
      const Term high = u;
      const Term low = t;
      p.add_term(high.m, -high.c);
      p.add_term(low.m, -low.c);
      const Expr joined = mod(x, ab);
      p.add(s.rest.is_const(1) ? joined : joined * s.rest, low.c);
      return true;
    }
  }
  return false;
}

// x - c * (x // c) -> x % c
bool form_remainder(Poly& p, const Term& t, const Split& s) {
  const Expr x = s.atom.node()->args[0];
  const Expr c = s.atom.node()->args[1];
  Expr rest = s.rest;
  std::int64_t scale = 0;
  if (c.is_const()) {
    if (c.value() < 2 || t.c % c.value() != 0 || t.c == kMinInt) return false;
    scale = -(t.c / c.value());
  } else {
    if (c.op() == Op::Add || t.c == kMinInt) return false;
    const auto without = mono_div(rest, c);
    if (!without) return false;
    rest = *without;
    scale = -t.c;
  }
  const TermView xs(x);
  if (xs.size() == 0 || (xs.constant() != 0 && !rest.is_const(1))) return false;
  Poly wanted;  // the terms of x, without its constant
  for (std::size_t i = 0; i < xs.size(); ++i) {
    std::int64_t k = 0;
    if (__builtin_mul_overflow(xs[i].c, scale, &k)) return false;
    wanted.add_term(mono_mul(xs[i].m, rest), k);
  }
  std::int64_t constant = 0;
  if (!contains(p, wanted) || __builtin_mul_overflow(xs.constant(), scale, &constant) || constant == kMinInt)
    return false;
  subtract(p, wanted);
  p.add_term(t.m, -t.c);
  const Expr r = mod(x, c);
  p.add(rest.is_const(1) ? r : r * rest, scale);
  p.add_constant(-constant);
  return true;
}

bool recombine_once(Poly& p) {
  std::uint8_t flags = 0;
  for (const Term& t : p.terms) flags |= t.m.node()->flags;
  for (const Term& each : p.terms) {
    const Term t = each;
    if ((t.m.node()->flags & (kHasDiv | kHasMod)) == 0) continue;
    const auto fs = factors(t.m);
    for (std::size_t i = 0; i < fs.size(); ++i) {
      const Op op = fs[i].op();
      if (op != Op::FloorDiv && op != Op::Mod) continue;
      const Split s = split_at(t.m, i);
      if (op == Op::FloorDiv ? form_remainder(p, t, s)
                             : ((flags & kHasDiv) != 0 && join_quotient(p, t, s)) || join_digits(p, t, s))
        return true;
    }
  }
  return false;
}

}  // namespace

void recombine(Poly& p) {
  // On overflow or outgrown limits the sum stays as it was.
  for (int round = 0; round < kMaxTerms; ++round) {
    Poly before = p;
    bool changed = false;
    const auto done = attempt([&] {
      changed = recombine_once(p);
      return Expr(0);
    });
    if (!done || p.overflow) {
      p = before;
      return;
    }
    if (!changed) return;
  }
}

}  // namespace graphene::sym
