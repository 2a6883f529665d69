// Conversions between scalar types: UnaryPointwise with op=cast.
#include "atoms/entries/operands.h"

namespace graphene::atoms::subjects {

namespace {

constexpr const char* kSource = "PTX ISA, data movement and conversion: cvt";

Param integers() {
  return {{"I", "i"},
          {{"i8", "s8"},
           {"u8", "u8"},
           {"i16", "s16"},
           {"u16", "u16"},
           {"i32", "s32"},
           {"u32", "u32"},
           {"i64", "s64"},
           {"u64", "u64"}}};
}
Param wide_integers() { return {{"I", "i"}, {{"i32", "s32"}, {"u32", "u32"}, {"i64", "s64"}, {"u64", "u64"}}}; }

void add_floats(std::vector<Atom>& list) {
  list.push_back(
      {.name = "${n}",
       .kind = Kind::Unary,
       .arch = "${arch}",
       .out = {out("d", "[].${D}.RF")},
       .in = {in("s", "[].${S}.RF")},
       .attrs = {{"op", {"cast"}}, {"round", {"default", "rn"}}},
       .ptx = "${t}",
       .family = {{{"n", "D", "S", "arch", "t"},
                   {{"cvt.rn.f16.f32", "fp16", "fp32", "sm_70+", "cvt.rn.f16.f32 $d, $s;"},
                    {"cvt.f32.f16", "fp32", "fp16", "sm_70+", "cvt.f32.f16 $d, $s;"},
                    {"cvt.rn.f16.f64", "fp16", "fp64", "sm_70+", "cvt.rn.f16.f64 $d, $s;"},
                    {"cvt.f64.f16", "fp64", "fp16", "sm_70+", "cvt.f64.f16 $d, $s;"},
                    {"cvt.rn.bf16.f32", "bf16", "fp32", "sm_80+", "cvt.rn.bf16.f32 $d, $s;"},
                    // A bf16 is the upper half of the fp32 with the same value.
                    {"cvt.f32.bf16", "fp32", "bf16", "sm_70+", "{.reg .b16 z; mov.b16 z, 0; mov.b32 $d, {z, $s};}"},
                    {"cvt.rn.f32.f64", "fp32", "fp64", "sm_70+", "cvt.rn.f32.f64 $d, $s;"},
                    {"cvt.f64.f32", "fp64", "fp32", "sm_70+", "cvt.f64.f32 $d, $s;"},
                    {"cvt.rna.tf32.f32", "tf32", "fp32", "sm_80+", "cvt.rna.tf32.f32 $d, $s;"},
                    {"mov.f32.tf32", "fp32", "tf32", "sm_80+", "mov.b32 $d, $s;"}}}},
       .doc = "Converts ${S} to ${D}, rounding to nearest where it must.",
       .source = kSource});
  list.push_back({.name = "cvt.rz.${p}.f32",
                  .kind = Kind::Unary,
                  .arch = "${arch}",
                  .out = {out("d", "[].${D}.RF")},
                  .in = {in("s", "[].fp32.RF")},
                  .attrs = {{"op", {"cast"}}, {"round", {"rz"}}},
                  .ptx = "cvt.rz.${p}.f32 $d, $s;",
                  .family = {{{"p", "D", "arch"}, {{"f16", "fp16", "sm_70+"}, {"bf16", "bf16", "sm_80+"}}}},
                  .doc = "Converts fp32 to ${D}, rounding toward zero.",
                  .source = kSource});
  list.push_back({.name = "cvt.rn.${p}x2.f32",
                  .kind = Kind::Unary,
                  .arch = "sm_80+",
                  .out = {out("d", "[2].${D}.RF", "e2")},
                  .in = {in("s", "[2].fp32.RF", "e2")},
                  .attrs = {{"op", {"cast"}}, {"round", {"default", "rn"}}},
                  .ptx = "cvt.rn.${p}x2.f32 $d, $s[1], $s[0];",
                  .family = {{{"p", "D"}, {{"f16", "fp16"}, {"bf16", "bf16"}}}},
                  .doc = "Converts two fp32 numbers to a pair of ${D}, rounding to nearest even.",
                  .source = kSource});
  // Before sm_80 two of them, one after the other: what is built for pairs does not depend on the architecture.
  list.push_back({.name = "cvt.rn.f16x2.f32.${arch}",
                  .kind = Kind::Unary,
                  .arch = "${arch}",
                  .out = {out("d", "[2].fp16.RF", "e2")},
                  .in = {in("s", "[2].fp32.RF", "e2")},
                  .attrs = {{"op", {"cast"}}, {"round", {"default", "rn"}}},
                  .ptx = "{.reg .b16 l, h; cvt.rn.f16.f32 l, $s[0]; cvt.rn.f16.f32 h, $s[1]; mov.b32 $d, {l, h};}",
                  .family = {{{"arch"}, {{"sm_70"}, {"sm_72"}, {"sm_75"}}}},
                  .doc = "Converts two fp32 numbers to a pair of fp16, rounding to nearest even.",
                  .source = kSource});
  list.push_back({.name = "cvt.f32x2.f16x2",
                  .kind = Kind::Unary,
                  .arch = "sm_70+",
                  .out = {out("d", "[2].fp32.RF", "e2")},
                  .in = {in("s", "[2].fp16.RF", "e2")},
                  .attrs = {{"op", {"cast"}}, {"round", {"default", "rn"}}},
                  .ptx = "{.reg .b16 l, h; mov.b32 {l, h}, $s; cvt.f32.f16 $d[0], l; cvt.f32.f16 $d[1], h;}",
                  .doc = "Converts a pair of fp16 numbers to fp32, exactly.",
                  .source = kSource});
  list.push_back(
      {.name = "cvt.f32x2.bf16x2",
       .kind = Kind::Unary,
       .arch = "sm_70+",
       .out = {out("d", "[2].fp32.RF", "e2")},
       .in = {in("s", "[2].bf16.RF", "e2")},
       .attrs = {{"op", {"cast"}}, {"round", {"default", "rn"}}},
       .ptx = "{.reg .b32 t; shl.b32 t, $s, 16; mov.b32 $d[0], t; and.b32 t, $s, 0xffff0000; mov.b32 $d[1], t;}",
       .doc = "Converts a pair of bf16 numbers to fp32, exactly.",
       .source = "PTX ISA, alternate floating-point data formats: bf16"});
  list.push_back(
      {.name = "cvt.rn.satfinite.${p}x2.f32",
       .kind = Kind::Unary,
       .arch = "sm_89+",
       .out = {out("d", "[2].${D}.RF", "e2")},
       .in = {in("s", "[2].fp32.RF", "e2")},
       .attrs = {{"op", {"cast"}}, {"round", {"default", "rn"}}},
       .ptx = "cvt.rn.satfinite.${p}x2.f32 $d, $s[1], $s[0];",
       .family = {{{"p", "D"}, {{"e4m3", "fp8e4m3"}, {"e5m2", "fp8e5m2"}}}},
       .doc = "Converts two fp32 numbers to a pair of ${D}; what is too large becomes the largest finite number.",
       .source = kSource});
  list.push_back({.name = "cvt.rn.f16x2.${p}x2",
                  .kind = Kind::Unary,
                  .arch = "sm_89+",
                  .out = {out("d", "[2].fp16.RF", "e2")},
                  .in = {in("s", "[2].${S}.RF", "e2")},
                  .attrs = {{"op", {"cast"}}, {"round", {"default", "rn"}}},
                  .ptx = "cvt.rn.f16x2.${p}x2 $d, $s;",
                  .family = {{{"p", "S"}, {{"e4m3", "fp8e4m3"}, {"e5m2", "fp8e5m2"}}}},
                  .doc = "Converts a pair of ${S} numbers to fp16, exactly.",
                  .source = kSource});
}

// One 8-bit float at a time, beside the instructions' pairs.
void add_single_fp8(std::vector<Atom>& list) {
  const Param types = {{"p", "T"}, {{"e4m3", "fp8e4m3"}, {"e5m2", "fp8e5m2"}}};
  list.push_back({.name = "cvt.f32.${p}",
                  .kind = Kind::Unary,
                  .arch = "sm_89+",
                  .out = {lvalue(out("d", "[].fp32.RF"))},
                  .in = {lvalue(in("s", "[].${T}.RF"))},
                  .attrs = {{"op", {"cast"}}, {"round", {"default", "rn"}}},
                  .cxx = "$d = __${p}_to_float($s);",
                  .helper = "static __device__ __forceinline__ float __${p}_to_float(u8 s) {\n"
                            "  float d;\n"
                            "  asm(\"{.reg .b32 t; .reg .b16 l, h; cvt.rn.f16x2.${p}x2 t, %1; mov.b32 {l, h}, t; \"\n"
                            "      \"cvt.f32.f16 %0, l;}\" : \"=f\"(d) : \"h\"((u16)s));\n"
                            "  return d;\n"
                            "}\n",
                  .family = {types},
                  .doc = "Converts ${T} to fp32, exactly.",
                  .source = kSource});
  list.push_back({.name = "cvt.rn.satfinite.${p}.f32",
                  .kind = Kind::Unary,
                  .arch = "sm_89+",
                  .out = {lvalue(out("d", "[].${T}.RF"))},
                  .in = {lvalue(in("s", "[].fp32.RF"))},
                  .attrs = {{"op", {"cast"}}, {"round", {"default", "rn"}}},
                  .cxx = "$d = __float_to_${p}($s);",
                  .helper = "static __device__ __forceinline__ u8 __float_to_${p}(float s) {\n"
                            "  u16 d;\n"
                            "  asm(\"cvt.rn.satfinite.${p}x2.f32 %0, %1, %2;\" : \"=h\"(d) : \"f\"(0.0f), \"f\"(s));\n"
                            "  return (u8)d;\n"
                            "}\n",
                  .family = {types},
                  .doc = "Converts fp32 to ${T}; what is too large becomes the largest finite number.",
                  .source = kSource});
  list.push_back({.name = "cvt.f32x2.${p}x2",
                  .kind = Kind::Unary,
                  .arch = "sm_89+",
                  .out = {out("d", "[2].fp32.RF", "e2")},
                  .in = {in("s", "[2].${T}.RF", "e2")},
                  .attrs = {{"op", {"cast"}}, {"round", {"default", "rn"}}},
                  .ptx = "{.reg .b32 t; .reg .b16 l, h; cvt.rn.f16x2.${p}x2 t, $s; mov.b32 {l, h}, t; "
                         "cvt.f32.f16 $d[0], l; cvt.f32.f16 $d[1], h;}",
                  .family = {types},
                  .doc = "Converts a pair of ${T} numbers to fp32, exactly.",
                  .source = kSource});
}

void add_integers(std::vector<Atom>& list) {
  list.push_back({.name = "cvt.rn.${p}.${i}",
                  .kind = Kind::Unary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].${D}.RF"))},
                  .in = {lvalue(in("s", "[].${I}.RF|IMM"))},
                  .attrs = {{"op", {"cast"}}, {"round", {"default", "rn"}}},
                  .cxx = "$d = (${C})$s;",
                  .family = {{{"D", "p", "C"}, {{"fp32", "f32", "float"}, {"fp64", "f64", "double"}}}, integers()},
                  .doc = "Converts ${I} to ${D}, rounding to nearest even where it must.",
                  .source = kSource});
  list.push_back(
      {.name = "cvt.rzi.${i}.${p}",
       .kind = Kind::Unary,
       .arch = "sm_70+",
       .out = {out("d", "[].${I}.RF")},
       .in = {in("s", "[].${S}.RF")},
       .attrs = {{"op", {"cast"}}, {"round", {"default", "rz"}}},
       .ptx = "cvt.rzi.${i}.${p} $d, $s;",
       .family = {{{"S", "p"}, {{"fp32", "f32"}, {"fp64", "f64"}, {"fp16", "f16"}}}, wide_integers()},
       .doc =
           "Converts ${S} to ${I}, rounding toward zero; out of range saturates. NaN becomes 0, or the top bit alone "
           "where source or result has 64 bits.",
       .source = kSource});
  list.push_back({.name = "cvt.rn.f16.${i}",
                  .kind = Kind::Unary,
                  .arch = "sm_70+",
                  .out = {out("d", "[].fp16.RF")},
                  .in = {in("s", "[].${I}.RF")},
                  .attrs = {{"op", {"cast"}}, {"round", {"default", "rn"}}},
                  .ptx = "cvt.rn.f16.${i} $d, $s;",
                  .family = {wide_integers()},
                  .doc = "Converts ${I} to fp16, rounding to nearest even.",
                  .source = kSource});
  std::vector<std::vector<std::string>> pairs;
  const Param types = integers();
  for (const auto& d : types.rows) {
    for (const auto& s : types.rows) {
      if (d != s) pairs.push_back({d[0], d[1], s[0], s[1]});
    }
  }
  list.push_back({.name = "cvt.${d}.${s}",
                  .kind = Kind::Unary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].${D}.RF"))},
                  .in = {lvalue(in("s", "[].${S}.RF|IMM"))},
                  .attrs = {{"op", {"cast"}}},
                  .cxx = "$d = (${D})$s;",
                  .family = {{{"D", "d", "S", "s"}, pairs}},
                  .doc = "Converts ${S} to ${D}, keeping the low bits.",
                  .source = kSource});
  list.push_back({.name = "cvt.pred.${D}",
                  .kind = Kind::Unary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].pred.RF"))},
                  .in = {lvalue(in("s", "[].${D}.RF|IMM"))},
                  .attrs = {{"op", {"cast"}}},
                  .cxx = "$d = $s != 0;",
                  .family = {{{"D"}, {{"fp32"}, {"fp64"}, {"i32"}, {"u32"}, {"i64"}, {"u64"}}}},
                  .doc = "Tells whether a number (${D}) is not zero.",
                  .source = "PTX ISA, comparison and selection: setp"});
  list.push_back({.name = "cvt.${D}.pred",
                  .kind = Kind::Unary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].${D}.RF"))},
                  .in = {lvalue(in("s", "[].pred.RF|IMM"))},
                  .attrs = {{"op", {"cast"}}},
                  .cxx = "$d = $s ? 1 : 0;",
                  .family = {{{"D"}, {{"fp32"}, {"fp64"}, {"i32"}, {"u32"}, {"i64"}, {"u64"}}}},
                  .doc = "Converts a truth value to 1 or 0 (${D}).",
                  .source = "PTX ISA, comparison and selection: selp"});
}

