// Symbolic integers: immutable, interned 64-bit expressions kept in a canonical form, with bounds, divisibility and
// disjoint-bit facts. Division and remainder are Python's (floor). Every constructor simplifies; no value that the
// facts of the variables allow is ever changed by a simplification.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace graphene::sym {

// Add is n-ary over (coefficient x product of atoms) terms plus a constant: equal polynomials are identical nodes.
// Lt/Le/Eq/Ne/And/Or/Not are conditions: 0 or 1. Not is pushed down to the comparisons, so no node carries it.
enum class Op : std::uint8_t { Const, Var, Add, Mul, FloorDiv, Mod, Min, Max, Xor, Lt, Le, Eq, Ne, And, Or, Not };

// What a variable stands for. The kind decides who knows its value and when:
//   Size      a kernel argument size (gr.sym), uniform over the grid, known at launch
//   Param     a scalar kernel parameter (gr.param of an integer type)
//   ThreadIdx linear thread index in the block ("tid")         BlockIdx  "bid.x", "bid.y", "bid.z"
//   Coord     a named coordinate; `def` gives it in terms of ThreadIdx/BlockIdx
//   Loop      a loop counter: uniform over the threads that run the loop
//   Scalar    a mutable integer (gr.scalar, rings)
//   Data      an integer read from a tensor (gr.index)
enum class VarKind : std::uint8_t { Size, Param, ThreadIdx, BlockIdx, Coord, Loop, Scalar, Data };

struct Node;
struct VarInfo;

inline constexpr std::int64_t kMinInt = std::numeric_limits<std::int64_t>::min();
inline constexpr std::int64_t kMaxInt = std::numeric_limits<std::int64_t>::max();

// A value: a constant, or a pointer to an interned node. Copying is free; identical() is one comparison.
class Expr {
 public:
  constexpr Expr() = default;
  constexpr Expr(std::int64_t v) : value_(v) {}  // NOLINT(google-explicit-constructor): integers are expressions
  constexpr Expr(int v) : value_(v) {}           // NOLINT(google-explicit-constructor)
  explicit Expr(const Node* n) : node_(n) {}

  [[nodiscard]] bool is_const() const { return node_ == nullptr; }
  [[nodiscard]] bool is_const(std::int64_t v) const { return node_ == nullptr && value_ == v; }
  [[nodiscard]] std::int64_t value() const { return value_; }  // of a constant
  [[nodiscard]] const Node* node() const { return node_; }     // of anything else
  [[nodiscard]] Op op() const;
  [[nodiscard]] const VarInfo& var() const;  // of a Var
  [[nodiscard]] bool is_var() const { return node_ != nullptr && op() == Op::Var; }
  // IR text, a coordinate as "@bm"; parse_expr reads it back to the identical expression.
  [[nodiscard]] std::string str() const;

  // Identity, which for polynomials is equality as functions. NOT the symbolic condition: that is eq().
  friend bool identical(const Expr& a, const Expr& b) { return a.node_ == b.node_ && a.value_ == b.value_; }
  friend std::strong_ordering order(const Expr& a, const Expr& b);  // stable across runs, for sorting

 private:
  const Node* node_ = nullptr;
  std::int64_t value_ = 0;
};

struct VarInfo {
  std::string name;
  VarKind kind = VarKind::Size;
  std::int64_t min = 0;
  std::int64_t max = kMaxInt;  // inclusive
  std::int64_t multiple_of = 1;
  std::optional<Expr> hi;   // a symbolic inclusive upper bound (a loop counter: stop - 1), besides max
  std::optional<Expr> lo;   // a symbolic inclusive lower bound, besides min
  std::optional<Expr> def;  // Coord: its definition
};

// Interned on every field: two variables with equal info are the same expression.
// Throws SYM_FACTS if min > max or multiple_of < 1.
Expr make_var(const VarInfo& info);

// Nodes live as long as the process: interning makes a kernel built twice cost nothing the second time.
struct Node {
  Op op;
  std::uint8_t flags = 0;           // of a term: which of its factors are FloorDiv or Mod (internal.h)
  std::uint16_t depth = 1;          // of the tree; at most kMaxDepth
  std::uint32_t size = 1;           // nodes of the tree, shared ones counted each time; at most kMaxSize
  std::uint64_t hash = 0;           // of the structure: the same in every run
  std::uint64_t key = 0;            // what order() compares first
  std::uint64_t id = 0;             // creation order, for hashing only
  std::span<const Expr> args = {};  // Mul: its factors. FloorDiv, Mod, Lt, ...: two. Min, Max, Xor, And, Or: sorted
  std::span<const std::int64_t> coef = {};  // Add: args[i] has coefficient coef[i]; `constant` is added
  std::int64_t constant = 0;
  const VarInfo* var = nullptr;
  std::int64_t lo = kMinInt;  // inclusive numeric bounds; kMinInt / kMaxInt: unknown
  std::int64_t hi = kMaxInt;
  std::int64_t multiple_of = 1;            // the value is a multiple of this
  std::uint64_t bits = ~std::uint64_t{0};  // bits that may be set; all when the value may be negative
};

