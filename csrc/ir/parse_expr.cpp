#include "ir/parse_expr.h"

#include <charconv>
#include <limits>

#include "ir/levels.h"

namespace graphene::ir {

namespace {

bool is_operator_word(const Token& t) { return t.is_name("and") || t.is_name("or") || t.is_name("not"); }

}  // namespace

ExprReader::ExprReader(std::string_view text) : source_{text}, tokens_(lex(source_)) {}

const Token& ExprReader::tok(std::size_t ahead) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }

bool ExprReader::accept(std::string_view punct) {
  if (!tok().is(punct)) return false;
  advance();
  return true;
}

bool ExprReader::accept_name(std::string_view name) {
  if (!tok().is_name(name)) return false;
  advance();
  return true;
}

void ExprReader::expect(std::string_view punct) {
  if (!accept(punct)) expected("'" + std::string(punct) + "'");
}

void ExprReader::skip_newlines() {
  while (tok().kind == Tok::Newline) advance();
}

bool ExprReader::comma() {
  if (!accept(",")) return false;
  skip_newlines();
  return true;
}

void ExprReader::expected(const std::string& what) const {
  source_.fail_at(tok().offset, Code::IR_PARSE, "expected " + what + ", got " + tok().str());
}

void ExprReader::fail_here(Code code, const std::string& message, std::vector<std::string> details,
                           std::string fix) const {
  source_.fail_at(tok().offset, code, message, std::move(details), std::move(fix));
}

std::string_view ExprReader::name(const char* what) {
  if (tok().kind != Tok::Name) expected(what);
  const std::string_view s = tok().text;
  advance();
  return s;
}

std::string ExprReader::string(const char* what) {
  if (tok().kind != Tok::String) expected(what);
  std::string s = unescape(tok().text);
  advance();
  return s;
}

std::int64_t ExprReader::integer(const char* what) {
  const Token& first = tok();
  const bool minus = accept("-");
  if (tok().kind != Tok::Int) expected(what);
  const std::string digits = (minus ? "-" : "") + std::string(tok().text);
  std::int64_t v = 0;
  const auto r = std::from_chars(digits.data(), digits.data() + digits.size(), v);
  if (r.ec != std::errc()) source_.fail_at(first.offset, Code::IR_NUMBER, "an integer that does not fit in 64 bits");
  advance();
  return v;
}

int ExprReader::small(const char* what, int min, int max) {
  const Token& first = tok();
  const std::int64_t v = integer(what);
  if (v < min || v > max)
    source_.fail_at(first.offset, Code::IR_NUMBER, std::string(what) + " out of range",
                    {"want: " + std::to_string(min) + " to " + std::to_string(max), "got: " + std::to_string(v)});
  return static_cast<int>(v);
}

int ExprReader::id_after(char sigil) {
  const std::string what = std::string("a name such as '") + sigil + "7'";
  if (!tok().is(std::string_view(&sigil, 1)) || tok(1).kind != Tok::Int || !tok(1).glued) expected(what);
  advance();
  return small("the number of a name", 0, kMaxInt32);
}

