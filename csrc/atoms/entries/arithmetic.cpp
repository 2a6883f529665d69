// Arithmetic of one thread: fused multiply-add, binary and ternary operations.
#include "atoms/entries/operands.h"

namespace graphene::atoms::subjects {

namespace {

constexpr const char* kFmaSource = "PTX ISA, floating point: fma";

// The paper's Fig. 8 runs its multiply-add on operands in global memory: a scalar may live anywhere.
void add_scalar_fma(std::vector<Atom>& list) {
  const Param types = {
      {"p", "T", "arch", "fma", "helper"},
      {{"f32", "fp32", "sm_70+", "__fmaf_rn", ""},
       {"f64", "fp64", "sm_70+", "__fma_rn", ""},
       {"f16", "fp16", "sm_70+", "__hfma",
        "static __device__ __forceinline__ half __hfma(half a, half b, half c) {\n"
        "  half d;\n"
        "  asm(\"fma.rn.f16 %0, %1, %2, %3;\" : \"=h\"(d) : \"h\"(a), \"h\"(b), \"h\"(c));\n"
        "  return d;\n"
        "}\n"},
       {"bf16", "bf16", "sm_80+", "__hfma_bf16",
        "static __device__ __forceinline__ bfloat16 __hfma_bf16(bfloat16 a, bfloat16 b, bfloat16 c) {\n"
        "  bfloat16 d;\n"
        "  asm(\"fma.rn.bf16 %0, %1, %2, %3;\" : \"=h\"(d) : \"h\"(a), \"h\"(b), \"h\"(c));\n"
        "  return d;\n"
        "}\n"}}};
  const Param products = {{"p", "T", "arch", "mul", "helper"},
                          {{"f32", "fp32", "sm_70+", "__fmul_rn", ""},
                           {"f64", "fp64", "sm_70+", "__dmul_rn", ""},
                           {"f16", "fp16", "sm_70+", "__hmul",
                            "static __device__ __forceinline__ half __hmul(half a, half b) {\n"
                            "  half d;\n"
                            "  asm(\"mul.rn.f16 %0, %1, %2;\" : \"=h\"(d) : \"h\"(a), \"h\"(b));\n"
                            "  return d;\n"
                            "}\n"},
                           {"bf16", "bf16", "sm_80+", "__hmul_bf16",
                            "static __device__ __forceinline__ bfloat16 __hmul_bf16(bfloat16 a, bfloat16 b) {\n"
                            "  bfloat16 d, z = 0x8000;  // minus zero keeps the product's sign\n"
                            "  asm(\"fma.rn.bf16 %0, %1, %2, %3;\" : \"=h\"(d) : \"h\"(a), \"h\"(b), \"h\"(z));\n"
                            "  return d;\n"
                            "}\n"}}};
  list.push_back({.name = "fma.rn.${p}",
                  .kind = Kind::MatMul,
                  .arch = "${arch}",
                  .out = {lvalue(update("d", "[].${T}.RF|SH|GL"))},
                  .in = {lvalue(in("a", "[].${T}.RF|SH|GL")), lvalue(in("b", "[].${T}.RF|SH|GL"))},
                  .guard = Guard::Branch,
                  .cxx = "$d = ${fma}($a, $b, $d);",
                  .helper = "${helper}",
                  .family = {types},
                  .doc = "Multiplies two numbers and adds a third, rounding once to nearest even.",
                  .source = kFmaSource});
  list.push_back({.name = "fma.rn.${p}/mul",
                  .kind = Kind::MatMul,
                  .arch = "${arch}",
                  .out = {lvalue(out("d", "[].${T}.RF|SH|GL"))},
                  .in = {lvalue(in("a", "[].${T}.RF|SH|GL")), lvalue(in("b", "[].${T}.RF|SH|GL"))},
                  .attrs = {{"accumulate", {"false"}}},
                  .guard = Guard::Branch,
                  .cxx = "$d = ${mul}($a, $b);",
                  .helper = "${helper}",
                  .family = {products},
                  .doc = "Multiplies two numbers: a multiply-add that does not accumulate.",
                  .source = "PTX ISA, floating point: mul"});
  const Param integers = {{"T", "p"}, {{"i32", "s32"}, {"u32", "u32"}}};
  list.push_back({.name = "mad.lo.${p}",
                  .kind = Kind::MatMul,
                  .arch = "sm_70+",
                  .out = {lvalue(update("d", "[].${T}.RF|SH|GL"))},
                  .in = {lvalue(in("a", "[].${T}.RF|SH|GL")), lvalue(in("b", "[].${T}.RF|SH|GL"))},
                  .guard = Guard::Branch,
                  .cxx = "$d = (${T})((u32)$a * (u32)$b + (u32)$d);",
                  .family = {integers},
                  .doc = "Multiplies two integers and adds a third, modulo 2^32.",
                  .source = "PTX ISA, integer arithmetic: mad"});
}

void add_packed_fma(std::vector<Atom>& list) {
  const Param types = {{"p", "T", "arch"}, {{"f16", "fp16", "sm_70+"}, {"bf16", "bf16", "sm_80+"}}};
  list.push_back({.name = "fma.rn.${p}x2",
                  .kind = Kind::MatMul,
                  .arch = "${arch}",
                  .out = {update("d", "[2].${T}.RF", "e2")},
                  .in = {in("a", "[2].${T}.RF", "e2"), in("b", "[2].${T}.RF", "e2")},
                  .ptx = "fma.rn.${p}x2 $d, $a, $b, $d;",
                  .family = {types},
                  .doc = "Computes two multiply-adds, element by element, in one instruction.",
                  .source = kFmaSource});
  list.push_back({.name = "fma.rn.${p}x2/mul",
                  .kind = Kind::MatMul,
                  .arch = "${arch}",
                  .out = {out("d", "[2].${T}.RF", "e2")},
                  .in = {in("a", "[2].${T}.RF", "e2"), in("b", "[2].${T}.RF", "e2")},
                  .attrs = {{"accumulate", {"false"}}},
                  .ptx = "{.reg .b32 z; mov.b32 z, 0x80008000; fma.rn.${p}x2 $d, $a, $b, z;}",
                  .family = {types},
                  .doc = "Two products, element by element: packed multiply-adds that do not accumulate.",
                  .source = kFmaSource});
}

void add_binary_floats(std::vector<Atom>& list) {
  list.push_back({.name = "${n}",
                  .kind = Kind::Binary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].${T}.RF"))},
                  .in = {lvalue(in("a", "[].${T}.RF|IMM")), lvalue(in("b", "[].${T}.RF|IMM"))},
                  .attrs = {{"op", {"${op}"}}},
                  .cxx = "$d = ${f}($a, $b);",
                  .family = {{{"n", "op", "T", "f"},
                              {{"add.rn.f32", "add", "fp32", "__fadd_rn"},
                               {"sub.rn.f32", "sub", "fp32", "__fsub_rn"},
                               {"mul.rn.f32", "mul", "fp32", "__fmul_rn"},
                               {"max.f32", "max", "fp32", "fmaxf"},
                               {"min.f32", "min", "fp32", "fminf"},
                               {"add.rn.f64", "add", "fp64", "__dadd_rn"},
                               {"sub.rn.f64", "sub", "fp64", "__dsub_rn"},
                               {"mul.rn.f64", "mul", "fp64", "__dmul_rn"},
                               {"div.rn.f64", "div", "fp64", "__ddiv_rn"},
                               {"max.f64", "max", "fp64", "fmax"},
                               {"min.f64", "min", "fp64", "fmin"}}}},
                  .doc = "Computes ${op} of two numbers (${T}).",
                  .source = "PTX ISA, floating point: add, sub, mul, div, max, min"});
  list.push_back({.name = "div.rn.f32",
                  .kind = Kind::Binary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].fp32.RF"))},
                  .in = {lvalue(in("a", "[].fp32.RF|IMM")), lvalue(in("b", "[].fp32.RF|IMM"))},
                  .attrs = {{"op", {"div"}}, {"accuracy", {"default", "full"}}},
                  .cxx = "$d = __fdiv_rn($a, $b);",
                  .doc = "Divides two fp32 numbers, rounding to nearest even.",
                  .source = "PTX ISA, floating point: div"});
  list.push_back(
      {.name = "${n}",
       .kind = Kind::Binary,
       .arch = "sm_70+",
       .out = {lvalue(out("d", "[].${T}.RF"))},
       .in = {lvalue(in("a", "[].${T}.RF|IMM")), lvalue(in("b", "[].${T}.RF|IMM"))},
       .attrs = {{"op", {"${op}"}}, {"accuracy", {"default", "full"}}},
       .cxx = "$d = ${f}($a, $b);",
       .numerics = {{"sm_70+", 1, -1, "rn", 4}},
       .family = {{{"n", "op", "T", "f"}, {{"pow.f32", "pow", "fp32", "powf"}, {"pow.f64", "pow", "fp64", "pow"}}}},
       .doc = "Computes a power (${T}), within 4 ulp.",
       .source = "CUDA C++ programming guide, mathematical functions: ${f}"});
  list.push_back({.name = "${n}",
                  .kind = Kind::Binary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].${T}.RF"))},
                  .in = {lvalue(in("a", "[].${T}.RF|IMM")), lvalue(in("b", "[].${T}.RF|IMM"))},
                  .attrs = {{"op", {"fmod"}}},
                  .cxx = "$d = ${f}($a, $b);",
                  .family = {{{"n", "T", "f"}, {{"fmod.f32", "fp32", "fmodf"}, {"fmod.f64", "fp64", "fmod"}}}},
                  .doc = "Computes the exact rest of two numbers (${T}) whose quotient is cut to an integer.",
                  .source = "CUDA C++ programming guide, mathematical functions: ${f}"});
  list.push_back({.name = "div.approx.f32",
                  .kind = Kind::Binary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].fp32.RF"))},
                  .in = {lvalue(in("a", "[].fp32.RF|IMM")), lvalue(in("b", "[].fp32.RF|IMM"))},
                  .attrs = {{"op", {"div"}}, {"accuracy", {"approx"}}},
                  .cxx = "$d = __fdividef($a, $b);",
                  .numerics = {{"sm_70+", 1, -1, "rn", 2}},
                  .doc = "Divides two fp32 numbers fast, within 2 ulp for divisors up to 2^126.",
                  .source = "PTX ISA, floating point: div"});
  // sm_80 has no bf16 add: a multiply-add with one rounds the same sum once.
  const Param half = {
      {"n", "op", "T", "arch", "t16", "t32"},
      {{"add.rn.f16", "add", "fp16", "sm_70+", "add.rn.f16 $d, $a, $b;", "add.rn.f16x2 $d, $a, $b;"},
       {"sub.rn.f16", "sub", "fp16", "sm_70+", "sub.rn.f16 $d, $a, $b;", "sub.rn.f16x2 $d, $a, $b;"},
       {"mul.rn.f16", "mul", "fp16", "sm_70+", "mul.rn.f16 $d, $a, $b;", "mul.rn.f16x2 $d, $a, $b;"},
       {"max.f16", "max", "fp16", "sm_80+", "max.f16 $d, $a, $b;", "max.f16x2 $d, $a, $b;"},
       {"min.f16", "min", "fp16", "sm_80+", "min.f16 $d, $a, $b;", "min.f16x2 $d, $a, $b;"},
       {"add.rn.bf16", "add", "bf16", "sm_80+", "{.reg .b16 one; mov.b16 one, 0x3f80; fma.rn.bf16 $d, $a, one, $b;}",
        "{.reg .b32 one; mov.b32 one, 0x3f803f80; fma.rn.bf16x2 $d, $a, one, $b;}"},
       {"sub.rn.bf16", "sub", "bf16", "sm_80+", "{.reg .b16 one; mov.b16 one, 0xbf80; fma.rn.bf16 $d, $b, one, $a;}",
        "{.reg .b32 one; mov.b32 one, 0xbf80bf80; fma.rn.bf16x2 $d, $b, one, $a;}"},
       {"mul.rn.bf16", "mul", "bf16", "sm_80+", "{.reg .b16 z; mov.b16 z, 0x8000; fma.rn.bf16 $d, $a, $b, z;}",
        "{.reg .b32 z; mov.b32 z, 0x80008000; fma.rn.bf16x2 $d, $a, $b, z;}"},
       {"max.bf16", "max", "bf16", "sm_80+", "max.bf16 $d, $a, $b;", "max.bf16x2 $d, $a, $b;"},
       {"min.bf16", "min", "bf16", "sm_80+", "min.bf16 $d, $a, $b;", "min.bf16x2 $d, $a, $b;"}}};
  list.push_back({.name = "${n}",
                  .kind = Kind::Binary,
                  .arch = "${arch}",
                  .out = {out("d", "[].${T}.RF")},
                  .in = {in("a", "[].${T}.RF|IMM"), in("b", "[].${T}.RF|IMM")},
                  .attrs = {{"op", {"${op}"}}},
                  .ptx = "${t16}",
                  .family = {half},
                  .doc = "Computes ${op} of two ${T} numbers.",
                  .source = "PTX ISA, half precision floating point: add, sub, mul, fma, max, min"});
  list.push_back({.name = "${n}x2",
                  .kind = Kind::Binary,
                  .arch = "${arch}",
                  .out = {out("d", "[2].${T}.RF", "e2")},
                  .in = {in("a", "[2].${T}.RF", "e2"), in("b", "[2].${T}.RF", "e2")},
                  .attrs = {{"op", {"${op}"}}},
                  .ptx = "${t32}",
                  .family = {half},
                  .doc = "Computes ${op} of two pairs of ${T} numbers, element by element.",
                  .source = "PTX ISA, half precision floating point: add, sub, mul, fma, max, min"});
}

