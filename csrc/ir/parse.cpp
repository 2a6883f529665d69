#include "ir/parse.h"

#include <algorithm>

#include "ir/barriers.h"
#include "ir/declare.h"
#include "ir/parse_decl.h"
#include "ir/print.h"

namespace graphene::ir {

namespace {

class KernelReader : public DeclReader {
 public:
  KernelReader(std::string_view text, const CompleteSpec& complete) : DeclReader(text), complete_(complete) {}

  Kernel run() {
    while (declaration()) end_of_statement();
    statements();
    if (tok().kind != Tok::End) expected("a statement");
    return as_.finish();
  }

 private:
  // ---- statements

  void statements() {
    skip_newlines();
    while (tok().kind != Tok::End && !tok().is("}")) {
      statement();
      end_of_statement();
    }
  }

  // `before` runs inside the new scope: it defines a counter.
  template <class F>
  Block body(F before) {
    if (blocks_ >= kMaxBlockDepth)
      fail_here(Code::IR_DEPTH, "blocks nested deeper than " + std::to_string(kMaxBlockDepth));
    const Token& brace = tok();
    expect("{");
    ++blocks_;
    as_.open();
    before();
    statements();
    if (!tok().is("}"))
      fail_here(Code::IR_PARSE, "expected '}', got " + tok().str(), {"opened at " + source_.position(brace.offset)});
    advance();
    --blocks_;
    return as_.close();
  }
  Block body() {
    return body([] {});
  }

  void statement() {
    const Token& t = tok();
    if (t.is("%")) return tensor_statement();
    if (t.is("#")) return thread_statement();
    if (t.is("(") || t.kind == Tok::Coord) return indices_statement();
    if (t.kind != Tok::Name) expected("a statement");
    if (t.text == "_" && tok(1).is("<-")) return spec();
    if (tok(1).is("=")) return assignment();
    if (t.is_name("scalar") && tok(1).kind == Tok::Name) return scalar_statement();
    if (t.is_name("index") && tok(1).kind == Tok::Name) return index_statement();
    if (!tok(1).is("(")) expected("a statement");
    if (t.is_name("for")) return loop();
    if (t.is_name("if")) return branch();
    if (t.is_name("only")) return only();
    if (t.is_name("exit_if")) {
      advance();
      const Expr condition = in_parens();
      return as_.add(as_.next_id(), ExitIfStmt{condition});
    }
    sync();
  }

  Expr in_parens() {
    expect("(");
    const Expr e = expr();
    expect(")");
    return e;
  }

  void tensor_statement() {
    const Token& t = tok();
    const Token& after = tok(2);
    if (after.is(",") || after.is("<-")) return spec();
    const int id = id_after('%');
    std::optional<TypeDecl> declared;
    if (accept(":")) declared = type();
    if (declared && tok().is("<-")) return allocate(t, id, *declared);
    if (role_of(tok(1)) != Role::Free) {
      advance();
      fail_here(Code::IR_PARSE, "an argument among the statements", {}, "declare arguments before the first statement");
    }
    if (!tok().is("=")) expected(declared ? "'=' or '<-'" : "':', '=', ',' or '<-'");
    advance();
    ViewStmt v;
    v.source = tensor_ref();
    view_op(v);
    const int stmt = as_.next_id();
    as_.add(stmt, at(t, [&] { return as_.view(id, std::move(v), declared); }));
  }

