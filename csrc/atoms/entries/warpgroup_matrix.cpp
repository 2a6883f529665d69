// Since sm_90a: products of a warpgroup, whose B and mostly A are read from shared memory by an agent. Accumulators are
// in use until a wait for the group says otherwise.
#include "atoms/entries/matrix_multiply.h"

namespace graphene::atoms::subjects {

namespace {

constexpr const char* kSource = "PTX ISA, asynchronous warpgroup matrix multiply-accumulate: wgmma.mma_async";

OperandDef matrix(OperandDef o, const char* forms) {
  o.via = Via::Descriptor;
  o.forms = forms;
  o.proxy = Proxy::Async;
  return o;
}

// What one kind of product is told apart by.
struct Product {
  const char *k, *d, *d_type;   // "16", "f32", "fp32"
  const char *type, *a, *b;     // "f16", then PTX's names of both
  const char *a_type, *b_type;  // "fp16"
  const char *fragment, *a_tv;  // of A in registers
  const char* forms;            // which layouts B, and A in shared memory, may have
  const char* rest;             // of the operands: signs, majors with A in shared memory
  const char* rest_registers;   // the same with A in registers
  std::vector<Numerics> numerics;
};

// Lane t of warp w is row g = t / 4 of rows 16w and column c = t % 4. D holds (16w + g + 8i, 8j + 2c + l); l counts
// fastest, then i, then j.
void add(std::vector<Atom>& list, const Product& p) {
  Param widths = {{"N"}, {}};
  const bool eights = std::string(p.d) != "s32";
  for (int n = 8; n <= 256; n += 8) {
    if (eights || n <= 24 || n % 16 == 0) widths.rows.push_back({std::to_string(n)});
  }
  const std::string k = p.k;
  const OperandDef d = with_tv(update("d", "[2,${N/8}:2,4].[1,2]." + std::string(p.d_type) + ".RF", "m64,n${N}"),
                               "(4,8,4):(128,1,16);(2,2,${N/8}):(64,8,512)");
  const OperandDef b = matrix(
      with_tv(in("b", "[" + k + ",${N}]." + p.b_type + ".SH", "k" + k + ",n${N}"), "128:0;${" + k + "*N}:1"), p.forms);
  const OperandDef shared =
      matrix(with_tv(in("a", "[64," + k + "]." + p.a_type + ".SH", "m64,k" + k), "128:0;${64*" + k + "}:1"), p.forms);
  const OperandDef registers = with_tv(in("a", p.fragment + std::string(".") + p.a_type + ".RF", "m64,k" + k), p.a_tv);
  for (const bool in_registers : {false, true}) {
    list.push_back({.name = "wgmma.m64n${N}k" + k + "." + p.d + "." + p.type + (in_registers ? "/rs" : "/ss"),
                    .kind = Kind::MatMul,
                    .arch = "sm_90a",
                    .threads = "[128]",
                    .converge = 128,
                    .out = {d},
                    .in = {in_registers ? registers : shared, b},
                    .attrs = {{"accumulate", {"true", "false", "*expr"}}},
                    .ptx = "{.reg .pred p; setp.ne.b32 p, $accumulate, 0; wgmma.mma_async.sync.aligned.m64n${N}k" + k +
                           "." + p.d + "." + p.a + "." + p.b + " {$d}, " + (in_registers ? "{$a}" : "$a") + ", $b, p" +
                           (in_registers ? p.rest_registers : p.rest) + ";}",
                    .done = "group:wgmma",
                    .is_default = false,
                    .numerics = p.numerics,
                    .family = {widths},
                    .doc = std::string("Starts adding the product of a 64x") + k + " matrix (" + p.a_type + ", in " +
                           (in_registers ? "registers" : "shared memory") + ") and a " + k + "x${N} matrix (" +
                           p.b_type + ", in shared memory) to a 64x${N} matrix (" + p.d_type + ").",
                    .source = kSource});
  }
}

}  // namespace

void warpgroup_matrix(std::vector<Atom>& list) {
  // A in registers holds what warps' fragments hold: (g + 8i, 2c + l + 8j) of 16 bits, 4c + l + 16j of 8, c + 4j of 32.
  const char* half_tv = "(4,8,4):(128,1,16);(2,2,2):(64,8,512)";
  const char* half = "[2,2:2,4].[1,2]";
  const char* signs = ", 1, 1";
  const char* majors = ", 1, 1, $a.major, $b.major";
  const char* major = ", 1, 1, $b.major";
  const auto f32 = [](int k) { return std::vector{measured("sm_90a", k, 2, "rz")}; };
  add(list,
      {"16", "f32", "fp32", "f16", "f16", "f16", "fp16", "fp16", half, half_tv, "matrix", majors, major, f32(16)});
  add(list, {"16",
             "f16",
             "fp16",
             "f16",
             "f16",
             "f16",
             "fp16",
             "fp16",
             half,
             half_tv,
             "matrix",
             majors,
             major,
             {measured("sm_90a", 16, 2, "rn")}});
  add(list,
      {"16", "f32", "fp32", "bf16", "bf16", "bf16", "bf16", "bf16", half, half_tv, "matrix", majors, major, f32(16)});
  add(list, {"8", "f32", "fp32", "tf32", "tf32", "tf32", "tf32", "tf32", "[2,2:1,2]", "(4,8,4):(64,1,16);(2,2):(8,256)",
             "k_major", signs, signs, f32(8)});
  const char* bytes_tv = "(4,8,4):(256,1,16);(4,2,2):(64,8,1024)";
  const char* bytes = "[2,2:4,8].[1,4]";
  // Of bytes 13 bits below the leading one of the largest term are kept, and of a sum in fp32 14.
  const std::vector<Numerics> coarse = {measured("sm_90a", 32, -10, "rz14")};
  const std::vector<Numerics> coarse_half = {measured("sm_90a", 32, -10, "rn")};
  struct Pair {
    const char *name, *a, *b, *a_type, *b_type;
  };
  for (const Pair& t :
       {Pair{"e4m3", "e4m3", "e4m3", "fp8e4m3", "fp8e4m3"}, Pair{"e5m2", "e5m2", "e5m2", "fp8e5m2", "fp8e5m2"},
        Pair{"e4m3.e5m2", "e4m3", "e5m2", "fp8e4m3", "fp8e5m2"},
        Pair{"e5m2.e4m3", "e5m2", "e4m3", "fp8e5m2", "fp8e4m3"}}) {
    add(list,
        {"32", "f32", "fp32", t.name, t.a, t.b, t.a_type, t.b_type, bytes, bytes_tv, "k_major", signs, signs, coarse});
    add(list, {"32", "f16", "fp16", t.name, t.a, t.b, t.a_type, t.b_type, bytes, bytes_tv, "k_major", signs, signs,
               coarse_half});
  }
  add(list, {"32",
             "s32",
             "i32",
             "s8",
             "s8",
             "s8",
             "i8",
             "i8",
             bytes,
             bytes_tv,
             "k_major",
             "",
             "",
             {{"sm_90a", 0, -1, "exact", 0}}});

  const AttrDef scope = {"scope", {"wgmma"}};
  const char* source =
      "PTX ISA, asynchronous warpgroup matrix multiply-accumulate: wgmma.fence, commit_group, wait_group";
  list.push_back({.name = "wgmma.fence",
                  .kind = Kind::Sync,
                  .arch = "sm_90a",
                  .attrs = {{"op", {"fence"}}, scope},
                  .ptx = "wgmma.fence.sync.aligned;",
                  .doc = "Orders what threads did to registers before what later products do to them.",
                  .source = source});
  list.push_back({.name = "wgmma.commit_group",
                  .kind = Kind::Sync,
                  .arch = "sm_90a",
                  .attrs = {{"op", {"commit"}}, scope},
                  .ptx = "wgmma.commit_group.sync.aligned;",
                  .doc = "Makes a group of the warpgroup's products started since the last one.",
                  .source = source});
  list.push_back({.name = "wgmma.wait_group",
                  .kind = Kind::Sync,
                  .arch = "sm_90a",
                  .attrs = {{"op", {"wait"}}, scope, {"pending", {"*const"}}},
                  .ptx = "wgmma.wait_group.sync.aligned $pending;",
                  .doc = "Waits until all but the warpgroup's youngest `pending` groups of products are over.",
                  .source = source});
}

}  // namespace graphene::atoms::subjects
