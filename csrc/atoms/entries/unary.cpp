// Functions of one number, and selected packed forms.
#include <utility>

#include "atoms/entries/operands.h"

namespace graphene::atoms::subjects {

namespace {

// Fast functions of the hardware: the default. "full" asks for the accurate one.
void add_fp32(std::vector<Atom>& list) {
  list.push_back({.name = "${n}",
                  .kind = Kind::Unary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].fp32.RF"))},
                  .in = {lvalue(in("s", "[].fp32.RF|IMM"))},
                  .attrs = {{"op", {"${op}"}}, {"accuracy", {"default", "full"}}},
                  .cxx = "$d = ${f};",
                  .family = {{{"n", "op", "f"},
                              {{"neg.f32", "neg", "-$s"},
                               {"abs.f32", "abs", "fabsf($s)"},
                               {"cvt.rmi.f32", "floor", "floorf($s)"},
                               {"cvt.rpi.f32", "ceil", "ceilf($s)"},
                               {"cvt.rni.f32", "round", "rintf($s)"},
                               {"cvt.rzi.f32", "trunc", "truncf($s)"}}}},
                  .doc = "Computes ${op} of an fp32 number, exactly.",
                  .source = "PTX ISA, floating point: neg, abs; cvt to an integral value"});
  list.push_back({.name = "${n}",
                  .kind = Kind::Unary,
                  .arch = "${arch}",
                  .out = {out("d", "[].fp32.RF")},
                  .in = {in("s", "[].fp32.RF")},
                  .attrs = {{"op", {"${op}"}}, {"accuracy", {"default", "approx"}}},
                  .ptx = "${n} $d, $s;",
                  .numerics = {{"sm_70+", 1, -1, "rn", 4}},
                  .family = {{{"n", "op", "arch"},
                              {{"ex2.approx.f32", "exp2", "sm_70+"},
                               {"lg2.approx.f32", "log2", "sm_70+"},
                               {"rcp.approx.f32", "rcp", "sm_70+"},
                               {"sqrt.approx.f32", "sqrt", "sm_70+"},
                               {"rsqrt.approx.f32", "rsqrt", "sm_70+"}}}},
                  .doc = "Computes ${op} of an fp32 number fast, within a few ulp.",
                  .source = "PTX ISA, floating point: ex2, lg2, rcp, sqrt, rsqrt"});
  list.push_back(
      {.name = "${n}",
       .kind = Kind::Unary,
       .arch = "${arch}",
       .out = {out("d", "[].fp32.RF")},
       .in = {in("s", "[].fp32.RF")},
       .attrs = {{"op", {"${op}"}}, {"accuracy", {"default", "approx"}}},
       .ptx = "${n} $d, $s;",
       .numerics = {{"sm_70+", 1, -1, "rn", 16384}},
       .family = {{{"n", "op", "arch"},
                   {{"tanh.approx.f32", "tanh", "sm_75+"},
                    {"sin.approx.f32", "sin", "sm_70+"},
                    {"cos.approx.f32", "cos", "sm_70+"}}}},
       .doc = "Computes ${op} of an fp32 number fast, with an error of about 2^-11 (tanh) or 2^-20 (sin, cos).",
       .source = "PTX ISA, floating point: tanh, sin, cos"});
  list.push_back({.name = "${n}",
                  .kind = Kind::Unary,
                  .arch = "sm_70+",
                  .out = {out("d", "[].fp32.RF")},
                  .in = {in("s", "[].fp32.RF")},
                  .attrs = {{"op", {"${op}"}}, {"accuracy", {"default", "approx"}}, {"ftz", {"true"}}},
                  .ptx = "${n} $d, $s;",
                  .numerics = {{"sm_70+", 1, -1, "rn", 4}},
                  .family = {{{"n", "op"},
                              {{"ex2.approx.ftz.f32", "exp2"},
                               {"lg2.approx.ftz.f32", "log2"},
                               {"rcp.approx.ftz.f32", "rcp"},
                               {"sqrt.approx.ftz.f32", "sqrt"},
                               {"rsqrt.approx.ftz.f32", "rsqrt"}}}},
                  .doc = "Computes ${op} of an fp32 number fast; subnormal inputs and results become zero.",
                  .source = "PTX ISA, floating point: ex2, lg2, rcp, sqrt, rsqrt"});
  list.push_back(
      {.name = "${n}",
       .kind = Kind::Unary,
       .arch = "sm_70+",
       .out = {lvalue(out("d", "[].fp32.RF"))},
       .in = {lvalue(in("s", "[].fp32.RF|IMM"))},
       .attrs = {{"op", {"${op}"}}, {"accuracy", {"default", "approx"}}},
       .cxx = "$d = ${f}($s);",
       .numerics = {{"sm_70+", 1, -1, "rn", 64}},
       .family = {{{"n", "op", "f"}, {{"exp.approx.f32", "exp", "__expf"}, {"log.approx.f32", "log", "__logf"}}}},
       .doc = "Computes ${op} of an fp32 number fast, through the hardware's base-2 function.",
       .source = "CUDA C++ programming guide, intrinsic functions: __expf, __logf"});
  list.push_back({.name = "${n}",
                  .kind = Kind::Unary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].fp32.RF"))},
                  .in = {lvalue(in("s", "[].fp32.RF|IMM"))},
                  .attrs = {{"op", {"${op}"}}, {"accuracy", {"full"}}},
                  .cxx = "$d = ${f}($s);",
                  .numerics = {{"sm_70+", 1, -1, "rn", 2}},
                  .family = {{{"n", "op", "f"},
                              {{"ex2.full.f32", "exp2", "exp2f"},
                               {"lg2.full.f32", "log2", "log2f"},
                               {"exp.full.f32", "exp", "expf"},
                               {"log.full.f32", "log", "logf"},
                               {"rcp.rn.f32", "rcp", "__frcp_rn"},
                               {"sqrt.rn.f32", "sqrt", "__fsqrt_rn"},
                               {"rsqrt.full.f32", "rsqrt", "rsqrtf"},
                               {"sin.full.f32", "sin", "sinf"},
                               {"cos.full.f32", "cos", "cosf"},
                               {"tanh.full.f32", "tanh", "tanhf"}}}},
                  .doc = "Computes ${op} of an fp32 number accurately, in several instructions.",
                  .source = "CUDA C++ programming guide, mathematical functions: ${f}"});
  list.push_back({.name = "erf.f32",
                  .kind = Kind::Unary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].fp32.RF"))},
                  .in = {lvalue(in("s", "[].fp32.RF|IMM"))},
                  .attrs = {{"op", {"erf"}}, {"accuracy", {"default", "full"}}},
                  .cxx = "$d = erff($s);",
                  .numerics = {{"sm_70+", 1, -1, "rn", 2}},
                  .doc = "Computes the error function of an fp32 number, within 2 ulp.",
                  .source = "CUDA C++ programming guide, mathematical functions: erff"});
}

