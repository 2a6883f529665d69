#include <cmath>
#include <nlohmann/json.hpp>

#include "ir/declare.h"
#include "ir/json.h"
#include "ir/print.h"

namespace graphene::ir {

namespace {

using OrderedJson = nlohmann::ordered_json;

// A constant is a number, anything else its text.
OrderedJson expr_json(const Expr& e) {
  if (e.is_const()) return e.value();
  return e.str();
}

OrderedJson tuple_json(const IntTuple& t) {
  if (t.is_leaf()) return expr_json(t.leaf());
  OrderedJson out = OrderedJson::array();
  for (const IntTuple& m : t.modes()) out.push_back(tuple_json(m));
  return out;
}

OrderedJson layout_json(const Layout& l) {
  return {{"shape", tuple_json(l.shape())}, {"stride", tuple_json(l.stride())}};
}

OrderedJson levels_json(const std::vector<Layout>& levels) {
  OrderedJson out = OrderedJson::array();
  for (const Layout& l : levels) out.push_back(layout_json(l));
  return out;
}

OrderedJson type_json(const Tensor& t) {
  OrderedJson out = {{"levels", levels_json(t.levels)}, {"dtype", name(t.dtype)}, {"memory", name(t.memory())}};
  if (t.is_fragment()) out["label"] = t.buffer->fragment->label;
  return out;
}

OrderedJson number_json(double v) {
  if (std::isfinite(v)) return {{"number", v}};
  return {{"number", number_text(v)}};
}

OrderedJson attr_json(const AttrValue& v) {
  struct {
    OrderedJson operator()(const std::string& s) const { return s; }
    OrderedJson operator()(std::int64_t i) const { return i; }
    OrderedJson operator()(double d) const { return number_json(d); }
    OrderedJson operator()(bool b) const { return b; }
    OrderedJson operator()(const Expr& e) const { return {{"expr", expr_json(e)}}; }
  } json;
  return std::visit(json, v);
}

OrderedJson attrs_json(const Attrs& attrs) {
  OrderedJson out = OrderedJson::object();
  for (const auto& [key, value] : attrs) out[key] = attr_json(value);
  return out;
}

OrderedJson group_json(const ThreadPtr& t) {
  if (!t) return nullptr;
  if (t->id < 0) return t->unit == ThreadUnit::Block ? "each_block" : "each_thread";
  return t->id;
}

OrderedJson tiler_json(const layout::Tiler& tiler) {
  OrderedJson out = OrderedJson::array();
  for (const auto& entry : tiler) out.push_back(entry ? layout_json(*entry) : OrderedJson(nullptr));
  return out;
}

OrderedJson index_json(const std::vector<IndexArg>& args) {
  OrderedJson out = OrderedJson::array();
  for (const IndexArg& a : args) {
    if (a.kind == IndexArg::Kind::All) out.push_back(nullptr);
    if (a.kind == IndexArg::Kind::At) out.push_back(expr_json(a.at));
    if (a.kind == IndexArg::Kind::Slice) out.push_back({{"start", expr_json(a.at)}, {"stop", expr_json(a.stop)}});
  }
  return out;
}

// The facts of `v` that go beyond those of `base`; null: there is none.
void put_facts(OrderedJson& out, const sym::VarInfo& v, const sym::VarInfo& base) {
  const auto number = [&](const char* key, std::int64_t value, std::int64_t usual) {
    if (value != usual) out[key] = value;
  };
  const auto bound = [&](const char* key, const std::optional<Expr>& value, const std::optional<Expr>& usual) {
    if (value.has_value() == usual.has_value() && (!value || identical(*value, *usual))) return;
    out[key] = value ? expr_json(*value) : OrderedJson(nullptr);
  };
  number("multiple_of", v.multiple_of, base.multiple_of);
  number("min", v.min, base.min);
  number("max", v.max, base.max);
  bound("lo", v.lo, base.lo);
  bound("hi", v.hi, base.hi);
}

class Writer {
 public:
  explicit Writer(bool locations) : locations_(locations) {}

  [[nodiscard]] OrderedJson run(const Kernel& k) const {
    OrderedJson out = {{"graphene_ir", kJsonVersion}, {"name", k.name}};
    out["symbols"] = OrderedJson::array();
    for (const Expr& s : k.symbols) {
      OrderedJson j = {{"name", s.var().name}};
      put_facts(j, s.var(), sym::VarInfo());
      out["symbols"].push_back(std::move(j));
    }
    out["args"] = OrderedJson::array();
    for (const ArgumentRef& a : arguments(k))
      out["args"].push_back(a.scalar != nullptr ? param(*a.scalar) : arg(**a.tensor));
    for (const auto& [key, launch] : {std::pair{"grid", k.grid}, std::pair{"block", k.block}})
      out[key] =
          launch ? OrderedJson{{"id", launch->id}, {"levels", levels_json(launch->levels)}} : OrderedJson(nullptr);
    if (k.cluster != 1) out["grid"]["cluster"] = k.cluster;
    out["body"] = block(k.body);
    return out;
  }