void add_binary_integers(std::vector<Atom>& list) {
  // W: bits; S: what is left when every bit has been shifted out to the right.
  const Param types = {{"T", "p", "U", "W", "S"},
                       {{"i32", "s32", "u32", "32", "$a >> 31"},
                        {"u32", "u32", "u32", "32", "0"},
                        {"i64", "s64", "u64", "64", "$a >> 63"},
                        {"u64", "u64", "u64", "64", "0"}}};
  // A shift by the width or more is undefined in C++, and shifts out every bit as in PTX here, a negative amount being
  // one of many bits: of an amount that the compiler knows the comparison is gone. Unsigned arithmetic wraps; signed
  // overflow is undefined in C++.
  const Param operations = {{"op", "text"},
                            {{"add", "(${T})((${U})$a + (${U})$b)"},
                             {"sub", "(${T})((${U})$a - (${U})$b)"},
                             {"mul", "(${T})((${U})$a * (${U})$b)"},
                             {"max", "$a < $b ? $b : $a"},
                             {"min", "$b < $a ? $b : $a"},
                             {"and", "$a & $b"},
                             {"or", "$a | $b"},
                             {"xor", "$a ^ $b"},
                             {"shl", "(${U})$b < ${W} ? (${T})((${U})$a << $b) : 0"},
                             {"shr", "(${U})$b < ${W} ? $a >> $b : ${S}"}}};
  std::vector<std::vector<std::string>> rows;
  for (const auto& t : types.rows) {
    for (const auto& o : operations.rows) {
      std::string text = o[1];
      for (const auto& [hole, value] :
           {std::pair{"${T}", t[0]}, std::pair{"${U}", t[2]}, std::pair{"${W}", t[3]}, std::pair{"${S}", t[4]}}) {
        for (std::size_t at; (at = text.find(hole)) != std::string::npos;) text.replace(at, 4, value);
      }
      rows.push_back({o[0] + "." + t[1], o[0], t[0], text});
    }
  }
  list.push_back({.name = "${n}",
                  .kind = Kind::Binary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].${T}.RF"))},
                  .in = {lvalue(in("a", "[].${T}.RF|IMM")), lvalue(in("b", "[].${T}.RF|IMM"))},
                  .attrs = {{"op", {"${op}"}}},
                  .cxx = "$d = ${text};",
                  .family = {{{"n", "op", "T", "text"}, rows}},
                  .doc = "Computes ${op} of two integers (${T}); results wrap.",
                  .source = "PTX ISA, integer arithmetic; logic and shift"});
  list.push_back(
      {.name = "setp.${op}.${p}",
       .kind = Kind::Binary,
       .arch = "sm_70+",
       .out = {lvalue(out("d", "[].pred.RF"))},
       .in = {lvalue(in("a", "[].${T}.RF|IMM")), lvalue(in("b", "[].${T}.RF|IMM"))},
       .attrs = {{"op", {"${op}"}}},
       .cxx = "$d = $a ${c} $b;",
       .family = {{{"op", "c"}, {{"eq", "=="}, {"ne", "!="}, {"lt", "<"}, {"le", "<="}, {"gt", ">"}, {"ge", ">="}}},
                  {{"T", "p"},
                   {{"fp32", "f32"}, {"fp64", "f64"}, {"i32", "s32"}, {"u32", "u32"}, {"i64", "s64"}, {"u64", "u64"}}}},
       .doc = "Compares two numbers (${T}): ${op}.",
       .source = "PTX ISA, comparison and selection: setp"});
  list.push_back({.name = "${op}.pred",
                  .kind = Kind::Binary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].pred.RF"))},
                  .in = {lvalue(in("a", "[].pred.RF|IMM")), lvalue(in("b", "[].pred.RF|IMM"))},
                  .attrs = {{"op", {"${op}"}}},
                  .cxx = "$d = $a ${c} $b;",
                  .family = {{{"op", "c"}, {{"and", "&&"}, {"or", "||"}, {"xor", "!="}}}},
                  .doc = "Combines two truth values: ${op}.",
                  .source = "PTX ISA, logic and shift: and, or, xor"});
}

