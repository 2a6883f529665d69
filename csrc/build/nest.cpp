#include "build/nest.h"

#include "atoms/match.h"
#include "ir/levels.h"

namespace graphene::build {

using ir::TensorPtr;

TensorPtr Nest::tile(const TensorPtr& t, const std::vector<std::int64_t>& sizes) {
  ir::ViewStmt v;
  v.source = t;
  v.op = ir::ViewOp::Tile;
  for (const std::int64_t s : sizes) v.tiler.emplace_back(Layout(IntTuple(s)));
  return b_.view(std::move(v));
}

TensorPtr Nest::at(const TensorPtr& t, const std::vector<Expr>& index) {
  ir::ViewStmt v;
  v.source = t;
  v.op = ir::ViewOp::Index;
  for (const Expr& e : index) v.index.push_back({ir::IndexArg::Kind::At, e, 0});
  return b_.view(std::move(v));
}

TensorPtr Nest::values(const TensorPtr& fragment) {
  ir::ViewStmt v;
  v.source = fragment;
  v.op = ir::ViewOp::Values;
  return b_.view(std::move(v));
}

Expr Nest::loop(const std::string& name, std::int64_t extent) {
  if (extent == 1) return 0;
  ++open_;
  return b_.loop(name, 0, extent, 1, 0);
}

void Nest::close() {
  for (; open_ > 0; --open_) b_.leave();
}

void Nest::leaf(ir::SpecKind kind, const TensorPtr& out, std::vector<ir::Operand> ins, const std::string& atom,
                bool each) {
  ir::SpecStmt s;
  s.kind = kind;
  s.attrs = attrs_;
  s.outs = {out};
  s.ins = std::move(ins);
  // Registers hold what was loaded, the fill included: a store of them has nothing to fill.
  if (const auto* from = s.ins.empty() ? nullptr : std::get_if<TensorPtr>(&s.ins.front());
      kind == ir::SpecKind::Move && from != nullptr && (*from)->memory() == ir::Memory::RF) {
    s.attrs.erase("fill");
  }
  s.blocks = spec_.blocks;
  s.threads = each ? b_.each(ir::ThreadUnit::Thread) : threads_;
  s.atom = atom;
  if (kind == ir::SpecKind::Move) {
    s.done = spec_.done;
    s.to = spec_.to;
  }
  b_.spec(std::move(s));
}

std::vector<std::vector<Expr>> Nest::indices(const ir::ThreadPtr& group) {
  std::vector<std::string> names;
  for (std::size_t l = 0; l < group->levels.size(); ++l) {
    const auto modes = static_cast<std::size_t>(group->levels[l].rank());
    const bool inner = l + 1 == group->levels.size();
    for (std::size_t m = 0; m < modes; ++m) {
      const std::string base = inner ? "lane" : "group";
      names.push_back(modes == 1 && (inner || group->levels.size() == 2) ? base : base + std::to_string(names.size()));
    }
  }
  return b_.indices(group, names);
}

std::string tile_text(const std::vector<std::int64_t>& v) {
  std::string s = "[";
  for (std::size_t i = 0; i < v.size(); ++i) s += (i > 0 ? "," : "") + std::to_string(v[i]);
  return s + "]";
}

std::vector<std::int64_t> static_shape(const ir::Tensor& t) {
  std::vector<std::int64_t> out;
  for (const Layout& l : t.levels) {
    const std::vector<Layout> modes = ir::modes_of(l);
    if (out.empty()) out.assign(modes.size(), 1);
    if (out.size() != modes.size()) return {};
    for (std::size_t d = 0; d < modes.size(); ++d) {
      const Expr n = modes[d].size();
      if (!n.is_const() || n.value() < 1 || __builtin_mul_overflow(out[d], n.value(), &out[d])) return {};
    }
  }
  return out;
}

void refuse(const ir::SpecStmt& spec, Code code, std::string message, std::vector<std::string> details,
            std::string fix) {
  Diagnostic d;
  d.code = code;
  d.message = std::move(message);
  d.ir.push_back(atoms::spec_line(spec));
  d.details = std::move(details);
  d.fix = std::move(fix);
  throw Error(std::move(d));
}

}  // namespace graphene::build