void add_fp64(std::vector<Atom>& list) {
  list.push_back({.name = "${op}.f64",
                  .kind = Kind::Unary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].fp64.RF"))},
                  .in = {lvalue(in("s", "[].fp64.RF|IMM"))},
                  .attrs = {{"op", {"${op}"}}, {"accuracy", {"default", "full"}}},
                  .cxx = "$d = ${f};",
                  .numerics = {{"sm_70+", 1, -1, "rn", 2}},
                  .family = {{{"op", "f"},
                              {{"neg", "-$s"},
                               {"abs", "fabs($s)"},
                               {"floor", "floor($s)"},
                               {"ceil", "ceil($s)"},
                               {"round", "rint($s)"},
                               {"trunc", "trunc($s)"},
                               {"sqrt", "__dsqrt_rn($s)"},
                               {"rcp", "__drcp_rn($s)"},
                               {"rsqrt", "rsqrt($s)"},
                               {"exp", "exp($s)"},
                               {"exp2", "exp2($s)"},
                               {"log", "log($s)"},
                               {"log2", "log2($s)"},
                               {"sin", "sin($s)"},
                               {"cos", "cos($s)"},
                               {"tanh", "tanh($s)"},
                               {"erf", "erf($s)"}}}},
                  .doc = "Computes ${op} of an fp64 number.",
                  .source = "CUDA C++ programming guide, mathematical functions; PTX ISA, floating point"});
}