  void view_op(ViewStmt& v) {
    if (tok().is("[")) {
      v.op = ViewOp::Index;
      v.index = index_args();
      return;
    }
    expect(".");
    const Token& op = tok();
    if (accept_name("T")) {
      v.op = ViewOp::Transpose;
    } else if (accept_name("values")) {
      v.op = ViewOp::Values;
    } else if (accept_name("tile")) {
      v.op = ViewOp::Tile;
      expect("(");
      v.tiler = tiler();
      expect(")");
    } else if (accept_name("permute")) {
      v.op = ViewOp::Permute;
      expect("(");
      do v.order.push_back(small("the number of a mode", 0, kMaxInt32));
      while (comma());
      expect(")");
    } else if (accept_name("reshape")) {
      v.op = ViewOp::Reshape;
      reshape_args(v.level, v.shape);
    } else if (accept_name("window")) {
      v.op = ViewOp::Window;
      expect("(");
      IndexArg& a = v.index.emplace_back();
      a.kind = IndexArg::Kind::Slice;
      a.at = expr();
      expect(",");
      a.stop = expr();
      expect(")");
    } else if (accept_name("of")) {
      v.op = ViewOp::Of;
      expect("(");
      v.index.push_back({IndexArg::Kind::At, expr(), {}});
      expect(")");
    } else {
      source_.fail_at(op.offset, Code::IR_PARSE,
                      "expected tile, T, permute, reshape, window, values, of or '[', got " + op.str());
    }
  }

  void reshape_args(int& level, Layout& shape) {
    expect("(");
    level = small("the number of a level", 0, kMaxInt32);
    expect(",");
    skip_newlines();
    shape = layout();
    expect(")");
  }

  void thread_statement() {
    const Token& t = tok();
    const int id = id_after('#');
    std::optional<ThreadTypeDecl> declared;
    if (accept(":")) declared = thread_type();
    if (!tok().is("=")) expected(declared ? "'='; a launch is declared before the first statement" : "':' or '='");
    advance();
    ThreadStmt s;
    s.source = thread_ref();
    if (tok().is("[")) {
      s.op = ThreadOp::Index;
      s.index = index_args();
    } else {
      expect(".");
      const Token& op = tok();
      if (accept_name("tile")) {
        s.op = ThreadOp::Tile;
        expect("(");
        s.tiler = tiler();
        expect(")");
      } else if (accept_name("reshape")) {
        s.op = ThreadOp::Reshape;
        reshape_args(s.level, s.shape);
      } else if (accept_name("scalar")) {
        s.op = ThreadOp::Scalar;
        expect("(");
        expect(")");
      } else {
        source_.fail_at(op.offset, Code::IR_PARSE, "expected tile, reshape, scalar or '[', got " + op.str());
      }
    }
    const int stmt = as_.next_id();
    as_.add(stmt, at(t, [&] { return as_.thread_view(id, std::move(s), declared); }));
  }

  // ---- coordinates

  CoordDecl coordinate() {
    CoordDecl d;
    if (tok().kind != Tok::Coord) {
      d.value = expr();
      return d;
    }
    d.name = tok().text;
    advance();
    d.facts = facts();
    return d;
  }

  // "(@bm, @bn) = ", "((@wm, @wn), @lane) = ", and the paper's "(@m, @n), @l = ".
  void indices_statement() {
    const Token& t = tok();
    const int stmt = as_.next_id();
    std::vector<std::vector<CoordDecl>> entries;  // a tuple each
    std::vector<bool> is_tuple;
    const bool outer = tok().is("(") && closes_before_equals();
    if (outer) advance();
    while (!tok().is(")") && !tok().is("=")) {
      auto& entry = entries.emplace_back();
      is_tuple.push_back(tuple_here());
      if (is_tuple.back()) {
        expect("(");
        while (!tok().is(")")) {
          entry.push_back(coordinate());
          if (!comma()) break;
        }
        expect(")");
      } else {
        entry.push_back(coordinate());
      }
      if (!comma()) break;
    }
    if (outer) expect(")");
    expect("=");
    const ThreadPtr group = thread_ref();
    expect(".");
    if (!accept_name("indices")) expected("'indices'");
    expect("(");
    expect(")");
    // One level: the entries are its modes.
    if (group->levels.size() == 1 && std::find(is_tuple.begin(), is_tuple.end(), true) == is_tuple.end()) {
      std::vector<CoordDecl> modes;
      for (auto& e : entries) modes.push_back(std::move(e[0]));
      entries = {std::move(modes)};
    }
    as_.add(stmt, at(t, [&] { return as_.indices(group, entries); }));
  }

