// Since sm_90: copies of boxes between global and shared memory by an agent beside the threads (TMA). One thread issues
// one; the box, its coordinates and its map follow from the views.
#include "atoms/entries/operands.h"

namespace graphene::atoms::subjects {

namespace {

constexpr const char* kCopy = "PTX ISA, asynchronous copy: cp.async.bulk.tensor";
constexpr const char* kReduce = "PTX ISA, asynchronous copy: cp.reduce.async.bulk.tensor";
constexpr const char* kPolicy = "{?evict:{.reg .b64 p; createpolicy.fractional.L2::$evict.b64 p, 1.0; }";

// Side by side in shared memory, in the order of the box; N: elements of the box.
OperandDef box(OperandDef o, Via via) {
  o.via = via;
  o.forms = "box";
  o.proxy = Proxy::Async;
  return o;
}
OperandDef read_early(OperandDef o) {
  o.until = "bulk.read";
  return o;
}

}  // namespace

void tensor_map(std::vector<Atom>& list) {
  const Param elements = {{"E"}, {{"8"}, {"16"}, {"32"}, {"64"}}};
  const Param sizes = {{"N"}, {{"1"}}};
  const AttrDef evict = {"evict", {"default", "evict_first", "evict_last", "evict_unchanged"}};
  OperandDef bar = {.name = "bar", .pattern = "[].mbar.SH", .access = Access::Update};
  list.push_back({.name = "tma.load/b${E}",
                  .arch = "sm_90+",
                  .out = {box(out("dst", "[${N}].b${E}.SH", "e${N}"), Via::Natural)},
                  .in = {box(in("src", "[${N}].b${E}.GL", "e${N}"), Via::TensorMap)},
                  .aux = {bar},
                  .attrs = {evict},
                  .guard = Guard::Clipped,
                  .ptx = kPolicy + std::string("cp.async.bulk.tensor.$src.rank.shared::cluster.global.tile"
                                               ".mbarrier::complete_tx::bytes{?to:.multicast::cluster}"
                                               "{?evict:.L2::cache_hint} [$dst], [$src], [$bar]{?to:, $to}"
                                               "{?evict:, p};{?evict:$}}"),
                  .done = "mbarrier:bar",
                  .is_default = false,
                  .family = {elements, sizes},
                  .free = "N",
                  .doc =
                      "Starts copying a box of global memory to shared memory, of this block or, with to=, of several "
                      "of the cluster; its bytes complete on an mbarrier. Parts outside are zeros.",
                  .source = kCopy});
  list.push_back({.name = "tma.store/b${E}",
                  .arch = "sm_90+",
                  .out = {box(out("dst", "[${N}].b${E}.GL", "e${N}"), Via::TensorMap)},
                  .in = {read_early(box(in("src", "[${N}].b${E}.SH", "e${N}"), Via::Natural))},
                  .attrs = {evict},
                  .guard = Guard::Clipped,
                  .ptx = kPolicy + std::string("cp.async.bulk.tensor.$dst.rank.global.shared::cta.tile.bulk_group"
                                               "{?evict:.L2::cache_hint} [$dst], [$src]{?evict:, p};{?evict:$}}"),
                  .done = "group:bulk",
                  .is_default = false,
                  .family = {elements, sizes},
                  .free = "N",
                  .doc = "Starts copying a box of shared memory to global memory. Parts outside are not written.",
                  .source = kCopy});
  list.push_back(
      {.name = "tma.store/${op}.${T}",
       .arch = "sm_90+",
       .out = {box(out("dst", "[${N}].${T}.GL", "e${N}"), Via::TensorMap)},
       .in = {read_early(box(in("src", "[${N}].${T}.SH", "e${N}"), Via::Natural))},
       .attrs = {{"combine", {"${op}"}}},
       .guard = Guard::Clipped,
       .ptx = "cp.reduce.async.bulk.tensor.$dst.rank.global.shared::cta.${op}.tile.bulk_group [$dst], [$src];",
       .done = "group:bulk",
       .is_default = false,
       .family = {{{"op", "T"},
                   {{"add", "fp16"},
                    {"add", "bf16"},
                    {"add", "fp32"},
                    {"add", "i32"},
                    {"add", "u32"},
                    {"min", "i32"},
                    {"min", "u32"},
                    {"max", "i32"},
                    {"max", "u32"}}},
                  sizes},
       .free = "N",
       .doc = "Starts combining a box of shared memory with global memory by ${op} (${T}), each element by "
              "itself. Parts outside are not written.",
       .source = kReduce});
  const AttrDef scope = {"scope", {"bulk"}};
  const char* source = "PTX ISA, asynchronous copy: cp.async.bulk.commit_group, cp.async.bulk.wait_group";
  list.push_back({.name = "cp.async.bulk.commit_group",
                  .kind = Kind::Sync,
                  .arch = "sm_90+",
                  .attrs = {{"op", {"commit"}}, scope},
                  .ptx = "cp.async.bulk.commit_group;",
                  .doc = "Makes a group of the thread's own stores of boxes started since the last one.",
                  .source = source});
  list.push_back(
      {.name = "cp.async.bulk.wait_group.read",
       .kind = Kind::Sync,
       .arch = "sm_90+",
       .attrs = {{"op", {"wait"}}, scope, {"pending", {"*const"}}},
       .ptx = "cp.async.bulk.wait_group.read $pending;",
       .doc = "Waits until all but the thread's youngest `pending` groups of stores have read their sources.",
       .source = source});
  list.push_back({.name = "cp.async.bulk.wait_group",
                  .kind = Kind::Sync,
                  .arch = "sm_90+",
                  .attrs = {{"op", {"wait"}}, scope, {"pending", {"*const"}}, {"written", {"true"}}},
                  .ptx = "cp.async.bulk.wait_group $pending;",
                  .doc = "Waits until what all but the thread's youngest `pending` groups of stores wrote is visible.",
                  .source = source});
}

}  // namespace graphene::atoms::subjects
