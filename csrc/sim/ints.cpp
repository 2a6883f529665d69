#include "sim/ints.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/diag.h"
#include "sym/effort.h"

namespace graphene::sim {

namespace {

using sym::Op;

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  if (b == 0) fail(Code::SYM_DIV_ZERO, "division by zero");
  const std::int64_t q = a / b;
  return q - static_cast<std::int64_t>(a % b != 0 && (a % b < 0) != (b < 0));
}

std::int64_t apply(Op op, std::int64_t a, std::int64_t b) {
  switch (op) {
    case Op::Add:
      return a + b;
    case Op::Mul:
      return a * b;
    case Op::FloorDiv:
      return floor_div(a, b);
    case Op::Mod:
      return a - floor_div(a, b) * b;
    case Op::Min:
      return std::min(a, b);
    case Op::Max:
      return std::max(a, b);
    case Op::Xor:
      return a ^ b;
    case Op::Lt:
      return static_cast<std::int64_t>(a < b);
    case Op::Le:
      return static_cast<std::int64_t>(a <= b);
    case Op::Eq:
      return static_cast<std::int64_t>(a == b);
    case Op::Ne:
      return static_cast<std::int64_t>(a != b);
    case Op::And:
      return static_cast<std::int64_t>(a != 0 && b != 0);
    case Op::Or:
      return static_cast<std::int64_t>(a != 0 || b != 0);
    case Op::Not:
      return static_cast<std::int64_t>(a == 0);
    case Op::Const:
    case Op::Var:
      break;
  }
  GR_ASSERT(false, "not an operator");
  return 0;
}

void apply_lanes(Op op, Lanes& a, const Lanes& b, const IntPlan& b_plan, Mask active) {
  if (b_plan.is_const() && b_plan.constant > 0 && std::has_single_bit(static_cast<std::uint64_t>(b_plan.constant))) {
    const int shift = std::countr_zero(static_cast<std::uint64_t>(b_plan.constant));
    if (op == Op::FloorDiv) {
      for (auto& x : a) x >>= shift;  // arithmetic: floors
      return;
    }
    if (op == Op::Mod) {
      for (auto& x : a) x &= b_plan.constant - 1;
      return;
    }
  }
  switch (op) {
    case Op::Add:
      for (std::size_t l = 0; l < kLanes; ++l) a[l] += b[l];
      return;
    case Op::Mul:
      for (std::size_t l = 0; l < kLanes; ++l) a[l] *= b[l];
      return;
    case Op::Xor:
      for (std::size_t l = 0; l < kLanes; ++l) a[l] ^= b[l];
      return;
    case Op::Lt:
      for (std::size_t l = 0; l < kLanes; ++l) a[l] = static_cast<std::int64_t>(a[l] < b[l]);
      return;
    default:
      for (std::size_t l = 0; l < kLanes; ++l) {
        if ((active >> l & 1) != 0) a[l] = apply(op, a[l], b[l]);
      }
  }
}

}  // namespace

IntPlans::IntPlans(std::int64_t block_threads, sym::Substitution known)
    : block_threads_(block_threads), known_(std::move(known)), drafted_(known_) {}

int IntPlans::declare_uniform(const Expr& var) {
  const auto [it, fresh] = uniform_.emplace(var.node(), uniform_count_);
  if (fresh) ++uniform_count_;
  return it->second;
}

int IntPlans::declare_varying(const Expr& var) {
  const auto [it, fresh] = varying_.emplace(var.node(), varying_count_);
  if (fresh) {
    ++varying_count_;
    depends_.clear();
    compiled_.clear();
    tree_of_.clear();
  }
  return it->second;
}

Expr IntPlans::resolve(const Expr& e) {
  const sym::BoundsAlone hasty;  // sizes are known now, and every expression is evaluated soon
  return e.is_const() ? e : sym::substitute(sym::expand_coords(e), known_);
}

Expr IntPlans::drafted(const Expr& e) {
  if (e.is_const()) return e;
  const sym::BoundsAlone hasty;
  const Expr expanded = sym::expand_coords(e);
  const sym::Drafts::Use use(drafts_);
  return drafted_(expanded);
}

std::vector<Expr> IntPlans::free_vars(const Expr& e) { return sym::free_vars(drafted(e)); }

