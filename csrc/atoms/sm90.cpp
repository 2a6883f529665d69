// Since sm_90: stores of fragments as matrices into shared memory.
#include "atoms/short.h"

namespace graphene::atoms {

void add_sm90_entries(std::vector<Atom>& list) {
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

}  // namespace graphene::atoms
