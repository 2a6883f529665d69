// Random expressions over random variables against a reference evaluation: values, facts, decisions and text.
// Usage: sym_fuzz [expressions] [seed]
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <random>

#include "base/diag.h"
#include "sym/expr.h"

using namespace graphene;       // NOLINT
using namespace graphene::sym;  // NOLINT

namespace {

__extension__ using Wide = __int128;
using Random = std::mt19937_64;

std::int64_t pick(Random& r, std::int64_t lo, std::int64_t hi) {
  return lo + static_cast<std::int64_t>(r() % static_cast<std::uint64_t>(hi - lo + 1));
}

// What the expression was before any simplification.
struct Tree {
  Op op = Op::Const;
  std::int64_t value = 0;
  std::size_t var = 0;
  std::shared_ptr<Tree> a, b;
};
using Ref = std::shared_ptr<Tree>;

struct Undefined {};

std::int64_t narrow(Wide v) {
  if (v > kMaxInt || v < kMinInt) throw Undefined{};
  return static_cast<std::int64_t>(v);
}

std::int64_t reference(const Tree& t, const std::vector<std::int64_t>& env) {
  if (t.op == Op::Const) return t.value;
  if (t.op == Op::Var) return env[t.var];
  const Wide a = reference(*t.a, env);
  const Wide b = t.b ? reference(*t.b, env) : 0;
  switch (t.op) {
    case Op::Add:
      return narrow(a + b);
    case Op::Mul:
      return narrow(a * b);
    case Op::FloorDiv:
    case Op::Mod: {
      if (b == 0) throw Undefined{};
      Wide q = a / b;
      if (a % b != 0 && (a % b < 0) != (b < 0)) --q;
      return narrow(t.op == Op::FloorDiv ? q : a - q * b);
    }
    case Op::Min:
      return static_cast<std::int64_t>(std::min(a, b));
    case Op::Max:
      return static_cast<std::int64_t>(std::max(a, b));
    case Op::Xor:
      return static_cast<std::int64_t>(a) ^ static_cast<std::int64_t>(b);
    case Op::Lt:
      return a < b;
    case Op::Le:
      return a <= b;
    case Op::Eq:
      return a == b;
    case Op::Ne:
      return a != b;
    case Op::And:
      return a != 0 && b != 0;
    case Op::Or:
      return a != 0 || b != 0;
    default:
      return a == 0;
  }
}

std::string show(const Tree& t) {
  static constexpr const char* kNames[] = {"",  "",  "+",  "",   "//", "",    "",   "",
                                           "^", "<", "<=", "==", "!=", "and", "or", ""};
  if (t.op == Op::Const) return std::to_string(t.value);
  if (t.op == Op::Var) return "v" + std::to_string(t.var);
  if (t.op == Op::Not) return "not (" + show(*t.a) + ")";
  const std::string a = show(*t.a);
  const std::string b = show(*t.b);
  if (t.op == Op::Min) return "min(" + a + ", " + b + ")";
  if (t.op == Op::Max) return "max(" + a + ", " + b + ")";
  const std::string name = t.op == Op::Mul ? "*" : t.op == Op::Mod ? "%" : kNames[static_cast<std::size_t>(t.op)];
  return "(" + a + " " + name + " " + b + ")";
}

struct World {
  std::vector<Expr> vars;
  Random& r;

  explicit World(Random& random) : r(random) {
    const std::size_t n = static_cast<std::size_t>(pick(r, 2, 5));
    for (std::size_t i = 0; i < n; ++i) {
      VarInfo v;
      v.name = "v" + std::to_string(i);
      v.kind = static_cast<VarKind>(pick(r, 0, 7));
      v.multiple_of = pick(r, 0, 2) == 0 ? std::int64_t{1} << pick(r, 0, 4) : pick(r, 0, 5) == 0 ? pick(r, 1, 12) : 1;
      v.min = pick(r, 0, 3) == 0 ? pick(r, -20, 20) : 0;
      const std::int64_t tops[] = {0, 1, 3, 7, 8, 15, 31, 100, 127, 1000, kMaxInt};
      v.max = tops[pick(r, 0, 10)];
      if (v.max != kMaxInt) v.max = std::max(v.max, v.min) + v.multiple_of;
      if (i > 0 && pick(r, 0, 3) == 0) {
        const Expr base = vars[static_cast<std::size_t>(pick(r, 0, static_cast<std::int64_t>(i) - 1))];
        const int form = static_cast<int>(pick(r, 0, 4));
        v.multiple_of = 1;
        if (form == 0) v.hi = base - 1;
        if (form == 1) v.hi = ceil_div(base, pick(r, 1, 32)) - 1;
        if (form == 2) v.lo = floor_div(base, pick(r, 1, 9));
        if (form >= 3) {
          v.kind = VarKind::Coord;
          v.def = form == 3 ? floor_div(base, pick(r, 1, 32)) : mod(base, pick(r, 1, 32));
          v.min = kMinInt;
          v.max = kMaxInt;
        }
      }
      vars.push_back(make_var(v));
    }
  }

