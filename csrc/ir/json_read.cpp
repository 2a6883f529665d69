#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "ir/barriers.h"
#include "ir/declare.h"
#include "ir/json.h"
#include "ir/json_values.h"

namespace graphene::ir {

namespace {

class Reader : private JsonReader {
 public:
  Reader(const At& root, const CompleteSpec& complete) : JsonReader(header(root)), root_(root), complete_(complete) {}

  Kernel run() {
    const At symbols = root_["symbols"];
    for (std::size_t i = 0; i < symbols.array().size(); ++i) {
      const At s = symbols[i];
      s.only({"name", "multiple_of", "min", "max", "lo", "hi"});
      const FactsDecl f = facts(s);
      s.run([&] { as_.symbol(s["name"].string(), f); });
    }
    const At args = root_["args"];
    for (std::size_t i = 0; i < args.array().size(); ++i) argument(args[i]);
    launch(root_["grid"], ThreadUnit::Block);
    launch(root_["block"], ThreadUnit::Thread);
    statements(root_["body"]);
    return as_.finish();
  }

 private:
  static std::string header(const At& root) {
    if (!root.json().is_object() || !root.has("graphene_ir")) root.expected("a kernel: an object with \"graphene_ir\"");
    const At version = root["graphene_ir"];
    if (!version.json().is_number_integer() || version.integer() != kJsonVersion)
      version.fail(Code::IR_FORMAT, "a kernel of another format version",
                   {"want: " + std::to_string(kJsonVersion),
                    "got:  " + version.json().dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 60)},
                   "read it with the version of Graphene that wrote it");
    root.only({"graphene_ir", "name", "symbols", "args", "grid", "block", "body"});
    const At n = root["name"];
    n.run([&] { return Assembler(n.string()); });
    return n.string();
  }

  // ---- declarations

  void argument(const At& j) {
    const std::string role = j["role"].string();
    if (role == "param") {
      j.only({"name", "role", "dtype", "id", "multiple_of", "min", "max", "lo", "hi"});
      const FactsDecl f = facts(j);
      std::optional<int> id;
      if (j.has("id")) id = j["id"].id();
      j.run([&] { as_.param(j["name"].string(), dtype(j["dtype"]), f, id); });
      return;
    }
    j.only({"id", "name", "role", "type", "count", "align", "loc"});
    Buffer b;
    if (role == "input")
      b.role = Role::Input;
    else if (role == "output")
      b.role = Role::Output;
    else if (role == "inout")
      b.role = Role::InOut;
    else
      j["role"].expected(R"("input", "output", "inout" or "param")");
    b.name = j["name"].string();
    b.loc = location(j);
    if (j.has("count")) b.count = j["count"].small(1, std::numeric_limits<int>::max());
    if (j.has("align")) b.align_bytes = j["align"].small(0, std::numeric_limits<int>::max());
    const TypeDecl t = type(j["type"]);
    const int id = j["id"].id();
    j.run([&] { as_.argument(id, std::move(b), t); });
  }

  void launch(const At& j, ThreadUnit unit) {
    if (j.json().is_null()) return;
    if (unit == ThreadUnit::Block)
      j.only({"id", "levels", "cluster"});
    else
      j.only({"id", "levels"});
    const ThreadTypeDecl t{levels(j["levels"]), unit};
    const int id = j["id"].id();
    const std::int64_t cluster = j.has("cluster") ? j["cluster"].integer() : 1;
    j.run([&] { as_.launch(id, t, cluster); });
  }

  // ---- statements

  void statements(const At& j) {
    for (std::size_t i = 0; i < j.array().size(); ++i) {
      const At s = j[i];
      s.run([&] { statement(s); });
    }
  }

  template <class F>
  Block body(const At& j, F before) {
    if (depth_ >= kMaxBlockDepth) j.fail(Code::IR_DEPTH, "blocks nested deeper than " + std::to_string(kMaxBlockDepth));
    ++depth_;
    as_.open();
    before();
    statements(j);
    --depth_;
    return as_.close();
  }
  Block body(const At& j) {
    return body(j, [] {});
  }

  void statement(const At& j) {
    using Handler = void (Reader::*)(const At&);
    static constexpr std::pair<const char*, Handler> kHandlers[] = {
        {"view", &Reader::view},         {"threads", &Reader::thread_view}, {"indices", &Reader::indices},
        {"allocate", &Reader::allocate}, {"spec", &Reader::spec},           {"for", &Reader::loop},
        {"if", &Reader::branch},         {"only", &Reader::only},           {"exit_if", &Reader::exit_if},
        {"scalar", &Reader::scalar},     {"assign", &Reader::assign},       {"index", &Reader::index_of},
        {"sync", &Reader::sync}};
    const At what = j["stmt"];
    const std::string s = what.string();
    for (const auto& [key, handler] : kHandlers)
      if (s == key) return (this->*handler)(j);
    what.expected("a kind of statement");
  }

