// Recursive descent over the text of expressions.
#include "sym/internal.h"

namespace graphene::sym {

namespace {

constexpr int kMaxNesting = 100;

bool name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '#' || c == '@';
}
bool digit(char c) { return c >= '0' && c <= '9'; }

std::string printable(std::string_view text) {
  static constexpr const char* kHex = "0123456789abcdef";
  std::string s;
  for (const char ch : text.substr(0, 100)) {
    const auto u = static_cast<unsigned char>(ch);
    if (u >= 0x20 && u < 0x7f)
      s += ch;
    else
      s += std::string("\\x") + kHex[u >> 4] + kHex[u & 15];
  }
  return text.size() > 100 ? s + "..." : s;
}

class Parser {
 public:
  using Lookup = std::function<std::optional<Expr>(std::string_view)>;
  Parser(std::string_view text, const Lookup& lookup) : text_(text), lookup_(lookup) { skip_spaces(); }

  Expr all() {
    const Expr e = disjunction();
    if (at_ < text_.size()) refuse("want an operator or the end, got " + here());
    return e;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(Code::SYM_PARSE, what + " at offset " + std::to_string(at_), {"in: " + printable(text_)});
  }
  [[nodiscard]] std::string here() const {
    return at_ < text_.size() ? "'" + printable(text_.substr(at_, 1)) + "'" : "the end of the text";
  }

  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
  }
  bool take(std::string_view token) {
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    skip_spaces();
    return true;
  }
  [[nodiscard]] std::string_view word() const {
    if (at_ >= text_.size() || !name_start(text_[at_])) return {};
    std::size_t end = at_ + 1;
    while (end < text_.size() && (name_start(text_[end]) || digit(text_[end]) || text_[end] == '.')) ++end;
    return text_.substr(at_, end - at_);
  }
  bool take_word(std::string_view w) { return word() == w && take(w); }

  struct Level {
    explicit Level(Parser& p) : parser(p) {
      if (++parser.nesting_ > kMaxNesting) parser.refuse("nested more than " + std::to_string(kMaxNesting) + " deep");
    }
    ~Level() { --parser.nesting_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    Parser& parser;
  };

  Expr disjunction() {
    Expr e = conjunction();
    while (take_word("or")) e = logical_or(e, conjunction());
    return e;
  }

  Expr conjunction() {
    Expr e = negation();
    while (take_word("and")) e = logical_and(e, negation());
    return e;
  }

  Expr negation() {
    if (!take_word("not")) return comparison();
    const Level level(*this);
    return logical_not(negation());
  }

  std::optional<Op> comparison_sign(bool& swapped) {
    swapped = false;
    if (take("<=")) return Op::Le;
    if (take("<")) return Op::Lt;
    if (take("==")) return Op::Eq;
    if (take("!=")) return Op::Ne;
    swapped = true;
    if (take(">=")) return Op::Le;
    if (take(">")) return Op::Lt;
    return std::nullopt;
  }

  Expr comparison() {
    Expr a = exclusive_or();
    bool swapped = false;
    const auto op = comparison_sign(swapped);
    if (!op) return a;
    Expr b = exclusive_or();
    if (swapped) std::swap(a, b);
    const std::size_t end = at_;
    if (comparison_sign(swapped)) {
      at_ = end;
      refuse("comparisons do not chain: write 'and' between them,");
    }
    switch (*op) {
      case Op::Le:
        return le(a, b);
      case Op::Lt:
        return lt(a, b);
      case Op::Eq:
        return eq(a, b);
      default:
        return ne(a, b);
    }
  }

  Expr exclusive_or() {
    const Expr first = sum();
    SmallVec<Expr, 8> operands;
    operands.push_back(first);
    while (take("^")) operands.push_back(sum());
    return operands.size() == 1 ? first : bit_xor_all(operands);
  }

  Expr sum() {
    Expr e = product();
    for (;;) {
      if (take("+"))
        e = e + product();
      else if (take("-"))
        e = e - product();
      else
        return e;
    }
  }

  Expr product() {
    Expr e = unary();
    for (;;) {
      if (take("*"))
        e = e * unary();
      else if (take("//"))
        e = floor_div(e, unary());
      else if (take("%"))
        e = mod(e, unary());
      else
        return e;
    }
  }

  Expr unary() {
    const Level level(*this);
    if (!take("-")) return primary();
    if (at_ < text_.size() && digit(text_[at_])) return integer(true);
    return -unary();
  }

  Expr primary() {
    if (at_ < text_.size() && digit(text_[at_])) return integer(false);
    if (take("(")) {
      const Expr e = disjunction();
      if (!take(")")) refuse("want ')', got " + here());
      return e;
    }
    const std::string_view name = word();
    if (name.empty() || name == "and" || name == "or" || name == "not")
      refuse("want an integer, a name or '(', got " + (name.empty() ? here() : "'" + std::string(name) + "'"));
    const std::size_t start = at_;
    take(name);
    if ((name == "min" || name == "max") && take("(")) return call(name == "min");
    if (lookup_) {
      if (const auto e = lookup_(name)) return *e;
      if (name[0] == '@')
        if (const auto e = lookup_(name.substr(1))) return *e;
    }
    at_ = start;
    refuse("unknown name '" + printable(name) + "'");
  }

  Expr call(bool is_min) {
    Expr e = disjunction();
    while (take(",")) {
      const Expr next = disjunction();
      e = is_min ? min(e, next) : max(e, next);
    }
    if (!take(")")) refuse("want ',' or ')', got " + here());
    return e;
  }

  Expr integer(bool negative) {
    const std::size_t start = at_;
    std::uint64_t v = 0;
    const std::uint64_t most = static_cast<std::uint64_t>(kMaxInt) + (negative ? 1 : 0);
    while (at_ < text_.size() && digit(text_[at_])) {
      const auto d = static_cast<std::uint64_t>(text_[at_] - '0');
      if (v > (most - d) / 10) {
        at_ = start;
        fail(Code::SYM_OVERFLOW, "the integer at offset " + std::to_string(start) + " leaves the 64-bit range",
             {"in: " + printable(text_)});
      }
      v = 10 * v + d;
      ++at_;
    }
    if (at_ < text_.size() && (name_start(text_[at_]) || text_[at_] == '.'))
      refuse("want an operator after an integer, got " + here());
    skip_spaces();
    return negative ? static_cast<std::int64_t>(~v + 1) : static_cast<std::int64_t>(v);
  }

  std::string_view text_;
  const Lookup& lookup_;
  std::size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace

Expr parse_expr(std::string_view text, const std::function<std::optional<Expr>(std::string_view)>& lookup) {
  return Parser(text, lookup).all();
}

}  // namespace graphene::sym