  // Whether the parenthesis here encloses everything up to "=".
  [[nodiscard]] bool closes_before_equals() const {
    int depth = 0;
    for (std::size_t i = 0; tok(i).kind != Tok::Newline && tok(i).kind != Tok::End; ++i) {
      if (tok(i).is("(")) ++depth;
      if (tok(i).is(")") && --depth == 0) return tok(i + 1).is("=");
    }
    return true;
  }

  // ---- allocations and specs

  void allocate(const Token& t, int id, const TypeDecl& declared) {
    expect("<-");
    if (!accept_name("Allocate")) expected("'Allocate': the outputs of other specs are written without a type");
    expect("(");
    Buffer b;
    Fragment f;
    bool has_shape = false;
    bool has_on = false;
    bool has_tv = false;
    std::vector<std::string_view> seen;
    while (!tok().is(")")) {
      const Token& key = tok();
      name("an attribute");
      if (std::find(seen.begin(), seen.end(), key.text) != seen.end())
        source_.fail_at(key.offset, Code::IR_DUPLICATE, "a second " + key.str());
      seen.push_back(key.text);
      expect("=");
      if (key.text == "name") {
        b.name = string("a name in quotes");
      } else if (key.text == "arrivals") {
        b.arrivals = small("a number of arrivals", 1, kMaxInt32);
      } else if (key.text == "stages") {
        b.stages = small("the number of stages", 1, kMaxInt32);
      } else if (key.text == "align") {
        b.align_bytes = small("an alignment", 1, kMaxInt32);
      } else if (key.text == "swizzle") {
        b.swizzle = swizzle();
      } else if (key.text == "at") {
        b.at_bytes = small("a number of bytes", 0, kMaxInt32);
      } else if (key.text == "over") {
        expect("(");
        while (!tok().is(")")) {
          b.over.push_back(id_after('%'));
          if (!comma()) break;
        }
        expect(")");
      } else if (key.text == "shape") {
        has_shape = true;
        expect("(");
        while (!tok().is(")")) {
          f.shape.push_back(integer("an integer"));
          if (!comma()) break;
        }
        expect(")");
      } else if (key.text == "on") {
        has_on = true;
        f.group = thread_ref();
      } else if (key.text == "tv") {
        has_tv = true;
        f.tv = layout();
      } else {
        source_.fail_at(key.offset, Code::IR_PARSE, "an allocation has no attribute " + key.str(),
                        {"want: name, stages, swizzle, align, at, over, or shape, on and tv of a fragment"});
      }
      if (!comma()) break;
    }
    expect(")");
    if (has_shape || has_on || has_tv || declared.label) {
      if (!has_shape || !has_on || !has_tv || !declared.label)
        source_.fail_at(t.offset, Code::IR_PARSE, "a fragment has RF<...>, shape, on and tv: all or none of them");
      b.fragment = std::move(f);
    }
    const int stmt = as_.next_id();
    as_.add(stmt, at(t, [&] { return as_.allocate(id, std::move(b), declared); }));
  }

  Swizzle swizzle() {
    if (!accept_name("Sw")) expected("'Sw<bits,base,shift>'");
    expect("<");
    const Token& first = tok();
    const int bits = small("a swizzle's bits", 0, 63);
    expect(",");
    const int base = small("a swizzle's base", 0, 63);
    expect(",");
    const int shift = small("a swizzle's shift", -63, 63);
    expect(">");
    return at(first, [&] { return Swizzle(bits, base, shift); });
  }

