// Barriers of threads that go on together.
#include "atoms/entries/operands.h"

namespace graphene::atoms::subjects {

void barriers(std::vector<Atom>& list) {
  list.push_back(
      {.name = "bar.sync",
       .kind = Kind::Sync,
       .arch = "sm_70+",
       .attrs = {{"op", {"barrier"}}, {"scope", {"block"}}},
       .cxx = "__syncthreads();",
       .doc = "Waits until every thread of the block has arrived; what they wrote before is then visible to all.",
       .source = "PTX ISA, parallel synchronization: bar.sync"});
  list.push_back({.name = "bar.sync/warps",
                  .kind = Kind::Sync,
                  .arch = "sm_70+",
                  .attrs = {{"op", {"barrier"}}, {"scope", {"warps"}}, {"id", {"*expr"}}, {"threads", {"*const"}}},
                  .ptx = "bar.sync $id, $threads;",
                  .doc = "Waits until all threads of some warps of the block have arrived at barrier number id.",
                  .source = "PTX ISA, parallel synchronization: bar.sync"});
  list.push_back(
      {.name = "bar.warp.sync",
       .kind = Kind::Sync,
       .arch = "sm_70+",
       .attrs = {{"op", {"barrier"}}, {"scope", {"warp"}}, {"mask", {"*expr"}}},
       .ptx = "bar.warp.sync $mask;",
       .doc = "Waits until the lanes of the mask have arrived; what they wrote before is then visible to them.",
       .source = "PTX ISA, parallel synchronization: bar.warp.sync"});
  list.push_back(
      {.name = "s_barrier",
       .kind = Kind::Sync,
       .arch = "gfx90a",
       .attrs = {{"op", {"barrier"}}, {"scope", {"block"}}},
       .cxx = "__syncthreads();",
       .doc = "Waits until every thread of the block has arrived; what they wrote before is then visible to all.",
       .source = kMi200Isa + std::string(", scalar instructions: s_barrier")});
  // Named barriers: the arrival apart from the wait.
  for (const char* op : {"sync", "arrive"}) {
    list.push_back({.name = std::string("bar.") + op + "/named",
                    .kind = Kind::Sync,
                    .arch = "sm_70+",
                    .attrs = {{"op", {op}}, {"scope", {"named"}}, {"id", {"*expr"}}, {"threads", {"*const"}}},
                    .ptx = std::string("bar.") + op + " $id, $threads;",
                    .doc = std::string(op) == "sync"
                               ? "Arrives at a named barrier and waits until its number of threads has arrived."
                               : "Arrives at a named barrier and goes on.",
                    .source = "PTX ISA, parallel synchronization: bar.sync, bar.arrive"});
  }
  list.push_back({.name = "barrier.cluster",
                  .kind = Kind::Sync,
                  .arch = "sm_90+",
                  .attrs = {{"op", {"barrier"}}, {"scope", {"cluster"}}},
                  .ptx = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;",
                  .doc = "Waits until all threads of all blocks of the cluster have arrived; what they wrote before is "
                         "then visible to them.",
                  .source = "PTX ISA, parallel synchronization: barrier.cluster"});
}

}  // namespace graphene::atoms::subjects
