// Functions over whole expressions: substitution, variables, evaluation.
#include <unordered_map>
#include <unordered_set>

#include "sym/internal.h"
#include "sym/substituter.h"

namespace graphene::sym {

namespace {

Expr rebuild(const Node& n, const std::function<Expr(const Expr&)>& f) {
  const auto fold = [&](Expr (*combine)(const Expr&, const Expr&)) {
    Expr r = f(n.args[0]);
    for (const Expr& a : n.args.subspan(1)) r = combine(r, f(a));
    return r;
  };
  switch (n.op) {
    case Op::Add: {
      Expr r = n.constant;
      for (std::size_t i = 0; i < n.args.size(); ++i) r = r + f(n.args[i]) * Expr(n.coef[i]);
      return r;
    }
    case Op::Mul:
      return fold([](const Expr& a, const Expr& b) { return a * b; });
    case Op::FloorDiv:
      return fold([](const Expr& a, const Expr& b) { return floor_div(a, b); });
    case Op::Mod:
      return fold([](const Expr& a, const Expr& b) { return mod(a, b); });
    case Op::Min:
      return fold([](const Expr& a, const Expr& b) { return min(a, b); });
    case Op::Max:
      return fold([](const Expr& a, const Expr& b) { return max(a, b); });
    case Op::Xor: {
      SmallVec<Expr, 8> args;
      for (const Expr& a : n.args) args.push_back(f(a));
      return bit_xor_all(args);
    }
    case Op::Lt:
      return fold(lt);
    case Op::Le:
      return fold(le);
    case Op::Eq:
      return fold(eq);
    case Op::Ne:
      return fold(ne);
    case Op::And:
      return fold(logical_and);
    case Op::Or:
      return fold(logical_or);
    case Op::Not:
      return logical_not(f(n.args[0]));
    case Op::Const:
    case Op::Var:
      break;
  }
  internal_error(__FILE__, __LINE__, "a leaf has no arguments");
}

// Rewrites variables by `leaf`, each shared node once.
class Rewriter {
 public:
  using Done = std::unordered_map<const Node*, Expr>;

  explicit Rewriter(std::function<Expr(const Expr&)> leaf) : leaf_(std::move(leaf)), done_(mine_) {}
  // `done`: what was rewritten before, by the same `leaf`.
  Rewriter(std::function<Expr(const Expr&)> leaf, Done& done) : leaf_(std::move(leaf)), done_(done) {}

  Expr operator()(const Expr& e) {
    if (e.is_const()) return e;
    if (e.is_var()) return leaf_(e);
    if (const auto it = done_.find(e.node()); it != done_.end()) return it->second;
    bool changed = false;
    for (const Expr& a : e.node()->args) changed = !identical((*this)(a), a) || changed;
    const Expr r = changed ? rebuild(*e.node(), [this](const Expr& a) { return (*this)(a); }) : e;
    done_.emplace(e.node(), r);
    return r;
  }