IntPlans::Depends IntPlans::depends(const Expr& e) {
  if (e.is_const()) return Depends::Nothing;
  if (e.is_var()) {
    if (varying_.contains(e.node())) return Depends::Mixed;
    return e.var().kind == sym::VarKind::ThreadIdx ? Depends::Thread : Depends::Uniform;
  }
  if (const auto it = depends_.find(e.node()); it != depends_.end()) return it->second;
  auto all = static_cast<std::uint8_t>(Depends::Nothing);
  for (const Expr& a : e.node()->args) all |= static_cast<std::uint8_t>(depends(a));
  return depends_[e.node()] = static_cast<Depends>(all);
}

bool IntPlans::is_varying(const Expr& e) {
  const Depends d = depends(drafted(e));
  return d == Depends::Thread || d == Depends::Mixed;
}

IntPlan IntPlans::compile(const Expr& e) {
  if (e.is_const()) return compile_resolved(e);  // no expression is made
  if (const auto it = compiled_.find(e.node()); it != compiled_.end()) return it->second;
  const Expr now = drafted(e);
  const sym::Drafts::Use use(drafts_);
  return compiled_[e.node()] = compile_resolved(now);
}

IntPlan IntPlans::compile_resolved(const Expr& e) {
  IntPlan p;
  switch (depends(e)) {
    case Depends::Nothing:
      p.constant = e.is_const() ? e.value() : sym::evaluate(e, [](const sym::VarInfo&) -> std::int64_t { return 0; });
      return p;
    case Depends::Uniform:
      return compile_uniform(e);
    case Depends::Thread:
      p.table = add_table(e);
      return p;
    case Depends::Mixed:
      break;
  }
  if (e.op() != Op::Add) {
    p.tree = add_tree(e);
    return p;
  }
  const sym::Node& n = *e.node();
  Expr uniform = n.constant;
  Expr thread = 0;
  Expr mixed = 0;
  for (std::size_t i = 0; i < n.args.size(); ++i) {
    const Expr term = n.args[i] * n.coef[i];
    switch (depends(term)) {
      case Depends::Thread:
        thread = thread + term;
        break;
      case Depends::Mixed:
        mixed = mixed + term;
        break;
      default:
        uniform = uniform + term;
    }
  }
  p = compile_uniform(uniform);
  if (!thread.is_const(0)) p.table = add_table(thread);
  if (!mixed.is_const(0)) p.tree = add_tree(mixed);
  return p;
}

IntPlan IntPlans::compile_uniform(const Expr& e) {
  IntPlan p;
  if (e.is_const()) {
    p.constant = e.value();
    return p;
  }
  const auto term = [&](const Expr& x, std::int64_t coef) {
    if (x.is_var()) {
      const auto it = uniform_.find(x.node());
      GR_ASSERT(it != uniform_.end(), "variable " + x.var().name + " was not declared to the simulator");
      p.terms.push_back({coef, it->second, -1});
    } else {
      p.terms.push_back({coef, -1, add_tree(x)});
    }
  };
  if (e.op() == Op::Add) {
    const sym::Node& n = *e.node();
    p.constant = n.constant;
    for (std::size_t i = 0; i < n.args.size(); ++i) term(n.args[i], n.coef[i]);
  } else {
    term(e, 1);
  }
  return p;
}

std::int64_t IntPlans::at_thread(const Expr& e, std::int64_t tid) {
  return sym::evaluate(drafted(e), [&](const sym::VarInfo& v) {
    GR_ASSERT(v.kind == sym::VarKind::ThreadIdx, "depends on more than the thread: " + v.name);
    return tid;
  });
}

int IntPlans::add_table(const Expr& e) {
  if (const auto it = table_of_.find(e.node()); it != table_of_.end()) return it->second;
  Table t;
  const std::int64_t warps = (block_threads_ + kLanes - 1) / kLanes;
  bool fits = true;
  for (std::int64_t w = 0; w < warps; ++w) {
    for (std::int64_t l = 0; l < kLanes; ++l) {
      const std::int64_t tid = w * kLanes + l;
      const std::int64_t v =
          sym::evaluate(e, [&](const sym::VarInfo&) { return tid < block_threads_ ? tid : w * kLanes; });
      t.values.push_back(v);
      t.narrow.push_back(static_cast<std::int32_t>(v));
      fits = fits && v >= std::numeric_limits<std::int32_t>::min() && v <= std::numeric_limits<std::int32_t>::max();
    }
    const auto first = t.values.end() - kLanes;
    t.min.push_back(*std::min_element(first, t.values.end()));
    t.max.push_back(*std::max_element(first, t.values.end()));
  }
  if (!fits) t.narrow.clear();
  tables_.push_back(std::move(t));
  return table_of_[e.node()] = static_cast<int>(tables_.size()) - 1;
}