void add_half(std::vector<Atom>& list) {
  list.push_back({.name = "${i}.${p}",
                  .kind = Kind::Unary,
                  .arch = "${arch}",
                  .out = {out("d", "${P}.${T}.RF", "${e}")},
                  .in = {in("s", "${P}.${T}.RF", "${e}")},
                  .attrs = {{"op", {"${op}"}}},
                  .ptx = "${i}.${p} $d, $s;",
                  .family = {{{"i", "op"}, {{"neg", "neg"}, {"abs", "abs"}}},
                             {{"p", "T", "P", "e", "arch"},
                              {{"f16", "fp16", "[]", "", "sm_70+"},
                               {"f16x2", "fp16", "[2]", "e2", "sm_70+"},
                               {"bf16", "bf16", "[]", "", "sm_80+"},
                               {"bf16x2", "bf16", "[2]", "e2", "sm_80+"}}}},
                  .doc = "Computes ${op} of ${T} numbers, exactly.",
                  .source = "PTX ISA, half precision floating point: neg, abs"});
  const auto halves = [&](const std::vector<std::vector<std::string>>& rows, const std::vector<AttrDef>& more) {
    std::vector<AttrDef> attrs = {{"op", {"${op}"}}, {"accuracy", {"default", "approx"}}};
    attrs.insert(attrs.end(), more.begin(), more.end());
    list.push_back({.name = "${i}.${p}",
                    .kind = Kind::Unary,
                    .arch = "${arch}",
                    .out = {out("d", "${P}.${T}.RF", "${e}")},
                    .in = {in("s", "${P}.${T}.RF", "${e}")},
                    .attrs = std::move(attrs),
                    .ptx = "${i}.${p} $d, $s;",
                    .numerics = {{"sm_75+", 1, -1, "rn", 2}},
                    .family = {{{"i", "op", "p", "T", "P", "e", "arch"}, rows}},
                    .doc = "Computes ${op} of ${T} numbers fast.",
                    .source = "PTX ISA, half precision floating point: ex2, tanh"});
  };
  halves({{"ex2.approx", "exp2", "f16", "fp16", "[]", "", "sm_75+"},
          {"ex2.approx", "exp2", "f16x2", "fp16", "[2]", "e2", "sm_75+"}},
         {});
  halves({{"ex2.approx.ftz", "exp2", "bf16", "bf16", "[]", "", "sm_90+"},
          {"ex2.approx.ftz", "exp2", "bf16x2", "bf16", "[2]", "e2", "sm_90+"}},
         {{"ftz", {"false", "true"}}});
  halves({{"tanh.approx", "tanh", "f16", "fp16", "[]", "", "sm_75+"},
          {"tanh.approx", "tanh", "f16x2", "fp16", "[2]", "e2", "sm_75+"},
          {"tanh.approx", "tanh", "bf16", "bf16", "[]", "", "sm_90+"},
          {"tanh.approx", "tanh", "bf16x2", "bf16", "[2]", "e2", "sm_90+"}},
         {});
}

void add_integers(std::vector<Atom>& list) {
  list.push_back({.name = "${op}.${p}",
                  .kind = Kind::Unary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].${T}.RF"))},
                  .in = {lvalue(in("s", "[].${T}.RF|IMM"))},
                  .attrs = {{"op", {"${op}"}}},
                  .cxx = "$d = ${f};",
                  .family = {{{"op", "p", "T", "f"},
                              {{"neg", "s32", "i32", "(i32)(0u - (u32)$s)"},
                               {"neg", "s64", "i64", "(i64)(0ull - (u64)$s)"},
                               {"abs", "s32", "i32", "$s < 0 ? (i32)(0u - (u32)$s) : $s"},
                               {"abs", "s64", "i64", "$s < 0 ? (i64)(0ull - (u64)$s) : $s"},
                               {"neg", "u32", "u32", "0u - $s"},
                               {"neg", "u64", "u64", "0ull - $s"},
                               {"not", "s32", "i32", "~$s"},
                               {"not", "u32", "u32", "~$s"},
                               {"not", "s64", "i64", "~$s"},
                               {"not", "u64", "u64", "~$s"},
                               {"not", "pred", "pred", "!$s"}}}},
                  .doc = "Computes ${op} of an integer or truth value (${T}).",
                  .source = "PTX ISA, integer arithmetic: neg, abs; logic: not"});
  // T: type; f: the device function; C: what it takes.
  const Param counts = {{"op", "f"}, {{"popc", "__popc"}, {"clz", "__clz"}, {"ffs", "__ffs"}, {"brev", "__brev"}}};
  const Param types = {
      {"T", "p", "ll", "C"},
      {{"i32", "s32", "", "i32"}, {"u32", "u32", "", "u32"}, {"i64", "s64", "ll", "i64"}, {"u64", "u64", "ll", "u64"}}};
  list.push_back({.name = "${op}.${p}",
                  .kind = Kind::Unary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].${T}.RF"))},
                  .in = {lvalue(in("s", "[].${T}.RF|IMM"))},
                  .attrs = {{"op", {"${op}"}}},
                  .cxx = "$d = (${T})${f}${ll}($s);",
                  .family = {counts, types},
                  .doc = "Computes ${op} of an integer (${T}).",
                  .source = "PTX ISA, integer arithmetic: popc, clz, brev; CUDA C++ programming guide: ${f}${ll}"});
}

