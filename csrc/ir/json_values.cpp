#include "ir/json_values.h"

#include <limits>

#include "ir/parse_expr.h"
#include "ir/print.h"

namespace graphene::ir {

namespace {

// One expression, as in the text form.
class ExprText : public ExprReader {
 public:
  ExprText(std::string_view text, const Assembler& as) : ExprReader(text), as_(as) {}
  Expr run() {
    const Expr e = expr();
    skip_newlines();
    if (tok().kind != Tok::End) expected("the end of the expression");
    return e;
  }

 protected:
  std::optional<Expr> lookup(std::string_view name) override { return as_.variable(name); }

 private:
  const Assembler& as_;
};

}  // namespace

Expr JsonReader::expr(const At& j) const {
  if (j.json().is_number_integer()) return j.integer();
  if (!j.json().is_string()) j.expected("an integer or the text of an expression");
  const std::string text = j.string();
  try {
    return ExprText(text, as_).run();
  } catch (const Error& e) {
    const Diagnostic& d = e.diagnostics().front();
    std::vector<std::string> details = d.ir;
    details.insert(details.end(), d.details.begin(), d.details.end());
    j.fail(d.code, d.message, details, d.fix);
  }
}

IntTuple JsonReader::tuple(const At& j, int depth) const {
  if (!j.json().is_array()) return expr(j);
  if (depth >= kMaxParenDepth) j.fail(Code::IR_DEPTH, "nested too deep");
  std::vector<IntTuple> modes;
  for (std::size_t i = 0; i < j.size(); ++i) modes.push_back(tuple(j[i], depth + 1));
  return modes;
}

Layout JsonReader::layout(const At& j) const {
  j.only({"shape", "stride"});
  IntTuple shape = tuple(j["shape"]);
  IntTuple stride = tuple(j["stride"]);
  return j.run([&] { return Layout(std::move(shape), std::move(stride)); });
}

std::vector<LevelDecl> JsonReader::levels(const At& j) const {
  std::vector<LevelDecl> out;
  for (std::size_t i = 0; i < j.array().size(); ++i) {
    const Layout l = layout(j[i]);
    out.push_back({l.shape(), l.stride()});
  }
  return out;
}

ScalarType JsonReader::dtype(const At& j) {
  const auto t = scalar_type_from_name(j.string());
  if (!t || info(*t).cls == ScalarInfo::Class::Bits) j.expected("an element type");
  return *t;
}

TypeDecl JsonReader::type(const At& j) const {
  j.only({"levels", "dtype", "memory", "label"});
  TypeDecl d;
  d.levels = levels(j["levels"]);
  d.dtype = dtype(j["dtype"]);
  const auto m = memory_from_name(j["memory"].string());
  if (!m) j["memory"].expected("GL, SH or RF");
  d.memory = *m;
  if (j.has("label")) d.label = j["label"].string();
  return d;
}

FactsDecl JsonReader::facts(const At& j) const {
  FactsDecl f;
  if (j.has("min")) f.min = j["min"].integer();
  if (j.has("max")) f.max = j["max"].integer();
  if (j.has("multiple_of")) f.multiple_of = j["multiple_of"].integer();
  const auto bound = [&](const char* key) {
    const At b = j[key];
    return b.json().is_null() ? std::nullopt : std::optional<Expr>(expr(b));
  };
  if (j.has("lo")) f.lo = bound("lo");
  if (j.has("hi")) f.hi = bound("hi");
  return f;
}

double JsonReader::number(const At& j) {
  const Json& v = j.json();
  if (v.is_number()) return v.get<double>();
  const std::string s = v.is_string() ? v.get<std::string>() : "";
  if (s == "inf") return std::numeric_limits<double>::infinity();
  if (s == "-inf") return -std::numeric_limits<double>::infinity();
  if (s == "nan") return std::numeric_limits<double>::quiet_NaN();
  j.expected(R"(a number, "inf", "-inf" or "nan")");
}

AttrValue JsonReader::attribute(const At& j) const {
  const Json& v = j.json();
  if (v.is_string()) return j.string();
  if (v.is_boolean()) return j.boolean();
  if (v.is_number_integer()) return j.integer();
  if (j.has("number")) {
    j.only({"number"});
    return number(j["number"]);
  }
  if (j.has("expr")) {
    j.only({"expr"});
    return expr(j["expr"]);
  }
  j.expected(R"(a string, a boolean, an integer, {"number": ...} or {"expr": ...})");
}

Attrs JsonReader::attributes(const At& j) const {
  Attrs out;
  if (!j.json().is_object()) j.expected("an object");
  for (const auto& [key, value] : j.json().items()) {
    const At a(j, key, value);
    if (!is_plain_name(key)) a.fail(Code::KERNEL_NAME, quote(key) + " cannot be the name of an attribute");
    out.emplace(key, attribute(a));
  }
  return out;
}

TensorPtr JsonReader::tensor(const At& j) const {
  return j.run([&] { return as_.tensor(j.id()); });
}

ThreadPtr JsonReader::threads(const At& j) const {
  if (j.json().is_string()) {
    const std::string s = j.string();
    if (s != "each_block" && s != "each_thread") j.expected(R"(an id, "each_block" or "each_thread")");
    return j.run([&] { return as_.each(s == "each_block" ? ThreadUnit::Block : ThreadUnit::Thread); });
  }
  return j.run([&] { return as_.threads(j.id()); });
}

layout::Tiler JsonReader::tiler(const At& j) const {
  layout::Tiler out;
  for (std::size_t i = 0; i < j.array().size(); ++i) {
    if (j[i].json().is_null())
      out.emplace_back(std::nullopt);
    else
      out.emplace_back(layout(j[i]));
  }
  return out;
}

std::vector<IndexArg> JsonReader::index(const At& j) const {
  std::vector<IndexArg> out;
  for (std::size_t i = 0; i < j.array().size(); ++i) {
    const At a = j[i];
    IndexArg arg;
    if (a.json().is_object()) {
      a.only({"start", "stop"});
      arg.kind = IndexArg::Kind::Slice;
      arg.at = expr(a["start"]);
      arg.stop = expr(a["stop"]);
    } else if (!a.json().is_null()) {
      arg.kind = IndexArg::Kind::At;
      arg.at = expr(a);
    }
    out.push_back(arg);
  }
  return out;
}

SourceLoc JsonReader::location(const At& j) {
  if (!j.has("loc")) return {};
  const At loc = j["loc"];
  if (loc.array().size() != 2) loc.expected("[file, line]");
  return {std::make_shared<const std::string>(loc[0].string()), loc[1].small(0, std::numeric_limits<int>::max())};
}

void JsonReader::check_same(const At& j, const Expr& want) const {
  const Expr got = expr(j);
  if (!identical(got, want))
    j.fail(Code::IR_TYPE_MISMATCH, "the value is another one", {"want: " + want.str(), "got:  " + got.str()});
}

}  // namespace graphene::ir
