// Exchange between the lanes of a warp, and reductions over them.
#include "atoms/entries/operands.h"

namespace graphene::atoms::subjects {

namespace {

void add_shuffles(std::vector<Atom>& list) {
  // C: the clamp and segment mask; `up` clamps at lane 0 of the segment. One shuffle moves 32 bits.
  const Param modes = {{"m", "clamp"}, {{"bfly", "31"}, {"down", "31"}, {"idx", "31"}, {"up", "0"}}};
  const Param widths = {{"W"}, {{"32"}, {"16"}, {"8"}, {"4"}, {"2"}}};
  const AttrDef mode = {"mode", {"${m}"}};
  const AttrDef arg = {"arg", {"*expr"}};
  const std::string doc = "Gives each of ${W} lanes the value of another: ${m}.";
  const std::string source = "PTX ISA, data movement: shfl.sync";
  const auto lanes = [](OperandDef o) { return with_tv(std::move(o), "${W}:1;1:0"); };
  list.push_back({.name = "shfl.sync.${m}.b32/w${W}",
                  .kind = Kind::Shfl,
                  .arch = "sm_70+",
                  .threads = "[${W}]",
                  .converge = 32,
                  .out = {lanes(out("d", "[].b32.RF", "l${W}"))},
                  .in = {lanes(in("s", "[].b32.RF", "l${W}"))},
                  .attrs = {mode, arg},
                  .ptx = "shfl.sync.${m}.b32 $d, $s, $arg, ${(32-W)*256+clamp}, 0xffffffff;",
                  .family = {modes, widths},
                  .doc = doc,
                  .source = source});
  list.push_back({.name = "shfl.sync.${m}.b32/w${W}.b16x2",
                  .kind = Kind::Shfl,
                  .arch = "sm_70+",
                  .threads = "[${W}]",
                  .converge = 32,
                  .out = {with_tv(out("d", "[2].b16.RF", "l${W},e2"), "${W}:1;2:${W}")},
                  .in = {with_tv(in("s", "[2].b16.RF", "l${W},e2"), "${W}:1;2:${W}")},
                  .attrs = {mode, arg},
                  .ptx = "shfl.sync.${m}.b32 $d, $s, $arg, ${(32-W)*256+clamp}, 0xffffffff;",
                  .family = {modes, widths},
                  .doc = doc,
                  .source = source});
  list.push_back({.name = "shfl.sync.${m}.b32/w${W}.b16",
                  .kind = Kind::Shfl,
                  .arch = "sm_70+",
                  .threads = "[${W}]",
                  .converge = 32,
                  .out = {lanes(out("d", "[].b16.RF", "l${W}"))},
                  .in = {lanes(in("s", "[].b16.RF", "l${W}"))},
                  .attrs = {mode, arg},
                  .ptx = "{.reg .b16 z; .reg .b32 t; mov.b16 z, 0; mov.b32 t, {$s, z}; shfl.sync.${m}.b32 t, t, $arg, "
                         "${(32-W)*256+clamp}, 0xffffffff; mov.b32 {$d, z}, t;}",
                  .family = {modes, widths},
                  .doc = doc,
                  .source = source});
  list.push_back(
      {.name = "shfl.sync.${m}.b32/w${W}.b64",
       .kind = Kind::Shfl,
       .arch = "sm_70+",
       .threads = "[${W}]",
       .converge = 32,
       .out = {lanes(out("d", "[].b64.RF", "l${W}"))},
       .in = {lanes(in("s", "[].b64.RF", "l${W}"))},
       .attrs = {mode, arg},
       .ptx = "{.reg .b32 l, h; mov.b64 {l, h}, $s; shfl.sync.${m}.b32 l, l, $arg, ${(32-W)*256+clamp}, "
              "0xffffffff; shfl.sync.${m}.b32 h, h, $arg, ${(32-W)*256+clamp}, 0xffffffff; mov.b64 $d, {l, h};}",
       .family = {modes, widths},
       .doc = doc,
       .source = source});
}

void add_reductions(std::vector<Atom>& list) {
  list.push_back({.name = "redux.sync.${op}.${p}/${T}",
                  .kind = Kind::Reduction,
                  .arch = "sm_80+",
                  .threads = "[32]",
                  .converge = 32,
                  .out = {with_tv(out("d", "[].${T}.RF"), "32:0;1:0")},
                  .in = {with_tv(in("s", "[].${T}.RF", "l32"), "32:1;1:0")},
                  .attrs = {{"op", {"${op}"}}, {"axis", {"0"}}},
                  .ptx = "redux.sync.${op}.${p} $d, $s, 0xffffffff;",
                  .family = {{{"op", "p", "T"},
                              {{"add", "s32", "i32"},
                               {"min", "s32", "i32"},
                               {"max", "s32", "i32"},
                               {"and", "b32", "i32"},
                               {"or", "b32", "i32"},
                               {"xor", "b32", "i32"},
                               {"add", "u32", "u32"},
                               {"min", "u32", "u32"},
                               {"max", "u32", "u32"},
                               {"and", "b32", "u32"},
                               {"or", "b32", "u32"},
                               {"xor", "b32", "u32"}}}},
                  .doc = "Gives every lane of a warp the ${op} of all lanes' numbers (${T}).",
                  .source = "PTX ISA, parallel synchronization: redux.sync"});
}

// What the lanes of a warp say of a value, a bit each.
void add_votes(std::vector<Atom>& list) {
  list.push_back({.name = "vote.sync.ballot.b32",
                  .kind = Kind::Reduction,
                  .arch = "sm_70+",
                  .threads = "[32]",
                  .converge = 32,
                  .out = {lvalue(with_tv(out("d", "[].u32.RF"), "32:0;1:0"))},
                  .in = {lvalue(with_tv(in("s", "[].pred.RF", "l32"), "32:1;1:0"))},
                  .attrs = {{"op", {"ballot"}}, {"axis", {"0"}}},
                  .cxx = "$d = __ballot_sync(0xffffffff, $s);",
                  .doc = "Gives every lane of a warp a bit for each lane: whether its truth value holds.",
                  .source = "PTX ISA, parallel synchronization: vote.sync"});
  list.push_back({.name = "match.any.sync.b${W}/${T}",
                  .kind = Kind::Reduction,
                  .arch = "sm_70+",
                  .threads = "[32]",
                  .converge = 32,
                  .out = {lvalue(with_tv(out("d", "[].u32.RF", "l32"), "32:1;1:0"))},
                  .in = {lvalue(with_tv(in("s", "[].${T}.RF", "l32"), "32:1;1:0"))},
                  .attrs = {{"op", {"match"}}, {"axis", {"0"}}},
                  .cxx = "$d = __match_any_sync(0xffffffff, $s);",
                  .family = {{{"T", "W"}, {{"i32", "32"}, {"u32", "32"}, {"i64", "64"}, {"u64", "64"}}}},
                  .doc = "Gives every lane of a warp a bit for each lane: whether that has the same number (${T}).",
                  .source = "PTX ISA, parallel synchronization: match.sync"});
}

}  // namespace

void warp(std::vector<Atom>& list) {
  add_shuffles(list);
  add_reductions(list);
  add_votes(list);
}

}  // namespace graphene::atoms::subjects