// Python's quotient and remainder. The compiler knows a constant divisor: then the comparisons are gone.
void add_divisions(std::vector<Atom>& list) {
  const auto divided = [](const std::string& T, const std::string& U) {
    return "static __device__ __forceinline__ " + T + " gr_quotient(" + T + " x, " + T +
           " y) {\n"
           "  if (y == 0) return 0;\n"
           "  if (y == -1) return (" +
           T + ")((" + U + ")0 - (" + U +
           ")x);\n"
           "  const " +
           T +
           " q = x / y;\n"
           "  return q - (" +
           T +
           ")(x % y != 0 && (x ^ y) < 0);\n"
           "}\n"
           "static __device__ __forceinline__ " +
           T + " gr_remainder(" + T + " x, " + T +
           " y) {\n"
           "  if (y == 0 || y == -1) return 0;\n"
           "  const " +
           T +
           " r = x % y;\n"
           "  return r != 0 && (r ^ y) < 0 ? r + y : r;\n"
           "}\n";
  };
  list.push_back(
      {.name = "${op}.${p}",
       .kind = Kind::Binary,
       .arch = "sm_70+",
       .out = {lvalue(out("d", "[].${T}.RF"))},
       .in = {lvalue(in("a", "[].${T}.RF|IMM")), lvalue(in("b", "[].${T}.RF|IMM"))},
       .attrs = {{"op", {"${op}"}}},
       .cxx = "$d = ${f}((${T})$a, (${T})$b);",
       .helper = "${h}",
       .family = {{{"op", "f"}, {{"floordiv", "gr_quotient"}, {"mod", "gr_remainder"}}},
                  {{"T", "p", "h"}, {{"i32", "s32", divided("i32", "u32")}, {"i64", "s64", divided("i64", "u64")}}}},
       .doc = "Computes ${op} of two integers (${T}): the quotient rounded down, or what is left of it.",
       .source = "PTX ISA, integer arithmetic: div, rem"});
  list.push_back(
      {.name = "${op}.${p}",
       .kind = Kind::Binary,
       .arch = "sm_70+",
       .out = {lvalue(out("d", "[].${T}.RF"))},
       .in = {lvalue(in("a", "[].${T}.RF|IMM")), lvalue(in("b", "[].${T}.RF|IMM"))},
       .attrs = {{"op", {"${op}"}}},
       .cxx = "$d = (${T})$b == 0 ? 0 : (${T})$a ${c} (${T})$b;",
       .family = {{{"op", "c"}, {{"floordiv", "/"}, {"mod", "%"}}}, {{"T", "p"}, {{"u32", "u32"}, {"u64", "u64"}}}},
       .doc = "Computes ${op} of two integers (${T}): the quotient rounded down, or what is left of it.",
       .source = "PTX ISA, integer arithmetic: div, rem"});
  list.push_back({.name = "mul.hi.${p}",
                  .kind = Kind::Binary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].${T}.RF"))},
                  .in = {lvalue(in("a", "[].${T}.RF|IMM")), lvalue(in("b", "[].${T}.RF|IMM"))},
                  .attrs = {{"op", {"mulhi"}}},
                  .cxx = "$d = ${f}($a, $b);",
                  .family = {{{"T", "p", "f"},
                              {{"i32", "s32", "__mulhi"},
                               {"u32", "u32", "__umulhi"},
                               {"i64", "s64", "__mul64hi"},
                               {"u64", "u64", "__umul64hi"}}}},
                  .doc = "Multiplies two integers (${T}) and keeps the upper half of the product.",
                  .source = "PTX ISA, integer arithmetic: mul.hi"});
}