  // Values that meet the facts; empty if this draw has none.
  std::vector<std::int64_t> sample() const {
    std::vector<std::int64_t> env;
    const auto value = [&](const VarInfo& v) { return env[static_cast<std::size_t>(v.name[1] - '0')]; };
    for (const Expr& e : vars) {
      const VarInfo& v = e.var();
      if (v.def) {
        env.push_back(evaluate(*v.def, value));
        continue;
      }
      std::int64_t lo = v.min;
      std::int64_t hi = v.max;
      if (v.lo) lo = std::max(lo, evaluate(*v.lo, value));
      if (v.hi) hi = std::min(hi, evaluate(*v.hi, value));
      if (lo > hi) return {};
      if (Wide{hi} - lo > 5000) {
        hi = lo + (pick(r, 0, 9) == 0 ? pick(r, 0, static_cast<std::int64_t>(std::min(Wide{hi} - lo, Wide{1} << 40)))
                                      : pick(r, 0, 300));
      }
      std::int64_t x = pick(r, 0, 2) != 0 ? pick(r, lo, hi) : pick(r, 0, 1) != 0 ? lo : hi;
      x -= ((x % v.multiple_of) + v.multiple_of) % v.multiple_of;
      if (x < lo) x += v.multiple_of;
      if (x > hi) return {};
      env.push_back(x);
    }
    return env;
  }

  Ref leaf() const {
    auto t = std::make_shared<Tree>();
    if (pick(r, 0, 2) != 0) {
      t->op = Op::Var;
      t->var = static_cast<std::size_t>(pick(r, 0, static_cast<std::int64_t>(vars.size()) - 1));
    } else {
      const std::int64_t some[] = {0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 31, 32, 64, 100, 128, -1, -2, -8};
      t->value = pick(r, 0, 400) == 0 ? static_cast<std::int64_t>(r()) : some[pick(r, 0, 17)];
    }
    return t;
  }

  Ref grow(int depth) const {
    if (depth == 0 || pick(r, 0, 9) == 0) return leaf();
    static constexpr Op kOps[] = {Op::Add, Op::Add,      Op::Add,      Op::Mul, Op::Mul, Op::Mul, Op::FloorDiv, Op::Mod,
                                  Op::Xor, Op::FloorDiv, Op::FloorDiv, Op::Mod, Op::Mod, Op::Min, Op::Max,      Op::Xor,
                                  Op::Lt,  Op::Le,       Op::Eq,       Op::Ne,  Op::And, Op::Or,  Op::Not};
    auto t = std::make_shared<Tree>();
    t->op = kOps[pick(r, 0, pick(r, 0, 2) == 0 ? 22 : 15)];
    t->a = grow(depth - 1);
    // Divisors and factors are constants most of the time, as in index arithmetic.
    const bool plain = (t->op == Op::FloorDiv || t->op == Op::Mod || t->op == Op::Mul) && pick(r, 0, 3) != 0;
    t->b = t->op == Op::Not ? nullptr : plain ? leaf() : grow(depth - 1);
    return t;
  }