// Numbers of 4 and 6 bits, one at a time.
void add_narrow(std::vector<Atom>& list) {
  const Param integers = {{"T"}, {{"i4"}, {"u4"}}};
  const Param wide = {{"D"}, {{"i8"}, {"u8"}, {"i32"}, {"u32"}}};
  list.push_back({.name = "cvt.${D}.${T}",
                  .kind = Kind::Unary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].${D}.RF"))},
                  .in = {lvalue(in("s", "[].${T}.RF"))},
                  .attrs = {{"op", {"cast"}}},
                  .cxx = "$d = (${D})$s;",
                  .family = {integers, wide},
                  .doc = "Converts ${T} to ${D}, keeping the low bits.",
                  .source = kSource});
  list.push_back({.name = "cvt.${T}.${D}",
                  .kind = Kind::Unary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].${T}.RF"))},
                  .in = {lvalue(in("s", "[].${D}.RF|IMM"))},
                  .attrs = {{"op", {"cast"}}},
                  .cxx = "$d = $s;",
                  .family = {integers, wide},
                  .doc = "Converts ${D} to ${T}, keeping the low bits.",
                  .source = kSource});
  list.push_back({.name = "cvt.rn.f32.${T}",
                  .kind = Kind::Unary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].fp32.RF"))},
                  .in = {lvalue(in("s", "[].${T}.RF"))},
                  .attrs = {{"op", {"cast"}}, {"round", {"default", "rn"}}},
                  .cxx = "$d = (float)$s;",
                  .family = {integers},
                  .doc = "Converts ${T} to fp32, exactly.",
                  .source = kSource});
  // M: bits of the fraction; H: the hidden one; S: of a subnormal number's last place. To them: E: what fp32's exponent
  // and fraction, cut to M bits, are larger by; R: what cutting leaves; T: the largest.
  const Param floats = {{"p", "T", "M", "H", "S", "L", "E", "R", "C", "Top", "Least"},
                        {{"e2m1", "fp4e2m1", "1", "2", "0.5f", "2.0f", "252", "0x1fffffu", "22", "7u", "1.0f"},
                         {"e2m3", "fp6e2m3", "3", "8", "0.125f", "8.0f", "1008", "0x7ffffu", "20", "31u", "1.0f"},
                         {"e3m2", "fp6e3m2", "2", "4", "0.0625f", "16.0f", "496", "0xfffffu", "21", "31u", "0.25f"}}};
  list.push_back({.name = "cvt.f32.${p}",
                  .kind = Kind::Unary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].fp32.RF"))},
                  .in = {lvalue(in("s", "[].${T}.RF"))},
                  .attrs = {{"op", {"cast"}}, {"round", {"default", "rn"}}},
                  .cxx = "$d = __${p}_to_float($s);",
                  .helper = "static __device__ __forceinline__ float __${p}_to_float(u32 s) {\n"
                            "  u32 e = (s & ${Top}) >> ${M}, m = s & (${H}u - 1);\n"
                            "  float d = (float)(e == 0 ? m : (${H}u + m) << (e - 1)) * ${S};\n"
                            "  return s & (${Top} + 1) ? -d : d;\n"
                            "}\n",
                  .family = {floats},
                  .doc = "Converts ${T} to fp32, exactly, by several instructions.",
                  .source = "PTX ISA, alternate floating-point data formats; OCP Microscaling Formats 1.0, 5.3"});
  list.push_back(
      {.name = "cvt.rn.satfinite.${p}.f32",
       .kind = Kind::Unary,
       .arch = "sm_70+",
       .out = {lvalue(out("d", "[].${T}.RF"))},
       .in = {lvalue(in("s", "[].fp32.RF"))},
       .attrs = {{"op", {"cast"}}, {"round", {"default", "rn"}}},
       .cxx = "$d = __float_to_${p}($s);",
       .helper =
           "static __device__ __forceinline__ u8 __float_to_${p}(float s) {\n"
           "  if (s != s) return ${Top};\n"
           "  u32 u = __float_as_uint(s), a = u & 0x7fffffffu;\n"
           "  float x = __uint_as_float(a);\n"
           "  u32 d = x < ${Least} ? __float2uint_rn(x * ${L}) : ((a + ${R} + (a >> ${C} & 1)) >> ${C}) - ${E}u;\n"
           "  return (d > ${Top} ? ${Top} : d) | (u >> 31) * (${Top} + 1);\n"
           "}\n",
       .family = {floats},
       .doc = "Converts fp32 to ${T} by several instructions; what is too large and NaN become the largest.",
       .source = "PTX ISA, cvt (of sm_100a, with the same results); OCP Microscaling Formats 1.0, 5.3"});
}

