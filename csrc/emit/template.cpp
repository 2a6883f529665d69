#include "emit/template.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/diag.h"

namespace graphene::emit {

namespace {

constexpr auto kFields = std::to_array<std::string_view>({"bytes", "map", "coords", "major"});

bool word_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::vector<Piece> pieces(bool nested) {
    std::vector<Piece> out;
    int braces = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '$' && at_ + 1 < text_.size() && word_char(text_[at_ + 1])) {
        out.push_back(hole());
      } else if (c == '{' && text_.substr(at_).starts_with("{?")) {
        out.push_back(optional());
      } else if (c == '}' && nested && braces == 0) {
        return out;
      } else {
        braces += c == '{' ? 1 : c == '}' ? -1 : 0;
        if (out.empty() || out.back().kind != Piece::Kind::Text) out.push_back({});
        out.back().text += c;
        ++at_;
      }
    }
    GR_ASSERT(!nested, "unclosed optional part in the text of an atom: " + std::string(text_));
    return out;
  }

 private:
  std::string word() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && word_char(text_[at_])) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  Piece hole() {
    ++at_;
    Piece out{.kind = Piece::Kind::Hole, .text = word()};
    const std::string_view rest = text_.substr(at_);
    for (const std::string_view f : kFields) {
      const bool ends = rest.size() <= f.size() + 1 || !word_char(rest[f.size() + 1]);
      if (rest.starts_with('.') && rest.substr(1).starts_with(f) && ends) {
        out.field = f;
        at_ += f.size() + 1;
        return out;
      }
    }
    if (rest.starts_with('[') && rest.size() > 1 && std::isdigit(static_cast<unsigned char>(rest[1])) != 0) {
      ++at_;
      out.index = std::stoi(word());
      GR_ASSERT(at_ < text_.size() && text_[at_] == ']', "bad index in the text of an atom: " + std::string(text_));
      ++at_;
    }
    return out;
  }

  Piece optional() {
    at_ += 2;
    Piece out{.kind = Piece::Kind::Optional, .text = word()};
    GR_ASSERT(at_ < text_.size() && text_[at_] == ':',
              "bad optional part in the text of an atom: " + std::string(text_));
    ++at_;
    out.body = pieces(true);
    ++at_;
    return out;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<Piece> parse_template(std::string_view text) { return Parser(text).pieces(false); }

}  // namespace graphene::emit
