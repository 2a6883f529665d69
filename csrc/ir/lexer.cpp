#include "ir/lexer.h"

#include <algorithm>
#include <array>

namespace graphene::ir {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_word(char c) { return is_letter(c) || is_digit(c); }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); }
int hex_value(char c) { return is_digit(c) ? c - '0' : c - 'a' + 10; }
bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

// Longest first.
constexpr std::array<std::string_view, 36> kPuncts = {
    "<<<", ">>>", "<-", "<=", ">=", "==", "!=", "//", "+=", "(", ")", "[", "]", "{", "}", "<", ">", ",",
    ":",   "=",   ".",  "%",  "#",  "+",  "-",  "*",  "/",  "^", ";", "&", "|", "!", "?", "~", "$", "'"};

constexpr std::size_t kExcerpt = 100;  // characters shown of a long line

class Lexer {
 public:
  explicit Lexer(const Source& source) : source_(source), text_(source.text) {}

  std::vector<Token> run() {
    check_utf8();
    while (at_ < text_.size()) step();
    newline();
    add(Tok::End, at_, at_);
    return std::move(tokens_);
  }

 private:
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  // Strings travel to JSON and to Python, which take nothing else.
  void check_utf8() const {
    for (std::size_t i = 0; i < text_.size();) {
      const auto lead = static_cast<unsigned char>(text_[i]);
      const std::size_t n = lead < 0x80                   ? 1
                            : lead >= 0xC2 && lead < 0xE0 ? 2
                            : (lead >> 4U) == 14          ? 3
                            : lead < 0xF5                 ? 4
                                                          : 0;
      const auto second = static_cast<unsigned char>(i + 1 < text_.size() ? text_[i + 1] : 0);
      bool good = n != 0 && (lead < 0x80 || lead >= 0xC2);
      for (std::size_t k = 1; k < n; ++k) good = good && i + k < text_.size() && is_continuation(text_[i + k]);
      // Overlong forms, surrogates, and what lies past U+10FFFF.
      good = good && !(lead == 0xE0 && second < 0xA0) && !(lead == 0xED && second >= 0xA0) &&
             !(lead == 0xF0 && second < 0x90) && !(lead == 0xF4 && second >= 0x90);
      if (!good) source_.fail_at(i, Code::IR_PARSE, "a byte that is not UTF-8");
      i += n;
    }
  }

  void add(Tok kind, std::size_t start, std::size_t stop) {
    tokens_.push_back({kind, text_.substr(start, stop - start), start, start == last_end_ && start > 0});
    last_end_ = at_;
  }

  void newline() {
    if (!tokens_.empty() && tokens_.back().kind != Tok::Newline) add(Tok::Newline, at_, at_);
  }

  [[nodiscard]] bool at_line_start() const { return tokens_.empty() || tokens_.back().kind == Tok::Newline; }

  void step() {
    const char c = peek();
    const std::size_t start = at_;
    if (c == '\n') {
      newline();
      ++at_;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      ++at_;
    } else if (c == '/' && peek(1) == '/' && at_line_start()) {
      while (at_ < text_.size() && text_[at_] != '\n') ++at_;
    } else if (is_letter(c)) {
      word();
      add(Tok::Name, start, at_);
    } else if (c == '@') {
      ++at_;
      if (!is_letter(peek())) source_.fail_at(at_, Code::IR_PARSE, "expected a name after '@'");
      word();
      add(Tok::Coord, start + 1, at_);
    } else if (is_digit(c)) {
      number();
    } else if (c == '"') {
      string();
    } else {
      punct();
    }
  }

  void word() {
    while (is_word(peek())) ++at_;
    while (peek() == '.' && is_word(peek(1))) {
      ++at_;
      while (is_word(peek())) ++at_;
    }
  }

  void number() {
    const std::size_t start = at_;
    bool is_float = false;
    while (is_digit(peek())) ++at_;
    if (peek() == '.' && is_digit(peek(1))) {
      is_float = true;
      ++at_;
      while (is_digit(peek())) ++at_;
    }
    const std::size_t sign = peek(1) == '+' || peek(1) == '-' ? 2 : 1;
    if ((peek() == 'e' || peek() == 'E') && is_digit(peek(sign))) {
      is_float = true;
      at_ += sign;
      while (is_digit(peek())) ++at_;
    }
    if (is_word(peek())) source_.fail_at(at_, Code::IR_PARSE, "a letter right after a number");
    add(is_float ? Tok::Float : Tok::Int, start, at_);
  }

  void string() {
    const std::size_t start = at_++;
    for (;;) {
      const char c = peek();
      if (at_ >= text_.size() || c == '\n')
        source_.fail_at(start, Code::IR_PARSE, "a string without its closing quote on the same line");
      ++at_;
      if (c == '"') break;
      if (c == '\\') escape();
    }
    add(Tok::String, start, at_);
  }

