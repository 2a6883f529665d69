// What the files of this layer share: checked arithmetic, intervals, making nodes, polynomials, proofs.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>

#include "base/diag.h"
#include "sym/expr.h"
#include "sym/small_vec.h"

namespace graphene::sym {

__extension__ using Int128 = __int128;

// a // b and a % b of Python; the caller excludes b == 0 and kMinInt // -1.
inline std::int64_t floor_div_int(std::int64_t a, std::int64_t b) {
  const std::int64_t q = a / b;
  return (a % b != 0 && (a % b < 0) != (b < 0)) ? q - 1 : q;
}
inline std::int64_t mod_int(std::int64_t a, std::int64_t b) {
  const std::int64_t r = a % b;
  return (r != 0 && (r < 0) != (b < 0)) ? r + b : r;
}
inline std::uint64_t magnitude(std::int64_t v) {
  return v < 0 ? ~static_cast<std::uint64_t>(v) + 1 : static_cast<std::uint64_t>(v);
}
// Greatest common divisor of magnitudes; 1 in place of 2^63, which has no int64.
inline std::int64_t gcd_int(std::int64_t a, std::int64_t b) {
  const std::uint64_t g = std::gcd(magnitude(a), magnitude(b));
  return g > static_cast<std::uint64_t>(kMaxInt) ? 1 : static_cast<std::int64_t>(g);
}
inline bool is_power_of_two(std::int64_t v) { return v > 0 && (v & (v - 1)) == 0; }

// The magnitude of coef * divisor, exact or a divisor of it.
inline std::int64_t scaled_divisor(std::int64_t coef, std::int64_t div) {
  std::int64_t r = 0;
  if (coef == kMinInt || __builtin_mul_overflow(coef < 0 ? -coef : coef, div, &r)) return gcd_int(coef, 0);
  return r;
}

inline constexpr std::uint8_t kHasDiv = 1;  // Node::flags: of a monomial, a factor is a FloorDiv
inline constexpr std::uint8_t kHasMod = 2;  // ... a Mod
inline constexpr std::uint8_t kSymbolic =
    4;                                     // anywhere below: a variable with a symbolic bound or definition, or x % N
inline constexpr std::uint8_t kDraft = 8;  // the node does not live as long as the process (drafts.h)

struct NodeSpec {
  Op op;
  std::span<const Expr> args;
  std::span<const std::int64_t> coef = {};
  std::int64_t constant = 0;
};
// The one node of this content; the caller has brought the content into canonical form.
Expr make_node(const NodeSpec& spec);
inline Expr make_node(Op op, const Expr& a, const Expr& b) {
  const std::array<Expr, 2> args{a, b};
  return make_node({.op = op, .args = args});
}

// A variable whose facts leave one value counts as that value in every operation.
inline Expr settled(const Expr& e) {
  if (e.is_const() || e.node()->lo != e.node()->hi || e.node()->lo == kMinInt || e.node()->hi == kMaxInt) return e;
  return e.node()->lo;
}

void compute_facts(Node& n);  // lo, hi, multiple_of, bits from the arguments'
void compute_var_facts(Node& n);

std::uint64_t hash_of(const Expr& e);
inline std::uint64_t mix(std::uint64_t h, std::uint64_t v) {
  h ^= v + 0x9e3779b97f4a7c15ULL + (h << 6) + (h >> 2);
  h *= 0xff51afd7ed558ccdULL;
  return h ^ (h >> 32);
}

// Results of the binary constructors seen lately, per thread.
struct ResultMemo {
  [[nodiscard]] static const Expr* find(Op op, const Expr& a, const Expr& b);
  static void store(Op op, const Expr& a, const Expr& b, const Expr& result);
};

// While one lives, what this thread makes is dropped with it: no expression may leave it. One within another is a part
// of the outer one.
class Proof {
 public:
  Proof();
  ~Proof();
  Proof(const Proof&) = delete;
  Proof& operator=(const Proof&) = delete;

