// Bounds, divisibility and possible bits of a node from those of its arguments.
#include "sym/internal.h"

namespace graphene::sym {

namespace {

// A bound that may be infinite. Finite ones stay within 2^100 so that sums of kMaxTerms of them cannot overflow.
constexpr Int128 kInf = Int128{1} << 120;
constexpr Int128 kFar = Int128{1} << 100;

struct Range {
  Int128 lo = -kInf;
  Int128 hi = kInf;
};

// A lower bound may be moved down, an upper one up.
Int128 relax_lo(Int128 v) { return v < -kFar ? -kInf : std::min(v, kFar); }
Int128 relax_hi(Int128 v) { return v > kFar ? kInf : std::max(v, -kFar); }
Int128 add(Int128 a, Int128 b) {
  if (a == kInf || a == -kInf) return a;
  return b == kInf || b == -kInf ? b : a + b;
}
Int128 mul(Int128 a, Int128 b) {
  if (a == 0 || b == 0) return 0;
  const bool inf = a == kInf || a == -kInf || b == kInf || b == -kInf;
  if (inf) return (a < 0) == (b < 0) ? kInf : -kInf;
  Int128 r = 0;
  if (__builtin_mul_overflow(a, b, &r)) return (a < 0) == (b < 0) ? kInf : -kInf;
  return r;
}
Range mul(Range a, Range b) {
  const Int128 c[] = {mul(a.lo, b.lo), mul(a.lo, b.hi), mul(a.hi, b.lo), mul(a.hi, b.hi)};
  return {relax_lo(std::min({c[0], c[1], c[2], c[3]})), relax_hi(std::max({c[0], c[1], c[2], c[3]}))};
}

Range range_of(const Expr& e) {
  if (e.is_const()) return {e.value(), e.value()};
  const Node& n = *e.node();
  return {n.lo == kMinInt ? -kInf : Int128{n.lo}, n.hi == kMaxInt ? kInf : Int128{n.hi}};
}

Int128 floor_div(Int128 a, Int128 b) {  // b > 0
  if (b == kInf) return a < 0 ? -1 : 0;
  if (a == kInf || a == -kInf) return a;
  return a / b - (a % b < 0 ? 1 : 0);
}

Range div_range(Range a, Range b) {
  if (b.hi <= 0) {
    a = {-a.hi, -a.lo};
    b = {-b.hi, -b.lo};
  }
  if (b.lo < 0) {  // a divisor of unknown sign: no quotient is larger than the dividend
    const Int128 m = std::max(a.lo < 0 ? -a.lo : a.lo, a.hi < 0 ? -a.hi : a.hi);
    return {-m, m};
  }
  b.lo = std::max(b.lo, Int128{1});
  b.hi = std::max(b.hi, Int128{1});
  return {std::min(floor_div(a.lo, b.lo), floor_div(a.lo, b.hi)),
          std::max(floor_div(a.hi, b.lo), floor_div(a.hi, b.hi))};
}

Range mod_range(Range a, Range b) {
  if (b.lo >= 0) return {0, a.lo >= 0 ? std::min(a.hi, add(b.hi, -1)) : add(b.hi, -1)};
  if (b.hi <= 0) return {add(b.lo, 1), 0};
  return {std::min(add(b.lo, 1), Int128{0}), std::max(add(b.hi, -1), Int128{0})};
}

std::uint64_t mask_up_to(std::int64_t hi) {  // every bit of any value from 0 to hi
  return hi <= 0 ? 0 : ~std::uint64_t{0} >> std::countl_zero(static_cast<std::uint64_t>(hi));
}

bool nonneg(const Expr& e) { return lower_bound(e) >= 0; }

// Bits of a sum of non-negative terms, from how many carries can reach each position.
std::uint64_t sum_bits(const Node& n) {
  SmallVec<std::uint64_t, 16> parts;
  if (n.constant < 0) return ~std::uint64_t{0};
  if (n.constant > 0) parts.push_back(static_cast<std::uint64_t>(n.constant));
  for (std::size_t i = 0; i < n.args.size(); ++i) {
    if (n.coef[i] < 0 || !nonneg(n.args[i])) return ~std::uint64_t{0};
    const std::uint64_t bits = possible_bits(n.args[i]);
    for (auto c = static_cast<std::uint64_t>(n.coef[i]); c != 0; c &= c - 1)
      parts.push_back(bits << std::countr_zero(c));
  }
  std::uint64_t all = 0;
  bool disjoint = true;
  for (const std::uint64_t p : parts) {
    disjoint = disjoint && (all & p) == 0;
    all |= p;
  }
  if (disjoint) return all;
  std::uint64_t out = 0;
  std::uint64_t carry = 0;
  for (int b = 0; b < 64 && (carry != 0 || (all >> b) != 0); ++b) {
    std::uint64_t ones = carry;
    for (const std::uint64_t p : parts) ones += p >> b & 1U;
    if (ones != 0) out |= std::uint64_t{1} << b;
    carry = ones / 2;
  }
  return out;
}

std::uint64_t operator_bits(const Node& n) {
  switch (n.op) {
    case Op::Add:
      return sum_bits(n);
    case Op::Xor:
    case Op::Min:
    case Op::Max: {
      std::uint64_t all = 0;
      for (const Expr& a : n.args) all |= possible_bits(a);
      return all;
    }
    case Op::FloorDiv:
      if (n.args[1].is_const() && is_power_of_two(n.args[1].value()) && nonneg(n.args[0]))
        return possible_bits(n.args[0]) >> std::countr_zero(static_cast<std::uint64_t>(n.args[1].value()));
      return ~std::uint64_t{0};
    case Op::Mod:
      if (n.args[1].is_const() && is_power_of_two(n.args[1].value()) && nonneg(n.args[0]))
        return possible_bits(n.args[0]) & static_cast<std::uint64_t>(n.args[1].value() - 1);
      return ~std::uint64_t{0};
    default:
      return ~std::uint64_t{0};
  }
}

std::int64_t operator_divisor(const Node& n) {
  switch (n.op) {
    case Op::Add: {
      std::int64_t g = n.constant;
      for (std::size_t i = 0; i < n.args.size(); ++i) g = gcd_int(g, scaled_divisor(n.coef[i], divisor(n.args[i])));
      return g;
    }
    case Op::Mul: {
      std::int64_t g = 1;
      for (const Expr& a : n.args)
        if (std::int64_t r = 0; !__builtin_mul_overflow(g, divisor(a), &r)) g = r;
      return g;
    }
    case Op::FloorDiv: {
      if (!n.args[1].is_const()) return 1;
      const std::int64_t c = n.args[1].value();
      const std::int64_t d = divisor(n.args[0]);
      return c > 0 && d % c == 0 ? std::max<std::int64_t>(d / c, 1) : 1;
    }
    case Op::Mod:
    case Op::Min:
    case Op::Max: {
      std::int64_t g = 0;
      for (const Expr& a : n.args) g = gcd_int(g, divisor(a));
      return g;
    }
    case Op::Xor: {
      std::uint64_t low = 0;
      for (const Expr& a : n.args) low |= static_cast<std::uint64_t>(divisor(a));
      return low == 0 ? 1 : std::int64_t{1} << std::min(std::countr_zero(low), 62);
    }
    default:
      return 1;
  }
}

Range operator_range(const Node& n) {
  switch (n.op) {
    case Op::Add: {
      Range r{n.constant, n.constant};
      for (std::size_t i = 0; i < n.args.size(); ++i) {
        const Range t = mul(range_of(n.args[i]), {n.coef[i], n.coef[i]});
        r = {add(r.lo, t.lo), add(r.hi, t.hi)};
      }
      return r;
    }
    case Op::Mul: {
      Range r{1, 1};
      bool square = n.args.size() % 2 == 0;  // factors are sorted: equal ones are neighbours
      for (std::size_t i = 0; i < n.args.size(); ++i) {
        r = mul(r, range_of(n.args[i]));
        if (i % 2 == 1) square = square && identical(n.args[i], n.args[i - 1]);
      }
      if (square) r.lo = std::max(r.lo, Int128{0});
      return r;
    }
    case Op::FloorDiv:
      return div_range(range_of(n.args[0]), range_of(n.args[1]));
    case Op::Mod:
      return mod_range(range_of(n.args[0]), range_of(n.args[1]));
    case Op::Min:
    case Op::Max: {
      Range r = range_of(n.args[0]);
      for (const Expr& a : n.args.subspan(1)) {
        const Range t = range_of(a);
        r = n.op == Op::Min ? Range{std::min(r.lo, t.lo), std::min(r.hi, t.hi)}
                            : Range{std::max(r.lo, t.lo), std::max(r.hi, t.hi)};
      }
      return r;
    }
    case Op::Xor: {
      std::uint64_t all = 0;
      for (const Expr& a : n.args) {
        if (!nonneg(a)) return {};
        all |= possible_bits(a);
      }
      return {0, static_cast<std::int64_t>(all & static_cast<std::uint64_t>(kMaxInt))};
    }
    default:
      return {0, 1};
  }
}

// The bounds as int64, moved inwards to multiples.
void set_bounds(Node& n, Range r) {
  const Int128 m = n.multiple_of;
  if (r.lo > -kFar) r.lo = -floor_div(-r.lo, m) * m;
  if (r.hi < kFar) r.hi = floor_div(r.hi, m) * m;
  n.lo = r.lo <= kMinInt ? kMinInt : r.lo >= kMaxInt ? kMaxInt : static_cast<std::int64_t>(r.lo);
  n.hi = r.hi >= kMaxInt ? kMaxInt : r.hi <= kMinInt ? kMinInt : static_cast<std::int64_t>(r.hi);
}

// Bits by the bounds, the divisor and what the operator says; bits may in turn lower the upper bound.
void set_bits(Node& n, std::uint64_t bits) {
  if (n.lo < 0) return;
  const auto low = static_cast<std::uint64_t>(n.multiple_of);
  n.bits = bits & mask_up_to(n.hi) & ~((low & (~low + 1)) - 1);
  const bool unknown = n.hi == kMaxInt && (n.bits >> 62) != 0;
  if (!unknown && n.bits < static_cast<std::uint64_t>(n.hi)) n.hi = std::max(n.lo, static_cast<std::int64_t>(n.bits));
}

}  // namespace

void compute_facts(Node& n) {
  n.multiple_of = operator_divisor(n);
  set_bounds(n, operator_range(n));
  set_bits(n, operator_bits(n));
}

void compute_var_facts(Node& n) {
  const VarInfo& v = *n.var;
  n.multiple_of = v.multiple_of;
  Range r{v.min == kMinInt ? -kInf : Int128{v.min}, v.max == kMaxInt ? kInf : Int128{v.max}};
  std::uint64_t bits = ~std::uint64_t{0};
  if (v.def) {
    const Range d = range_of(*v.def);
    r = {std::max(r.lo, d.lo), std::min(r.hi, d.hi)};
    n.multiple_of = std::max(n.multiple_of, divisor(*v.def));
    bits = possible_bits(*v.def);
  }
  // Bounds that leave no value (a loop that never runs) say nothing.
  const Range own = r;
  if (v.hi) r.hi = std::min(r.hi, range_of(*v.hi).hi);
  if (v.lo) r.lo = std::max(r.lo, range_of(*v.lo).lo);
  set_bounds(n, r);
  if (n.lo > n.hi) set_bounds(n, own);
  if (n.lo > n.hi) {
    n.multiple_of = v.multiple_of;
    set_bounds(n, {v.min, v.max});
  }
  set_bits(n, bits);
}

std::int64_t lower_bound(const Expr& e) { return e.is_const() ? e.value() : e.node()->lo; }
std::int64_t upper_bound(const Expr& e) { return e.is_const() ? e.value() : e.node()->hi; }

std::int64_t divisor(const Expr& e) { return e.is_const() ? gcd_int(e.value(), 0) : e.node()->multiple_of; }

std::uint64_t possible_bits(const Expr& e) {
  if (!e.is_const()) return e.node()->bits;
  return e.value() < 0 ? ~std::uint64_t{0} : static_cast<std::uint64_t>(e.value());
}

}  // namespace graphene::sym
