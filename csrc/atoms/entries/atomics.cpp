// Reductions into memory that other threads update too: a Move that combines instead of overwriting.
#include "atoms/entries/operands.h"

namespace graphene::atoms::subjects {

namespace {

constexpr const char* kSource = "PTX ISA, parallel synchronization: red";
constexpr const char* kAtomSource = "PTX ISA, parallel synchronization: atom";

// S: state space; M: memory; n: type suffix of the name; T: scalar type; t: qualifiers after the operation.
const Param kSpaces = {{"S", "M"}, {{"global", "GL"}, {"shared", "SH"}}};
const AttrDef kScopes = {"atomic", {"relaxed.gpu", "relaxed.cta", "relaxed.sys"}};

struct Integers {
  std::vector<std::vector<std::string>> words, longs;  // op, n, t, T, B, arch
};
Integers integer_rows() {
  Integers rows;
  for (const std::string sign : {"i", "u"}) {
    for (const std::string op : {"add", "min", "max", "and", "or", "xor"}) {
      const bool bits = op == "and" || op == "or" || op == "xor";
      const std::string p = bits ? "b" : sign == "i" ? "s" : "u";
      const std::string n = sign == "i" ? "s" : "u";
      rows.words.push_back({op, n + "32", "." + p + "32", sign + "32", "4", "sm_70+"});
      rows.longs.push_back({op, n + "64", op == "add" ? ".u64" : "." + p + "64", sign + "64", "8", "sm_70+"});
    }
  }
  return rows;
}

void add_scalars(std::vector<Atom>& list) {
  const auto add = [&](const std::vector<std::vector<std::string>>& rows, const char* reg) {
    list.push_back({.name = "red.${S}.${op}.${n}",
                    .arch = "${arch}",
                    .out = {aligned(update("dst", "[].${T}.${M}"), "${B}")},
                    .in = {packed(in("src", "[].${T}.RF"), reg)},
                    .attrs = {{"combine", {"${op}"}}, kScopes},
                    .guard = Guard::Branch,
                    .ptx = "red.$atomic.${S}.${op}${t} [$dst], $src;",
                    .family = {kSpaces, {{"op", "n", "t", "T", "B", "arch"}, rows}},
                    .doc = "Combines a number with one in memory (${S}): ${op} (${T}), in one step for all threads.",
                    .source = kSource});
  };
  add({{"add", "f32", ".f32", "fp32", "4", "sm_70+"}}, "f");
  add({{"add", "f64", ".f64", "fp64", "8", "sm_70+"}}, "d");
  add({{"add", "f16", ".noftz.f16", "fp16", "2", "sm_70+"}, {"add", "bf16", ".noftz.bf16", "bf16", "2", "sm_90+"}},
      "h");
  const Integers integers = integer_rows();
  add(integers.words, "r");
  add(integers.longs, "l");
}

// Pairs in one register, and vectors of sm_90.
void add_vectors(std::vector<Atom>& list) {
  const auto add = [&](const Param& spaces, const std::vector<std::vector<std::string>>& rows) {
    list.push_back({.name = "red.${S}.${op}.${n}",
                    .arch = "${arch}",
                    .out = {aligned(update("dst", "[${N}:1].${T}.${M}", "e${N}"), "${B}")},
                    .in = {packed(in("src", "[${N}].${T}.RF", "e${N}"), "${reg}")},
                    .attrs = {{"combine", {"${op}"}}, kScopes},
                    .guard = Guard::Branch,
                    .ptx = "red.$atomic.${S}.${op}${t} [$dst], ${O}$src${C};",
                    .family = {spaces, {{"op", "n", "t", "T", "N", "B", "reg", "O", "C", "arch"}, rows}},
                    .doc = "Combines ${N} neighbours with those in memory (${S}), each by itself: ${op} (${T}), in one "
                           "step each for all threads.",
                    .source = kSource});
  };
  add(kSpaces, {{"add", "f16x2", ".noftz.f16x2", "fp16", "2", "4", "r/2", "", "", "sm_70+"},
                {"add", "bf16x2", ".noftz.bf16x2", "bf16", "2", "4", "r/2", "", "", "sm_90+"}});
  std::vector<std::vector<std::string>> rows = {
      {"add", "v2.f32", ".v2.f32", "fp32", "2", "8", "f", "{", "}", "sm_90+"},
      {"add", "v4.f32", ".v4.f32", "fp32", "4", "16", "f", "{", "}", "sm_90+"}};
  for (const std::string op : {"add", "min", "max"}) {
    for (const auto& [T, p] : {std::pair{"fp16", "f16x2"}, std::pair{"bf16", "bf16x2"}}) {
      for (const int words : {2, 4}) {
        const std::string v = ".v" + std::to_string(words) + "." + p;
        rows.push_back({op, v.substr(1), ".noftz" + v, T, std::to_string(2 * words), std::to_string(4 * words), "r/2",
                        "{", "}", "sm_90+"});
      }
    }
  }
  add({{"S", "M"}, {{"global", "GL"}}}, rows);
}

// The same, and what was there before: a second output. Exchanges and compare-and-swaps are of this kind alone.
void add_fetching(std::vector<Atom>& list) {
  const auto add = [&](const std::vector<std::vector<std::string>>& rows, const char* reg) {
    list.push_back({.name = "atom.${S}.${op}.${n}",
                    .arch = "${arch}",
                    .out = {aligned(update("dst", "[].${T}.${M}"), "${B}"), packed(out("old", "[].${T}.RF"), reg)},
                    .in = {packed(in("src", "[].${T}.RF"), reg)},
                    .attrs = {{"combine", {"${op}"}}, kScopes},
                    .guard = Guard::Branch,
                    .ptx = "atom.$atomic.${S}.${op}${t} $old, [$dst], $src;",
                    .family = {kSpaces, {{"op", "n", "t", "T", "B", "arch"}, rows}},
                    .doc =
                        "Combines a number with one in memory (${S}): ${op} (${T}), in one step for all threads, and "
                        "gives what was there.",
                    .source = kAtomSource});
  };
  add({{"add", "f32", ".f32", "fp32", "4", "sm_70+"}}, "f");
  add({{"add", "f64", ".f64", "fp64", "8", "sm_70+"}}, "d");
  add({{"add", "f16", ".noftz.f16", "fp16", "2", "sm_70+"}, {"add", "bf16", ".noftz.bf16", "bf16", "2", "sm_90+"}},
      "h");
  const Integers integers = integer_rows();
  add(integers.words, "r");
  add(integers.longs, "l");
  const auto bits = [&](const char* width, const char* bytes, const char* reg, const std::vector<std::string>& types) {
    std::vector<std::vector<std::string>> rows;
    for (const std::string& t : types) rows.push_back({t});
    const Param of = {{"T"}, rows};
    const std::string W = width;
    list.push_back({.name = "atom.${S}.exch.b" + W + "/${T}",
                    .arch = "sm_70+",
                    .out = {aligned(update("dst", "[].${T}.${M}"), bytes), packed(out("old", "[].${T}.RF"), reg)},
                    .in = {packed(in("src", "[].${T}.RF"), reg)},
                    .attrs = {{"combine", {"exchange"}}, kScopes},
                    .guard = Guard::Branch,
                    .ptx = "atom.$atomic.${S}.exch.b" + W + " $old, [$dst], $src;",
                    .family = {kSpaces, of},
                    .doc = "Writes a number to memory (${S}) in one step for all threads, and gives what was there "
                           "(${T}).",
                    .source = kAtomSource});
    list.push_back({.name = "atom.${S}.cas.b" + W + "/${T}",
                    .arch = "sm_70+",
                    .out = {aligned(update("dst", "[].${T}.${M}"), bytes), packed(out("old", "[].${T}.RF"), reg)},
                    .in = {packed(in("src", "[].${T}.RF"), reg), packed(in("expected", "[].${T}.RF"), reg)},
                    .attrs = {{"combine", {"cas"}}, kScopes},
                    .guard = Guard::Branch,
                    .ptx = "atom.$atomic.${S}.cas.b" + W + " $old, [$dst], $expected, $src;",
                    .family = {kSpaces, of},
                    .doc = "Writes a number to memory (${S}) where the expected bits are there, in one step for all "
                           "threads, and gives what was there (${T}).",
                    .source = kAtomSource});
  };
  bits("32", "4", "r", {"i32", "u32"});
  bits("32", "4", "f", {"fp32"});
  bits("64", "8", "l", {"i64", "u64"});
  bits("64", "8", "d", {"fp64"});
}

// No instruction has the extremes of floats: a loop of compare-and-swaps, which ends at once where nothing changes.
void add_extremes(std::vector<Atom>& list) {
  const auto helper = [](const std::string& op, const std::string& T, const std::string& f, const std::string& word,
                         const std::string& to_bits, const std::string& of_bits) {
    return "static __device__ __forceinline__ " + T + " gr_atomic_" + op + "(" + T + "* place, " + T +
           " x) {\n"
           "  " +
           word + " seen = *(volatile " + word +
           "*)place;\n"
           "  for (;;) {\n"
           "    const " +
           word + " next = " + to_bits + "(" + f + "(" + of_bits +
           "(seen), x));\n"
           "    const " +
           word + " old = next == seen ? seen : atomicCAS((" + word +
           "*)place, seen, next);\n"
           "    if (old == seen) return " +
           of_bits +
           "(old);\n"
           "    seen = old;\n"
           "  }\n"
           "}\n";
  };
  std::vector<std::vector<std::string>> rows;
  for (const std::string op : {"max", "min"}) {
    rows.push_back(
        {op, "f32", "fp32", "4", helper(op, "float", "f" + op + "f", "u32", "__float_as_uint", "__uint_as_float")});
    rows.push_back({op, "f64", "fp64", "8",
                    helper(op, "double", "f" + op, "u64", "__double_as_longlong", "__longlong_as_double")});
  }
  for (const bool fetches : {false, true}) {
    std::vector<OperandDef> outs = {lvalue(aligned(update("dst", "[].${T}.${M}"), "${B}"))};
    if (fetches) outs.push_back(lvalue(out("old", "[].${T}.RF")));
    list.push_back({.name = std::string(fetches ? "atom" : "red") + ".${S}.${op}.${n}",
                    .arch = "sm_70+",
                    .out = outs,
                    .in = {lvalue(in("src", "[].${T}.RF"))},
                    .attrs = {{"combine", {"${op}"}}, {"atomic", {"relaxed.gpu", "relaxed.cta"}}},
                    .guard = Guard::Branch,
                    .cxx = std::string(fetches ? "$old = " : "") + "gr_atomic_${op}(&$dst, $src);",
                    .helper = "${h}",
                    .family = {kSpaces, {{"op", "n", "T", "B", "h"}, rows}},
                    .doc = "Combines a number with one in memory (${S}): ${op} (${T}), in one step for all threads, by "
                           "compare-and-swap; a NaN loses to a number.",
                    .source = "CUDA C++ programming guide, atomic functions: atomicCAS"});
  }
}

}  // namespace

void atomics(std::vector<Atom>& list) {
  add_scalars(list);
  add_vectors(list);
  add_fetching(list);
  add_extremes(list);
}

}  // namespace graphene::atoms::subjects