  void spec() {
    const Token& t = tok();
    SpecStmt s;
    if (!accept_name("_")) {
      do s.outs.push_back(tensor_ref());
      while (comma());
    }
    expect("<-");
    const Token& kind = tok();
    const auto known = spec_kind_from_name(name("the kind of a spec"));
    if (!known || *known == SpecKind::Allocate)
      source_.fail_at(
          kind.offset, Code::IR_PARSE, "no spec of kind " + kind.str(),
          {"want: Spec, Move, MatMul, UnaryPointwise, BinaryPointwise, TernaryPointwise, Reduction, Shfl or "
           "Init"});
    s.kind = *known;
    if (tok().is("<") || tok().is("<-")) s.attrs.emplace("op", operation());
    expect("<<<");
    s.blocks = thread_ref();
    expect(",");
    s.threads = thread_ref();
    expect(">>>");
    expect("(");
    while (!tok().is(")")) {
      operand(s);
      if (!comma()) break;
    }
    expect(")");
    if (accept_name("atom")) {
      expect("=");
      s.atom = string("the name of an atom in quotes");
    }
    if (accept_name("done")) {
      expect("=");
      s.done = tensor_ref();
    }
    if (accept_name("to")) {
      expect("=");
      s.to = thread_ref();
    }
    if (accept_name("tv")) {
      expect("=");
      s.tv = layout();
    }
    if (accept_name("means")) {
      expect("=");
      s.means = string("a meaning in quotes");
    }
    const int stmt = as_.next_id();
    at(kind, [&] {
      Assembler::complete(s);
      if (complete_) complete_(s);
    });
    s.collective = accept_name("collective");
    s.decomposed = s.collective || tok().is("{");
    if (s.decomposed) s.body = body();
    at(t, [&] { as_.add(stmt, std::move(s)); });
  }

  std::string operation() {
    std::string_view symbol;
    if (accept("<-")) {
      symbol = "-";
    } else {
      expect("<");
      symbol = tok().text;
      if (tok().kind == Tok::Name) {
        advance();
        expect(">");
        return std::string(symbol);
      }
      if (op_from_symbol(symbol).empty()) expected("an operation");
      advance();
    }
    expect(">");
    return std::string(op_from_symbol(symbol));
  }

  void operand(SpecStmt& s) {
    if (tok().kind == Tok::Name && tok(1).is("=")) return attribute(s.attrs);
    s.ins.push_back(operand());
  }

  Operand operand() {
    if (tok().is("%") && tok(1).kind == Tok::Int && tok(1).glued) return tensor_ref();
    if (const std::optional<double> d = number()) return *d;
    return expr();
  }

  void shown(SyncStmt& s) {
    advance();
    expect("=");
    expect("(");
    do s.values.push_back(operand());
    while (comma());
    expect(")");
  }

  void attribute(Attrs& attrs) {
    const Token& key = tok();
    advance();
    expect("=");
    if (!attrs.emplace(std::string(key.text), value()).second)
      source_.fail_at(key.offset, Code::IR_DUPLICATE, "a second " + key.str());
  }

  AttrValue value() {
    if (tok().kind == Tok::String) return string("a string");
    if (accept_name("true")) return true;
    if (accept_name("false")) return false;
    if (const std::optional<double> d = number()) return *d;
    if (tok().is_name("expr") && tok(1).is("(")) {
      advance();
      return in_parens();
    }
    const std::size_t digits = tok().is("-") ? 1 : 0;
    const Token& after = tok(digits + 1);
    if (tok(digits).kind == Tok::Int && (after.is(",") || after.is(")"))) return integer("an integer");
    return expr();
  }

  // ---- control flow and synchronisation