std::optional<double> ExprReader::number() {
  std::size_t n = 0;
  const bool minus = tok().is("-");
  if (minus || tok().is("+")) n = 1;
  const Token& t = tok(n);
  const bool word = t.is_name("inf") || t.is_name("nan");
  if (t.kind != Tok::Float && !word) return std::nullopt;
  double v = 0;
  if (word) {
    v = t.text == "inf" ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else {
    const auto r = std::from_chars(t.text.data(), t.text.data() + t.text.size(), v);
    if (r.ec != std::errc()) source_.fail_at(t.offset, Code::IR_NUMBER, "a number outside the range of a 64-bit float");
  }
  at_ += n + 1;
  return minus ? -v : v;
}

// ---- integer expressions: one function per level of precedence, loosest first

void ExprReader::count(const Token& op) {
  if (++operators_ > kMaxOperators)
    source_.fail_at(op.offset, Code::IR_DEPTH,
                    "an expression of more than " + std::to_string(kMaxOperators) + " operators");
}

Expr ExprReader::apply(const Token& op, Expr (*f)(const Expr&, const Expr&), const Expr& a, const Expr& b) {
  count(op);
  return at(op, [&] { return f(a, b); });
}

Expr ExprReader::expr() {
  if (depth_ == 0) operators_ = 0;
  if (depth_ >= kMaxParenDepth)
    fail_here(Code::IR_DEPTH, "parentheses nested deeper than " + std::to_string(kMaxParenDepth));
  ++depth_;
  const Token& first = tok();
  const Expr e = either();
  --depth_;
  if (!e.is_const() && e.node()->depth > kMaxExprDepth)
    source_.fail_at(first.offset, Code::IR_DEPTH,
                    "an expression of more than " + std::to_string(kMaxExprDepth) + " levels");
  return e;
}

Expr ExprReader::either() {
  Expr e = both();
  while (tok().is_name("or")) {
    const Token& op = tok();
    advance();
    e = apply(op, sym::logical_or, e, both());
  }
  return e;
}

Expr ExprReader::both() {
  Expr e = negation();
  while (tok().is_name("and")) {
    const Token& op = tok();
    advance();
    e = apply(op, sym::logical_and, e, negation());
  }
  return e;
}

Expr ExprReader::negation() {
  const Token& op = tok();
  std::size_t nots = 0;
  for (; tok().is_name("not"); ++nots) {
    count(tok());
    advance();
  }
  Expr e = comparison();
  for (; nots > 0; --nots) e = at(op, [&] { return sym::logical_not(e); });
  return e;
}

Expr ExprReader::comparison() {
  const Expr a = exclusive();
  const Token& op = tok();
  if (accept("<-")) {  // "a<-1"
    const Token& minus = op;
    const Expr b = at(minus, [&] { return -exclusive(); });
    return apply(op, sym::lt, a, b);
  }
  if (accept("<")) return apply(op, sym::lt, a, exclusive());
  if (accept("<=")) return apply(op, sym::le, a, exclusive());
  if (accept(">")) return apply(op, sym::lt, exclusive(), a);
  if (accept(">=")) return apply(op, sym::le, exclusive(), a);
  if (accept("==")) return apply(op, sym::eq, a, exclusive());
  if (accept("!=")) return apply(op, sym::ne, a, exclusive());
  return a;
}

Expr ExprReader::exclusive() {
  Expr e = sum();
  while (tok().is("^")) {
    const Token& op = tok();
    advance();
    e = apply(op, sym::bit_xor, e, sum());
  }
  return e;
}

Expr ExprReader::sum() {
  Expr e = product();
  while (tok().is("+") || tok().is("-")) {
    const Token& op = tok();
    advance();
    if (op.is("+")) {
      e = apply(
          op, [](const Expr& a, const Expr& b) { return a + b; }, e, product());
    } else {
      e = apply(
          op, [](const Expr& a, const Expr& b) { return a - b; }, e, product());
    }
  }
  return e;
}

Expr ExprReader::product() {
  Expr e = unary();
  while (tok().is("*") || tok().is("//") || tok().is("%")) {
    const Token& op = tok();
    advance();
    if (op.is("*")) {
      e = apply(
          op, [](const Expr& a, const Expr& b) { return a * b; }, e, unary());
    } else if (op.is("//")) {
      e = apply(op, sym::floor_div, e, unary());
    } else {
      e = apply(op, sym::mod, e, unary());
    }
  }
  return e;
}

Expr ExprReader::unary() {
  const Token& op = tok();
  if (op.is("-") && tok(1).kind == Tok::Int) return integer("an integer");  // reaches the least 64-bit integer
  std::size_t minuses = 0;
  for (; tok().is("-"); ++minuses) {
    count(tok());
    advance();
  }
  Expr e = atom();
  for (; minuses > 0; --minuses) e = at(op, [&] { return -e; });
  return e;
}

Expr ExprReader::atom() {
  const Token& t = tok();
  if (t.kind == Tok::Int) return integer("an integer");
  if (accept("(")) {
    const Expr e = expr();
    expect(")");
    return e;
  }
  if ((t.is_name("min") || t.is_name("max")) && tok(1).is("(")) {
    advance();
    advance();
    Expr e = expr();
    while (comma()) e = apply(t, t.text == "min" ? sym::min : sym::max, e, expr());
    expect(")");
    return e;
  }
  if ((t.kind == Tok::Name && !is_operator_word(t)) || t.kind == Tok::Coord) {
    const std::optional<Expr> v = lookup(t.text);
    const bool wrong_kind = v && v->is_var() && (v->var().kind == sym::VarKind::Coord) != (t.kind == Tok::Coord);
    if (!v || wrong_kind)
      fail_here(Code::IR_UNDEFINED,
                (t.kind == Tok::Coord ? "no coordinate '@" : "no integer '") + std::string(t.text) + "' here",
                wrong_kind ? std::vector<std::string>{t.kind == Tok::Coord
                                                          ? "it is not a coordinate"
                                                          : "it is a coordinate: '@" + std::string(t.text) + "'"}
                           : std::vector<std::string>{});
    advance();
    return *v;
  }
  if (t.kind == Tok::Float) expected("an integer expression");
  expected("an expression");
}

// ---- layouts and types

bool ExprReader::tuple_here() const {
  if (!tok().is("(")) return false;
  int depth = 0;
  for (std::size_t i = 0;; ++i) {
    const Token& t = tok(i);
    if (t.kind == Tok::Newline || t.kind == Tok::End) return true;
    if (t.is("(")) ++depth;
    if (!t.is(")") || --depth > 0) continue;
    const Token& after = tok(i + 1);
    return after.is(",") || after.is(")") || after.is(":") || after.is("]") || after.kind == Tok::Newline;
  }
}

IntTuple ExprReader::size() {
  if (!tuple_here()) return expr();
  if (depth_ >= kMaxParenDepth)
    fail_here(Code::IR_DEPTH, "parentheses nested deeper than " + std::to_string(kMaxParenDepth));
  ++depth_;
  expect("(");
  std::vector<IntTuple> modes;
  while (!tok().is(")")) {
    modes.push_back(size());
    if (!comma()) break;
  }
  expect(")");
  --depth_;
  return modes;
}

IntTuple ExprReader::sizes() {
  std::vector<IntTuple> modes;
  bool trailing_comma = false;
  while (!tok().is(":") && !tok().is("]")) {
    modes.push_back(size());
    trailing_comma = comma();
    if (!trailing_comma) break;
  }
  if (modes.size() != 1) return modes;
  const bool unit = modes[0].is_leaf() ? !trailing_comma : modes[0].rank() == 0;
  return unit ? modes[0] : IntTuple(std::move(modes));
}

LevelDecl ExprReader::level() {
  expect("[");
  LevelDecl l{sizes(), std::nullopt};
  const Token& strides = tok();
  if (accept(":")) {
    l.stride = sizes();
    if (!congruent(l.shape, *l.stride))
      source_.fail_at(strides.offset, Code::IR_PARSE, "strides that do not match the sizes",
                      {"sizes: " + l.shape.str(), "strides: " + l.stride->str()}, "give one stride for each size");
  }
  if (!tok().is("]")) expected(l.stride ? "',' or ']'" : "',', ':' or ']'");
  advance();
  return l;
}

std::vector<LevelDecl> ExprReader::levels() {
  std::vector<LevelDecl> out;
  if (tok().is("[") && tok(1).is("]")) {
    advance();
    advance();
    expect(".");
    return out;
  }
  do {
    out.push_back(level());
    expect(".");
  } while (tok().is("["));
  return out;
}

Layout ExprReader::layout() {
  const Token& first = tok();
  LevelDecl l = level();
  return at(first, [&] { return l.stride ? Layout(l.shape, *l.stride) : Layout(l.shape); });
}

layout::Tiler ExprReader::tiler() {
  layout::Tiler out;
  if (!tok().is("[")) {  // the paper's ".tile(8)"
    do {
      const Token& t = tok();
      const Expr n = expr();
      out.emplace_back(at(t, [&] { return Layout(n, 1); }));
    } while (comma());
    return out;
  }
  // One bracket without ":" lists contiguous sizes; else each bracket is the layout of one mode.
  std::size_t end = 1;
  int depth = 1;
  bool strides = false;
  for (; depth > 0 && tok(end).kind != Tok::Newline && tok(end).kind != Tok::End; ++end) {
    if (tok(end).is("[") || tok(end).is("(")) ++depth;
    if (tok(end).is("]") || tok(end).is(")")) --depth;
    strides = strides || (depth == 1 && tok(end).is(":"));
  }
  if (!strides && !tok(end).is(",")) {
    advance();
    while (!tok().is("]")) {
      if (accept_name("_")) {
        out.emplace_back(std::nullopt);
      } else {
        const Token& t = tok();
        const Expr n = expr();
        out.emplace_back(at(t, [&] { return Layout(n, 1); }));
      }
      if (!comma()) break;
    }
    expect("]");
    return out;
  }
  do {
    if (tok().is("[") && tok(1).is_name("_")) {
      advance();
      advance();
      expect("]");
      out.emplace_back(std::nullopt);
    } else {
      out.emplace_back(layout());
    }
  } while (comma());
  return out;
}

std::vector<IndexArg> ExprReader::index_args() {
  expect("[");
  std::vector<IndexArg> out;
  while (!tok().is("]")) {
    IndexArg a;
    if (!accept(":")) {
      a.kind = IndexArg::Kind::At;
      a.at = expr();
      if (accept(":")) {
        a.kind = IndexArg::Kind::Slice;
        a.stop = expr();
      }
    }
    out.push_back(a);
    if (!comma()) break;
  }
  expect("]");
  return out;
}

TypeDecl ExprReader::type() {
  TypeDecl d;
  d.levels = levels();
  const Token& t = tok();
  const std::string_view both = name("an element type and a memory, such as 'fp16.GL'");
  const std::size_t dot = both.find('.');
  const std::string_view dtype = both.substr(0, dot);
  const std::string_view memory = dot == std::string_view::npos ? "" : both.substr(dot + 1);
  const auto scalar = scalar_type_from_name(dtype);
  if (!scalar || info(*scalar).cls == ScalarInfo::Class::Bits)
    source_.fail_at(t.offset, Code::IR_PARSE, "no element type '" + std::string(dtype) + "'");
  const auto mem = memory_from_name(memory);
  if (!mem)
    source_.fail_at(t.offset, Code::IR_PARSE, "no memory '" + std::string(memory) + "'", {"want: GL, SH or RF"});
  d.dtype = *scalar;
  d.memory = *mem;
  if (tok().is("<") && d.memory == Memory::RF) {
    advance();
    d.label = tok().kind == Tok::String ? string("a label") : std::string(name("the name of a fragment's layout"));
    expect(">");
  }
  return d;
}

ThreadTypeDecl ExprReader::thread_type() {
  ThreadTypeDecl d;
  d.levels = levels();
  if (!tok().is_name("block") && !tok().is_name("thread")) expected("'block' or 'thread'");
  d.unit = tok().is_name("block") ? ThreadUnit::Block : ThreadUnit::Thread;
  advance();
  return d;
}

bool ExprReader::at_type_of_threads() const { return tok().is("[") && tok(1).is("]") && tok(2).is("."); }

}  // namespace graphene::ir
