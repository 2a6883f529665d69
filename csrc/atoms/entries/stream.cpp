// Kernels of one stream that start before those ahead of them have ended.
#include "atoms/entries/operands.h"

namespace graphene::atoms::subjects {

void stream(std::vector<Atom>& list) {
  const auto add = [&](const char* name, const char* arch, const char* op, const char* ptx, const char* doc) {
    list.push_back({.name = name,
                    .kind = Kind::Sync,
                    .arch = arch,
                    .attrs = {{"op", {op}}, {"scope", {"stream"}}},
                    .ptx = ptx,
                    .is_default = std::string(arch) == "sm_90+",
                    .doc = doc,
                    .source = "PTX ISA, parallel synchronization: griddepcontrol"});
  };
  add("griddepcontrol.wait", "sm_90+", "wait_kernels", "griddepcontrol.wait;",
      "Waits until the kernels before this one in the stream have ended and what they wrote is visible.");
  add("griddepcontrol.launch_dependents", "sm_90+", "start_kernels", "griddepcontrol.launch_dependents;",
      "Lets the next kernel of the stream start, if it waits by itself, once all blocks have done so or ended.");
  const char* older = "Does nothing: before sm_90 a kernel starts when those before it in the stream have ended.";
  add("kernels.wait", "sm_70+", "wait_kernels", "// the kernels before this one have ended;", older);
  add("kernels.start", "sm_70+", "start_kernels", "// the next kernel starts when this one has ended;", older);
}

}  // namespace graphene::atoms::subjects
