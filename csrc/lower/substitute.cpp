#include "lower/substitute.h"

namespace graphene::lower {

namespace {

IntTuple substitute(const IntTuple& t, const Substitution& s) {
  if (t.is_leaf()) return t.leaf().is_const() ? t : IntTuple(sym::substitute(t.leaf(), s));
  std::vector<IntTuple> modes;
  for (const IntTuple& m : t.modes()) modes.push_back(substitute(m, s));
  return modes;
}

std::vector<Layout> substitute(const std::vector<Layout>& levels, const Substitution& s) {
  std::vector<Layout> out;
  for (const Layout& l : levels) out.push_back(graphene::lower::substitute(l, s));
  return out;
}

}  // namespace

Layout substitute(const Layout& l, const Substitution& s) {
  return l.is_static() ? l : Layout(substitute(l.shape(), s), substitute(l.stride(), s));
}

ir::TensorPtr substitute(const ir::TensorPtr& t, const Substitution& s) {
  if (s.empty() || t == nullptr) return t;
  ir::Tensor out = *t;
  out.offset = sym::substitute(t->offset, s);
  if (out.member) out.member = sym::substitute(*out.member, s);
  if (out.rank) out.rank = sym::substitute(*out.rank, s);
  out.levels = substitute(t->levels, s);
  for (ir::DimBound& b : out.bounds) {
    b.base = sym::substitute(b.base, s);
    b.levels = substitute(b.levels, s);
    b.extent = sym::substitute(b.extent, s);
  }
  ir::prune_bounds(out);
  return std::make_shared<const ir::Tensor>(std::move(out));
}

ir::ThreadPtr substitute(const ir::ThreadPtr& t, const Substitution& s) {
  if (s.empty() || t == nullptr || t->offset.is_const()) return t;
  ir::ThreadTensor out = *t;
  out.offset = sym::substitute(t->offset, s);
  return std::make_shared<const ir::ThreadTensor>(std::move(out));
}

ir::Attrs substitute(const ir::Attrs& attrs, const Substitution& s) {
  ir::Attrs out = attrs;
  for (auto& [name, value] : out) {
    if (auto* e = std::get_if<Expr>(&value)) *e = sym::substitute(*e, s);
  }
  return out;
}

ir::Operand substitute(const ir::Operand& o, const Substitution& s) {
  if (const auto* t = std::get_if<ir::TensorPtr>(&o)) return substitute(*t, s);
  if (const auto* e = std::get_if<Expr>(&o)) return sym::substitute(*e, s);
  return o;
}

ir::SpecStmt substitute_head(const ir::SpecStmt& spec, const Substitution& s) {
  ir::SpecStmt out;
  out.kind = spec.kind;
  out.attrs = substitute(spec.attrs, s);
  for (const ir::TensorPtr& t : spec.outs) out.outs.push_back(substitute(t, s));
  for (const ir::Operand& o : spec.ins) out.ins.push_back(substitute(o, s));
  out.blocks = substitute(spec.blocks, s);
  out.threads = substitute(spec.threads, s);
  out.atom = spec.atom;
  out.tv = spec.tv;
  out.means = spec.means;
  out.done = substitute(spec.done, s);
  out.to = substitute(spec.to, s);
  out.decomposed = spec.decomposed;
  out.collective = spec.collective;
  return out;
}

}  // namespace graphene::lower
