// Since sm_75: loads of matrices from shared memory into fragments.
#include "atoms/short.h"

namespace graphene::atoms {

void add_sm75_entries(std::vector<Atom>& list) {
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
         .attrs = {{"fill", {"*const"}}},
         .guard = Guard::Redirect,
         .ptx = std::string("ldmatrix.sync.aligned.m8n8.x${q}") + trans + ".shared.b16 {$dst}, [$src];",
         .family = {count, {{"o", "s", "p"}, {{"", "[1,8:_,1]", pair}, {"/kn", "[8,1:1,_]", pair_kn}}}},
         .doc = std::string("Loads ${q} 8x8 matrices of 16-bit elements from shared memory, two neighbours of a ") +
                of + " per lane.",
         .source = source});
  };
  add("", "32:2;(2,${q}):(1,64)", "[1,2]", "[2,1]", "row");
  add(".trans", "(4,8):(16,1);(2,${q}):(8,64)", "[2,1]", "[1,2]", "column");
}

}  // namespace graphene::atoms
