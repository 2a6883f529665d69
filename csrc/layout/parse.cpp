#include <cctype>
#include <charconv>

#include "base/diag.h"
#include "layout/layout.h"

namespace graphene::layout {

namespace {

constexpr int kMaxDepth = 64;  // of nested tuples: keeps hostile text off the stack

using Lookup = std::function<std::optional<Expr>(std::string_view)>;

class Parser {
 public:
  Parser(std::string_view text, const Lookup& lookup, const char* what) : text_(text), lookup_(lookup), what_(what) {}

  Layout layout() {
    space();
    if (peek() == '[') return brackets();
    IntTuple shape = tuple_or_leaf(0);
    space();
    if (peek() != ':') {
      end();
      return Layout(std::move(shape));
    }
    ++at_;
    const std::size_t stride_at = at_;
    IntTuple stride = tuple_or_leaf(0);
    end();
    return checked(std::move(shape), std::move(stride), stride_at);
  }

  IntTuple int_tuple() {
    IntTuple t = tuple_or_leaf(0);
    end();
    return t;
  }

  Swizzle swizzle() {
    space();
    for (const char c : std::string_view("Sw<")) expect(c);
    int v[3];
    for (int i = 0; i < 3; ++i) {
      space();
      const std::size_t start = at_;
      const bool minus = peek() == '-';
      if (minus) ++at_;
      while (is_digit(peek())) ++at_;
      const Expr e = integer(start, at_);
      if (e.value() < -64 || e.value() > 64) error("expected a small integer", start);
      v[i] = static_cast<int>(e.value());
      space();
      expect(i < 2 ? ',' : '>');
    }
    end();
    return {v[0], v[1], v[2]};
  }

 private:
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n')) ++at_;
  }

  [[noreturn]] void error(const std::string& message, std::size_t offset) const {
    fail(Code::LAYOUT_PARSE,
         std::string("malformed ") + what_ + " at offset " + std::to_string(offset) + ": " + message,
         {"text: " + std::string(text_), "      " + std::string(offset, ' ') + "^"});
  }

  void expect(char c) {
    if (peek() != c) error(std::string("expected '") + c + "'", at_);
    ++at_;
  }

  void end() {
    space();
    if (at_ != text_.size()) error("expected the end", at_);
  }

  Layout checked(IntTuple shape, IntTuple stride, std::size_t stride_at) const {
    if (!congruent(shape, stride))
      error("the strides " + stride.str() + " do not match the sizes " + shape.str(), stride_at);
    return {std::move(shape), std::move(stride)};
  }

  // "[4,(2,4):2,(1,8)]": the brackets are the outermost tuple.
  Layout brackets() {
    expect('[');
    IntTuple shape = bracket_list();
    if (peek() == ']') {
      ++at_;
      end();
      return Layout(std::move(shape));
    }
    expect(':');
    const std::size_t stride_at = at_;
    IntTuple stride = bracket_list();
    expect(']');
    end();
    return checked(std::move(shape), std::move(stride), stride_at);
  }

  IntTuple bracket_list() {
    std::vector<IntTuple> items;
    for (;;) {
      items.push_back(tuple_or_leaf(1));
      space();
      if (peek() != ',') break;
      ++at_;
    }
    const bool is_unit = items.front().is_leaf() || items.front().rank() == 0;
    if (items.size() == 1 && is_unit) return items.front();
    return items;
  }

  IntTuple tuple_or_leaf(int depth) {
    space();
    if (depth > kMaxDepth) error("nested deeper than " + std::to_string(kMaxDepth) + " levels", at_);
    if (peek() != '(' || !closes_item()) return leaf();
    ++at_;
    std::vector<IntTuple> items;
    space();
    if (peek() == ')') {
      ++at_;
      return items;
    }
    for (;;) {
      items.push_back(tuple_or_leaf(depth + 1));
      space();
      if (peek() != ',') break;
      ++at_;
      space();
      if (items.size() == 1 && peek() == ')') break;  // Python's "(4,)"
    }
    expect(')');
    return items;
  }

  // Whether the parenthesis at at_ encloses the whole item (a tuple), not the start of an expression as "(M+1)*2".
  // One that is never closed is read as a tuple, for the sake of the error message.
  [[nodiscard]] bool closes_item() const {
    int depth = 0;
    for (std::size_t i = at_; i < text_.size(); ++i) {
      const char c = text_[i];
      if (c == '(') ++depth;
      if (c != ')' || --depth != 0) continue;
      for (++i; i < text_.size(); ++i) {
        const char d = text_[i];
        if (d == ' ' || d == '\t' || d == '\n') continue;
        return d == ',' || d == ')' || d == ':' || d == ']';
      }
      return true;
    }
    return true;
  }

  [[nodiscard]] Expr integer(std::size_t start, std::size_t stop) const {
    std::int64_t v = 0;
    const auto [ptr, ec] = std::from_chars(text_.data() + start, text_.data() + stop, v);
    if (ec == std::errc::result_out_of_range) error("the integer does not fit in 64 bits", start);
    if (ec != std::errc() || ptr != text_.data() + stop) error("expected an integer", start);
    return v;
  }

  Expr leaf() {
    const std::size_t start = at_;
    int depth = 0;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '(') ++depth;
      if (depth == 0 && (c == ',' || c == ')' || c == ':' || c == ']' || c == '[')) break;
      if (c == ')') --depth;
    }
    std::size_t stop = at_;
    while (stop > start && std::isspace(static_cast<unsigned char>(text_[stop - 1])) != 0) --stop;
    if (stop == start) error("expected a size or a tuple", start);
    std::size_t digits = start;
    if (text_[digits] == '_' && stop > digits + 1) ++digits;  // CuTe's mark of a static integer
    const std::size_t number = digits;
    if (digits == start && text_[digits] == '-') ++digits;
    bool all_digits = digits < stop;
    for (std::size_t i = digits; i < stop; ++i) all_digits = all_digits && is_digit(text_[i]);
    if (all_digits) return integer(number, stop);
    return expression(start, stop);
  }

  [[nodiscard]] Expr expression(std::size_t start, std::size_t stop) const {
    const std::string_view item = text_.substr(start, stop - start);
    if (!lookup_) error("expected an integer, got \"" + std::string(item) + "\"", start);
    std::string why;
    try {
      return sym::parse_expr(item, lookup_);
    } catch (const Error& e) {
      why = e.diagnostics().front().message;
    }
    error(why, start);
  }

  std::string_view text_;
  const Lookup& lookup_;
  const char* what_;
  std::size_t at_ = 0;
};

}  // namespace

Layout parse_layout(std::string_view text, const Lookup& lookup) { return Parser(text, lookup, "layout").layout(); }

IntTuple parse_int_tuple(std::string_view text, const Lookup& lookup) {
  return Parser(text, lookup, "integer tuple").int_tuple();
}

Swizzle parse_swizzle(std::string_view text) { return Parser(text, nullptr, "swizzle").swizzle(); }

}  // namespace graphene::layout
