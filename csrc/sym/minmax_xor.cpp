// min, max and exclusive or.
#include "sym/internal.h"

namespace graphene::sym {

namespace {

using Args = SmallVec<Expr, 8>;

void sort_args(Args& args) {
  std::sort(args.begin(), args.end(), [](const Expr& a, const Expr& b) { return order(a, b) < 0; });
}

bool at_most(const Expr& a, const Expr& b) {
  if (upper_bound(a) != kMaxInt && upper_bound(a) <= lower_bound(b)) return true;
  const auto proved = attempt([&] { return Expr(prove_negative(a - b - 1) ? 1 : 0); });
  return proved && proved->is_const(1);
}

void flatten(Op op, const Expr& e, Args& out) {
  if (!e.is_const() && e.op() == op)
    out.append(e.node()->args);
  else
    out.push_back(e);
}

Expr extreme_of(Op op, const Expr& a, const Expr& b) {
  Args args;
  flatten(op, a, args);
  flatten(op, b, args);
  sort_args(args);
  Args kept;
  for (const Expr& e : args) {
    bool beaten = false;
    for (std::size_t i = 0; i < kept.size() && !beaten;) {
      const Expr& k = kept[i];
      if (identical(k, e) || (op == Op::Min ? at_most(k, e) : at_most(e, k)))
        beaten = true;
      else if (op == Op::Min ? at_most(e, k) : at_most(k, e))
        kept.erase(i);
      else
        ++i;
    }
    if (!beaten) kept.push_back(e);
  }
  if (kept.size() == 1) return kept[0];
  return make_node({.op = op, .args = kept});
}

Expr extreme(Op op, const Expr& a, const Expr& b) {
  if (a.is_const() && b.is_const())
    return op == Op::Min ? std::min(a.value(), b.value()) : std::max(a.value(), b.value());
  if (identical(a, b)) return a;
  if (const Expr* known = Memo::find(op, a, b)) return *known;
  const Expr r = extreme_of(op, a, b);
  Memo::store(op, a, b, r);
  return r;
}

// Operands of ^ in pieces that have no bit in common within one operand, so that ^ of the pieces is ^ of the operands.
class XorPieces {
 public:
  void add(const Expr& e) {
    if (e.is_const()) {
      constant_ ^= e.value();
    } else if (e.op() == Op::Xor) {
      for (const Expr& a : e.node()->args) add(a);
    } else if (e.op() == Op::Add && lower_bound(e) >= 0) {
      add_sum(e);
    } else {
      pieces_.push_back(e);
    }
  }

  Expr result() {
    cancel_pairs();
    Poly sum;
    std::int64_t left = constant_;
    while (!pieces_.empty()) {
      // Pieces that share bits with the first, directly or through others.
      Args group;
      group.push_back(pieces_[0]);
      std::uint64_t bits = possible_bits(pieces_[0]);
      pieces_.erase(0);
      for (std::size_t i = 0; i < pieces_.size();) {
        if ((possible_bits(pieces_[i]) & bits) == 0) {
          ++i;
          continue;
        }
        bits |= possible_bits(pieces_[i]);
        group.push_back(pieces_[i]);
        pieces_.erase(i);
        i = 0;
      }
      const auto mine = static_cast<std::int64_t>(static_cast<std::uint64_t>(left) & bits);
      left ^= mine;
      sum.add(join(group, mine));
    }
    sum.add_constant(left);
    return sum.finish();
  }

 private:
  void add_sum(const Expr& e) {
    struct Group {
      Expr sum;
      std::uint64_t bits;
    };
    const TermView v(e);
    SmallVec<Group, 12> groups;
    for (std::size_t i = 0; i < v.size(); ++i) {
      const auto [m, c] = v[i];
      if (c < 0 || lower_bound(m) < 0) return pieces_.push_back(e);
      const Expr t = m * Expr(c);
      groups.push_back({t, possible_bits(t)});
    }
    if (v.constant() < 0) return pieces_.push_back(e);
    for (auto k = static_cast<std::uint64_t>(v.constant()); k != 0; k &= k - 1)
      groups.push_back({static_cast<std::int64_t>(k & (~k + 1)), k & (~k + 1)});
    for (std::size_t i = 0; i < groups.size(); ++i) {
      for (std::size_t j = 0; j < groups.size(); ++j) {
        if (i == j || (groups[i].bits & groups[j].bits) == 0) continue;
        const Expr joined = groups[i].sum + groups[j].sum;
        groups[std::min(i, j)] = {joined, possible_bits(joined)};
        groups.erase(std::max(i, j));
        i = static_cast<std::size_t>(-1);  // start over: the carries may reach further
        break;
      }
    }
    for (const Group& g : groups) add_group(g.sum);
  }

  // A power of two times x ^ y is the ^ of the products.
  void add_group(const Expr& e) {
    const TermView v(e);
    if (!e.is_const() && v.size() == 1 && v.constant() == 0 && v[0].m.op() == Op::Xor && is_power_of_two(v[0].c)) {
      for (const Expr& a : v[0].m.node()->args) add(a * Expr(v[0].c));
    } else if (e.is_const()) {
      constant_ ^= e.value();
    } else {
      pieces_.push_back(e);
    }
  }

  void cancel_pairs() {
    sort_args(pieces_);
    Args odd;
    for (const Expr& p : pieces_) {
      if (!odd.empty() && identical(odd[odd.size() - 1], p))
        odd.resize_down(odd.size() - 1);
      else
        odd.push_back(p);
    }
    pieces_ = odd;
  }

  // The ^ of pieces and a constant, with their common power of two outside.
  static Expr join(Args& group, std::int64_t constant) {
    if (group.size() == 1 && constant == 0) return group[0];
    std::uint64_t low = static_cast<std::uint64_t>(constant);
    for (const Expr& p : group) {
      const TermView v(p);
      low |= static_cast<std::uint64_t>(v.constant());
      for (std::size_t i = 0; i < v.size(); ++i) low |= static_cast<std::uint64_t>(v[i].c);
    }
    const std::int64_t unit = std::int64_t{1} << std::min(std::countr_zero(low), 62);
    Args args;
    for (const Expr& p : group) args.push_back(unit == 1 ? p : floor_div(p, unit));
    if (constant != 0) args.push_back(constant / unit);
    sort_args(args);
    return make_node({.op = Op::Xor, .args = args}) * Expr(unit);
  }

  Args pieces_;
  std::int64_t constant_ = 0;
};

}  // namespace

Expr min(const Expr& a, const Expr& b) { return extreme(Op::Min, a, b); }
Expr max(const Expr& a, const Expr& b) { return extreme(Op::Max, a, b); }

Expr bit_xor(const Expr& a, const Expr& b) {
  if (a.is_const() && b.is_const()) return a.value() ^ b.value();
  if (a.is_const(0)) return b;
  if (b.is_const(0)) return a;
  if (identical(a, b)) return 0;
  if (const Expr* known = Memo::find(Op::Xor, a, b)) return *known;
  const auto r = attempt([&] {
    XorPieces pieces;
    pieces.add(a);
    pieces.add(b);
    return pieces.result();
  });
  const bool ordered = order(a, b) <= 0;
  const Expr result = r ? *r : make_node(Op::Xor, ordered ? a : b, ordered ? b : a);
  Memo::store(Op::Xor, a, b, result);
  return result;
}

}  // namespace graphene::sym
