// Loads and stores of one thread, register moves and initialisation.
#include "atoms/entries/operands.h"

namespace graphene::atoms::subjects {

namespace {

void add_loads(std::vector<Atom>& list) {
  list.push_back({.name = "ld.global.${V}/b${E}",
                  .arch = "sm_70+",
                  .out = {reg_out()},
                  .in = {mem_in("GL")},
                  .attrs = {kFill},
                  .guard = Guard::Branch,
                  .ptx = "ld.global.${V} ${O}$dst${C}, [$src];",
                  .family = {vector_widths()},
                  .doc = "Loads ${B} bytes of global memory into registers.",
                  .source = "PTX ISA, data movement: ld"});
  list.push_back({.name = "ld.global.b8/b8",
                  .arch = "sm_70+",
                  .out = {lvalue(out("dst", "[].b8.RF"))},
                  .in = {lvalue(in("src", "[].b8.GL"))},
                  .attrs = {kFill},
                  .guard = Guard::Branch,
                  .cxx = "$dst = $src;",
                  .doc = "Loads 1 byte of global memory into a register.",
                  .source = "PTX ISA, data movement: ld"});
  list.push_back(
      {.name = "ld.global.${n}.${V}/b${E}",
       .arch = "sm_70+",
       .out = {reg_out()},
       .in = {mem_in("GL")},
       .attrs = {kFill, {"cache", {"${n}"}}},
       .guard = Guard::Branch,
       .ptx = "ld.global.${c}.${V} ${O}$dst${C}, [$src];",
       .family = {{{"n", "c", "say"},
                   {{"nc", "nc", "through the non-coherent cache: nobody may write it during the kernel"},
                    {"nc.no_allocate", "nc.L1::no_allocate",
                     "as nc, but without a place in the SM's own cache, which is left to what is read again"},
                    {"ca", "ca", "caching at all levels"},
                    {"cg", "cg", "caching at the level shared by all SMs only"},
                    {"cs", "cs", "as a stream: likely read once, first to be evicted"}}},
                  vector_widths()},
       .doc = "Loads ${B} bytes of global memory into registers, ${say}.",
       .source = "PTX ISA, data movement: ld, cache operators"});
  list.push_back({.name = "ld.shared.${V}/b${E}",
                  .arch = "sm_70+",
                  .out = {reg_out()},
                  .in = {mem_in("SH")},
                  .attrs = {kFill},
                  .guard = Guard::Branch,
                  .ptx = "ld.shared.${V} ${O}$dst${C}, [$src];",
                  .family = {vector_widths()},
                  .doc = "Loads ${B} bytes of shared memory into registers.",
                  .source = "PTX ISA, data movement: ld"});
  list.push_back({.name = "ld.shared.b8/b8",
                  .arch = "sm_70+",
                  .out = {lvalue(out("dst", "[].b8.RF"))},
                  .in = {lvalue(in("src", "[].b8.SH"))},
                  .attrs = {kFill},
                  .guard = Guard::Branch,
                  .cxx = "$dst = $src;",
                  .doc = "Loads 1 byte of shared memory into a register.",
                  .source = "PTX ISA, data movement: ld"});
}

void add_stores(std::vector<Atom>& list) {
  list.push_back({.name = "st.global.${V}/b${E}",
                  .arch = "sm_70+",
                  .out = {mem_out("GL")},
                  .in = {reg_in()},
                  .guard = Guard::Branch,
                  .ptx = "st.global.${V} [$dst], ${O}$src${C};",
                  .family = {vector_widths()},
                  .doc = "Stores ${B} bytes of registers to global memory.",
                  .source = "PTX ISA, data movement: st"});
  list.push_back({.name = "st.global.b8/b8",
                  .arch = "sm_70+",
                  .out = {lvalue(out("dst", "[].b8.GL"))},
                  .in = {lvalue(in("src", "[].b8.RF"))},
                  .guard = Guard::Branch,
                  .cxx = "$dst = $src;",
                  .doc = "Stores 1 byte of a register to global memory.",
                  .source = "PTX ISA, data movement: st"});
  list.push_back({.name = "st.global.${c}.${V}/b${E}",
                  .arch = "sm_70+",
                  .out = {mem_out("GL")},
                  .in = {reg_in()},
                  .attrs = {{"cache", {"${c}"}}},
                  .guard = Guard::Branch,
                  .ptx = "st.global.${c}.${V} [$dst], ${O}$src${C};",
                  .family = {{{"c", "say"},
                              {{"cg", "caching at the level shared by all SMs only"},
                               {"cs", "as a stream: likely written once, first to be evicted"},
                               {"wt", "writing through to memory"}}},
                             vector_widths()},
                  .doc = "Stores ${B} bytes of registers to global memory, ${say}.",
                  .source = "PTX ISA, data movement: st, cache operators"});
  list.push_back({.name = "st.shared.${V}/b${E}",
                  .arch = "sm_70+",
                  .out = {mem_out("SH")},
                  .in = {reg_in()},
                  .guard = Guard::Branch,
                  .ptx = "st.shared.${V} [$dst], ${O}$src${C};",
                  .family = {vector_widths()},
                  .doc = "Stores ${B} bytes of registers to shared memory.",
                  .source = "PTX ISA, data movement: st"});
  list.push_back({.name = "st.shared.b8/b8",
                  .arch = "sm_70+",
                  .out = {lvalue(out("dst", "[].b8.SH"))},
                  .in = {lvalue(in("src", "[].b8.RF"))},
                  .guard = Guard::Branch,
                  .cxx = "$dst = $src;",
                  .doc = "Stores 1 byte of a register to shared memory.",
                  .source = "PTX ISA, data movement: st"});
}

// C++ text that does the same for values 0 to n - 1.
std::string each(int n) {
  if (n == 1) return "$dst = $src;";
  std::string text;
  for (int i = 0; i < n; ++i) {
    const std::string v = "[" + std::to_string(i) + "]";
    text += (i > 0 ? " " : "") + std::string("$dst") + v + " = $src" + v + ";";
  }
  return text;
}

// W: words of a vector; E: bits of an element; R, M: patterns of registers and memory.
void add_moves_of_waves(std::vector<Atom>& list) {
  struct Width {
    const char* name;
    int bits, count;
  };
  for (const Width& w :
       {Width{"b128", 8, 16}, Width{"b128", 16, 8}, Width{"b128", 32, 4}, Width{"b64", 16, 4}, Width{"b64", 32, 2},
        Width{"b64", 64, 1}, Width{"b32", 16, 2}, Width{"b32", 32, 1}, Width{"b16", 16, 1}, Width{"b8", 8, 1}}) {
    const std::string n = std::to_string(w.count);
    const std::string type = ".b" + std::to_string(w.bits) + ".";
    const std::string registers = (w.count == 1 ? "[]" : "[" + n + "]") + type + "RF";
    const std::string memory = (w.count == 1 ? "[]" : "[" + n + ":1]") + type;
    const std::string tile = w.count == 1 ? "" : "e" + n;
    const std::string bytes = std::to_string(w.bits * w.count / 8);
    for (const auto& [space, load, store] :
         {std::tuple{"GL", "global_load", "global_store"}, {"SH", "ds_read", "ds_write"}}) {
      const std::string where = space == std::string("GL") ? "global memory" : "shared memory (LDS)";
      list.push_back({.name = std::string(load) + "." + w.name + "/b" + std::to_string(w.bits),
                      .arch = "gfx90a",
                      .out = {lvalue(out("dst", registers, tile))},
                      .in = {lvalue(aligned(in("src", memory + space, tile), bytes))},
                      .attrs = {kFill},
                      .guard = Guard::Branch,
                      .cxx = each(w.count),
                      .doc = "Loads " + bytes + " bytes of " + where + " into registers.",
                      .source = kMi200Isa + std::string(", memory instructions")});
      list.push_back({.name = std::string(store) + "." + w.name + "/b" + std::to_string(w.bits),
                      .arch = "gfx90a",
                      .out = {lvalue(aligned(out("dst", memory + space, tile), bytes))},
                      .in = {lvalue(in("src", registers, tile))},
                      .guard = Guard::Branch,
                      .cxx = each(w.count),
                      .doc = "Stores " + bytes + " bytes of registers to " + where + ".",
                      .source = kMi200Isa + std::string(", memory instructions")});
    }
  }
  const Param elements = {{"E"}, {{"8"}, {"16"}, {"32"}, {"64"}}};
  list.push_back({.name = "v_mov/b${E}",
                  .arch = "gfx90a",
                  .out = {lvalue(out("dst", "[].b${E}.RF"))},
                  .in = {lvalue(in("src", "[].b${E}.RF"))},
                  .cxx = "$dst = $src;",
                  .family = {elements},
                  .doc = "Copies one register to another.",
                  .source = kMi200Isa + std::string(", vector instructions: v_mov")});
  list.push_back({.name = "v_mov.init/b${E}",
                  .kind = Kind::Init,
                  .arch = "gfx90a",
                  .out = {lvalue(out("dst", "[].b${E}.RF|SH|GL"))},
                  .attrs = {{"value", {"*const"}}},
                  .guard = Guard::Branch,
                  .cxx = "$dst = $value;",
                  .family = {elements},
                  .doc = "Sets one element to a constant.",
                  .source = kMi200Isa + std::string(", vector instructions: v_mov")});
}

}  // namespace

void memory(std::vector<Atom>& list) {
  add_loads(list);
  add_stores(list);
  add_moves_of_waves(list);
  const Param elements = {{"E"}, {{"4"}, {"8"}, {"16"}, {"32"}, {"64"}}};
  const Param places = {{"E", "M"},
                        {{"4", "RF"}, {"8", "RF|SH|GL"}, {"16", "RF|SH|GL"}, {"32", "RF|SH|GL"}, {"64", "RF|SH|GL"}}};
  list.push_back({.name = "mov/b${E}",
                  .arch = "sm_70+",
                  .out = {lvalue(out("dst", "[].b${E}.RF"))},
                  .in = {lvalue(in("src", "[].b${E}.RF"))},
                  .cxx = "$dst = $src;",
                  .family = {elements},
                  .doc = "Copies one register to another.",
                  .source = "PTX ISA, data movement: mov"});
  list.push_back({.name = "init/b${E}",
                  .kind = Kind::Init,
                  .arch = "sm_70+",
                  .out = {lvalue(out("dst", "[].b${E}.${M}"))},
                  .attrs = {{"value", {"*const"}}},
                  .guard = Guard::Branch,
                  .cxx = "$dst = $value;",
                  .family = {places},
                  .doc = "Sets one element to a constant.",
                  .source = "PTX ISA, data movement: mov, st"});
}

}  // namespace graphene::atoms::subjects
