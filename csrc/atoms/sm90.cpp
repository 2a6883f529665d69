// Since sm_90: stores of fragments as matrices into shared memory; kernels that start before those ahead have ended.
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
  const auto stream = [&](const char* name, const char* arch, const char* op, const char* ptx, const char* doc) {
    list.push_back({.name = name,
                    .kind = Kind::Sync,
                    .arch = arch,
                    .attrs = {{"op", {op}}, {"scope", {"stream"}}},
                    .ptx = ptx,
                    .is_default = std::string(arch) == "sm_90+",
                    .doc = doc,
                    .source = "PTX ISA, parallel synchronization: griddepcontrol"});
  };
  stream("griddepcontrol.wait", "sm_90+", "wait_kernels", "griddepcontrol.wait;",
         "Waits until the kernels before this one in the stream have ended and what they wrote is visible.");
  stream("griddepcontrol.launch_dependents", "sm_90+", "start_kernels", "griddepcontrol.launch_dependents;",
         "Lets the next kernel of the stream start, if it waits by itself, once all blocks have done so or ended.");
  const char* older = "Nothing: before sm_90 a kernel starts when those before it in the stream have ended.";
  stream("kernels.wait", "sm_70+", "wait_kernels", "// the kernels before this one have ended;", older);
  stream("kernels.start", "sm_70+", "start_kernels", "// the next kernel starts when this one has ended;", older);
  add("", "32:2;(2,${q}):(1,64)", "[1,2]", "[2,1]", "row");
  add(".trans", "(4,8):(16,1);(2,${q}):(8,64)", "[2,1]", "[1,2]", "column");
}

}  // namespace graphene::atoms
