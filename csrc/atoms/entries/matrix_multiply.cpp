// Matrix multiply-accumulate of a warp: m16n8 (and m8n8k4 of fp64), A by rows and B by columns; of quad-pairs; of
// waves.
#include "atoms/entries/matrix_multiply.h"

namespace graphene::atoms::subjects {

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

// Since sm_70.
void add_quad_pairs(std::vector<Atom>& list) {
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

// A function around the builtin, which takes vectors: `n` accumulators; 16-bit operands come as four values each.
std::string helper(const std::string& shape, int n, bool half) {
  const std::string values =
      half ? "half a0, half a1, half a2, half a3, half b0, half b1, half b2, half b3" : "float a, float b";
  std::string text = "template <class... T>\nstatic __device__ __forceinline__ void gr_mfma_f32_" + shape + "(" +
                     values + ", T&... d) {\n  typedef float V __attribute__((ext_vector_type(" + std::to_string(n) +
                     ")));\n";
  std::string operands = "a, b";
  if (half) {
    text += "  typedef _Float16 H __attribute__((ext_vector_type(4)));\n";
    for (const std::string o : {"a", "b"}) {
      text += "  const H " + o + " = {";
      for (int i = 0; i < 4; ++i) {
        text += (i > 0 ? ", " : "") + std::string("__builtin_bit_cast(_Float16, ") + o + std::to_string(i) + ")";
      }
      text += "};\n";
    }
  }
  return text + "  V c = {d...};\n  c = __builtin_amdgcn_mfma_f32_" + shape + "(" + operands +
         ", c, 0, 0, 0);\n  int i = 0;\n  ((d = c[i++]), ...);\n}\n";
}

// Accumulator r of lane l: row 8 (r / 4) + 4 (l / 32) + r % 4 of column l % 32; of 16 columns row 4 (l / 16) + r. Four
// values of k per lane and half (quarter) of the wave; of the two-block form the halves hold a block each.
void add_waves(std::vector<Atom>& list) {
  const auto add = [&](Atom a, const std::string& builtin, int accumulators, bool half) {
    a.kind = Kind::MatMul;
    a.arch = "gfx90a";
    a.threads = "[64]";
    a.converge = 64;
    a.cxx = "gr_mfma_f32_" + builtin + "($a..., $b..., $d...);";
    a.helper = helper(builtin, accumulators, half);
    a.numerics = {{"gfx90a", 1, -1, "rn", 1}};
    a.source = kMi200Isa + std::string(", matrix instructions: V_MFMA_F32_") + builtin;
    list.push_back(std::move(a));
  };
  add({.name = "mfma.f32.32x32x1f32",
       .out = {lvalue(
           with_tv(update("d", "[4,4,2:1,4,16].fp32.RF", "m32,n32,b2"), "(32,2):(32,4);(4,4,2):(1,8,1024)"))},
       .in = {lvalue(with_tv(in("a", "[].fp32.RF", "m32,b2"), "64:1;1:0")),
              lvalue(with_tv(in("b", "[].fp32.RF", "n32,b2"), "64:1;1:0"))},
       .doc = "Adds two products of a 32x1 and a 1x32 matrix (fp32) to two 32x32 matrices (fp32)."},
      "32x32x1f32", 32, false);
  add({.name = "mfma.f32.32x32x8f16",
       .out = {lvalue(with_tv(update("d", "[4,4:1,4].fp32.RF", "m32,n32"), "(32,2):(32,4);(4,4):(1,8)"))},
       .in = {lvalue(with_tv(in("a", "[1,4].fp16.RF", "m32,k8"), "(32,2):(1,128);4:32")),
              lvalue(with_tv(in("b", "[4,1].fp16.RF", "n32,k8"), "(32,2):(1,128);4:32"))},
       .doc = "Adds the product of a 32x8 and an 8x32 matrix (fp16) to a 32x32 matrix (fp32)."},
      "32x32x8f16", 16, true);
  add({.name = "mfma.f32.16x16x16f16",
       .out = {lvalue(with_tv(update("d", "[4,1].fp32.RF", "m16,n16"), "(16,4):(16,4);4:1"))},
       .in = {lvalue(with_tv(in("a", "[1,4].fp16.RF", "m16,k16"), "(16,4):(1,64);4:16")),
              lvalue(with_tv(in("b", "[4,1].fp16.RF", "n16,k16"), "(16,4):(1,64);4:16"))},
       .doc = "Adds the product of a 16x16 and a 16x16 matrix (fp16) to a 16x16 matrix (fp32)."},
      "16x16x16f16", 4, true);
}

}  // namespace

void matrix_multiply(std::vector<Atom>& list) {
  add_quad_pairs(list);
  add_16_bit(list);
  add_tf32(list);
  add_fp64(list);
  add_8_bit(list);
  add_waves(list);
}

}  // namespace graphene::atoms::subjects
