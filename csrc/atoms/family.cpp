// Families: every string of an Atom is a template over the parameters.
#include <cctype>
#include <functional>
#include <map>

#include "atoms/parse.h"

namespace graphene::atoms {

namespace {

using Values = std::map<std::string, std::string, std::less<>>;

// "N/8", "(32-W)*256+31": integers, parameters, + - * / % and parentheses; exact division only.
class IntExpression {
 public:
  IntExpression(std::string_view text, const Values& values, const std::string& what)
      : text_(text), values_(values), what_(what) {}

  std::int64_t run() {
    const std::int64_t v = sum();
    if (pos_ != text_.size()) bad("unexpected `" + std::string(text_.substr(pos_)) + "`");
    return v;
  }

 private:
  [[noreturn]] void bad(const std::string& why) {
    fail(Code::ATOM_SYNTAX, what_ + ": ${" + std::string(text_) + "}: " + why);
  }
  char peek() {
    while (pos_ < text_.size() && text_[pos_] == ' ') ++pos_;
    return pos_ < text_.size() ? text_[pos_] : '\0';
  }
  std::int64_t sum() {
    std::int64_t v = product();
    while (peek() == '+' || peek() == '-') v = text_[pos_++] == '+' ? v + product() : v - product();
    return v;
  }
  std::int64_t product() {
    std::int64_t v = leaf();
    for (;;) {
      const char c = peek();
      if (c != '*' && c != '/' && c != '%') return v;
      ++pos_;
      const std::int64_t w = leaf();
      if (c == '*') {
        v *= w;
      } else if (w == 0) {
        bad("division by zero");
      } else if (c == '%') {
        v %= w;
      } else if (v % w != 0) {
        bad("not an integer");
      } else {
        v /= w;
      }
    }
  }
  std::int64_t leaf() {
    const char c = peek();
    if (c == '(') {
      ++pos_;
      const std::int64_t v = sum();
      if (peek() != ')') bad("missing `)`");
      ++pos_;
      return v;
    }
    const std::size_t start = pos_;
    while (pos_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[pos_])) || text_[pos_] == '_')) ++pos_;
    std::string_view word = text_.substr(start, pos_ - start);
    if (word.empty()) bad("expected a number or a parameter");
    if (const auto it = values_.find(word); it != values_.end()) word = it->second;
    std::int64_t v = 0;
    for (const char d : word) {
      if (d < '0' || d > '9' || v > 1'000'000'000) bad("`" + std::string(word) + "` is not a small integer");
      v = v * 10 + (d - '0');
    }
    return v;
  }

  std::string_view text_;
  const Values& values_;
  const std::string& what_;
  std::size_t pos_ = 0;
};

void substitute(std::string& s, const Values& values, const std::string& what) {
  std::size_t at = s.find("${");
  if (at == std::string::npos) return;
  std::string out;
  std::size_t done = 0;
  for (; at != std::string::npos; at = s.find("${", done)) {
    const std::size_t end = s.find('}', at);
    if (end == std::string::npos) fail(Code::ATOM_SYNTAX, what + ": `${` without `}` in \"" + s + "\"");
    out.append(s, done, at - done);
    const std::string_view hole = std::string_view(s).substr(at + 2, end - at - 2);
    if (const auto it = values.find(hole); it != values.end()) {
      out += it->second;
    } else {
      out += std::to_string(IntExpression(hole, values, what).run());
    }
    done = end + 1;
  }
  out.append(s, done);
  s = std::move(out);
}

void substitute(Atom& a, const Values& values) {
  const std::string what = a.name;
  const auto sub = [&](std::string& s) { substitute(s, values, what); };
  for (std::string* s : {&a.name, &a.arch, &a.threads, &a.ptx, &a.cxx, &a.helper, &a.done, &a.doc, &a.source}) sub(*s);
  for (auto* list : {&a.out, &a.in, &a.aux}) {
    for (OperandDef& o : *list) {
      for (std::string* s : {&o.name, &o.pattern, &o.tile, &o.tv, &o.reg, &o.forms, &o.until}) sub(*s);
      for (std::string& s : o.require) sub(s);
    }
  }
  for (AttrDef& d : a.attrs) {
    sub(d.name);
    for (std::string& s : d.accepts) sub(s);
  }
  for (std::string& s : a.require) sub(s);
}

}  // namespace

std::vector<Atom> expand_family(const Atom& family) {
  std::vector<Atom> out;
  Atom bare = family;
  bare.family.clear();
  Values values;
  const std::function<void(std::size_t)> expand = [&](std::size_t depth) {
    if (depth == family.family.size()) {
      out.push_back(bare);
      substitute(out.back(), values);
      return;
    }
    const Param& p = family.family[depth];
    for (const auto& row : p.rows) {
      if (row.size() != p.names.size()) {
        fail(Code::ATOM_DEFINITION, family.name + ": a family row has " + std::to_string(row.size()) + " values for " +
                                        std::to_string(p.names.size()) + " parameters");
      }
      for (std::size_t i = 0; i < row.size(); ++i) values[p.names[i]] = row[i];
      expand(depth + 1);
    }
  };
  expand(0);
  return out;
}

}  // namespace graphene::atoms