 private:
  void put_loc(OrderedJson& out, const SourceLoc& loc) const {
    if (locations_ && loc.known()) out["loc"] = {*loc.file, loc.line};
  }

  [[nodiscard]] static OrderedJson param(const ScalarParam& p) {
    OrderedJson out = {{"name", p.name}, {"role", "param"}, {"dtype", name(p.dtype)}};
    if (p.var.is_var()) put_facts(out, p.var.var(), param_info(p.name, p.dtype));
    if (p.tensor) out["id"] = p.tensor->id;
    return out;
  }

  [[nodiscard]] OrderedJson arg(const Tensor& t) const {
    const Buffer& b = *t.buffer;
    const char* role = b.role == Role::Input ? "input" : b.role == Role::Output ? "output" : "inout";
    OrderedJson out = {
        {"id", t.id}, {"name", b.name}, {"role", role}, {"type", type_json(t)}, {"align", b.align_bytes}};
    if (b.count > 0) out["count"] = b.count;
    put_loc(out, b.loc);
    return out;
  }

  [[nodiscard]] OrderedJson block(const Block& b) const {
    OrderedJson out = OrderedJson::array();
    for (const StmtPtr& s : b) {
      OrderedJson j = std::visit([this](const auto& node) { return statement(node); }, s->node);
      put_loc(j, s->loc);
      out.push_back(std::move(j));
    }
    return out;
  }

  [[nodiscard]] OrderedJson statement(const ViewStmt& v) const {
    OrderedJson out = {{"stmt", "view"},
                       {"id", v.result->id},
                       {"type", type_json(*v.result)},
                       {"offset", expr_json(v.result->offset)},
                       {"of", v.source->id}};
    switch (v.op) {
      case ViewOp::Tile:
        out["tile"] = tiler_json(v.tiler);
        break;
      case ViewOp::Index:
        out["index"] = index_json(v.index);
        break;
      case ViewOp::Transpose:
        out["transpose"] = true;
        break;
      case ViewOp::Permute:
        out["permute"] = v.order;
        break;
      case ViewOp::Reshape:
        out["reshape"] = {{"level", v.level}, {"layout", layout_json(v.shape)}};
        break;
      case ViewOp::Window:
        out["window"] = {{"start", expr_json(v.index[0].at)}, {"size", expr_json(v.index[0].stop)}};
        break;
      case ViewOp::Values:
        out["values"] = true;
        break;
      case ViewOp::Of:
        out["rank"] = expr_json(v.index[0].at);
        break;
    }
    return out;
  }

  [[nodiscard]] OrderedJson statement(const ThreadStmt& t) const {
    OrderedJson out = {{"stmt", "threads"},
                       {"id", t.result->id},
                       {"levels", levels_json(t.result->levels)},
                       {"unit", t.result->unit == ThreadUnit::Block ? "block" : "thread"},
                       {"offset", expr_json(t.result->offset)},
                       {"of", group_json(t.source)}};
    switch (t.op) {
      case ThreadOp::Tile:
        out["tile"] = tiler_json(t.tiler);
        break;
      case ThreadOp::Index:
        out["index"] = index_json(t.index);
        break;
      case ThreadOp::Reshape:
        out["reshape"] = {{"level", t.level}, {"layout", layout_json(t.shape)}};
        break;
      case ThreadOp::Scalar:
        out["scalar"] = true;
        break;
    }
    return out;
  }

  [[nodiscard]] OrderedJson statement(const IndicesStmt& s) const {
    OrderedJson vars = OrderedJson::array();
    for (const auto& level : s.vars) {
      OrderedJson modes = OrderedJson::array();
      for (const Expr& e : level) {
        if (!e.is_var() || e.var().kind != sym::VarKind::Coord) {
          modes.push_back({{"value", expr_json(e)}});
          continue;
        }
        OrderedJson j = {{"name", e.var().name}};
        sym::VarInfo usual = e.var();
        if (usual.def) usual = coord_info(usual.name, *usual.def);
        put_facts(j, e.var(), usual);
        if (e.var().def) j["value"] = expr_json(*e.var().def);
        modes.push_back(std::move(j));
      }
      vars.push_back(std::move(modes));
    }
    return {{"stmt", "indices"}, {"of", group_json(s.group)}, {"vars", std::move(vars)}};
  }

