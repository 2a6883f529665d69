#include "ir/print.h"

#include <array>
#include <charconv>
#include <cmath>

#include "ir/declare.h"
#include "ir/levels.h"
#include "ir/lexer.h"
#include "ir/statements.h"

namespace graphene::ir {

namespace {

std::string ref(const TensorPtr& t, Refs refs);
std::string ref(const ThreadPtr& t, Refs refs);

constexpr std::array<std::array<std::string_view, 2>, 5> kOpSymbols = {
    {{"add", "+"}, {"sub", "-"}, {"mul", "*"}, {"div", "/"}, {"xor", "^"}}};

std::string name_or_quote(const std::string& s) { return is_plain_name(s) ? s : quote(s); }

std::string attr_text(const AttrValue& v) {
  struct {
    std::string operator()(const std::string& s) const { return quote(s); }
    std::string operator()(std::int64_t i) const { return std::to_string(i); }
    std::string operator()(double d) const { return number_text(d); }
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(const Expr& e) const { return e.is_const() ? "expr(" + e.str() + ")" : e.str(); }
  } text;
  return std::visit(text, v);
}

// The facts of `v` that go beyond those of `base`.
std::string facts_text(const sym::VarInfo& v, const sym::VarInfo& base) {
  std::string s;
  const auto number = [&](const char* key, std::int64_t value, std::int64_t usual) {
    if (value != usual) s += std::string(" ") + key + "=" + std::to_string(value);
  };
  const auto bound = [&](const char* key, const std::optional<Expr>& value, const std::optional<Expr>& usual) {
    if (value.has_value() == usual.has_value() && (!value || identical(*value, *usual))) return;
    s += std::string(" ") + key + "=(" + (value ? value->str() : "") + ")";
  };
  number("multiple_of", v.multiple_of, base.multiple_of);
  number("min", v.min, base.min);
  number("max", v.max, base.max);
  bound("lo", v.lo, base.lo);
  bound("hi", v.hi, base.hi);
  return s;
}

sym::VarInfo plain_var(const sym::VarInfo& v) {
  sym::VarInfo plain;
  plain.name = v.name;
  plain.kind = v.kind;
  return plain;
}

std::string index_text(const std::vector<IndexArg>& args) {
  std::string s = "[";
  for (const IndexArg& a : args) {
    if (s.size() > 1) s += ", ";
    if (a.kind == IndexArg::Kind::All) s += ":";
    if (a.kind == IndexArg::Kind::At) s += a.at.str();
    if (a.kind == IndexArg::Kind::Slice) s += a.at.str() + ":" + a.stop.str();
  }
  return s + "]";
}

std::string int_list(const std::vector<std::int64_t>& xs) {
  std::string s;
  for (const std::int64_t x : xs) s += (s.empty() ? "" : ",") + std::to_string(x);
  return "(" + s + ")";
}

std::string id_or_unknown(int id) { return id >= 0 ? std::to_string(id) : "?"; }

std::string view_text(const ViewStmt& v) {
  switch (v.op) {
    case ViewOp::Tile:
      return ".tile(" + tiler_text(v.tiler) + ")";
    case ViewOp::Index:
      return index_text(v.index);
    case ViewOp::Transpose:
      return ".T";
    case ViewOp::Permute:
      return ".permute" + int_list({v.order.begin(), v.order.end()});
    case ViewOp::Reshape:
      return ".reshape(" + std::to_string(v.level) + ", " + layout_text(v.shape) + ")";
    case ViewOp::Window:
      return ".window(" + v.index[0].at.str() + ", " + v.index[0].stop.str() + ")";
    case ViewOp::Values:
      return ".values";
    case ViewOp::Of:
      return ".of(" + v.index[0].at.str() + ")";
  }
  return {};
}

std::string thread_op_text(const ThreadStmt& t) {
  switch (t.op) {
    case ThreadOp::Tile:
      return ".tile(" + tiler_text(t.tiler) + ")";
    case ThreadOp::Index:
      return index_text(t.index);
    case ThreadOp::Reshape:
      return ".reshape(" + std::to_string(t.level) + ", " + layout_text(t.shape) + ")";
    case ThreadOp::Scalar:
      return ".scalar()";
  }
  return {};
}

std::string coord_text(const Expr& e) {
  if (!e.is_var() || e.var().kind != sym::VarKind::Coord) return e.str();
  sym::VarInfo usual = e.var();
  if (usual.def) usual = coord_info(usual.name, *usual.def);
  return e.str() + facts_text(e.var(), usual);
}

std::string indices_text(const IndicesStmt& s) {
  const auto tuple = [](const std::vector<Expr>& xs) {
    std::string t;
    for (const Expr& x : xs) t += (t.empty() ? "" : ", ") + coord_text(x);
    return "(" + t + (xs.size() == 1 ? ",)" : ")");
  };
  std::string names;
  if (s.vars.size() == 1) {
    names = tuple(s.vars[0]);
  } else {
    for (const auto& level : s.vars)
      names += (names.empty() ? "" : ", ") + (level.size() == 1 ? coord_text(level[0]) : tuple(level));
    names = "(" + names + ")";
  }
  return names + " = " + ref(s.group) + ".indices()";
}

std::string alloc_text(const AllocStmt& a) {
  const Tensor& t = *a.tensor;
  const Buffer& b = *t.buffer;
  std::string s = ref(a.tensor, Refs::Types) + " <- Allocate(name=" + quote(b.name);
  if (b.arrivals != 0) s += ", arrivals=" + std::to_string(b.arrivals);
  if (b.stages != 0) s += ", stages=" + std::to_string(b.stages);
  if (!(b.swizzle == Swizzle{})) s += ", swizzle=" + b.swizzle.str();
  if (b.align_bytes != usual_align_bytes(b)) s += ", align=" + std::to_string(b.align_bytes);
  if (b.at_bytes >= 0) s += ", at=" + std::to_string(b.at_bytes);
  if (!b.over.empty()) {
    std::string ids;
    for (const int id : b.over) ids += (ids.empty() ? "%" : ", %") + std::to_string(id);
    s += ", over=(" + ids + ")";
  }
  if (b.fragment)
    s += ", shape=" + int_list(b.fragment->shape) + ", on=" + ref(b.fragment->group) +
         ", tv=" + layout_text(b.fragment->tv);
  return s + ")";
}

std::string loop_text(const LoopStmt& l) {
  const std::string var = l.var.str();
  std::string s =
      "for(" + var + "=" + l.start.str() + "; " + var + " < " + l.stop.str() + "; " + var + " += " + l.step.str() + ")";
  if (l.unroll == 0) s += " unroll=full";
  if (l.unroll != 0 && l.unroll != 1) s += " unroll=" + std::to_string(l.unroll);
  if (!l.condition.is_const(1)) s += " while(" + l.condition.str() + ")";
  return s + facts_text(l.var.var(), loop_info(l.var.var().name, l.start, l.stop, l.step));
}

std::string scalar_text(const ScalarStmt& s, Refs refs) {
  if (!s.declare) return s.var.str() + " = " + s.value.str();
  if (s.from)
    return "index " + s.var.str() + facts_text(s.var.var(), plain_var(s.var.var())) + " = " + ref(s.from, refs);
  return "scalar " + s.var.str() + facts_text(s.var.var(), plain_var(s.var.var())) + " = " + s.value.str();
}

// The attribute that a spec's kind carries in angle brackets: "<max>".
const std::string* in_brackets(const std::string& key, const AttrValue& value) {
  const auto* op = std::get_if<std::string>(&value);
  return key == "op" && op != nullptr && is_plain_name(*op) ? op : nullptr;
}

std::string operand_text(const Operand& o, Refs refs) {
  if (const auto* t = std::get_if<TensorPtr>(&o)) return ref(*t, refs);
  if (const auto* d = std::get_if<double>(&o)) return number_text(*d);
  return std::get<Expr>(o).str();
}

// Types would make these lines long; messages spell them with numbers.
std::string sync_text(const SyncStmt& s, Refs of) {
  const Refs refs = of == Refs::Names ? of : Refs::Numbers;
  std::string args;
  const auto add = [&](const std::string& a) { args += (args.empty() ? "" : ", ") + a; };
  if (s.barrier) add(ref(s.barrier, refs));
  if (s.group) add(ref(s.group));
  if (!s.atom.empty()) add(quote(s.atom));
  if (s.phase) add("phase=" + s.phase->str());
  if (!s.expect.empty()) {
    std::string tensors;
    for (const TensorPtr& t : s.expect) tensors += (tensors.empty() ? "" : ", ") + ref(t, refs);
    add("expect=(" + tensors + ")");
  }
  if (!identical(s.expect_bytes, Expr(0))) add("expect_bytes=" + s.expect_bytes.str());
  if (s.to) add("to=" + ref(s.to));
  for (const auto& [key, value] : s.attrs) add(key + "=" + attr_text(value));
  if (!s.values.empty()) {
    std::string values;
    for (const Operand& v : s.values) values += (values.empty() ? "" : ", ") + operand_text(v, refs);
    add("values=(" + values + ")");
  }
  return s.op + "(" + args + ")";
}

std::string arg_text(const TensorPtr& arg) {
  const Buffer& b = *arg->buffer;
  const char* role = b.role == Role::Input ? "input" : b.role == Role::Output ? "output" : "inout";
  std::string s = ref(arg, Refs::Types) + " = " + role + " " + quote(b.name);
  if (b.count > 0) s += " count=" + std::to_string(b.count);
  if (b.align_bytes != usual_align_bytes(b)) s += " align=" + std::to_string(b.align_bytes);
  return s;
}

class Printer {
 public:
  std::string run(const Kernel& k) {
    line("kernel " + quote(k.name) + " format=" + std::to_string(kTextFormat));
    for (const Expr& s : k.symbols) line("symbol " + s.str() + facts_text(s.var(), plain_var(s.var())));
    for (const ArgumentRef& a : arguments(k)) line(a.scalar != nullptr ? param_text(*a.scalar) : arg_text(*a.tensor));
    if (k.grid) line(ref(k.grid, Refs::Types) + (k.cluster == 1 ? "" : " cluster=" + std::to_string(k.cluster)));
    if (k.block) line(ref(k.block, Refs::Types));
    block(k.body);
    return std::move(out_);
  }

