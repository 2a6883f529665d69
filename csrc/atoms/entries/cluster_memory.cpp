// Since sm_90: loads and stores of one thread in the shared memory of another block of its cluster.
#include "atoms/entries/operands.h"

namespace graphene::atoms::subjects {

void cluster_memory(std::vector<Atom>& list) {
  list.push_back({.name = "ld.shared::cluster.${V}/b${E}",
                  .arch = "sm_90+",
                  .out = {reg_out()},
                  .in = {mem_in("DSM")},
                  .attrs = {kFill},
                  .guard = Guard::Branch,
                  .ptx = "ld.shared::cluster.${V} ${O}$dst${C}, [$src];",
                  .family = {vector_widths()},
                  .doc = "Loads ${B} bytes of shared memory of a block of the cluster into registers.",
                  .source = "PTX ISA, data movement: ld"});
  list.push_back({.name = "st.shared::cluster.${V}/b${E}",
                  .arch = "sm_90+",
                  .out = {mem_out("DSM")},
                  .in = {reg_in()},
                  .guard = Guard::Branch,
                  .ptx = "st.shared::cluster.${V} [$dst], ${O}$src${C};",
                  .family = {vector_widths()},
                  .doc = "Stores ${B} bytes of registers to shared memory of a block of the cluster.",
                  .source = "PTX ISA, data movement: st"});
  list.push_back({.name = "ld.shared::cluster.b8/b8",
                  .arch = "sm_90+",
                  .out = {lvalue(out("dst", "[].b8.RF"))},
                  .in = {lvalue(in("src", "[].b8.DSM"))},
                  .attrs = {kFill},
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