  [[nodiscard]] OrderedJson statement(const AllocStmt& a) const {
    const Buffer& b = *a.tensor->buffer;
    OrderedJson out = {{"stmt", "allocate"},           {"id", a.tensor->id}, {"name", b.name},
                       {"type", type_json(*a.tensor)}, {"stages", b.stages}, {"align", b.align_bytes}};
    if (b.arrivals != 0) out["arrivals"] = b.arrivals;
    if (!(b.swizzle == Swizzle{})) out["swizzle"] = {b.swizzle.bits, b.swizzle.base, b.swizzle.shift};
    if (b.at_bytes >= 0) out["at"] = b.at_bytes;
    if (!b.over.empty()) out["over"] = b.over;
    if (b.fragment)
      out["fragment"] = {
          {"shape", b.fragment->shape}, {"on", group_json(b.fragment->group)}, {"tv", layout_json(b.fragment->tv)}};
    return out;
  }

  [[nodiscard]] OrderedJson statement(const SpecStmt& s) const {
    OrderedJson outs = OrderedJson::array();
    for (const TensorPtr& t : s.outs) outs.push_back(t->id);
    OrderedJson ins = OrderedJson::array();
    for (const Operand& in : s.ins) ins.push_back(operand_json(in));
    OrderedJson out = {{"stmt", "spec"},
                       {"kind", name(s.kind)},
                       {"outs", std::move(outs)},
                       {"ins", std::move(ins)},
                       {"blocks", group_json(s.blocks)},
                       {"threads", group_json(s.threads)},
                       {"attrs", attrs_json(s.attrs)}};
    if (!s.atom.empty()) out["atom"] = s.atom;
    if (s.done) out["done"] = s.done->id;
    if (s.to) out["to"] = group_json(s.to);
    if (s.tv) out["tv"] = layout_json(*s.tv);
    if (!s.means.empty()) out["means"] = s.means;
    if (s.collective) out["collective"] = true;
    if (s.decomposed) out["body"] = block(s.body);
    return out;
  }

  [[nodiscard]] OrderedJson statement(const LoopStmt& l) const {
    OrderedJson out = {{"stmt", "for"},
                       {"var", l.var.var().name},
                       {"start", expr_json(l.start)},
                       {"stop", expr_json(l.stop)},
                       {"step", expr_json(l.step)},
                       {"unroll", l.unroll}};
    if (!l.condition.is_const(1)) out["while"] = expr_json(l.condition);
    put_facts(out, l.var.var(), loop_info(l.var.var().name, l.start, l.stop, l.step));
    out["body"] = block(l.body);
    return out;
  }

  [[nodiscard]] OrderedJson statement(const IfStmt& s) const {
    OrderedJson out = {{"stmt", "if"}, {"condition", expr_json(s.condition)}, {"then", block(s.then_body)}};
    if (!s.else_body.empty()) out["else"] = block(s.else_body);
    return out;
  }

  [[nodiscard]] OrderedJson statement(const OnlyStmt& s) const {
    return {{"stmt", "only"}, {"of", group_json(s.group)}, {"elect", s.elect}, {"body", block(s.body)}};
  }

  [[nodiscard]] OrderedJson statement(const ExitIfStmt& s) const {
    return {{"stmt", "exit_if"}, {"condition", expr_json(s.condition)}};
  }

  [[nodiscard]] OrderedJson statement(const ScalarStmt& s) const {
    sym::VarInfo usual;
    usual.kind = s.var.var().kind;
    if (s.from) {
      OrderedJson out = {{"stmt", "index"}, {"var", s.var.var().name}, {"from", s.from->id}};
      put_facts(out, s.var.var(), usual);
      return out;
    }
    OrderedJson out = {
        {"stmt", s.declare ? "scalar" : "assign"}, {"var", s.var.var().name}, {"value", expr_json(s.value)}};
    if (s.declare) put_facts(out, s.var.var(), usual);
    return out;
  }

  [[nodiscard]] OrderedJson statement(const SyncStmt& s) const {
    OrderedJson out = {{"stmt", "sync"}, {"op", s.op}};
    if (s.barrier) out["barrier"] = s.barrier->id;
    if (s.phase) out["phase"] = expr_json(*s.phase);
    for (const TensorPtr& t : s.expect) out["expect"].push_back(t->id);
    if (!identical(s.expect_bytes, Expr(0))) out["expect_bytes"] = expr_json(s.expect_bytes);
    if (s.to) out["to"] = group_json(s.to);
    if (s.group) out["of"] = group_json(s.group);
    if (!s.atom.empty()) out["atom"] = s.atom;
    if (!s.attrs.empty()) out["attrs"] = attrs_json(s.attrs);
    for (const Operand& v : s.values) out["values"].push_back(operand_json(v));
    return out;
  }

  [[nodiscard]] static OrderedJson operand_json(const Operand& o) {
    if (const auto* t = std::get_if<TensorPtr>(&o)) return {{"tensor", (*t)->id}};
    if (const auto* d = std::get_if<double>(&o)) return number_json(*d);
    return {{"expr", expr_json(std::get<Expr>(o))}};
  }

  bool locations_;
};

}  // namespace

std::string to_json(const Kernel& kernel, const JsonOptions& options) {
  return Writer(options.locations).run(kernel).dump(options.indent, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace graphene::ir