  void loop() {
    const int stmt = as_.next_id();
    LoopStmt l;
    advance();
    expect("(");
    const Token& counter = tok();
    const std::string n(name("the name of a counter"));
    expect("=");
    l.start = expr();
    expect(";");
    counter_again(n);
    expect("<");
    l.stop = expr();
    expect(";");
    counter_again(n);
    expect("+=");
    l.step = expr();
    expect(")");
    if (accept_name("unroll")) {
      expect("=");
      l.unroll = accept_name("full") ? 0 : small("an unroll factor", 1, kMaxInt32);
    }
    if (accept_name("while")) l.condition = in_parens();
    const FactsDecl f = facts();
    l.body = body([&] { l.var = at(counter, [&] { return as_.counter(n, f, l.start, l.stop, l.step); }); });
    as_.add(stmt, std::move(l));
  }

  void counter_again(const std::string& n) {
    if (!tok().is_name(n)) expected("the counter '" + n + "'");
    advance();
  }

  void branch() {
    const int stmt = as_.next_id();
    IfStmt s;
    advance();
    s.condition = in_parens();
    s.then_body = body();
    if (accept_name("else")) s.else_body = body();
    as_.add(stmt, std::move(s));
  }

  void only() {
    const int stmt = as_.next_id();
    OnlyStmt s;
    advance();
    expect("(");
    const Token& t = tok();
    s.group = thread_ref();
    if (s.group->unit != ThreadUnit::Thread)
      source_.fail_at(t.offset, Code::SPEC_GROUP, "only() takes threads of the block", {"got: " + s.group->type_str()});
    if (accept(".")) {
      if (!accept_name("elect")) expected("'elect'");
      expect("(");
      expect(")");
      s.elect = true;
    }
    expect(")");
    s.body = body();
    as_.add(stmt, std::move(s));
  }

  void index_statement() {
    advance();
    const Token& t = tok();
    const std::string n(name("the name of an index"));
    const FactsDecl f = facts();
    expect("=");
    const TensorPtr from = tensor_ref();
    const int stmt = as_.next_id();
    const Expr var = at(t, [&] { return as_.index(n, f, from); });
    as_.add(stmt, ScalarStmt{var, 0, true, from});
  }

  void scalar_statement() {
    advance();
    const Token& t = tok();
    const std::string n(name("the name of a scalar"));
    const FactsDecl f = facts();
    expect("=");
    const Expr v = expr();
    const Expr var = at(t, [&] { return as_.scalar(n, f); });
    as_.add(as_.next_id(), ScalarStmt{var, v, true, nullptr});
  }

  void assignment() {
    const Token& t = tok();
    const std::optional<Expr> var = lookup(t.text);
    if (!var || !var->is_var() || var->var().kind != sym::VarKind::Scalar)
      fail_here(Code::IR_UNDEFINED, "no scalar " + t.str() + " to assign to", {},
                "declare it: scalar " + std::string(t.text) + " = 0");
    advance();
    expect("=");
    const Expr v = expr();
    as_.add(as_.next_id(), ScalarStmt{*var, v, false, nullptr});
  }

  void sync() {
    const Token& op = tok();
    SyncStmt s;
    s.op = op.text;
    advance();
    expect("(");
    while (!tok().is(")")) {
      if (tok().kind == Tok::Name && tok(1).is("=")) {
        if (tok().is_name("values") && s.values.empty()) {
          shown(s);
        } else if (!of_barrier(s)) {
          attribute(s.attrs);
        }
      } else if (tok().is("%") && !s.barrier) {
        s.barrier = tensor_ref();
      } else if (tok().kind == Tok::String && s.atom.empty()) {
        s.atom = string("the name of an atom");
      } else if ((tok().is("#") || at_type_of_threads()) && !s.group) {
        s.group = thread_ref();
      } else {
        expected("a barrier, threads, the name of an atom in quotes, or an attribute");
      }
      if (!comma()) break;
    }
    expect(")");
    at(op, [&] { check_sync(s, as_.cluster()); });
    as_.add(as_.next_id(), std::move(s));
  }

  const CompleteSpec& complete_;
  int blocks_ = 0;
};

}  // namespace

Kernel parse(std::string_view text, const CompleteSpec& complete) { return KernelReader(text, complete).run(); }

}  // namespace graphene::ir
