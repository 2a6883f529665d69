// Since sm_90: loads and stores of one thread in the shared memory of another block of its cluster.
#include "atoms/entries/operands.h"

namespace graphene::atoms::subjects {

void cluster_memory(std::vector<Atom>& list) {
  // V: PTX vector text; E: bits of an element; R, M: patterns of registers and memory; T: tile; B: bytes; P: packing;
  // O, C: braces of a vector.
  const Param widths = {{"V", "E", "R", "M", "T", "B", "P", "O", "C"},
                        {{"v4.b32", "8", "[16]", "[16:1]", "e16", "16", "r/4", "{", "}"},
                         {"v4.b32", "16", "[8]", "[8:1]", "e8", "16", "r/2", "{", "}"},
                         {"v4.b32", "32", "[4]", "[4:1]", "e4", "16", "r", "{", "}"},
                         {"v2.b64", "64", "[2]", "[2:1]", "e2", "16", "l", "{", "}"},
                         {"v2.b32", "8", "[8]", "[8:1]", "e8", "8", "r/4", "{", "}"},
                         {"v2.b32", "16", "[4]", "[4:1]", "e4", "8", "r/2", "{", "}"},
                         {"v2.b32", "32", "[2]", "[2:1]", "e2", "8", "r", "{", "}"},
                         {"b64", "64", "[]", "[]", "", "8", "l", "", ""},
                         {"b32", "8", "[4]", "[4:1]", "e4", "4", "r/4", "", ""},
                         {"b32", "16", "[2]", "[2:1]", "e2", "4", "r/2", "", ""},
                         {"b32", "32", "[]", "[]", "", "4", "r", "", ""},
                         {"b16", "8", "[2]", "[2:1]", "e2", "2", "h/2", "", ""},
                         {"b16", "16", "[]", "[]", "", "2", "h", "", ""}}};
  const auto registers = [](OperandDef o) {
    o.pattern = "${R}.b${E}.RF";
    return packed(std::move(o), "${P}");
  };
  const auto memory = [](OperandDef o) {
    o.pattern = "${M}.b${E}.DSM";
    return aligned(std::move(o), "${B}");
  };
  list.push_back({.name = "ld.shared::cluster.${V}/b${E}",
                  .arch = "sm_90+",
                  .out = {registers(out("dst", "", "${T}"))},
                  .in = {memory(in("src", "", "${T}"))},
                  .attrs = {{"fill", {"*const"}}},
                  .guard = Guard::Branch,
                  .ptx = "ld.shared::cluster.${V} ${O}$dst${C}, [$src];",
                  .family = {widths},
                  .doc = "Loads ${B} bytes of shared memory of a block of the cluster into registers.",
                  .source = "PTX ISA, data movement: ld"});
  list.push_back({.name = "st.shared::cluster.${V}/b${E}",
                  .arch = "sm_90+",
                  .out = {memory(out("dst", "", "${T}"))},
                  .in = {registers(in("src", "", "${T}"))},
                  .guard = Guard::Branch,
                  .ptx = "st.shared::cluster.${V} [$dst], ${O}$src${C};",
                  .family = {widths},
                  .doc = "Stores ${B} bytes of registers to shared memory of a block of the cluster.",
                  .source = "PTX ISA, data movement: st"});
  list.push_back({.name = "ld.shared::cluster.b8/b8",
                  .arch = "sm_90+",
                  .out = {lvalue(out("dst", "[].b8.RF"))},
                  .in = {lvalue(in("src", "[].b8.DSM"))},
                  .attrs = {{"fill", {"*const"}}},
                  .guard = Guard::Branch,
                  .cxx = "$dst = $src;",
                  .doc = "Loads 1 byte of shared memory of a block of the cluster into a register.",
                  .source = "PTX ISA, data movement: ld, mapa"});
  list.push_back({.name = "st.shared::cluster.b8/b8",
                  .arch = "sm_90+",
                  .out = {lvalue(out("dst", "[].b8.DSM"))},
                  .in = {lvalue(in("src", "[].b8.RF"))},
                  .guard = Guard::Branch,
                  .cxx = "$dst = $src;",
                  .doc = "Stores 1 byte of a register to shared memory of a block of the cluster.",
                  .source = "PTX ISA, data movement: st, mapa"});
}

}  // namespace graphene::atoms::subjects