// Eight elements of 4 bits, a word, to four registers of two. A pair's nibbles go to the low ends of the halves of a
// register; above them the exponent is set of which they are the last places, and what was added is subtracted.
void add_words(std::vector<Atom>& list) {
  const auto text = [](const std::string& constants, const std::string& pair) {
    std::string all = "{.reg .b32 t, b, c; " + constants;
    for (int k = 0; k < 4; ++k) {
      const std::string d = "$d[" + std::to_string(k) + "]";
      std::string one = pair;
      one.replace(one.find("$d"), 2, d);
      all += (k == 0 ? "mov.b32 t, $s; " : "shr.u32 t, $s, " + std::to_string(8 * k) + "; ") +
             std::string("shl.b32 b, t, 12; prmt.b32 b, t, b, 0x7610; ") + one;
    }
    return all + "}";
  };
  const auto add = [&](const char* to, const char* from, const char* arch, std::string ptx) {
    const std::string short_name = to == std::string("fp16") ? "f16" : to;
    list.push_back({.name = "cvt." + short_name + "x8." + from + "x8",
                    .kind = Kind::Unary,
                    .arch = arch,
                    .out = {out("d", std::string("[8].") + to + ".RF", "e8")},
                    .in = {in("s", std::string("[8].") + from + ".RF", "e8")},
                    .attrs = {{"op", {"cast"}}, {"round", {"default", "rn"}}},
                    .ptx = std::move(ptx),
                    .doc = std::string("Converts eight numbers (") + from + ") of a word to " + to + ", exactly.",
                    .source = "PTX ISA: prmt, lop3, sub.f16x2, fma.rn.bf16x2"});
  };
  add("fp16", "u4", "sm_70+",
      text("mov.b32 c, 0x64006400; ", "lop3.b32 b, b, 0x000f000f, c, 0xea; sub.f16x2 $d, b, c; "));
  add("fp16", "i4", "sm_70+",
      text("mov.b32 c, 0x64086408; ", "lop3.b32 b, b, 0x000f000f, c, 0x6a; sub.f16x2 $d, b, c; "));
  add("bf16", "u4", "sm_80+",
      text(".reg .b32 e; mov.b32 c, 0x3f803f80; mov.b32 e, 0xc300c300; ",
           "lop3.b32 b, b, 0x000f000f, 0x43004300, 0xea; fma.rn.bf16x2 $d, b, c, e; "));
  add("bf16", "i4", "sm_80+",
      text(".reg .b32 e; mov.b32 c, 0x3f803f80; mov.b32 e, 0xc308c308; ",
           "lop3.b32 b, b, 0x000f000f, 0x43084308, 0x6a; fma.rn.bf16x2 $d, b, c, e; "));
  add("fp16", "fp4e2m1", "sm_70+",
      text(".reg .b32 e; mov.b32 e, 0x74007400; ",
           "shl.b32 c, b, 9; and.b32 c, c, 0x0e000e00; shl.b32 b, b, 12; lop3.b32 b, b, 0x80008000, c, 0xea; "
           "mul.f16x2 $d, b, e; "));
}

}  // namespace

void convert(std::vector<Atom>& list) {
  add_floats(list);
  add_single_fp8(list);
  add_integers(list);
  add_narrow(list);
  add_words(list);
}

}  // namespace graphene::atoms::subjects