 private:
  static std::string param_text(const ScalarParam& p) {
    std::string s = "param " + p.name + ":" + name(p.dtype);
    if (p.var.is_var()) s += facts_text(p.var.var(), param_info(p.name, p.dtype));
    if (p.tensor) s += " = " + ref(p.tensor);
    return s;
  }

  void line(const std::string& s) {
    out_.append(static_cast<std::size_t>(depth_) * 2, ' ');
    out_ += s;
    out_ += '\n';
  }

  void block(const Block& b) {
    for (const StmtPtr& s : b) stmt(*s);
  }

  void nested(const std::string& head, const Block& b) {
    line(head + " {");
    ++depth_;
    block(b);
    --depth_;
  }

  void stmt(const Stmt& s) {
    const std::string head = head_line(s);
    if (const auto* spec = s.as<SpecStmt>()) {
      if (!spec->decomposed) return line(head);
      nested(head + (spec->collective ? " collective" : ""), spec->body);
    } else if (const auto* loop = s.as<LoopStmt>()) {
      nested(head, loop->body);
    } else if (const auto* only = s.as<OnlyStmt>()) {
      nested(head, only->body);
    } else if (const auto* branch = s.as<IfStmt>()) {
      nested(head, branch->then_body);
      if (!branch->else_body.empty()) nested("} else", branch->else_body);
    } else {
      return line(head);
    }
    line("}");
  }

