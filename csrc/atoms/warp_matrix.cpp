// Matrix multiply-accumulate of a warp: m16n8 (and m8n8k4 of fp64), A by rows and B by columns.
#include "atoms/matrix.h"

namespace graphene::atoms {

namespace {

constexpr const char* kSource = "PTX ISA, warp-level matrix multiply-accumulate: mma.sync";

// Lane t is row g = t / 4 and column c = t % 4. C and D hold (g + 8i, 2c + l); l counts fastest.
OperandDef accumulator() {
  return with_tv(update("d", "[2,1:2,1].[1,2].${DT}.RF", "m16,n8"), "(4,8):(32,1);(2,2):(16,8)");
}

// A holds (g + 8i, 2c + l + 8j), B (k = 2c + l + 8i, n = g); l counts fastest, then i, then j.
void add_16_bit(std::vector<Atom>& list) {
  struct Types {
    const char *D, *DT, *T, *TT, *zero, *z;
  };
  const Types f32_f16 = {"f32", "fp32", "f16", "fp16", kZeroF32, "z, z, z, z"};
  const Types f16_f16 = {"f16", "fp16", "f16", "fp16", kZeroB32, "z, z"};
  const Types f32_bf16 = {"f32", "fp32", "bf16", "bf16", kZeroF32, "z, z, z, z"};
  const auto add = [&](const Types& t, const char* arch, bool wide, std::vector<Numerics> numerics) {
    const std::string k = wide ? "16" : "8";
    add_matrix_multiply(
        list,
        {.name = "mma.m16n8k${K}.${D}.${T}",
         .arch = arch,
         .threads = "[32]",
         .converge = 32,
         .out = {accumulator()},
         .in = {with_tv(in("a", "[2,${J}:2,4].[1,2].${TT}.RF", "m16,k${K}"), "(4,8):(32,1);(2,2,${J}):(16,8,128)"),
                with_tv(in("b", "[${J},1:2,1].[2,1].${TT}.RF", "n8,k${K}"), "(4,8):(16,1);(2,${J}):(8,64)")},
         .ptx = "mma.sync.aligned.m16n8k${K}.row.col.${D}.${T}.${T}.${D}",
         .numerics = std::move(numerics),
         .family = {{{"K", "J", "D", "DT", "T", "TT", "zero", "z"},
                     {{k, wide ? "2" : "1", t.D, t.DT, t.T, t.TT, t.zero, t.z}}}},
         .doc = "a 16x${K} and a ${K}x8 matrix (${TT}) to a 16x8 matrix (${DT})",
         .source = kSource + std::string(", m16n8k${K} fragments of 16-bit floats")});
  };
  const auto f32 = [](int k) {
    return std::vector{measured("sm_90+", k, 2, "rz"), published("sm_80+", 8, 1, "rz"), published("sm_75", 4, 1, "rz")};
  };
  const auto f16 = [](int k) {
    return std::vector{measured("sm_90+", k, 2, "rn"), published("sm_80+", 8, 1, "rn"), published("sm_75", 4, 1, "rn")};
  };
  add(f32_f16, "sm_80+", true, f32(16));
  add(f16_f16, "sm_80+", true, f16(16));
  add(f32_bf16, "sm_80+", true, f32(16));
  add(f32_f16, "sm_75+", false, f32(8));
  add(f16_f16, "sm_75+", false, f16(8));
  add(f32_bf16, "sm_80+", false, f32(8));
}

// A holds (g + 8i, c + 4j), B (k = c + 4i, n = g). The low 13 bits of the registers are not read.
void add_tf32(std::vector<Atom>& list) {
  const auto add = [&](const char* k, const char* j, std::vector<Numerics> numerics) {
    add_matrix_multiply(list,
                        {.name = "mma.m16n8k${K}.f32.tf32",
                         .arch = "sm_80+",
                         .threads = "[32]",
                         .converge = 32,
                         .out = {accumulator()},
                         .in = {with_tv(in("a", "[2,${J}:1,2].tf32.RF", "m16,k${K}"), "(4,8):(16,1);(2,${J}):(8,64)"),
                                with_tv(in("b", "[${J},1].tf32.RF", "n8,k${K}"), "(4,8):(8,1);${J}:32")},
                         .ptx = "mma.sync.aligned.m16n8k${K}.row.col.f32.tf32.tf32.f32",
                         .numerics = std::move(numerics),
                         .family = {{{"K", "J", "DT", "zero", "z"}, {{k, j, "fp32", kZeroF32, "z, z, z, z"}}}},
                         .doc = "a 16x${K} and a ${K}x8 matrix (tf32) to a 16x8 matrix (fp32)",
                         .source = kSource + std::string(", m16n8k${K} fragments of tf32")});
  };
  add("8", "2", {measured("sm_90+", 8, 2, "rz"), published("sm_80+", 4, 1, "rz")});
  add("4", "1", {measured("sm_90+", 4, 2, "rz"), published("sm_80+", 4, 1, "rz")});
}

// A holds (g + 8i, c + 4j), B (k = c + 4i, n = g); m8 has the first rows only.
void add_fp64(std::vector<Atom>& list) {
  const Param shapes = {
      {"M", "K", "arch", "DP", "DV", "AP", "AV", "J", "z"},
      {{"8", "4", "sm_80+", "[1,2]", "(4,8):(16,1);2:8", "[1,1]", "(4,8):(8,1);1:0", "1", "z, z"},
       {"16", "4", "sm_90+", "[2,2]", "(4,8):(32,1);(2,2):(16,8)", "[2,1]", "(4,8):(16,1);2:8", "1", "z, z, z, z"},
       {"16", "8", "sm_90+", "[2,2]", "(4,8):(32,1);(2,2):(16,8)", "[2,2:1,2]", "(4,8):(16,1);(2,2):(8,64)", "2",
        "z, z, z, z"},
       {"16", "16", "sm_90+", "[2,2]", "(4,8):(32,1);(2,2):(16,8)", "[2,4:1,2]", "(4,8):(16,1);(2,4):(8,64)", "4",
        "z, z, z, z"}}};
  const Param zero = {{"zero"}, {{kZeroF64}}};
  add_matrix_multiply(list, {.name = "mma.m${M}n8k${K}.f64.f64",
                             .arch = "${arch}",
                             .threads = "[32]",
                             .converge = 32,
                             .out = {with_tv(update("d", "${DP}.fp64.RF", "m${M},n8"), "${DV}")},
                             .in = {with_tv(in("a", "${AP}.fp64.RF", "m${M},k${K}"), "${AV}"),
                                    with_tv(in("b", "[${J},1].fp64.RF", "n8,k${K}"), "(4,8):(8,1);${J}:32")},
                             .ptx = "mma.sync.aligned.m${M}n8k${K}.row.col.f64.f64.f64.f64",
                             .numerics = {measured("sm_90+", 1, -1, "rn"), published("sm_80+", 1, -1, "rn")},
                             .family = {shapes, zero},
                             .doc = "a ${M}x${K} and a ${K}x8 matrix to an ${M}x8 matrix (fp64)",
                             .source = kSource + std::string(", fragments of fp64")});
}

// A holds (g + 8i, 4c + l + 16j), B (k = 4c + l + 16i, n = g); l counts fastest, then i, then j.
void add_8_bit(std::vector<Atom>& list) {
  const Param shapes = {{"K", "J"}, {{"16", "1"}, {"32", "2"}}};
  const Param types = {{"T", "a", "AT", "b", "BT"},
                       {{"s8", "s8", "i8", "s8", "i8"},
                        {"u8", "u8", "u8", "u8", "u8"},
                        {"s8.u8", "s8", "i8", "u8", "u8"},
                        {"u8.s8", "u8", "u8", "s8", "i8"}}};
  const Param rest = {{"DT", "zero", "z"}, {{"i32", kZeroB32, "z, z, z, z"}}};
  add_matrix_multiply(
      list, {.name = "mma.m16n8k${K}.s32.${T}",
             .arch = "sm_80+",
             .threads = "[32]",
             .converge = 32,
             .out = {accumulator()},
             .in = {with_tv(in("a", "[2,${J}:4,8].[1,4].${AT}.RF", "m16,k${K}"), "(4,8):(64,1);(4,2,${J}):(16,8,256)"),
                    with_tv(in("b", "[${J},1:4,1].[4,1].${BT}.RF", "n8,k${K}"), "(4,8):(32,1);(4,${J}):(8,128)")},
             .attrs = {{"saturate", {"false", "true"}}},
             .ptx = "mma.sync.aligned.m16n8k${K}.row.col{?saturate:.satfinite}.s32.${a}.${b}.s32",
             .numerics = {{"sm_80+", 0, -1, "exact", 0}},
             .family = {shapes, types, rest},
             .doc = "a 16x${K} matrix (${AT}) and a ${K}x8 matrix (${BT}) to a 16x8 matrix (i32)",
             .source = kSource + std::string(", m16n8k${K} fragments of 8-bit integers")});
}

}  // namespace

void add_warp_matrix_entries(std::vector<Atom>& list) {
  add_16_bit(list);
  add_tf32(list);
  add_fp64(list);
  add_8_bit(list);
}

}  // namespace graphene::atoms