 private:
  bool outermost_;
};

[[noreturn]] void fail_overflow(const std::string& what);
[[nodiscard]] std::string brief(const Expr& e);  // str(), cut to what an error message can hold

// Counts nested constructors. Past the limit they stop simplifying: right, only less tidy.
class Nesting {
 public:
  Nesting() { ++depth(); }
  ~Nesting() { --depth(); }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;
  [[nodiscard]] static bool too_deep() { return depth() > 40; }

 private:
  static int& depth();
};

// Runs a simplification that may overflow or outgrow the limits on the way; nullopt: it did.
template <class F>
std::optional<Expr> attempt(F&& f) {
  try {
    return f();
  } catch (const Error& e) {
    const Code c = e.diagnostics().front().code;
    if (c != Code::SYM_OVERFLOW && c != Code::SYM_SIZE) throw;
    return std::nullopt;
  }
}

struct Term {
  Expr m;  // a monomial: an atom or a Mul
  std::int64_t c;
};

Expr divide_through(const Expr& a, std::int64_t g);  // g divides every coefficient and the constant

// ^ of any number of operands. Taken together they may come apart further than in pairs.
Expr bit_xor_all(std::span<const Expr> operands);

// An expression seen as terms plus a constant, without copying.
class TermView {
 public:
  explicit TermView(const Expr& e);
  TermView(const TermView&) = delete;
  TermView& operator=(const TermView&) = delete;
  [[nodiscard]] std::size_t size() const { return m_.size(); }
  [[nodiscard]] Term operator[](std::size_t i) const { return {m_[i], c_[i]}; }
  [[nodiscard]] std::int64_t constant() const { return k_; }

 private:
  Expr self_;
  std::int64_t one_ = 1;
  std::span<const Expr> m_;
  std::span<const std::int64_t> c_;
  std::int64_t k_ = 0;
};

// A sum under construction. Its terms are sorted, distinct and have non-zero coefficients.
struct Poly {
  SmallVec<Term, 12> terms;
  std::int64_t k = 0;
  bool overflow = false;

  Poly() = default;
  explicit Poly(const Expr& e) { add(e); }
  void add(const Expr& e, std::int64_t scale = 1);
  void add_term(const Expr& m, std::int64_t c);
  void add_constant(std::int64_t v) { overflow |= __builtin_add_overflow(k, v, &k); }
  [[nodiscard]] std::int64_t coef(const Expr& m) const;  // 0 if absent
  Expr finish();                                         // throws SYM_OVERFLOW; consumes the sum
  [[nodiscard]] Expr finish() const { return Poly(*this).finish(); }
};

// Brings quotients and remainders of one dividend in a sum together: x//n*n + x%n -> x.
void recombine(Poly& p);

// The factors of a monomial; of an atom, itself.
class FactorView {
 public:
  explicit FactorView(const Expr& monomial) : m_(monomial) {}
  [[nodiscard]] const Expr* begin() const { return product() ? m_.node()->args.data() : &m_; }
  [[nodiscard]] const Expr* end() const { return begin() + size(); }
  [[nodiscard]] std::size_t size() const { return m_.is_const() ? 0 : product() ? m_.node()->args.size() : 1; }
  [[nodiscard]] const Expr& operator[](std::size_t i) const { return begin()[i]; }
  operator std::span<const Expr>() const { return {begin(), size()}; }  // NOLINT(google-explicit-constructor)

 private:
  [[nodiscard]] bool product() const { return !m_.is_const() && m_.op() == Op::Mul; }
  Expr m_;
};
inline FactorView factors(const Expr& monomial) { return FactorView(monomial); }
Expr mono_mul(const Expr& a, const Expr& b);  // product of monomials; either may be the constant 1
// m / f for monomials when every factor of f is one of m.
std::optional<Expr> mono_div(const Expr& m, const Expr& f);

[[nodiscard]] bool prove_negative(const Expr& e, int budget = 24);  // e < 0 whatever the variables are
[[nodiscard]] bool prove_nonneg(const Expr& e);

}  // namespace graphene::sym
