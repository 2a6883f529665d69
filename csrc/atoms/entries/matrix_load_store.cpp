// Loads of matrices from shared memory into fragments, and stores back.
#include "atoms/entries/operands.h"

namespace graphene::atoms::subjects {

namespace {

void add_loads(std::vector<Atom>& list) {
  // q matrices of 8 rows (r) of 8 columns (c). Lane 8j+i gives the address of row i of matrix j (with fewer than four
  // matrices the addresses of the later lanes are ignored); lane t receives two neighbours of a row, or of a column
  // with .trans. "/kn": the same for a view whose rows run along its first mode.
  const Param count = {{"q", "P"}, {{"1", "[1,1]"}, {"2", "[2,1]"}, {"4", "[2,2]"}}};
  const char* source = "PTX ISA, warp-level matrix load: ldmatrix";
  const auto rows = [](const char* pattern) {
    return aligned(with_tv(in("src", pattern, "c8,r8,q${q}"), "(${8*q},${4/q}):(8,0);8:1"), "16");
  };
  const auto add = [&](const char* trans, const char* tv, const char* pair, const char* pair_kn, const char* of) {
    list.push_back(
        {.name = std::string("ldmatrix.x${q}") + trans + "${o}",
         .arch = "sm_75+",
         .threads = "[32]",
         .converge = 32,
         .out = {with_tv(out("dst", "${P}.${p}.b16.RF", "c8,r8,q${q}"), tv)},
         .in = {rows("${s}.b16.SH")},
         .attrs = {kFill},
         .guard = Guard::Redirect,
         .ptx = std::string("ldmatrix.sync.aligned.m8n8.x${q}") + trans + ".shared.b16 {$dst}, [$src];",
         .family = {count, {{"o", "s", "p"}, {{"", "[1,8:_,1]", pair}, {"/kn", "[8,1:1,_]", pair_kn}}}},
         .doc = std::string("Loads ${q} 8x8 matrices of 16-bit elements from shared memory, two neighbours of a ") +
                of + " per lane.",
         .source = source});
  };
  add("", "32:2;(2,${q}):(1,64)", "[1,2]", "[2,1]", "row");
  add(".trans", "(4,8):(16,1);(2,${q}):(8,64)", "[2,1]", "[1,2]", "column");

  // The same bytes as elements of 8 or 32 bits: rows of 16 or 4, of which a lane receives 4 neighbours or 1.
  for (const int bits : {8, 32}) {
    const std::string row = std::to_string(128 / bits);
    const std::string each = std::to_string(32 / bits);
    const std::string type = ".b" + std::to_string(bits);
    const std::string own = bits == 8 ? ".[1,4]" : "";
    const std::string own_kn = bits == 8 ? ".[4,1]" : "";
    list.push_back(
        {.name = "ldmatrix.x${q}.b" + std::to_string(bits) + "${o}",
         .arch = "sm_75+",
         .threads = "[32]",
         .converge = 32,
         .out = {with_tv(out("dst", "${P}${p}" + type + ".RF", "c" + row + ",r8,q${q}"),
                         "32:" + each + ";(" + each + ",${q}):(1," + std::to_string(1024 / bits) + ")")},
         .in = {aligned(with_tv(in("src", "${s}" + type + ".SH", "c" + row + ",r8,q${q}"),
                                "(${8*q},${4/q}):(" + row + ",0);" + row + ":1"),
                        "16")},
         .attrs = {kFill},
         .guard = Guard::Redirect,
         .ptx = "ldmatrix.sync.aligned.m8n8.x${q}.shared.b16 {$dst}, [$src];",
         .family = {count,
                    {{"o", "s", "p"}, {{"", "[1," + row + ":_,1]", own}, {"/kn", "[" + row + ",1:1,_]", own_kn}}}},
         .doc = "Loads ${q} matrices of 8 rows of 16 bytes, " + row + " elements, from shared memory, " + each +
                (bits == 8 ? " neighbours of a row per lane." : " per lane."),
         .source = source});
  }
}

void add_stores(std::vector<Atom>& list) {
  // The reverse of ldmatrix: lane t holds two neighbours of a row, or of a column with .trans, of each of q matrices;
  // lane 8j+i gives the address of row i of matrix j, the addresses of the later lanes are ignored.
  const Param count = {{"q", "P"}, {{"1", "[1,1]"}, {"2", "[2,1]"}, {"4", "[2,2]"}}};
  const auto add = [&](const char* trans, const char* tv, const char* pair, const char* pair_kn, const char* of) {
    list.push_back(
        {.name = std::string("stmatrix.x${q}") + trans + "${o}",
         .arch = "sm_90+",
         .threads = "[32]",
         .converge = 32,
         .out = {aligned(with_tv(out("dst", "${s}.b16.SH", "c8,r8,q${q}"), "(${8*q},${4/q}):(8,0);8:1"), "16")},
         .in = {with_tv(in("src", "${P}.${p}.b16.RF", "c8,r8,q${q}"), tv)},
         .ptx = std::string("stmatrix.sync.aligned.m8n8.x${q}") + trans + ".shared.b16 [$dst], {$src};",
         .family = {count, {{"o", "s", "p"}, {{"", "[1,8:_,1]", pair}, {"/kn", "[8,1:1,_]", pair_kn}}}},
         .doc = std::string("Stores ${q} 8x8 matrices of 16-bit elements to shared memory, two neighbours of a ") + of +
                " per lane.",
         .source = "PTX ISA, warp-level matrix store: stmatrix"});
  };
  add("", "32:2;(2,${q}):(1,64)", "[1,2]", "[2,1]", "row");
  add(".trans", "(4,8):(16,1);(2,${q}):(8,64)", "[2,1]", "[1,2]", "column");
}

}  // namespace

void matrix_load_store(std::vector<Atom>& list) {
  add_loads(list);
  add_stores(list);
}

}  // namespace graphene::atoms::subjects