  std::string out_;
  int depth_ = 0;
};

}  // namespace

std::string number_text(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v > 0 ? "inf" : "-inf";
  std::array<char, 40> buf{};
  const auto r = std::to_chars(buf.data(), buf.data() + buf.size(), v);
  std::string s(buf.data(), r.ptr);
  if (s.find_first_of(".e") == std::string::npos) s += ".0";
  return s;
}

std::string layout_text(const Layout& l) {
  if (l.shape().is_leaf() && l.stride().leaf().is_const(1)) return "[" + l.shape().str() + "]";
  if (l.rank() == 1 && !l.shape().is_leaf() && l.shape()[0].is_leaf())
    return "[" + l.shape()[0].str() + ",:" + l.stride()[0].str() + ",]";
  return l.graphene_str();
}

std::string tiler_text(const layout::Tiler& tiler) {
  std::string flat;
  std::string full;
  bool contiguous = true;
  for (const auto& entry : tiler) {
    contiguous = contiguous && (!entry || (entry->shape().is_leaf() && entry->stride().leaf().is_const(1)));
    flat += (flat.empty() ? "" : ",") + (entry ? entry->shape().str() : "_");
    full += (full.empty() ? "" : ", ") + (entry ? layout_text(*entry) : "[_]");
  }
  return contiguous ? "[" + flat + "]" : full;
}

std::string_view op_symbol(std::string_view op) {
  for (const auto& row : kOpSymbols)
    if (row[0] == op) return row[1];
  return op;
}

std::string_view op_from_symbol(std::string_view symbol) {
  for (const auto& row : kOpSymbols)
    if (row[1] == symbol) return row[0];
  return {};
}

std::string type_text(const Tensor& t) {
  std::string s = levels_str(t.levels) + "." + name(t.dtype) + "." + name(t.memory());
  if (t.is_fragment()) s += "<" + name_or_quote(t.buffer->fragment->label) + ">";
  return s;
}

namespace {

std::string ref(const TensorPtr& t, Refs refs) {
  if (refs == Refs::Names && !t->buffer->name.empty()) return t->buffer->name;
  const std::string s = "%" + id_or_unknown(t->id);
  return refs == Refs::Types ? s + ":" + type_text(*t) : s;
}

std::string ref(const ThreadPtr& t, Refs refs) {
  if (!t) return "_";
  if (t->id < 0) return t->type_str();
  const std::string s = "#" + std::to_string(t->id);
  return refs == Refs::Types ? s + ":" + t->type_str() : s;
}

}  // namespace

std::string ref(const TensorPtr& t, bool type) { return ref(t, type ? Refs::Types : Refs::Numbers); }
std::string ref(const ThreadPtr& t, bool type) { return ref(t, type ? Refs::Types : Refs::Numbers); }

std::vector<std::string> operand_texts(const SpecStmt& s, Refs refs) {
  std::vector<std::string> out;
  for (const Operand& in : s.ins) out.push_back(operand_text(in, refs));
  const Attrs& usual = default_attrs(s.kind);
  for (const auto& [key, value] : s.attrs) {
    if (in_brackets(key, value) != nullptr) continue;
    if (const auto it = usual.find(key); it == usual.end() || !same_attr(it->second, value))
      out.push_back(key + "=" + attr_text(value));
  }
  return out;
}

namespace {

std::string spec_line(const SpecStmt& s, Refs refs) {
  std::string out;
  for (const TensorPtr& t : s.outs) out += (out.empty() ? "" : ", ") + ref(t, refs);
  if (out.empty()) out = "_";
  out += std::string(" <- ") + name(s.kind);
  for (const auto& [key, value] : s.attrs)
    if (const std::string* op = in_brackets(key, value)) out += "<" + std::string(op_symbol(*op)) + ">";
  std::string args;
  for (const std::string& text : operand_texts(s, refs)) args += (args.empty() ? "" : ", ") + text;
  out += "<<<" + ref(s.blocks, refs) + ", " + ref(s.threads, refs) + ">>>(" + args + ")";
  if (!s.atom.empty()) out += " atom=" + quote(s.atom);
  if (s.done) out += " done=" + ref(s.done, refs);
  if (s.to) out += " to=" + ref(s.to, refs);
  if (s.tv) out += " tv=" + layout_text(*s.tv);
  if (!s.means.empty()) out += " means=" + quote(s.means);
  return out;
}

}  // namespace

std::string head_line(const SpecStmt& s, bool types) { return spec_line(s, types ? Refs::Types : Refs::Numbers); }

std::string head_line(const Stmt& s, bool types) { return head_line(s, types ? Refs::Types : Refs::Numbers); }

std::string head_line(const Stmt& s, Refs refs) {
  struct Heads {
    Refs refs;
    std::string operator()(const ViewStmt& v) const {
      return ref(v.result, Refs::Types) + " = " + ref(v.source) + view_text(v);
    }
    std::string operator()(const ThreadStmt& t) const {
      return ref(t.result, Refs::Types) + " = " + ref(t.source) + thread_op_text(t);
    }
    std::string operator()(const IndicesStmt& i) const { return indices_text(i); }
    std::string operator()(const AllocStmt& a) const { return alloc_text(a); }
    std::string operator()(const SpecStmt& x) const { return spec_line(x, refs); }
    std::string operator()(const LoopStmt& l) const { return loop_text(l); }
    std::string operator()(const IfStmt& i) const { return "if(" + i.condition.str() + ")"; }
    std::string operator()(const OnlyStmt& o) const { return "only(" + ref(o.group) + (o.elect ? ".elect())" : ")"); }
    std::string operator()(const ExitIfStmt& e) const { return "exit_if(" + e.condition.str() + ")"; }
    std::string operator()(const ScalarStmt& x) const { return scalar_text(x, refs); }
    std::string operator()(const SyncStmt& x) const { return sync_text(x, refs); }
  };
  return std::visit(Heads{refs}, s.node);
}

std::string print(const Kernel& kernel) { return Printer().run(kernel); }

}  // namespace graphene::ir