// Bytes of words, chosen, or multiplied and added up; and any function of three bits.
void add_bytes(std::vector<Atom>& list) {
  list.push_back({.name = "prmt.b32",
                  .kind = Kind::Ternary,
                  .arch = "sm_70+",
                  .out = {out("d", "[].u32.RF")},
                  .in = {in("a", "[].u32.RF|IMM"), in("b", "[].u32.RF|IMM"), in("c", "[].u32.RF|IMM")},
                  .attrs = {{"op", {"prmt"}}},
                  .ptx = "prmt.b32 $d, $a, $b, $c;",
                  .doc = "Takes four of the eight bytes of two words: each nibble of the third says which, and with 8 "
                         "added its sign.",
                  .source = "PTX ISA, data movement and conversion: prmt"});
  list.push_back(
      {.name = "dp4a.${p}",
       .kind = Kind::Ternary,
       .arch = "sm_70+",
       .out = {lvalue(out("d", "[].${T}.RF"))},
       .in = {lvalue(in("a", "[].${T}.RF|IMM")), lvalue(in("b", "[].${T}.RF|IMM")), lvalue(in("c", "[].${T}.RF|IMM"))},
       .attrs = {{"op", {"dp4a"}}},
       .cxx = "$d = __dp4a((${T})$a, (${T})$b, (${T})$c);",
       .family = {{{"T", "p"}, {{"i32", "s32"}, {"u32", "u32"}}}},
       .doc = "Multiplies the four bytes of two words (${T}) and adds the products to a third.",
       .source = "PTX ISA, integer arithmetic: dp4a"});
  list.push_back({.name = "lop3.b32/${T}",
                  .kind = Kind::Ternary,
                  .arch = "sm_70+",
                  .out = {out("d", "[].${T}.RF")},
                  .in = {in("a", "[].${T}.RF|IMM"), in("b", "[].${T}.RF|IMM"), in("c", "[].${T}.RF|IMM")},
                  .attrs = {{"op", {"lop3"}}, {"table", {"*byte"}}},
                  .ptx = "lop3.b32 $d, $a, $b, $c, $table;",
                  .family = {{{"T"}, {{"i32"}, {"u32"}}}},
                  .doc = "Computes any function of the bits of three words (${T}), which a table of eight bits gives.",
                  .source = "PTX ISA, logic and shift: lop3"});
}