inline Op Expr::op() const { return node_ == nullptr ? Op::Const : node_->op; }

// What keeps every walk over an expression short and its recursion shallow. More is SYM_SIZE.
inline constexpr int kMaxDepth = 400;
inline constexpr int kMaxSize = 20000;
inline constexpr int kMaxTerms = 512;  // of an Add
inline constexpr int kMaxArgs = 64;    // of a Mul, Min, Max, Xor, And, Or

// Division by zero has no value, so simplifications may assume that a divisor is not zero: M // M is 1.
Expr operator+(const Expr& a, const Expr& b);
Expr operator-(const Expr& a, const Expr& b);
Expr operator-(const Expr& a);
Expr operator*(const Expr& a, const Expr& b);
Expr floor_div(const Expr& a, const Expr& b);
Expr mod(const Expr& a, const Expr& b);
Expr ceil_div(const Expr& a, const Expr& b);
Expr min(const Expr& a, const Expr& b);
Expr max(const Expr& a, const Expr& b);
Expr bit_xor(const Expr& a, const Expr& b);  // two's complement where an operand is negative
Expr lt(const Expr& a, const Expr& b);
Expr le(const Expr& a, const Expr& b);
Expr eq(const Expr& a, const Expr& b);
Expr ne(const Expr& a, const Expr& b);
// Operands that are not 0 or 1 by their bounds count as (operand != 0).
Expr logical_and(const Expr& a, const Expr& b);
Expr logical_or(const Expr& a, const Expr& b);
Expr logical_not(const Expr& a);

// Facts. Bounds are inclusive; kMinInt / kMaxInt mean unknown.
[[nodiscard]] std::int64_t lower_bound(const Expr& e);
[[nodiscard]] std::int64_t upper_bound(const Expr& e);
[[nodiscard]] std::int64_t divisor(const Expr& e);         // e is a multiple of it (0 for the constant 0)
[[nodiscard]] std::uint64_t possible_bits(const Expr& e);  // bits that may be set; ~0 when e may be negative

// Decides a condition from numeric facts and from the symbolic bounds of variables; nullopt: unknown.
[[nodiscard]] std::optional<bool> decide(const Expr& condition);
[[nodiscard]] bool prove(const Expr& condition);  // decide(condition) == true
[[nodiscard]] bool is_condition(const Expr& e);   // a comparison, and, or, or a constant 0 or 1
// Every value that the C text of `e` computes on the way, partial sums included, fits a signed integer of `bits` bits.
[[nodiscard]] bool fits_signed(const Expr& e, int bits);

using Substitution = std::map<const Node*, Expr>;  // keyed by Var node
[[nodiscard]] Expr substitute(const Expr& e, const Substitution& s);
[[nodiscard]] Expr expand_coords(const Expr& e);  // every Coord replaced by its definition, to the bottom
// Variables in the expression itself (of a Coord: not those of its definition), each once, sorted by order().
[[nodiscard]] std::vector<Expr> free_vars(const Expr& e);
// Whether `which` holds for a variable of the expression or, through a Coord, of its definition.
[[nodiscard]] bool depends_on(const Expr& e, const std::function<bool(const VarInfo&)>& which);

// Value under an environment; throws SYM_DIV_ZERO / SYM_OVERFLOW. The reference meaning of every operator.
[[nodiscard]] std::int64_t evaluate(const Expr& e, const std::function<std::int64_t(const VarInfo&)>& env);

// C text. `/` and `%` are printed only for operands proven non-negative, else `>>` and `&` for powers of two and calls
// of gr_floor_div(a, b) / gr_mod(a, b). Also calls gr_min(a, b) and gr_max(a, b). Integer literals carry no suffix: the
// caller chooses the width by the types of the variables.
[[nodiscard]] std::string to_c(const Expr& e, const std::function<std::string(const VarInfo&)>& name);

// Reads what str() printed (and hand-written text with the same operators: + - * // % min() max() ^ < <= == != and or
// not, parentheses, integers, names). `lookup` gives the variable of a name; nullopt is a parse error.
// Throws Error(SYM_PARSE) with the offset of the problem.
[[nodiscard]] Expr parse_expr(std::string_view text,
                              const std::function<std::optional<Expr>(std::string_view)>& lookup);

}  // namespace graphene::sym

namespace graphene {
using sym::Expr;
}