  void escape() {
    const char c = peek();
    if (c == '"' || c == '\\' || c == 'n' || c == 't' || c == 'r') {
      ++at_;
    } else if (c == 'x' && is_hex(peek(1)) && is_hex(peek(2)) && hex_value(peek(1)) < 8) {
      at_ += 3;
    } else {
      source_.fail_at(at_ - 1, Code::IR_PARSE, "an unknown escape in a string", {},
                      R"(the escapes are \" \\ \n \t \r and \x00 to \x7f)");
    }
  }

  void punct() {
    const std::string_view rest = text_.substr(at_);
    for (const std::string_view p : kPuncts) {
      if (rest.substr(0, p.size()) != p) continue;
      const std::size_t start = at_;
      at_ += p.size();
      add(Tok::Punct, start, at_);
      return;
    }
    source_.fail_at(at_, Code::IR_PARSE, "a character that starts nothing here");
  }

  const Source& source_;
  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t last_end_ = 0;
  std::vector<Token> tokens_;
};

}  // namespace

std::string Token::str() const {
  if (kind == Tok::Newline) return "the end of the line";
  if (kind == Tok::End) return "the end of the text";
  if (kind == Tok::String) return std::string(text.size() > 60 ? text.substr(0, 60) : text);
  return (kind == Tok::Coord ? "'@" : "'") + std::string(text.size() > 60 ? text.substr(0, 60) : text) + "'";
}

namespace {

struct Position {
  std::size_t line = 1, column = 1;  // columns count characters, not bytes
  std::string excerpt, caret;
};

Position locate(std::string_view text, std::size_t offset) {
  offset = std::min(offset, text.size());
  Position p;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < offset; ++i) {
    if (text[i] != '\n') continue;
    ++p.line;
    begin = i + 1;
  }
  std::size_t end = text.find('\n', begin);
  if (end == std::string_view::npos) end = text.size();
  for (std::size_t i = begin; i < offset; ++i) p.column += is_continuation(text[i]) ? 0 : 1;

  // A window of a long line, cut between characters.
  std::size_t from = begin;
  std::size_t to = end;
  if (end - begin > kExcerpt) {
    from = offset - begin > kExcerpt / 2 ? offset - kExcerpt / 2 : begin;
    to = std::min(end, from + kExcerpt);
  }
  while (from > begin && is_continuation(text[from])) --from;
  while (to < end && is_continuation(text[to])) ++to;
  if (from > begin) p.excerpt = "... ";
  p.caret = std::string(p.excerpt.size(), ' ');
  for (std::size_t i = from; i < to; ++i) {
    const char c = text[i];
    p.excerpt += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
    if (i < offset && !is_continuation(c)) p.caret += ' ';
  }
  if (to < end) p.excerpt += " ...";
  p.caret += '^';
  return p;
}

}  // namespace

void Source::fail_at(std::size_t offset, Code code, const std::string& message, std::vector<std::string> details,
                     std::string fix) const {
  Position p = locate(text, offset);
  std::vector<std::string> shown;
  if (p.excerpt.find_first_not_of(' ') != std::string::npos) shown = {std::move(p.excerpt), std::move(p.caret)};
  throw PositionedError(Diagnostic{.code = code,
                                   .where = {},
                                   .message = std::to_string(p.line) + ":" + std::to_string(p.column) + ": " + message,
                                   .ir = std::move(shown),
                                   .details = std::move(details),
                                   .fix = std::move(fix)});
}

std::string Source::position(std::size_t offset) const {
  const Position p = locate(text, offset);
  return std::to_string(p.line) + ":" + std::to_string(p.column);
}

void Source::rethrow_at(std::size_t offset, const Error& e) const {
  const Diagnostic& d = e.diagnostics().front();
  fail_at(offset, d.code, d.message, d.details, d.fix);
}

std::vector<Token> lex(const Source& source) { return Lexer(source).run(); }

std::string unescape(std::string_view quoted) {
  std::string out;
  for (std::size_t i = 1; i + 1 < quoted.size(); ++i) {
    if (quoted[i] != '\\') {
      out += quoted[i];
      continue;
    }
    switch (const char c = quoted[++i]; c) {
      case 'n':
        out += '\n';
        break;
      case 't':
        out += '\t';
        break;
      case 'r':
        out += '\r';
        break;
      case 'x':
        out += static_cast<char>(hex_value(quoted[i + 1]) * 16 + hex_value(quoted[i + 2]));
        i += 2;
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string quote(std::string_view value) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += "\\x";
      out += kHex[static_cast<unsigned char>(c) >> 4U];
      out += kHex[static_cast<unsigned char>(c) & 15U];
    } else {
      out += c;
    }
  }
  return out + "\"";
}

bool is_plain_name(std::string_view value) {
  if (value.empty() || !is_letter(value.front())) return false;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (is_word(value[i])) continue;
    if (value[i] != '.' || i + 1 >= value.size() || !is_word(value[i + 1])) return false;
  }
  return true;
}

}  // namespace graphene::ir