  template <class Node>
  void add(const At& j, int stmt, Node node) {
    as_.add(stmt, std::move(node), location(j));
  }

  void view(const At& j) {
    j.only({"stmt", "loc", "id", "type", "offset", "of", "tile", "index", "transpose", "permute", "reshape", "window",
            "values", "rank"});
    const int stmt = as_.next_id();
    ViewStmt v;
    v.source = tensor(j["of"]);
    int ops = 0;
    const auto op = [&](const char* key, ViewOp o) {
      if (!j.has(key)) return false;
      v.op = o;
      ++ops;
      return true;
    };
    if (op("tile", ViewOp::Tile)) v.tiler = tiler(j["tile"]);
    if (op("index", ViewOp::Index)) v.index = index(j["index"]);
    if (op("permute", ViewOp::Permute)) {
      const At order = j["permute"];
      for (std::size_t i = 0; i < order.array().size(); ++i) v.order.push_back(order[i].id());
    }
    if (op("reshape", ViewOp::Reshape)) reshape(j["reshape"], v.level, v.shape);
    if (op("window", ViewOp::Window)) {
      const At w = j["window"];
      w.only({"start", "size"});
      IndexArg& a = v.index.emplace_back();
      a.kind = IndexArg::Kind::Slice;
      a.at = expr(w["start"]);
      a.stop = expr(w["size"]);
    }
    op("transpose", ViewOp::Transpose);
    op("values", ViewOp::Values);
    if (op("rank", ViewOp::Of)) v.index.push_back({IndexArg::Kind::At, expr(j["rank"]), {}});
    if (ops != 1)
      j.fail(Code::IR_JSON_VALUE, "one of tile, index, transpose, permute, reshape, window, values, rank is needed");
    const std::optional<TypeDecl> t = type(j["type"]);
    const int id = j["id"].id();
    v = as_.view(id, std::move(v), t);
    if (j.has("offset")) check_same(j["offset"], v.result->offset);
    add(j, stmt, std::move(v));
  }

  void reshape(const At& j, int& level, Layout& shape) const {
    j.only({"level", "layout"});
    level = j["level"].id();
    shape = layout(j["layout"]);
  }

  void thread_view(const At& j) {
    j.only({"stmt", "loc", "id", "levels", "unit", "offset", "of", "tile", "index", "reshape", "scalar"});
    const int stmt = as_.next_id();
    ThreadStmt t;
    t.source = threads(j["of"]);
    int ops = 0;
    const auto op = [&](const char* key, ThreadOp o) {
      if (!j.has(key)) return false;
      t.op = o;
      ++ops;
      return true;
    };
    if (op("tile", ThreadOp::Tile)) t.tiler = tiler(j["tile"]);
    if (op("index", ThreadOp::Index)) t.index = index(j["index"]);
    if (op("reshape", ThreadOp::Reshape)) reshape(j["reshape"], t.level, t.shape);
    op("scalar", ThreadOp::Scalar);
    if (ops != 1) j.fail(Code::IR_JSON_VALUE, "one of tile, index, reshape, scalar is needed");
    const std::string unit = j["unit"].string();
    if (unit != "block" && unit != "thread") j["unit"].expected(R"("block" or "thread")");
    const std::optional<ThreadTypeDecl> type =
        ThreadTypeDecl{levels(j["levels"]), unit == "block" ? ThreadUnit::Block : ThreadUnit::Thread};
    const int id = j["id"].id();
    t = as_.thread_view(id, std::move(t), type);
    if (j.has("offset")) check_same(j["offset"], t.result->offset);
    add(j, stmt, std::move(t));
  }

  void indices(const At& j) {
    j.only({"stmt", "loc", "of", "vars"});
    const int stmt = as_.next_id();
    const ThreadPtr group = threads(j["of"]);
    const At vars = j["vars"];
    std::vector<std::vector<CoordDecl>> out;
    for (std::size_t l = 0; l < vars.array().size(); ++l) {
      const At level = vars[l];
      auto& modes = out.emplace_back();
      for (std::size_t m = 0; m < level.array().size(); ++m) {
        const At v = level[m];
        v.only({"name", "multiple_of", "min", "max", "lo", "hi", "value"});
        CoordDecl d;
        if (v.has("name")) {
          d.name = v["name"].string();
          d.facts = facts(v);
        }
        if (v.has("value")) d.value = expr(v["value"]);
        modes.push_back(std::move(d));
      }
    }
    add(j, stmt, as_.indices(group, out));
  }