void add_ternary(std::vector<Atom>& list) {
  list.push_back(
      {.name = "fma.rn.${p}/ternary",
       .kind = Kind::Ternary,
       .arch = "sm_70+",
       .out = {lvalue(out("d", "[].${T}.RF"))},
       .in = {lvalue(in("a", "[].${T}.RF|IMM")), lvalue(in("b", "[].${T}.RF|IMM")), lvalue(in("c", "[].${T}.RF|IMM"))},
       .attrs = {{"op", {"fma"}}},
       .cxx = "$d = ${f}($a, $b, $c);",
       .family = {{{"p", "T", "f"}, {{"f32", "fp32", "__fmaf_rn"}, {"f64", "fp64", "__fma_rn"}}}},
       .doc = "Multiplies two numbers and adds a third, rounding once to nearest even.",
       .source = kFmaSource});
  list.push_back(
      {.name = "fma.rn.${p}/ternary",
       .kind = Kind::Ternary,
       .arch = "${arch}",
       .out = {out("d", "${P}.${T}.RF", "${e}")},
       .in = {in("a", "${P}.${T}.RF", "${e}"), in("b", "${P}.${T}.RF", "${e}"), in("c", "${P}.${T}.RF", "${e}")},
       .attrs = {{"op", {"fma"}}},
       .ptx = "fma.rn.${p} $d, $a, $b, $c;",
       .family = {{{"p", "T", "P", "e", "arch"},
                   {{"f16", "fp16", "[]", "", "sm_70+"},
                    {"f16x2", "fp16", "[2]", "e2", "sm_70+"},
                    {"bf16", "bf16", "[]", "", "sm_80+"},
                    {"bf16x2", "bf16", "[2]", "e2", "sm_80+"}}}},
       .doc = "Multiplies and adds ${T} numbers, rounding once to nearest even.",
       .source = kFmaSource});
  list.push_back({.name = "selp.b${E}",
                  .kind = Kind::Ternary,
                  .arch = "sm_70+",
                  .out = {lvalue(out("d", "[].b${E}.RF"))},
                  .in = {lvalue(in("p", "[].pred.RF|IMM")), lvalue(in("a", "[].b${E}.RF|IMM")),
                         lvalue(in("b", "[].b${E}.RF|IMM"))},
                  .attrs = {{"op", {"where"}}},
                  .cxx = "$d = $p ? $a : $b;",
                  .family = {{{"E"}, {{"8"}, {"16"}, {"32"}, {"64"}}}},
                  .doc = "Selects one of two values by a truth value.",
                  .source = "PTX ISA, comparison and selection: selp"});
}

