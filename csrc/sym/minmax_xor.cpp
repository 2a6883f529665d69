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
  if (const Expr* known = ResultMemo::find(op, a, b)) return *known;
  const Expr r = extreme_of(op, a, b);
  ResultMemo::store(op, a, b, r);
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
    } else if (e.op() == Op::Add) {
      add_sum(e);
    } else {
      pieces_.push_back(e);
    }
  }

  Expr result() {
    if (constant_ < 0) {  // x ^ c is -(x ^ ~c) - 1, in which no constant is large that is not large itself
      constant_ = ~constant_;
      return Expr(-1) * result() - 1;
    }
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
      const auto mine = static_cast<std::int64_t>(static_cast<std::uint64_t>(left) & bits);  // the group's part of it
      left ^= mine;
      sum.add(join(group, mine));
    }
    sum.add_constant(left);
    return sum.finish();
  }

 private:
  // Terms that share bits stay together: in a sum of groups without a common bit nothing is carried.
  void add_sum(const Expr& e) {
    struct Group {
      Expr sum;
      std::uint64_t bits;
    };
    const TermView v(e);
    if (v.size() == 1 && v.constant() == 0) return add_group(e);
    bool negative = true;
    for (std::size_t i = 0; i < v.size(); ++i) negative = negative && v[i].c < 0;
    if (negative) {  // -x - 1 is x ^ -1
      constant_ = ~constant_;
      return add(Expr(-1) * e - 1);
    }
    SmallVec<Group, 12> groups;
    for (std::size_t i = 0; i < v.size(); ++i) {
      const auto [m, c] = v[i];
      if (c < 0 || lower_bound(m) < 0) return pieces_.push_back(e);
      const Expr t = m * Expr(c);
      groups.push_back({t, possible_bits(t)});
    }
    // A negative constant has all high bits: it stays whole.
    const auto k = static_cast<std::uint64_t>(v.constant());
    for (auto rest = v.constant() < 0 ? 0 : k; rest != 0; rest &= rest - 1)
      groups.push_back({static_cast<std::int64_t>(rest & (~rest + 1)), rest & (~rest + 1)});
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t i = 0; i < groups.size(); ++i) {
        for (std::size_t j = i + 1; j < groups.size();) {
          if ((groups[i].bits & groups[j].bits) == 0) {
            ++j;
            continue;
          }
          const Expr joined = groups[i].sum + groups[j].sum;
          groups[i] = {joined, possible_bits(joined)};
          groups.erase(j);
          changed = true;  // the carries may reach further
        }
      }
    }
    if (v.constant() < 0) {
      for (const Group& g : groups)
        if ((g.bits & k) != 0) return pieces_.push_back(e);
      constant_ ^= v.constant();
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
    for (const Expr& p : group) args.push_back(unit == 1 ? p : divide_through(p, unit));
    if (constant != 0) args.push_back(constant / unit);
    sort_args(args);
    return make_node({.op = Op::Xor, .args = args}) * Expr(unit);
  }

  Args pieces_;
  std::int64_t constant_ = 0;
};

}  // namespace

Expr min(const Expr& a, const Expr& b) { return extreme(Op::Min, settled(a), settled(b)); }
Expr max(const Expr& a, const Expr& b) { return extreme(Op::Max, settled(a), settled(b)); }

Expr bit_xor(const Expr& left, const Expr& right) {
  const Expr a = settled(left);
  const Expr b = settled(right);
  if (a.is_const() && b.is_const()) return a.value() ^ b.value();
  if (a.is_const(0)) return b;
  if (b.is_const(0)) return a;
  if (identical(a, b)) return 0;
  if (const Expr* known = ResultMemo::find(Op::Xor, a, b)) return *known;
  const Expr result = bit_xor_all(std::array{a, b});
  ResultMemo::store(Op::Xor, a, b, result);
  return result;
}

Expr bit_xor_all(std::span<const Expr> operands) {
  const auto r = attempt([&] {
    XorPieces pieces;
    for (const Expr& e : operands) pieces.add(settled(e));
    return pieces.result();
  });
  if (r) return *r;
  Args args;
  args.append(operands);
  sort_args(args);
  return make_node({.op = Op::Xor, .args = args});
}

}  // namespace graphene::sym
