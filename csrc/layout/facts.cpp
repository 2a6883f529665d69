#include "layout/facts.h"

#include <algorithm>
#include <numeric>

namespace graphene::layout {

namespace {

void collect(const IntTuple& shape, const IntTuple& stride, Flat& out) {
  if (shape.is_leaf()) {
    out.push(shape.leaf(), stride.leaf());
    return;
  }
  for (int i = 0; i < shape.rank(); ++i) collect(shape[i], stride[i], out);
}

// Adds what a non-zero size says about the variables in it. Only of variables that could be zero otherwise.
void nonzero_size(const Expr& size, std::int64_t at_least, sym::Substitution& out) {
  if (size.is_const()) return;
  const sym::Node* n = size.node();
  if (n->op == sym::Op::Var) {
    const sym::VarInfo& info = size.var();
    if (info.min >= at_least || info.max < at_least) return;
    sym::VarInfo positive = info;
    positive.min = at_least;
    out.emplace(n, sym::make_var(positive));
  } else if (n->op == sym::Op::Mul) {
    for (const Expr& factor : n->args)
      if (sym::lower_bound(factor) >= 0) nonzero_size(factor, 1, out);
  } else if (n->op == sym::Op::Add && n->args.size() == 1 && n->coef[0] > 0) {
    // c*x + k >= at_least
    nonzero_size(n->args[0], sym::ceil_div(Expr(at_least) - n->constant, n->coef[0]).value(), out);
  } else if (n->op == sym::Op::FloorDiv && n->args[1].is_const() && n->args[1].value() > 0) {
    nonzero_size(n->args[0], (Expr(at_least) * n->args[1]).value(), out);
  }
}

void nonzero_sizes(const IntTuple& shape, sym::Substitution& out) {
  if (shape.is_leaf()) {
    nonzero_size(shape.leaf(), 1, out);
    return;
  }
  for (const IntTuple& m : shape.modes()) nonzero_sizes(m, out);
}

std::string names(const Expr& a, const Expr& b) {
  std::string s;
  std::vector<Expr> vars = sym::free_vars(a);
  for (const Expr& v : sym::free_vars(b)) vars.push_back(v);
  for (std::size_t i = 0; i < vars.size(); ++i) {
    const std::string name = vars[i].var().name;
    if ((", " + s + ", ").find(", " + name + ", ") == std::string::npos) s += (s.empty() ? "" : ", ") + name;
  }
  return s;
}

std::string general_fix(const Expr& a, const Expr& b) {
  return "declare facts of " + names(a, b) + " from which it follows (min, max, multiple_of of gr.sym)";
}

std::string mode_str(const Flat& f, std::size_t i) { return f.shape[i].str() + ":" + f.stride[i].str(); }

}  // namespace

std::optional<bool> Facts::divides(const Expr& divisor, const Expr& e) const {
  if (divisor.is_const(1) || e.is_const(0) || identical(divisor, e)) return true;
  if (divisor.is_const(0)) return false;
  if (divisor.is_const() && e.is_const()) return e.value() % divisor.value() == 0;
  return decide(sym::eq(sym::mod(e, divisor), 0));
}

std::optional<bool> Facts::decide(const Expr& condition) const {
  const std::optional<bool> known = sym::decide(condition);
  if (known) return known;
  sym::Substitution positive;
  for (const Operand& o : operands_) nonzero_sizes(o.layout->shape(), positive);
  return positive.empty() ? std::nullopt : sym::decide(sym::substitute(condition, positive));
}

std::vector<std::string> Facts::details() const {
  std::vector<std::string> out;
  for (const Operand& o : operands_) out.push_back(o.label + o.layout->str());
  return out;
}

void Facts::missing(const std::string& condition, const std::string& fix) const {
  fail(Code::LAYOUT_FACT,
       std::string(operation_) + " needs " + condition + ", which the facts of the symbols leave open", details(), fix);
}

std::string Facts::le_fix(const Expr& a, const Expr& b) {
  if (a.is_const() && b.is_var()) return "gr.sym(\"" + b.str() + "\", min=" + a.str() + ")";
  if (b.is_const() && a.is_var()) return "gr.sym(\"" + a.str() + "\", max=" + b.str() + ")";
  return general_fix(a, b);
}

std::string Facts::divides_fix(const Expr& divisor, const Expr& e) {
  if (divisor.is_const() && e.is_var()) return "gr.sym(\"" + e.str() + "\", multiple_of=" + divisor.str() + ")";
  return general_fix(e, divisor);
}

Layout Flat::layout() const {
  if (shape.empty()) return {};
  if (shape.size() == 1) return {shape[0], stride[0]};
  return {IntTuple(std::vector<IntTuple>(shape.begin(), shape.end())),
          IntTuple(std::vector<IntTuple>(stride.begin(), stride.end()))};
}

Flat flatten(const Layout& l) {
  Flat f;
  collect(l.shape(), l.stride(), f);
  return f;
}

Flat coalesced(const Flat& f) {
  Flat out;
  for (std::size_t i = 0; i < f.rank(); ++i) {
    const Expr& s = f.shape[i];
    const Expr& d = f.stride[i];
    if (s.is_const(1)) continue;
    if (s.is_const(0)) {
      Flat empty;
      empty.push(0, 0);
      return empty;
    }
    if (out.rank() > 0 && identical(out.shape.back() * out.stride.back(), d))
      out.shape.back() = out.shape.back() * s;
    else
      out.push(s, d);
  }
  if (out.rank() == 0) out.push(1, 0);
  return out;
}

Flat coalesced_open_ended(const Flat& f) {
  if (f.rank() == 0 || !f.shape.back().is_const(1)) return coalesced(f);
  Flat g = f;
  g.shape.back() = 2;  // a last mode of one element still says where index `size` lies
  g = coalesced(g);
  if (!g.shape.back().is_const()) {
    g.shape.back() = sym::floor_div(g.shape.back(), 2);
  } else if (!g.shape.back().is_const(0)) {
    g.shape.back() = g.shape.back().value() / 2;
  }
  return g;
}

Flat filtered(const Flat& f) {
  Flat out;
  for (std::size_t i = 0; i < f.rank(); ++i)
    if (!f.shape[i].is_const(1) && !f.stride[i].is_const(0)) out.push(f.shape[i], f.stride[i]);
  return out;
}

std::vector<std::size_t> nested_order(const Flat& f, const Facts& facts) {
  std::vector<std::size_t> order(f.rank());
  std::iota(order.begin(), order.end(), std::size_t{0});
  bool is_static = true;
  for (std::size_t i = 0; i < f.rank(); ++i) {
    is_static = is_static && f.stride[i].is_const();
    facts.need_le(1, f.stride[i], Code::LAYOUT_INJECTIVE,
                  [&] { return std::string(facts.operation()) + " needs positive strides, got " + f.stride[i].str(); });
  }
  if (is_static)
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return f.stride[a].value() < f.stride[b].value(); });
  for (std::size_t k = 0; k + 1 < order.size(); ++k) {
    if (!is_static) {
      // The next mode is the one whose extent is proven to end before every other one starts.
      for (std::size_t c = k; c < order.size(); ++c) {
        const Expr extent = f.shape[order[c]] * f.stride[order[c]];
        bool first = true;
        for (std::size_t o = k; o < order.size() && first; ++o)
          first = o == c || facts.le(extent, f.stride[order[o]]).value_or(false);
        if (!first) continue;
        std::swap(order[k], order[c]);
        break;
      }
    }
    const std::size_t a = order[k];
    const std::size_t b = order[k + 1];
    const Expr extent = f.shape[a] * f.stride[a];
    const std::optional<bool> known = facts.le(extent, f.stride[b]);
    if (known.value_or(false)) continue;
    // Two symbolic modes that do not nest in this order may nest in the other one.
    if (!is_static) facts.missing(extent.str() + " <= " + f.stride[b].str(), Facts::le_fix(extent, f.stride[b]));
    fail(Code::LAYOUT_INJECTIVE,
         std::string(facts.operation()) + " needs modes that nest: " + mode_str(f, b) + " starts inside of " +
             mode_str(f, a),
         facts.details());
  }
  return order;
}

}  // namespace graphene::layout