  Expr build(const Tree& t) const {
    if (t.op == Op::Const) return t.value;
    if (t.op == Op::Var) return vars[t.var];
    const Expr a = build(*t.a);
    const Expr b = t.b ? build(*t.b) : Expr(0);
    switch (t.op) {
      case Op::Add:
        return a + b;
      case Op::Mul:
        return a * b;
      case Op::FloorDiv:
        return floor_div(a, b);
      case Op::Mod:
        return mod(a, b);
      case Op::Min:
        return min(a, b);
      case Op::Max:
        return max(a, b);
      case Op::Xor:
        return bit_xor(a, b);
      case Op::Lt:
        return lt(a, b);
      case Op::Le:
        return le(a, b);
      case Op::Eq:
        return eq(a, b);
      case Op::Ne:
        return ne(a, b);
      case Op::And:
        return logical_and(a, b);
      case Op::Or:
        return logical_or(a, b);
      default:
        return logical_not(a);
    }
  }
};

std::string describe(const VarInfo& v) {
  std::string s = v.name + " in [" + std::to_string(v.min) + ", " + std::to_string(v.max) + "] multiple of " +
                  std::to_string(v.multiple_of);
  if (v.hi) s += " hi " + v.hi->str();
  if (v.lo) s += " lo " + v.lo->str();
  if (v.def) s += " = " + v.def->str();
  return s;
}

[[noreturn]] void wrong(const World& w, const Tree& t, const Expr& e, const std::vector<std::int64_t>& env,
                        const std::string& what) {
  std::printf("WRONG: %s\n  built:      %s\n  simplified: %s\n", what.c_str(), show(t).c_str(), e.str().c_str());
  for (const Expr& v : w.vars) std::printf("  %s\n", describe(v.var()).c_str());
  for (std::size_t i = 0; i < env.size(); ++i) std::printf("  v%zu = %lld\n", i, static_cast<long long>(env[i]));
  std::exit(1);
}

void check(const World& w, const Tree& t, const Expr& e) {
  const auto lookup = [&](std::string_view name) -> std::optional<Expr> {
    const auto i = static_cast<std::size_t>(name.back() - '0');
    return i < w.vars.size() ? std::optional(w.vars[i]) : std::nullopt;
  };
  const Expr again = parse_expr(e.str(), lookup);
  if (!identical(again, e)) wrong(w, t, e, {}, "text reads back as " + again.str());
  std::string mutated = e.str();
  for (std::int64_t edits = pick(w.r, 1, 4); edits > 0; --edits) {
    const auto at = static_cast<std::size_t>(pick(w.r, 0, static_cast<std::int64_t>(mutated.size())));
    static constexpr std::string_view kBytes = "()+-*/%^<>=!,. 0189vminaxdort@\n\x80\xff";
    const char byte = kBytes[static_cast<std::size_t>(pick(w.r, 0, static_cast<std::int64_t>(kBytes.size()) - 1))];
    if (pick(w.r, 0, 1) == 0 || at == mutated.size())
      mutated.insert(at, 1, byte);
    else
      mutated[at] = byte;
  }
  try {
    static_cast<void>(parse_expr(mutated, lookup));
  } catch (const Error& error) {
    if (error.diagnostics().front().code == Code::INTERNAL) wrong(w, t, e, {}, "INTERNAL on " + mutated);
  }
  const std::optional<bool> decided = is_condition(e) ? decide(e) : std::nullopt;
  for (int i = 0; i < 24; ++i) {
    const std::vector<std::int64_t> env = w.sample();
    if (env.empty()) continue;
    std::int64_t want = 0;
    try {
      want = reference(t, env);
    } catch (const Undefined&) {
      continue;
    }
    const auto value = [&](const VarInfo& v) { return env[static_cast<std::size_t>(v.name[1] - '0')]; };
    std::int64_t got = 0;
    try {
      got = evaluate(e, value);
    } catch (const Error& error) {
      // Sums and products may overflow in another order; nothing else may fail.
      if (error.diagnostics().front().code == Code::SYM_OVERFLOW) continue;
      wrong(w, t, e, env, error.what());
    }
    if (got != want) wrong(w, t, e, env, "value " + std::to_string(got) + ", want " + std::to_string(want));
    if (want < lower_bound(e) || want > upper_bound(e))
      wrong(w, t, e, env,
            std::to_string(want) + " outside [" + std::to_string(lower_bound(e)) + ", " +
                std::to_string(upper_bound(e)) + "]");
    if (divisor(e) == 0 ? want != 0 : want % divisor(e) != 0)
      wrong(w, t, e, env, std::to_string(want) + " is not a multiple of " + std::to_string(divisor(e)));
    if ((static_cast<std::uint64_t>(want) & ~possible_bits(e)) != 0)
      wrong(w, t, e, env, std::to_string(want) + " has bits outside " + std::to_string(possible_bits(e)));
    if (decided && *decided != (want != 0)) wrong(w, t, e, env, "decided wrongly");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const long expressions = argc > 1 ? std::atol(argv[1]) : 100000;
  Random r(argc > 2 ? static_cast<std::uint64_t>(std::atoll(argv[2])) : 1);
  long refused = 0;
  double slowest = 0;
  std::string slow;
  for (long i = 0; i < expressions; ++i) {
    World w(r);
    const Ref t = w.grow(static_cast<int>(pick(r, 1, 6)));
    try {
      const std::clock_t start = std::clock();
      const Expr e = w.build(*t);
      const double ms = 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
      if (ms > slowest) {
        slowest = ms;
        slow = show(*t);
      }
      check(w, *t, e);
    } catch (const Error& error) {
      const Code c = error.diagnostics().front().code;
      if (c != Code::SYM_OVERFLOW && c != Code::SYM_DIV_ZERO && c != Code::SYM_SIZE) {
        std::printf("WRONG: %s\n  built: %s\n", error.what(), show(*t).c_str());
        return 1;
      }
      ++refused;
    }
  }
  std::printf("ok: %ld expressions, %ld refused; slowest %.2f ms", expressions, refused, slowest);
  if (slowest > 50) std::printf(": %s", slow.c_str());
  std::printf("\n");
  return 0;
}
