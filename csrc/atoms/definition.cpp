// The fields of an entry, each by itself: before anything is parsed or compared with other entries.
#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <string_view>

#include "atoms/arch.h"
#include "atoms/parse.h"

namespace graphene::atoms {

namespace {

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool word_char(char c) { return is_letter(c) || is_digit(c) || c == '_'; }

bool is_word(std::string_view s) {
  return !s.empty() && !is_digit(s.front()) && std::all_of(s.begin(), s.end(), word_char);
}

// How a character that cannot stay is shown: in quotes, or by its number.
std::string shown(char c) {
  if (c == '\n') return "a newline";
  const auto code = static_cast<unsigned char>(c);
  if (code < 32 || code > 126) return "the byte " + std::to_string(code);
  return std::string("`") + c + "`";
}

// "movmatrix.trans", "ld.global.v4.b32/b16": words with dots between them, and one '/' at most.
void check_name(const std::string& name) {
  if (name.empty()) fail(Code::ATOM_DEFINITION, "an atomic spec without a name", {}, "name it after its PTX");
  if (name.find("${") != std::string::npos) fail(Code::ATOM_DEFINITION, name + ": an unfilled hole in the name");
  constexpr std::size_t kLongest = 200;
  const char* fix =
      "letters, digits, `_` and `.`, then what the operands determine after one `/`: \"ld.global.b32/b16\"";
  const auto bad = [&](const std::string& why) {
    std::string text = name.substr(0, kLongest);
    std::ranges::replace_if(
        text, [](char c) { return static_cast<unsigned char>(c) < 32; }, '?');
    fail(Code::ATOM_DEFINITION, "an atomic spec cannot be called \"" + text + "\": " + why, {}, fix);
  };
  if (name.size() > kLongest) bad("longer than " + std::to_string(kLongest) + " characters");
  if (!is_letter(name.front())) bad("its first character is not a letter");
  int slashes = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool scope = name.compare(i, 2, "::") == 0;  // of a memory, as PTX says it: ld.shared::cluster
    if (scope) ++i;
    const bool separator = scope || name[i] == '.' || name[i] == '/';
    if (!separator && !word_char(name[i])) bad("it has " + shown(name[i]));
    if (separator && (i + 1 == name.size() || !word_char(name[i + 1]))) bad("nothing follows " + shown(name[i]));
    if (name[i] == '/' && ++slashes > 1) bad("it has more than one `/`");
  }
}

void check_done(const Atom& a) {
  if (a.done == "now") return;
  for (const std::string_view domain : {"group:", "mbarrier:"}) {
    if (!a.done.starts_with(domain) || !is_word(std::string_view(a.done).substr(domain.size()))) continue;
    const std::string name = a.done.substr(domain.size());
    const bool named = std::ranges::any_of(a.aux, [&](const OperandDef& o) { return o.name == name; });
    if (domain == "group:" || named) return;
    fail(Code::ATOM_DEFINITION, a.name + ": done is \"" + a.done + "\", which is not an auxiliary operand", {},
         "list the mbarrier among aux: \"[].mbar.SH\"");
  }
  fail(Code::ATOM_DEFINITION, a.name + ": done is \"" + a.done + "\"",
       {R"(want: "now", or a completion domain such as "group:cp_async")"},
       R"(leave it out for an instruction that is complete when it has executed)");
}

void check_converge(const Atom& a, int threads) {
  const int n = a.converge;
  const bool warps = n >= 1 && n <= 1024 && (32 % n == 0 || n % 32 == 0);
  if (warps && n % threads == 0) return;
  const std::string of = threads == 1 ? "one thread" : std::to_string(threads) + " threads";
  fail(Code::ATOM_DEFINITION, a.name + ": converge is " + std::to_string(n) + " for a collective of " + of,
       {"want: a multiple of " + std::to_string(threads) + "; a power of two up to 32, or whole warps"},
       "threads that execute one instruction arrive together: " + std::to_string(threads) + " at least");
}

// Inline assembly is a C++ string: what would end it, or start an escape, is refused here and not by the compiler.
void check_ptx(const Atom& a) {
  for (std::size_t i = 0; i < a.ptx.size(); ++i) {
    const char c = a.ptx[i];
    if (c != '"' && c != '\\' && static_cast<unsigned char>(c) >= 32 && static_cast<unsigned char>(c) < 127) continue;
    fail(Code::ATOM_TEXT, a.name + ": " + shown(c) + " at character " + std::to_string(i) + " of the PTX text", {},
         c == '\n' ? "write it in one line: a space does where PTX has a new line" : "PTX instructions have none");
  }
  const std::size_t last = a.ptx.find_last_not_of(' ');
  if (last != std::string::npos && a.ptx[last] != ';' && a.ptx[last] != '}') {
    fail(Code::ATOM_TEXT, a.name + ": the PTX text does not end with `;`", {}, "end every instruction with `;`");
  }
}

void check_accepts(const Atom& a, const AttrDef& d, const std::string& type) {
  for (const std::string& s : d.accepts) {
    const bool number = s == "*const" || s == "*expr" || s == "*byte";
    bool fits =
        number || (!s.empty() && std::all_of(s.begin(), s.end(), [](char c) { return word_char(c) || c == '.'; }));
    if (type == "number" || type == "int" || type == "expr") {
      const std::size_t sign = !s.empty() && s[0] == '-' ? 1 : 0;
      fits = number || (s.size() > sign && is_digit(s[sign]) &&
                        std::all_of(s.begin() + static_cast<std::ptrdiff_t>(sign), s.end(),
                                    [](char c) { return is_digit(c) || c == '.'; }));
    } else if (type == "bool") {
      fits = s == "true" || s == "false" || s == "*expr";
    } else if (number) {
      fits = false;
    }
    if (fits) continue;
    const std::string want = type == "bool"   ? R"("true" or "false")"
                             : type == "enum" ? "a word"
                                              : R"(a number as text, or "*const", "*byte" or "*expr" for any)";
    fail(Code::ATOM_DEFINITION, a.name + ": attribute `" + d.name + "` accepts \"" + s + "\"", {"want: " + want});
  }
}

void check_attrs(const Atom& a) {
  if (a.kind == Kind::Sync) return;
  const auto& known = kind_attrs(spec_kind(a.kind));
  for (const AttrDef& d : a.attrs) {
    const auto it = std::find_if(known.begin(), known.end(), [&](const KindAttr& k) { return k.name == d.name; });
    if (it == known.end()) {
      std::string names;
      for (const KindAttr& k : known) names += (names.empty() ? "known: " : ", ") + k.name;
      fail(Code::ATOM_DEFINITION, a.name + ": " + name(a.kind) + " has no attribute `" + d.name + "`",
           known.empty() ? std::vector<std::string>{} : std::vector{names});
    }
    if (d.accepts.empty()) fail(Code::ATOM_DEFINITION, a.name + ": attribute `" + d.name + "` accepts nothing");
    check_accepts(a, d, it->type);
  }
  for (const KindAttr& k : known) {
    const bool listed = std::any_of(a.attrs.begin(), a.attrs.end(), [&](const AttrDef& d) { return d.name == k.name; });
    if (k.required && !listed) {
      fail(Code::ATOM_DEFINITION, a.name + ": " + name(a.kind) + " needs the attribute `" + k.name + "`");
    }
  }
  const auto op =
      std::find_if(a.attrs.begin(), a.attrs.end(), [](const AttrDef& d) { return d.name == "op" || d.name == "mode"; });
  if (op == a.attrs.end()) return;
  for (const std::string& accepted : op->accepts) {
    const auto& vocabulary = ops(spec_kind(a.kind));
    if (std::none_of(vocabulary.begin(), vocabulary.end(), [&](const OpInfo& o) { return o.name == accepted; })) {
      fail(Code::ATOM_DEFINITION, a.name + ": " + name(a.kind) + " has no operation `" + accepted + "`");
    }
  }
}

void check_operands(const Atom& a) {
  std::set<std::string> names;
  for (const auto* list : {&a.out, &a.in, &a.aux}) {
    for (const OperandDef& o : *list) {
      if (o.name.empty()) fail(Code::ATOM_DEFINITION, a.name + ": an operand without a name");
      if (!is_word(o.name)) {
        fail(Code::ATOM_DEFINITION, a.name + ": an operand cannot be called \"" + o.name + "\"", {},
             "letters, digits and `_`: the text names it, as in $src");
      }
      if (!names.insert(o.name).second) {
        fail(Code::ATOM_DEFINITION, a.name + ": two operands are called `" + o.name + "`", {}, "name them apart");
      }
      const std::string domain = a.done.substr(a.done.find(':') + 1);
      if (!o.until.empty() && o.until != "now" && o.until != a.done && !o.until.starts_with(domain + ".")) {
        fail(Code::ATOM_DEFINITION, a.name + ": operand `" + o.name + "`: until is \"" + o.until + "\"",
             {"want: \"now\", or what `done` is: \"" + a.done + "\""});
      }
    }
  }
}

void check_numerics(const Atom& a) {
  static constexpr std::array<std::string_view, 4> kRounds = {"rn", "rz", "exact", "chain"};
  for (const Numerics& n : a.numerics) {
    const std::string what = a.name + ": numerics";
    if (!n.arch.empty()) static_cast<void>(parse_arch(n.arch, what));  // none named: on all of them
    const bool cut = n.round.size() == 4 && n.round.starts_with("rz") && n.round >= "rz10" && n.round <= "rz24";
    if (!cut && std::ranges::find(kRounds, n.round) == kRounds.end()) {
      fail(Code::ATOM_DEFINITION, what + ": round is \"" + n.round + "\"",
           {"want: rn, rz, exact or chain, or rz14 for 14 bits"});
    }
    if (n.group < 0 || n.guard_bits < -23 || !(n.ulps >= 0)) {
      fail(Code::ATOM_DEFINITION, what + ": a negative number",
           {"want: group 0 or more, guard_bits -1 (exact), or -23 or more, ulps 0 or more"});
    }
  }
}

}  // namespace