// The bits of registers as another type. Of one width the compiler sees a value pass; a word of several elements is one
// register as it stands.
void add_bitcasts(std::vector<Atom>& list) {
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const std::string& to, const std::string& from, const std::string& text) {
    rows.push_back({to + "." + from, to, from, text});
  };
  for (const std::string& i : {std::string("i32"), std::string("u32")}) {
    const std::string word = i == "i32" ? "int" : "uint";
    add(i, "fp32", "__float_as_" + word + "($s)");
    add("fp32", i, "__" + word + "_as_float($s)");
    add(i, i == "i32" ? "u32" : "i32", "(" + i + ")$s");
  }
  for (const std::string& i : {std::string("i64"), std::string("u64")}) {
    add(i, "fp64", "(" + i + ")__double_as_longlong($s)");
    add("fp64", i, "__longlong_as_double((i64)$s)");
    add(i, i == "i64" ? "u64" : "i64", "(" + i + ")$s");
  }
  for (const std::vector<std::string>& narrow : {std::vector<std::string>{"fp16", "bf16", "i16", "u16"},
                                                 std::vector<std::string>{"fp8e4m3", "fp8e5m2", "i8", "u8"}}) {
    for (const std::string& to : narrow) {
      for (const std::string& from : narrow) {
        if (to != from)
          add(to, from,
              to.starts_with("i") ? "(" + to + ")$s" : "(u" + std::to_string(narrow[0] == "fp16" ? 16 : 8) + ")$s");
      }
    }
  }
  list.push_back({.name = "bitcast.${n}",
                  .kind = Kind::Unary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].${D}.RF"))},
                  .in = {lvalue(in("s", "[].${S}.RF"))},
                  .attrs = {{"op", {"bitcast"}}},
                  .cxx = "$d = ${f};",
                  .family = {{{"n", "D", "S", "f"}, rows}},
                  .doc = "Takes the bits of a number (${S}) as another type (${D}).",
                  .source = "CUDA C++ programming guide, type casting intrinsics"});
  const auto words = [&](const char* name, bool splits) {
    list.push_back(
        {.name = name,
         .kind = Kind::Unary,
         .arch = "sm_70+",
         .out = {splits ? out("d", "[${N}].b${E}.RF", "e${N}") : out("d", "[].b${W}.RF")},
         .in = {splits ? in("s", "[].b${W}.RF") : in("s", "[${N}].b${E}.RF", "e${N}")},
         .attrs = {{"op", {"bitcast"}}},
         .ptx = splits ? "${split}" : "${join}",
         .family = {{{"N", "E", "W", "split", "join"},
                     {{"2", "16", "32", "mov.b32 $d, $s;", "mov.b32 $d, $s;"},
                      {"4", "8", "32", "mov.b32 $d, $s;", "mov.b32 $d, $s;"},
                      {"2", "32", "64", "mov.b64 {$d[0], $d[1]}, $s;", "mov.b64 $d, {$s[0], $s[1]};"},
                      {"4", "16", "64", "mov.b64 {$d[0], $d[1]}, $s;", "mov.b64 $d, {$s[0], $s[1]};"},
                      {"8", "8", "64", "mov.b64 {$d[0], $d[1]}, $s;", "mov.b64 $d, {$s[0], $s[1]};"},
                      {"8", "4", "32", "mov.b32 $d, $s;", "mov.b32 $d, $s;"}}}},
         .doc = splits ? "Takes the bits of a word (${W} bits) as ${N} elements of ${E} bits, the lowest first."
                       : "Takes the bits of ${N} elements of ${E} bits as one word (${W} bits), the first lowest.",
         .source = "PTX ISA, data movement and conversion: mov"});
  };
  words("bitcast.b${W}.${N}xb${E}", true);
  words("bitcast.${N}xb${E}.b${W}", false);
}

}  // namespace

void unary(std::vector<Atom>& list) {
  add_fp32(list);
  add_fp64(list);
  add_half(list);
  add_integers(list);
  add_bitcasts(list);
}

}  // namespace graphene::atoms::subjects