  void allocate(const At& j) {
    j.only({"stmt", "loc", "id", "name", "type", "stages", "align", "arrivals", "swizzle", "at", "over", "fragment"});
    const int stmt = as_.next_id();
    Buffer b;
    b.loc = location(j);
    b.name = j["name"].string();
    const TypeDecl t = type(j["type"]);
    if (j.has("stages")) b.stages = j["stages"].id();
    if (j.has("align")) b.align_bytes = j["align"].id();
    if (j.has("arrivals")) b.arrivals = j["arrivals"].id();
    if (j.has("swizzle")) {
      const At s = j["swizzle"];
      if (s.array().size() != 3) s.expected("[bits, base, shift]");
      b.swizzle = s.run([&] { return Swizzle(s[0].small(0, 63), s[1].small(0, 63), s[2].small(-63, 63)); });
    }
    if (j.has("at")) b.at_bytes = j["at"].id();
    if (j.has("over")) {
      const At over = j["over"];
      for (std::size_t i = 0; i < over.array().size(); ++i) b.over.push_back(over[i].id());
    }
    if (j.has("fragment") != t.label.has_value())
      j.fail(Code::IR_JSON_VALUE, "a fragment has \"fragment\" and a type with \"label\": both or none of them");
    if (j.has("fragment")) {
      const At f = j["fragment"];
      f.only({"shape", "on", "tv"});
      Fragment& out = b.fragment.emplace();
      const At shape = f["shape"];
      for (std::size_t i = 0; i < shape.array().size(); ++i) out.shape.push_back(shape[i].integer());
      out.group = threads(f["on"]);
      out.tv = layout(f["tv"]);
    }
    const int id = j["id"].id();
    add(j, stmt, as_.allocate(id, std::move(b), t));
  }

  void spec(const At& j) {
    j.only({"stmt", "loc", "kind", "outs", "ins", "blocks", "threads", "attrs", "atom", "done", "to", "tv", "means",
            "collective", "body"});
    const int stmt = as_.next_id();
    SpecStmt s;
    const auto kind = spec_kind_from_name(j["kind"].string());
    if (!kind || *kind == SpecKind::Allocate) j["kind"].expected("the kind of a spec");
    s.kind = *kind;
    const At outs = j["outs"];
    for (std::size_t i = 0; i < outs.array().size(); ++i) s.outs.push_back(tensor(outs[i]));
    const At ins = j["ins"];
    for (std::size_t i = 0; i < ins.array().size(); ++i) s.ins.push_back(operand(ins[i]));
    s.blocks = threads(j["blocks"]);
    s.threads = threads(j["threads"]);
    if (j.has("attrs")) s.attrs = attributes(j["attrs"]);
    if (j.has("atom")) s.atom = j["atom"].string();
    if (j.has("done")) s.done = tensor(j["done"]);
    if (j.has("to")) s.to = threads(j["to"]);
    if (j.has("tv")) s.tv = layout(j["tv"]);
    if (j.has("means")) s.means = j["means"].string();
    if (j.has("collective")) s.collective = j["collective"].boolean();
    s.decomposed = j.has("body");
    if (s.collective && !s.decomposed) j.fail(Code::IR_JSON_VALUE, "a collective leaf without a body");
    Assembler::complete(s);
    if (complete_) complete_(s);
    if (s.decomposed) s.body = body(j["body"]);
    add(j, stmt, std::move(s));
  }

  [[nodiscard]] Operand operand(const At& j) const {
    if (j.has("tensor")) {
      j.only({"tensor"});
      return tensor(j["tensor"]);
    }
    if (j.has("number")) {
      j.only({"number"});
      return number(j["number"]);
    }
    j.only({"tensor", "number", "expr"});
    return expr(j["expr"]);
  }

  void loop(const At& j) {
    j.only({"stmt", "loc", "var", "start", "stop", "step", "unroll", "while", "multiple_of", "min", "max", "lo", "hi",
            "body"});
    const int stmt = as_.next_id();
    LoopStmt l;
    l.start = expr(j["start"]);
    l.stop = expr(j["stop"]);
    l.step = expr(j["step"]);
    if (j.has("unroll")) l.unroll = j["unroll"].id();
    if (j.has("while")) l.condition = expr(j["while"]);
    const FactsDecl f = facts(j);
    const std::string n = j["var"].string();
    l.body = body(j["body"], [&] { l.var = as_.counter(n, f, l.start, l.stop, l.step); });
    add(j, stmt, std::move(l));
  }

  void branch(const At& j) {
    j.only({"stmt", "loc", "condition", "then", "else"});
    const int stmt = as_.next_id();
    IfStmt s;
    s.condition = expr(j["condition"]);
    s.then_body = body(j["then"]);
    if (j.has("else")) s.else_body = body(j["else"]);
    add(j, stmt, std::move(s));
  }

