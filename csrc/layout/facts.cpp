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

// Positive, or a product of sizes of the layout: such a stride is 0 only where the layout is empty.
bool positive_stride(const Expr& d, const Flat& f) {
  if (d.is_const()) return d.value() > 0;
  if (sym::lower_bound(d) > 0) return true;
  if (sym::lower_bound(d) < 0) return false;
  const bool product = d.op() == sym::Op::Var || d.op() == sym::Op::Mul ||
                       (d.op() == sym::Op::Add && d.node()->args.size() == 1 && d.node()->constant == 0);
  if (!product) return false;
  const std::vector<Expr> vars = sym::free_vars(d);
  return std::all_of(vars.begin(), vars.end(), [&](const Expr& v) {
    return std::any_of(f.shape.begin(), f.shape.end(), [&](const Expr& s) { return identical(s, v); });
  });
}

std::string mode_str(const Flat& f, std::size_t i) { return f.shape[i].str() + ":" + f.stride[i].str(); }

}  // namespace

std::optional<bool> known_divides(const Expr& divisor, const Expr& e) {
  if (divisor.is_const(1) || e.is_const(0) || identical(divisor, e)) return true;
  if (divisor.is_const(0)) return false;
  if (divisor.is_const() && e.is_const()) return e.value() % divisor.value() == 0;
  return sym::decide(sym::eq(sym::mod(e, divisor), 0));
}

void require(std::optional<bool> known, const std::string& operation, const std::string& condition, Code refuted,
             const std::string& refuted_message, const std::vector<std::string>& details) {
  if (known.value_or(false)) return;
  if (known.has_value()) fail(refuted, refuted_message, details);
  fail(Code::LAYOUT_FACT, operation + " needs " + condition + ", which the facts of the symbols leave open", details,
       "declare a fact of the symbols from which it follows, as in gr.sym(\"M\", multiple_of=8, min=8, max=65536)");
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

std::vector<std::size_t> nested_order(const Flat& f, const std::string& operation, const Layout& l) {
  std::vector<std::size_t> order(f.rank());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::vector<std::string> details = {"layout: " + l.str()};
  for (std::size_t i = 0; i < f.rank(); ++i)
    require(positive_stride(f.stride[i], f) ? std::optional(true) : known_le(1, f.stride[i]), operation,
            f.stride[i].str() + " > 0", Code::LAYOUT_INJECTIVE,
            operation + " needs positive strides, got " + f.stride[i].str(), details);

  const bool is_static = std::all_of(f.stride.begin(), f.stride.end(), [](const Expr& e) { return e.is_const(); });
  if (is_static)
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return f.stride[a].value() < f.stride[b].value(); });
  for (std::size_t k = 0; k + 1 < order.size(); ++k) {
    if (!is_static) {
      // The next mode is the one whose extent is proven to end before every other one starts.
      for (std::size_t c = k; c < order.size(); ++c) {
        const Expr extent = f.shape[order[c]] * f.stride[order[c]];
        bool first = true;
        for (std::size_t o = k; o < order.size() && first; ++o) first = o == c || proven_le(extent, f.stride[order[o]]);
        if (!first) continue;
        std::swap(order[k], order[c]);
        break;
      }
    }
    const std::size_t a = order[k];
    const std::size_t b = order[k + 1];
    const Expr extent = f.shape[a] * f.stride[a];
    std::optional<bool> known = known_le(extent, f.stride[b]);
    // Two symbolic modes in the wrong order are not a refutation: they may nest the other way round.
    if (!is_static && known.has_value() && !*known) known = std::nullopt;
    require(known, operation, extent.str() + " <= " + f.stride[b].str(), Code::LAYOUT_INJECTIVE,
            operation + " needs modes that nest: " + mode_str(f, b) + " starts inside of " + mode_str(f, a), details);
  }
  return order;
}

}  // namespace graphene::layout
