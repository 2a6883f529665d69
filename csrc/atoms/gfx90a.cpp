// AMD gfx90a: waves of 64 lanes, matrix instructions (MFMA), and what a kernel around them needs. Texts are HIP C++:
// the compiler picks loads and stores by their types.
#include "atoms/short.h"

namespace graphene::atoms {

namespace {

constexpr const char* kIsa = "AMD Instinct MI200 instruction set architecture";
const AttrDef kFill = {"fill", {"*const"}};

// C++ text that does the same for values 0 to n - 1.
std::string each(int n) {
  if (n == 1) return "$dst = $src;";
  std::string text;
  for (int i = 0; i < n; ++i) {
    const std::string v = "[" + std::to_string(i) + "]";
    text += (i > 0 ? " " : "") + std::string("$dst") + v + " = $src" + v + ";";
  }
  return text;
}

// W: words of a vector; E: bits of an element; R, M: patterns of registers and memory.
void add_moves(std::vector<Atom>& list) {
  struct Width {
    const char* name;
    int bits, count;
  };
  for (const Width& w :
       {Width{"b128", 8, 16}, Width{"b128", 16, 8}, Width{"b128", 32, 4}, Width{"b64", 16, 4}, Width{"b64", 32, 2},
        Width{"b64", 64, 1}, Width{"b32", 16, 2}, Width{"b32", 32, 1}, Width{"b16", 16, 1}, Width{"b8", 8, 1}}) {
    const std::string n = std::to_string(w.count);
    const std::string type = ".b" + std::to_string(w.bits) + ".";
    const std::string registers = (w.count == 1 ? "[]" : "[" + n + "]") + type + "RF";
    const std::string memory = (w.count == 1 ? "[]" : "[" + n + ":1]") + type;
    const std::string tile = w.count == 1 ? "" : "e" + n;
    const std::string bytes = std::to_string(w.bits * w.count / 8);
    for (const auto& [space, load, store] :
         {std::tuple{"GL", "global_load", "global_store"}, {"SH", "ds_read", "ds_write"}}) {
      const std::string where = space == std::string("GL") ? "global memory" : "shared memory (LDS)";
      list.push_back({.name = std::string(load) + "." + w.name + "/b" + std::to_string(w.bits),
                      .arch = "gfx90a",
                      .out = {lvalue(out("dst", registers, tile))},
                      .in = {lvalue(aligned(in("src", memory + space, tile), bytes))},
                      .attrs = {kFill},
                      .guard = Guard::Branch,
                      .cxx = each(w.count),
                      .doc = "Loads " + bytes + " bytes of " + where + " into registers.",
                      .source = kIsa + std::string(", memory instructions")});
      list.push_back({.name = std::string(store) + "." + w.name + "/b" + std::to_string(w.bits),
                      .arch = "gfx90a",
                      .out = {lvalue(aligned(out("dst", memory + space, tile), bytes))},
                      .in = {lvalue(in("src", registers, tile))},
                      .guard = Guard::Branch,
                      .cxx = each(w.count),
                      .doc = "Stores " + bytes + " bytes of registers to " + where + ".",
                      .source = kIsa + std::string(", memory instructions")});
    }
  }
  const Param elements = {{"E"}, {{"8"}, {"16"}, {"32"}, {"64"}}};
  list.push_back({.name = "v_mov/b${E}",
                  .arch = "gfx90a",
                  .out = {lvalue(out("dst", "[].b${E}.RF"))},
                  .in = {lvalue(in("src", "[].b${E}.RF"))},
                  .cxx = "$dst = $src;",
                  .family = {elements},
                  .doc = "Copies one register to another.",
                  .source = kIsa + std::string(", vector instructions: v_mov")});
  list.push_back({.name = "v_mov.init/b${E}",
                  .kind = Kind::Init,
                  .arch = "gfx90a",
                  .out = {lvalue(out("dst", "[].b${E}.RF|SH|GL"))},
                  .attrs = {{"value", {"*const"}}},
                  .guard = Guard::Branch,
                  .cxx = "$dst = $value;",
                  .family = {elements},
                  .doc = "Sets one element to a constant.",
                  .source = kIsa + std::string(", vector instructions: v_mov")});
  list.push_back(
      {.name = "s_barrier",
       .kind = Kind::Sync,
       .arch = "gfx90a",
       .attrs = {{"op", {"barrier"}}, {"scope", {"block"}}},
       .cxx = "__syncthreads();",
       .doc = "Waits until every thread of the block has arrived; what they wrote before is then visible to all.",
       .source = kIsa + std::string(", scalar instructions: s_barrier")});
}

void add_arithmetic(std::vector<Atom>& list) {
  list.push_back({.name = "v_fma_f32",
                  .kind = Kind::MatMul,
                  .arch = "gfx90a",
                  .out = {lvalue(update("d", "[].fp32.RF|SH|GL"))},
                  .in = {lvalue(in("a", "[].fp32.RF|SH|GL")), lvalue(in("b", "[].fp32.RF|SH|GL"))},
                  .guard = Guard::Branch,
                  .cxx = "$d = __builtin_fmaf($a, $b, $d);",
                  .doc = "Multiplies two numbers and adds a third, rounding once to nearest even.",
                  .source = kIsa + std::string(", vector instructions: v_fma_f32")});
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
                  .source = kIsa + std::string(", vector instructions")});
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
void add_matrix(std::vector<Atom>& list) {
  const auto add = [&](Atom a, const std::string& builtin, int accumulators, bool half) {
    a.kind = Kind::MatMul;
    a.arch = "gfx90a";
    a.threads = "[64]";
    a.converge = 64;
    a.cxx = "gr_mfma_f32_" + builtin + "($a..., $b..., $d...);";
    a.helper = helper(builtin, accumulators, half);
    a.numerics = {{"gfx90a", 1, -1, "rn", 1}};
    a.source = kIsa + std::string(", matrix instructions: V_MFMA_F32_") + builtin;
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

void add_gfx90a_entries(std::vector<Atom>& list) {
  add_moves(list);
  add_arithmetic(list);
  add_matrix(list);
}

}  // namespace graphene::atoms