  void only(const At& j) {
    j.only({"stmt", "loc", "of", "elect", "body"});
    const int stmt = as_.next_id();
    OnlyStmt s;
    s.group = threads(j["of"]);
    if (s.group->unit != ThreadUnit::Thread)
      fail(Code::SPEC_GROUP, "only() takes threads of the block", {"got: " + s.group->type_str()});
    if (j.has("elect")) s.elect = j["elect"].boolean();
    s.body = body(j["body"]);
    add(j, stmt, std::move(s));
  }

  void exit_if(const At& j) {
    j.only({"stmt", "loc", "condition"});
    add(j, as_.next_id(), ExitIfStmt{expr(j["condition"])});
  }

  void index_of(const At& j) {
    j.only({"stmt", "loc", "var", "from", "multiple_of", "min", "max", "lo", "hi"});
    const int stmt = as_.next_id();
    const TensorPtr from = tensor(j["from"]);
    const FactsDecl f = facts(j);
    j.run([&] { add(j, stmt, ScalarStmt{as_.index(j["var"].string(), f, from), 0, true, from}); });
  }

  void scalar(const At& j) {
    j.only({"stmt", "loc", "var", "value", "multiple_of", "min", "max", "lo", "hi"});
    const Expr value = expr(j["value"]);
    const FactsDecl f = facts(j);
    const Expr var = as_.scalar(j["var"].string(), f);
    add(j, as_.next_id(), ScalarStmt{var, value, true, nullptr});
  }

  void assign(const At& j) {
    j.only({"stmt", "loc", "var", "value"});
    const std::string n = j["var"].string();
    const std::optional<Expr> var = as_.variable(n);
    if (!var || !var->is_var() || var->var().kind != sym::VarKind::Scalar)
      j["var"].fail(Code::IR_UNDEFINED, "no scalar '" + n + "' to assign to");
    add(j, as_.next_id(), ScalarStmt{*var, expr(j["value"]), false, nullptr});
  }

  void sync(const At& j) {
    j.only({"stmt", "loc", "op", "barrier", "phase", "expect", "expect_bytes", "to", "of", "atom", "attrs", "values"});
    SyncStmt s;
    s.op = j["op"].string();
    if (!is_plain_name(s.op)) j["op"].expected("the name of an operation");
    if (j.has("of")) s.group = threads(j["of"]);
    if (j.has("atom")) s.atom = j["atom"].string();
    if (j.has("attrs")) s.attrs = attributes(j["attrs"]);
    if (j.has("barrier")) s.barrier = tensor(j["barrier"]);
    if (j.has("phase")) s.phase = expr(j["phase"]);
    if (j.has("expect")) {
      const At expect = j["expect"];
      for (std::size_t i = 0; i < expect.array().size(); ++i) s.expect.push_back(tensor(expect[i]));
    }
    if (j.has("expect_bytes")) s.expect_bytes = expr(j["expect_bytes"]);
    if (j.has("values")) {
      const At values = j["values"];
      for (std::size_t i = 0; i < values.array().size(); ++i) s.values.push_back(operand(values[i]));
    }
    if (j.has("to")) s.to = threads(j["to"]);
    check_sync(s, as_.cluster());
    add(j, as_.next_id(), std::move(s));
  }

  const At& root_;
  const CompleteSpec& complete_;
  int depth_ = 0;
};

// Malformed text, with what nlohmann/json says about it and where.
[[noreturn]] void syntax_error(const Source& source, const Json::parse_error& e) {
  std::string what = e.what();  // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ..."
  const std::size_t column = what.find(", column ");
  if (const std::size_t colon = what.find(": ", column == std::string::npos ? 0 : column); colon != std::string::npos)
    what = what.substr(colon + 2);
  if (const std::size_t last = what.find("; last read: "); last != std::string::npos) what = what.substr(0, last);
  if (what.size() > 160) what = what.substr(0, 160) + "...";
  for (char& c : what)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  source.fail_at(e.byte > 0 ? e.byte - 1 : 0, Code::IR_JSON_SYNTAX, what);
}

}  // namespace

Kernel from_json(std::string_view text, const CompleteSpec& complete) {
  const Source source{text};
  Json document;
  std::vector<std::set<std::string>> keys;  // of the open objects
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    using Event = Json::parse_event_t;
    if (depth > 4 * kMaxBlockDepth)
      fail(Code::IR_DEPTH, "JSON nested deeper than " + std::to_string(4 * kMaxBlockDepth));
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second)
      fail(Code::IR_JSON_VALUE, "a second key \"" + value.get<std::string>() + "\" in an object");
    return true;
  };
  try {
    document = Json::parse(text, watch);
  } catch (const Json::parse_error& e) {
    syntax_error(source, e);
  } catch (const Json::out_of_range&) {
    fail(Code::IR_NUMBER, "a number in JSON outside the range of a 64-bit float");
  }
  const At root(document);
  return Reader(root, complete).run();
}

}  // namespace graphene::ir
