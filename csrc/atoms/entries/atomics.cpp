// Reductions into memory that other threads update too: a Move that combines instead of overwriting.
#include "atoms/entries/operands.h"

namespace graphene::atoms::subjects {

namespace {

constexpr const char* kSource = "PTX ISA, parallel synchronization: red";

// S: state space; M: memory; n: type suffix of the name; T: scalar type; t: qualifiers after the operation.
const Param kSpaces = {{"S", "M"}, {{"global", "GL"}, {"shared", "SH"}}};
const AttrDef kScopes = {"atomic", {"relaxed.gpu", "relaxed.cta", "relaxed.sys"}};

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
  std::vector<std::vector<std::string>> words, longs;
  for (const std::string sign : {"i", "u"}) {
    for (const std::string op : {"add", "min", "max", "and", "or", "xor"}) {
      const bool bits = op == "and" || op == "or" || op == "xor";
      const std::string p = bits ? "b" : sign == "i" ? "s" : "u";
      const std::string n = sign == "i" ? "s" : "u";
      words.push_back({op, n + "32", "." + p + "32", sign + "32", "4", "sm_70+"});
      longs.push_back({op, n + "64", op == "add" ? ".u64" : "." + p + "64", sign + "64", "8", "sm_70+"});
    }
  }
  add(words, "r");
  add(longs, "l");
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

}  // namespace

void atomics(std::vector<Atom>& list) {
  add_scalars(list);
  add_vectors(list);
}

}  // namespace graphene::atoms::subjects
