#include <cctype>

#include "atoms/parse.h"

namespace graphene::atoms {

namespace {

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

std::size_t name_end(std::string_view s, std::size_t from) {
  while (from < s.size() && in_word(s[from])) ++from;
  return from;
}

}  // namespace

// Every "$name" becomes an Operand piece here; the registration turns those that name attributes into Attr pieces.
Text parse_text(std::string_view s, bool is_ptx, const std::string& what) {
  Text out;
  out.is_ptx = is_ptx;
  std::string literal;
  const auto flush = [&] {
    if (!literal.empty()) out.pieces.push_back({Piece::Kind::Text, literal, -1, false});
    literal.clear();
  };
  const auto bad = [&](std::size_t at, const std::string& why) {
    fail(Code::ATOM_SYNTAX, what + ": " + why + " at character " + std::to_string(at) + " of the text");
  };
  int open_conditions = 0;
  for (std::size_t i = 0; i < s.size();) {
    const bool braced = s[i] == '{' && i + 1 < s.size() && s[i + 1] == '$' && name_end(s, i + 2) < s.size() &&
                        s[name_end(s, i + 2)] == '}';
    if (s[i] == '$' && i + 1 < s.size() && s[i + 1] == '}') {
      literal += s[i + 1];
      i += 2;
    } else if (s[i] == '$' || braced) {
      const std::size_t start = i;
      i += braced ? 2 : 1;
      const std::size_t end = name_end(s, i);
      if (end == i) bad(start, "`$` without a name");
      Piece p{Piece::Kind::Operand, std::string(s.substr(i, end - i)), -1, braced};
      i = end;
      if (i < s.size() && s[i] == '[') {
        std::size_t digits = i + 1;
        int element = 0;
        while (digits < s.size() && s[digits] >= '0' && s[digits] <= '9' && element < 100000) {
          element = element * 10 + (s[digits++] - '0');
        }
        if (digits == i + 1 || digits >= s.size() || s[digits] != ']') bad(i, "expected a register number in `[ ]`");
        p.element = element;
        i = digits + 1;
      } else if (!is_ptx && s.substr(i).starts_with("...")) {
        p.element = Piece::kEach;
        i += 3;
      }
      if (braced) ++i;
      struct Property {
        std::string_view name;
        Piece::Kind kind;
      };
      static constexpr Property kProperties[] = {
          {".bytes", Piece::Kind::Bytes}, {".rank", Piece::Kind::Rank}, {".major", Piece::Kind::Major}};
      for (const auto& [name, kind] : kProperties) {
        if (braced || p.element >= 0 || !s.substr(i).starts_with(name)) continue;
        if (name_end(s, i + name.size()) != i + name.size()) continue;
        p.kind = kind;
        i += name.size();
        break;
      }
      flush();
      out.pieces.push_back(std::move(p));
    } else if (s[i] == '{' && i + 1 < s.size() && s[i + 1] == '?') {
      const std::size_t colon = s.find(':', i);
      if (colon == std::string_view::npos) bad(i, "`{?` without `:`");
      flush();
      out.pieces.push_back({Piece::Kind::IfBegin, std::string(s.substr(i + 2, colon - i - 2)), -1, false});
      if (++open_conditions > 1) bad(i, "`{?` inside `{?`");
      i = colon + 1;
    } else if (s[i] == '}' && open_conditions > 0) {
      flush();
      out.pieces.push_back({Piece::Kind::IfEnd, "", -1, false});
      --open_conditions;
      ++i;
    } else {
      literal += s[i++];
    }
  }
  if (open_conditions > 0) bad(s.size(), "`{?` without `}`");
  flush();
  return out;
}

}  // namespace graphene::atoms
