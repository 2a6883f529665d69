// Since sm_70: matrix multiply-accumulate of quad-pairs.
#include "atoms/matrix.h"

namespace graphene::atoms {

void add_sm70_entries(std::vector<Atom>& list) {
  // A quad-pair is lanes 4i to 4i+3 and those 16 above: eight threads, the first four and then the others. Where memory
  // runs along k, thread r holds row r of A (column r of B) at four k; where it runs along m or n, the thread holds
  // four rows (columns) at k = r % 4, the upper ones from thread 4 on. All four quad-pairs of the warp execute it
  // together.
  const Param a = {{"A", "AP", "AV"}, {{"row", "[1,4]", "8:1;4:8"}, {"col", "[4,1]", "(4,2):(8,4);4:1"}}};
  const Param b = {{"B", "BP", "BV"}, {{"col", "[4,1]", "8:1;4:8"}, {"row", "[1,4]", "(4,2):(8,4);4:1"}}};
  const Param f32 = {
      {"D", "DT", "DP", "DV", "zero", "z"},
      {{"f32", "fp32", "[2,(2,2):2,(1,4)]", "(2,2,2):(1,16,4);(2,2,2):(8,2,32)", kZeroF32, "z, z, z, z, z, z, z, z"}}};
  const Param f16 = {{"D", "DT", "DP", "DV", "zero", "z"},
                     {{"f16", "fp16", "[1,8]", "8:1;8:8", kZeroB32, "z, z, z, z"}}};
  const auto add = [&](const Param& d, std::vector<Numerics> numerics) {
    add_matrix_multiply(list, {.name = "mma.m8n8k4.${A}.${B}.${D}",
                               .arch = "sm_70+",
                               .threads = "[(4,2):(1,16)]",
                               .converge = 32,
                               .out = {with_tv(update("d", "${DP}.${DT}.RF", "m8,n8"), "${DV}")},
                               .in = {with_tv(in("a", "${AP}.fp16.RF", "m8,k4"), "${AV}"),
                                      with_tv(in("b", "${BP}.fp16.RF", "n8,k4"), "${BV}")},
                               .ptx = "mma.sync.aligned.m8n8k4.${A}.${B}.${D}.f16.f16.${D}",
                               .numerics = std::move(numerics),
                               .family = {a, b, d},
                               .doc = "an 8x4 and a 4x8 matrix (fp16, A by ${A}s, B by ${B}s) to an 8x8 matrix (${DT})",
                               .source = "PTX ISA, warp-level matrix multiply-accumulate: mma.sync, m8n8k4 fragments"});
  };
  // Later architectures do it in fp32, thread by thread.
  add(f32, {published("sm_70", 4, 0, "rz"), measured("sm_90+", 4, -1, "chain"), published("sm_75+", 4, -1, "chain")});
  add(f16, {published("sm_70", 4, 0, "rn"), measured("sm_90+", 2, -1, "chain"), published("sm_75+", 2, -1, "chain")});
}

}  // namespace graphene::atoms
