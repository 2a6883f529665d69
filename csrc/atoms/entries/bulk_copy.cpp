// Since sm_90: copies of neighbouring bytes between global and shared memory by an agent beside the threads, without a
// tensor map. One thread issues one; its size follows from the views.
#include <tuple>

#include "atoms/entries/operands.h"

namespace graphene::atoms::subjects {

namespace {

// Side by side, whole units of 16 bytes; N: elements.
OperandDef run(OperandDef o) {
  o.proxy = Proxy::Async;
  o.require = {"align(" + o.name + ") % 16 == 0", "bytes(" + o.name + ") % 16 == 0"};
  return o;
}
OperandDef read_early(OperandDef o) {
  o.until = "bulk.read";
  return o;
}

}  // namespace

void bulk_copy(std::vector<Atom>& list) {
  const Param elements = {{"E"}, {{"8"}, {"16"}, {"32"}, {"64"}}};
  const Param sizes = {{"N"}, {{"16"}}};
  const char* source = "PTX ISA, asynchronous copy: cp.async.bulk";
  OperandDef bar = {.name = "bar", .pattern = "[].mbar.SH", .access = Access::Update};
  list.push_back({.name = "bulk.load/b${E}",
                  .arch = "sm_90+",
                  .out = {run(out("dst", "[${N}:1].b${E}.SH", "e${N}"))},
                  .in = {run(in("src", "[${N}:1].b${E}.GL", "e${N}"))},
                  .aux = {bar},
                  .ptx = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes{?to:.multicast::cluster} "
                         "[$dst], [$src], ${N*E/8}, [$bar]{?to:, $to};",
                  .done = "mbarrier:bar",
                  .is_default = false,
                  .family = {elements, sizes},
                  .free = "N",
                  .doc = "Starts copying neighbours from global to shared memory, of this block or, with to=, of "
                         "several of the cluster; their bytes, a multiple of 16, complete on an mbarrier.",
                  .source = source});
  list.push_back({.name = "bulk.store/b${E}",
                  .arch = "sm_90+",
                  .out = {run(out("dst", "[${N}:1].b${E}.GL", "e${N}"))},
                  .in = {read_early(run(in("src", "[${N}:1].b${E}.SH", "e${N}")))},
                  .guard = Guard::Branch,
                  .ptx = "cp.async.bulk.global.shared::cta.bulk_group [$dst], [$src], ${N*E/8};",
                  .done = "group:bulk",
                  .is_default = false,
                  .family = {elements, sizes},
                  .free = "N",
                  .doc = "Starts copying neighbours, a multiple of 16 bytes, from shared to global memory.",
                  .source = source});
  std::vector<std::vector<std::string>> rows = {
      {"add", "fp16", ".noftz.f16", "16"}, {"add", "bf16", ".noftz.bf16", "16"}, {"add", "fp32", ".f32", "32"},
      {"add", "fp64", ".f64", "64"},       {"add", "i64", ".u64", "64"},         {"add", "u64", ".u64", "64"}};
  for (const std::string op : {"min", "max"}) {
    for (const auto& [type, suffix, bits] :
         {std::tuple{"fp16", ".f16", "16"}, {"bf16", ".bf16", "16"}, {"i64", ".s64", "64"}, {"u64", ".u64", "64"}}) {
      rows.push_back({op, type, suffix, bits});
    }
  }
  for (const std::string op : {"add", "min", "max", "and", "or", "xor"}) {
    const bool bits = op == "and" || op == "or" || op == "xor";
    rows.push_back({op, "i32", bits ? ".b32" : ".s32", "32"});
    rows.push_back({op, "u32", bits ? ".b32" : ".u32", "32"});
  }
  list.push_back({.name = "bulk.store/${op}.${T}",
                  .arch = "sm_90+",
                  .out = {run(update("dst", "[${N}:1].${T}.GL", "e${N}"))},
                  .in = {read_early(run(in("src", "[${N}:1].${T}.SH", "e${N}")))},
                  .attrs = {{"combine", {"${op}"}}},
                  .guard = Guard::Branch,
                  .ptx = "cp.reduce.async.bulk.global.shared::cta.bulk_group.${op}${t} [$dst], [$src], ${N*E/8};",
                  .done = "group:bulk",
                  .is_default = false,
                  .family = {{{"op", "T", "t", "E"}, rows}, sizes},
                  .free = "N",
                  .doc = "Starts combining neighbours in shared memory, a multiple of 16 bytes, with those in global "
                         "memory: ${op} (${T}), each by itself and in one step for all threads.",
                  .source = "PTX ISA, asynchronous copy: cp.reduce.async.bulk"});
}

}  // namespace graphene::atoms::subjects