int IntPlans::add_tree(const Expr& e) {
  if (const auto it = tree_of_.find(e.node()); it != tree_of_.end()) return it->second;
  Tree t;
  t.op = e.op();
  const sym::Node& n = *e.node();
  if (t.op == Op::Var) {
    t.varying_slot = varying_.at(e.node());
  } else if (t.op == Op::Add) {
    if (n.constant != 0) t.args.push_back(IntPlan{.constant = n.constant, .terms = {}});
    for (std::size_t i = 0; i < n.args.size(); ++i) {
      if (n.coef[i] == 1) {
        t.args.push_back(compile_resolved(n.args[i]));
        continue;
      }
      Tree scaled;
      scaled.op = Op::Mul;
      scaled.args = {compile_resolved(n.args[i]), IntPlan{.constant = n.coef[i], .terms = {}}};
      trees_.push_back(std::move(scaled));
      IntPlan p;
      p.tree = static_cast<int>(trees_.size()) - 1;
      t.args.push_back(p);
    }
  } else {
    for (const Expr& a : n.args) t.args.push_back(compile_resolved(a));
  }
  trees_.push_back(std::move(t));
  return tree_of_[e.node()] = static_cast<int>(trees_.size()) - 1;
}

std::int64_t IntPlans::uniform_tree(int tree, const IntState& s) const {
  const auto index = static_cast<std::size_t>(tree);
  if (s.known_.size() <= index) s.known_.resize(trees_.size());
  if (s.known_[index].version == s.version_) return s.known_[index].value;
  const Tree& t = trees_[index];
  // A sum inside a uniform tree scales through trees of its own: their plans are uniform in value.
  const auto value = [&](const IntPlan& p) { return uniform(p, s) + (p.tree >= 0 ? uniform_tree(p.tree, s) : 0); };
  std::int64_t v = value(t.args.front());
  if (t.args.size() == 1 && t.op == Op::Not) v = apply(Op::Not, v, 0);
  for (std::size_t i = 1; i < t.args.size(); ++i) v = apply(t.op, v, value(t.args[i]));
  s.known_[index] = {s.version_, v};
  return v;
}

void IntPlans::lanes(const IntPlan& p, const IntState& s, Mask active, Lanes& out) const {
  const std::int64_t base = uniform(p, s);
  if (p.table >= 0) {
    const std::int64_t* t =
        &tables_[static_cast<std::size_t>(p.table)].values[static_cast<std::size_t>(s.warp * kLanes)];
    for (std::size_t l = 0; l < kLanes; ++l) out[l] = base + t[l];
  } else {
    out.fill(base);
  }
  if (p.tree < 0) return;
  const Tree& t = trees_[static_cast<std::size_t>(p.tree)];
  Lanes v;
  if (t.op == Op::Var) {
    v = s.varying[static_cast<std::size_t>(t.varying_slot)];
  } else {
    lanes(t.args.front(), s, active, v);
    if (t.args.size() == 1 && t.op == Op::Not) {
      for (auto& x : v) x = static_cast<std::int64_t>(x == 0);
    }
    Lanes b;
    for (std::size_t i = 1; i < t.args.size(); ++i) {
      lanes(t.args[i], s, active, b);
      apply_lanes(t.op, v, b, t.args[i], active);
    }
  }
  for (std::size_t l = 0; l < kLanes; ++l) out[l] += v[l];
}

Mask IntPlans::nonzero(const IntPlan& p, const IntState& s, Mask active) const {
  if (p.is_uniform()) return uniform(p, s) != 0 ? active : 0;
  Lanes v;
  lanes(p, s, active, v);
  Mask m = 0;
  for (std::size_t l = 0; l < kLanes; ++l) m |= static_cast<Mask>(v[l] != 0) << l;
  return m & active;
}

}  // namespace graphene::sim
