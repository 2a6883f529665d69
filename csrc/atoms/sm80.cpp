// Since sm_80: matrix multiply-accumulate of a warp on 16-bit floats.
#include "atoms/short.h"

namespace graphene::atoms {

void add_sm80_entries(std::vector<Atom>& list) {
  // Lane t is row g = t / 4 and pair c = t % 4: A holds (g + 8i, 2c + l + 8j), B (k = 2c + l + 8i, n = g), C and D
  // (g + 8i, 2c + l); l counts fastest, then i, then j.
  const Param types = {{"D", "DT", "T", "TT", "zero", "z"},
                       {{"f32", "fp32", "f16", "fp16", ".reg .f32 z; mov.f32 z, 0f00000000;", "z, z, z, z"},
                        {"f16", "fp16", "f16", "fp16", ".reg .b32 z; mov.b32 z, 0;", "z, z"},
                        {"f32", "fp32", "bf16", "bf16", ".reg .f32 z; mov.f32 z, 0f00000000;", "z, z, z, z"}}};
  const OperandDef d = with_tv(update("d", "[2,1:2,1].[1,2].${DT}.RF", "m16,n8"), "(4,8):(32,1);(2,2):(16,8)");
  OperandDef fresh = d;
  fresh.access = Access::Write;
  const OperandDef a = with_tv(in("a", "[2,2:2,4].[1,2].${TT}.RF", "m16,k16"), "(4,8):(32,1);(2,2,2):(16,8,128)");
  const OperandDef b = with_tv(in("b", "[2,1:2,1].[2,1].${TT}.RF", "n8,k16"), "(4,8):(16,1);(2,2):(8,64)");
  const char* source = "PTX ISA, warp-level matrix multiply-accumulate: mma.sync, m16n8k16 fragments";
  const std::vector<Numerics> numerics = {{"sm_80", 8, 1, "rz", 0}, {"sm_90+", 16, 2, "rz", 0}};
  list.push_back({.name = "mma.m16n8k16.${D}.${T}",
                  .kind = Kind::MatMul,
                  .arch = "sm_80+",
                  .threads = "[32]",
                  .converge = 32,
                  .out = {d},
                  .in = {a, b},
                  .ptx = "mma.sync.aligned.m16n8k16.row.col.${D}.${T}.${T}.${D} {$d}, {$a}, {$b}, {$d};",
                  .numerics = numerics,
                  .family = {types},
                  .doc = "Adds the product of a 16x16 and a 16x8 matrix (${TT}) to a 16x8 matrix (${DT}).",
                  .source = source});
  list.push_back({.name = "mma.m16n8k16.${D}.${T}/mul",
                  .kind = Kind::MatMul,
                  .arch = "sm_80+",
                  .threads = "[32]",
                  .converge = 32,
                  .out = {fresh},
                  .in = {a, b},
                  .attrs = {{"accumulate", {"false"}}},
                  .ptx = "{${zero} mma.sync.aligned.m16n8k16.row.col.${D}.${T}.${T}.${D} {$d}, {$a}, {$b}, {${z}};}",
                  .numerics = numerics,
                  .family = {types},
                  .doc = "Computes the product of a 16x16 and a 16x8 matrix (${TT}) as a 16x8 matrix (${DT}).",
                  .source = source});
}

}  // namespace graphene::atoms