int parse_arch(const std::string& text, const std::string& what) {
  const bool onward = text.ends_with('+');
  const std::string one = onward ? text.substr(0, text.size() - 1) : text;
  // What runs on an architecture and on all later ones is named without the suffix of an exact one.
  const bool plain = !one.empty() && is_digit(one.back());
  if (find_arch(one) != nullptr && (!onward || (plain && one.starts_with("sm_")))) {
    return onward ? std::stoi(one.substr(3)) : 0;
  }
  fail(Code::ATOM_DEFINITION, what + ": architecture \"" + text + "\"",
       {R"(want: "sm_80+" for all from sm_80 on, or one exactly: "sm_90a", "gfx90a")"});
}

void check_definition(const Atom& a) {
  check_name(a.name);
  if (a.doc.empty())
    fail(Code::ATOM_DEFINITION, a.name + ": no doc", {}, "say in a sentence what the instruction does");
  if (a.source.empty()) {
    fail(Code::ATOM_DEFINITION, a.name + ": no source", {}, "name the manual section that defines the instruction");
  }
  if (a.ptx.empty() == a.cxx.empty()) {
    fail(Code::ATOM_DEFINITION, a.name + ": exactly one of ptx and cxx must be given");
  }
  check_done(a);
  check_ptx(a);
  check_attrs(a);
  check_operands(a);
  check_numerics(a);
}

void check_collective(const Instance& i) {
  const FlatLayout f = flatten(i.threads);
  if (i.thread_count < 1) fail(Code::ATOM_DEFINITION, i.atom.name + ": a collective of no threads");
  if (i.thread_count > 1024) fail(Code::ATOM_DEFINITION, i.atom.name + ": more than 1024 threads");
  std::set<std::int64_t> seen;
  for (std::int64_t t = 0; t < i.thread_count; ++t) {
    if (!seen.insert(f(t)).second) {
      fail(Code::ATOM_DEFINITION,
           i.atom.name + ": threads \"" + i.atom.threads + "\" name thread " + std::to_string(f(t)) + " twice");
    }
  }
  check_converge(i.atom, i.thread_count);
}

}  // namespace graphene::atoms
