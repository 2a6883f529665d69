#include "sim/means.h"

#include <cctype>
#include <charconv>

namespace graphene::sim {

namespace {

std::string trimmed(const std::string& s) {
  std::size_t a = 0;
  std::size_t b = s.size();
  while (a < b && std::isspace(static_cast<unsigned char>(s[a])) != 0) ++a;
  while (b > a && std::isspace(static_cast<unsigned char>(s[b - 1])) != 0) --b;
  return s.substr(a, b - a);
}

ir::AttrValue value_of(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  std::int64_t i = 0;
  const char* end = text.data() + text.size();
  if (const auto r = std::from_chars(text.data(), end, i); r.ec == std::errc() && r.ptr == end) return i;
  double d = 0;
  if (const auto r = std::from_chars(text.data(), end, d); r.ec == std::errc() && r.ptr == end) return d;
  const bool quoted = text.size() >= 2 && text.front() == '"' && text.back() == '"';
  return quoted ? text.substr(1, text.size() - 2) : text;
}

}  // namespace

Meaning parse_means(const std::string& text, const SourceLoc& where) {
  Meaning m;
  const std::size_t open = text.find('(');
  const std::string name = trimmed(text.substr(0, open));
  const auto kind = ir::spec_kind_from_name(name);
  if (!kind || *kind == ir::SpecKind::Spec) {
    m.reference = trimmed(text);
    return m;
  }
  m.kind = *kind;
  if (open == std::string::npos) return m;
  const std::string rest = trimmed(text.substr(open));
  const auto malformed = [&] {
    fail(Code::CHECK_MEANS, "a meaning that cannot be read",
         {"want: a kind and its attributes: Reduction(op=add, axis=1)", "got: " + text}, {}, where);
  };
  if (rest.size() < 2 || rest.back() != ')') malformed();
  std::string inner = rest.substr(1, rest.size() - 2);
  while (!trimmed(inner).empty()) {
    const std::size_t comma = inner.find(',');
    const std::string item = inner.substr(0, comma);
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos) malformed();
    m.attrs[trimmed(item.substr(0, equals))] = value_of(trimmed(item.substr(equals + 1)));
    inner = comma == std::string::npos ? "" : inner.substr(comma + 1);
  }
  return m;
}

}  // namespace graphene::sim
