// Since sm_90: barriers in shared memory, on which threads arrive and copies complete; fences between what threads and
// agents do to memory; registers that roles give to each other.
#include "atoms/entries/operands.h"

namespace graphene::atoms::subjects {

void mbarriers(std::vector<Atom>& list) {
  const OperandDef bar = {.name = "bar", .pattern = "[].mbar.SH", .access = Access::Update};
  const char* source = "PTX ISA, parallel synchronization: mbarrier";
  const auto add = [&](const char* name, const char* op, std::vector<AttrDef> attrs, const char* ptx, const char* doc) {
    std::vector<AttrDef> all = {{"op", {op}}, {"scope", {"mbarrier"}}};
    all.insert(all.end(), attrs.begin(), attrs.end());
    list.push_back({.name = name,
                    .kind = Kind::Sync,
                    .arch = "sm_90+",
                    .aux = {bar},
                    .attrs = std::move(all),
                    .ptx = ptx,
                    .doc = doc,
                    .source = source});
  };
  add("mbarrier.init", "init", {{"arrivals", {"*const"}}}, "mbarrier.init.shared::cta.b64 [$bar], $arrivals;",
      "Sets how many arrivals end a phase of the barrier, before its first use.");
  add("mbarrier.arrive", "arrive", {}, "mbarrier.arrive.shared::cta.b64 _, [$bar];",
      "Arrives once; threads that wait for the phase then see what the thread did before.");
  add("mbarrier.arrive.expect_tx", "arrive", {{"expect_bytes", {"*expr"}}},
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$bar], $expect_bytes;",
      "Arrives once, and makes the phase wait for a number of bytes of copies.");
  // Reads that are over are released by this, no stores of threads: `.release.cluster` would be a fence of all memory.
  add("mbarrier.arrive/cluster", "arrive", {{"to", {"cluster"}}},
      "{.reg .b32 r; mapa.shared::cluster.u32 r, $bar, $to; mbarrier.arrive.shared::cluster.b64 _, [r];}",
      "Arrives once at the same barrier of a block of the cluster.");
  add("mbarrier.arrive.release/cluster", "arrive", {{"to", {"cluster"}}, {"release", {"cluster"}}},
      "{.reg .b32 r; mapa.shared::cluster.u32 r, $bar, $to; "
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r];}",
      "Arrives once at the same barrier of a block of the cluster; what the thread stored before is then visible to "
      "its "
      "threads that wait with acquire.");
  add("cp.async.mbarrier.arrive.noinc", "arrive", {{"after", {"cp_async"}}},
      "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$bar];",
      "Arrives once when all copies by cp.async that the thread has started have landed.");
  add("mbarrier.try_wait.parity", "wait_phase", {{"phase", {"*expr"}}},
      "{.reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [$bar], $phase; @!p bra again;}",
      "Waits until the phase of that parity is over.");
  add("mbarrier.try_wait.parity.acquire", "wait_phase", {{"phase", {"*expr"}}, {"acquire", {"cluster"}}},
      "{.reg .pred p; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [$bar], $phase; @!p bra "
      "again;}",
      "Waits until the phase of that parity is over, and sees what threads of other blocks have released to it.");

  const auto fence = [&](const char* name, const char* scope, const char* ptx, const char* memory) {
    list.push_back(
        {.name = name,
         .kind = Kind::Sync,
         .arch = "sm_90+",
         .attrs = {{"op", {"fence"}}, {"scope", {scope}}},
         .ptx = ptx,
         .doc = std::string("Orders what the thread did to ") + memory + " before later operations of agents there.",
         .source = "PTX ISA, parallel synchronization: fence.proxy.async"});
  };
  fence("fence.proxy.async.shared", "async.shared", "fence.proxy.async.shared::cta;", "shared memory");
  fence("fence.proxy.async.global", "async.global", "fence.proxy.async.global;", "global memory");

  list.push_back({.name = "fence.mbarrier_init",
                  .kind = Kind::Sync,
                  .arch = "sm_90+",
                  .attrs = {{"op", {"fence"}}, {"scope", {"mbarrier"}}},
                  .ptx = "fence.mbarrier_init.release.cluster;",
                  .doc = "Lets other blocks of the cluster and agents see that barriers are initialised.",
                  .source = "PTX ISA, parallel synchronization: fence.mbarrier_init"});

  for (const char* change : {"inc", "dec"}) {
    list.push_back(
        {.name = std::string("setmaxnreg.") + change,
         .kind = Kind::Sync,
         .arch = "sm_90a",
         .attrs = {{"op", {"setmaxnreg"}}, {"scope", {"registers"}}, {"change", {change}}, {"registers", {"*const"}}},
         .ptx = std::string("setmaxnreg.") + change + ".sync.aligned.u32 $registers;",
         .doc = std::string(change) == "inc"
                    ? "Waits until the block has the wanted number of registers for each thread of the warpgroup."
                    : "Keeps a number of registers for each thread of the warpgroup and gives the others back to the "
                      "block.",
         .source = "PTX ISA, miscellaneous: setmaxnreg"});
  }
}

}  // namespace graphene::atoms::subjects