// gfx90a: waves of 64 lanes.
void add_waves(std::vector<Atom>& list) {
  list.push_back({.name = "v_fma_f32",
                  .kind = Kind::MatMul,
                  .arch = "gfx90a",
                  .out = {lvalue(update("d", "[].fp32.RF|SH|GL"))},
                  .in = {lvalue(in("a", "[].fp32.RF|SH|GL")), lvalue(in("b", "[].fp32.RF|SH|GL"))},
                  .guard = Guard::Branch,
                  .cxx = "$d = __builtin_fmaf($a, $b, $d);",
                  .doc = "Multiplies two numbers and adds a third, rounding once to nearest even.",
                  .source = kMi200Isa + std::string(", vector instructions: v_fma_f32")});
  list.push_back({.name = "v_${op}_f32",
                  .kind = Kind::Binary,
                  .arch = "gfx90a",
                  .out = {lvalue(out("d", "[].fp32.RF"))},
                  .in = {lvalue(in("a", "[].fp32.RF|IMM")), lvalue(in("b", "[].fp32.RF|IMM"))},
                  .attrs = {{"op", {"${op}"}}},
                  .cxx = "$d = ${f};",
                  .family = {{{"op", "f"},
                              {{"add", "$a + $b"},
                               {"sub", "$a - $b"},
                               {"mul", "$a * $b"},
                               {"max", "__builtin_fmaxf($a, $b)"},
                               {"min", "__builtin_fminf($a, $b)"}}}},
                  .doc = "Computes ${op} of two numbers (fp32).",
                  .source = kMi200Isa + std::string(", vector instructions")});
}

}  // namespace

void arithmetic(std::vector<Atom>& list) {
  add_scalar_fma(list);
  add_packed_fma(list);
  add_binary_floats(list);
  add_binary_integers(list);
  add_divisions(list);
  add_bytes(list);
  add_ternary(list);
  add_waves(list);
}

}  // namespace graphene::atoms::subjects