 private:
  std::function<Expr(const Expr&)> leaf_;
  Done mine_;
  Done& done_;
};

Expr value_of(const Expr& var, const Substitution& s) {
  const auto it = s.find(var.node());
  return it == s.end() ? var : it->second;
}

template <class Visit>
void visit_vars(const Expr& e, std::unordered_set<const Node*>& seen, Visit&& visit) {
  if (e.is_const() || !seen.insert(e.node()).second) return;
  if (e.is_var()) visit(e);
  for (const Expr& a : e.node()->args) visit_vars(a, seen, visit);
}

bool depends(const Expr& e, std::unordered_set<const Node*>& seen, const std::function<bool(const VarInfo&)>& which) {
  if (e.is_const() || !seen.insert(e.node()).second) return false;
  if (e.is_var()) return which(e.var()) || (e.var().def && depends(*e.var().def, seen, which));
  for (const Expr& a : e.node()->args)
    if (depends(a, seen, which)) return true;
  return false;
}

std::int64_t narrow(Int128 v, const Node& n) {
  if (v > kMaxInt || v < kMinInt) fail_overflow("the value of " + brief(Expr(&n)));
  return static_cast<std::int64_t>(v);
}

Int128 checked_mul(Int128 a, Int128 b, const Node& n) {
  Int128 r = 0;
  if (__builtin_mul_overflow(a, b, &r)) fail_overflow("the value of " + brief(Expr(&n)));
  return r;
}

std::int64_t eval(const Expr& e, const std::function<std::int64_t(const VarInfo&)>& env) {
  if (e.is_const()) return e.value();
  const Node& n = *e.node();
  const auto arg = [&](std::size_t i) { return eval(n.args[i], env); };
  switch (n.op) {
    case Op::Const:
      break;
    case Op::Var:
      return env(*n.var);
    case Op::Add: {
      Int128 sum = n.constant;
      for (std::size_t i = 0; i < n.args.size(); ++i)
        if (__builtin_add_overflow(sum, Int128{n.coef[i]} * arg(i), &sum)) fail_overflow("the value of " + brief(e));
      return narrow(sum, n);
    }
    case Op::Mul: {
      Int128 product = 1;
      bool zero = false;
      for (std::size_t i = 0; i < n.args.size(); ++i) {
        const std::int64_t v = arg(i);
        zero = zero || v == 0;
        if (!zero) product = checked_mul(product, v, n);
      }
      return zero ? 0 : narrow(product, n);
    }
    case Op::FloorDiv:
    case Op::Mod: {
      const std::int64_t a = arg(0);
      const std::int64_t b = arg(1);
      if (b == 0) fail(Code::SYM_DIV_ZERO, "the divisor of " + brief(e) + " is zero");
      if (b == -1) return n.op == Op::Mod ? 0 : narrow(-Int128{a}, n);
      return n.op == Op::FloorDiv ? floor_div_int(a, b) : mod_int(a, b);
    }
    case Op::Min:
    case Op::Max: {
      std::int64_t r = arg(0);
      for (std::size_t i = 1; i < n.args.size(); ++i) r = n.op == Op::Min ? std::min(r, arg(i)) : std::max(r, arg(i));
      return r;
    }
    case Op::Xor: {
      std::int64_t r = 0;
      for (std::size_t i = 0; i < n.args.size(); ++i) r ^= arg(i);
      return r;
    }
    case Op::Lt:
      return arg(0) < arg(1) ? 1 : 0;
    case Op::Le:
      return arg(0) <= arg(1) ? 1 : 0;
    case Op::Eq:
      return arg(0) == arg(1) ? 1 : 0;
    case Op::Ne:
      return arg(0) != arg(1) ? 1 : 0;
    case Op::And:
    case Op::Or: {
      for (std::size_t i = 0; i < n.args.size(); ++i)
        if ((arg(i) != 0) == (n.op == Op::Or)) return n.op == Op::Or ? 1 : 0;
      return n.op == Op::Or ? 0 : 1;
    }
    case Op::Not:
      return arg(0) == 0 ? 1 : 0;
  }
  internal_error(__FILE__, __LINE__, "a constant is not a node");
}

}  // namespace

Expr substitute(const Expr& e, const Substitution& s) {
  if (s.empty()) return e;
  Rewriter rewrite([&](const Expr& v) { return value_of(v, s); });
  return rewrite(e);
}

Expr Substituter::operator()(const Expr& e) {
  if (known_.empty()) return e;
  Rewriter rewrite([this](const Expr& v) { return value_of(v, known_); }, done_);
  return rewrite(e);
}

Expr expand_coords(const Expr& e) {
  if (e.is_const() || (e.node()->flags & kSymbolic) == 0) return e;  // no variable below has a definition
  // As nodes do, this lives as long as the process: a kernel is expanded anew for each launch that is simulated.
  thread_local std::unordered_map<const Node*, Expr> known;
  if (const auto it = known.find(e.node()); it != known.end()) return it->second;
  Rewriter rewrite([](const Expr& v) { return v.var().def ? expand_coords(*v.var().def) : v; });
  const Expr r = rewrite(e);
  GR_ASSERT(r.is_const() || (r.node()->flags & kDraft) == 0, "what is kept is no draft");
  known.emplace(e.node(), r);
  return r;
}

std::vector<Expr> free_vars(const Expr& e) {
  std::vector<Expr> out;
  std::unordered_set<const Node*> seen;
  visit_vars(e, seen, [&](const Expr& v) { out.push_back(v); });
  std::sort(out.begin(), out.end(), [](const Expr& a, const Expr& b) { return order(a, b) < 0; });
  return out;
}

bool depends_on(const Expr& e, const std::function<bool(const VarInfo&)>& which) {
  std::unordered_set<const Node*> seen;
  return depends(e, seen, which);
}

bool fits_signed(const Expr& e, int bits) {
  const Int128 limit = (Int128{1} << (bits - 1)) - 1;
  const auto most = [](const Expr& x) {
    return lower_bound(x) == kMinInt || upper_bound(x) == kMaxInt
               ? Int128{kMaxInt} + 1
               : std::max(Int128{magnitude(lower_bound(x))}, Int128{magnitude(upper_bound(x))});
  };
  if (most(e) > limit) return false;
  if (e.is_const() || e.is_var()) return true;
  // A bound on every partial sum and product, in whatever order and grouping the terms are printed.
  const TermView v(e);
  Int128 total = magnitude(v.constant());
  for (std::size_t i = 0; i < v.size(); ++i) {
    Int128 t = magnitude(v[i].c);
    for (const Expr& f : factors(v[i].m)) {
      t *= std::max(most(f), Int128{1});
      if (t > limit || (f.node() != e.node() && !fits_signed(f, bits))) return false;
    }
    total += t;
    if (total > limit) return false;
  }
  if (e.op() != Op::Add && e.op() != Op::Mul)
    for (const Expr& a : e.node()->args)
      if (!fits_signed(a, bits)) return false;
  return true;
}

std::int64_t evaluate(const Expr& e, const std::function<std::int64_t(const VarInfo&)>& env) { return eval(e, env); }

}  // namespace graphene::sym
