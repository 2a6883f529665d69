#include <algorithm>
#include <array>
#include <set>

#include "lower/lowered.h"

namespace graphene::lower {

namespace {

void named_atoms(const ir::Block& block, std::set<std::string>& out) {
  for (const ir::StmtPtr& s : block) {
    if (const auto* spec = s->as<ir::SpecStmt>()) {
      if (!spec->atom.empty()) out.insert(spec->atom);
      named_atoms(spec->body, out);
    } else if (const auto* sync = s->as<ir::SyncStmt>()) {
      if (!sync->atom.empty()) out.insert(sync->atom);
    } else if (const auto* loop = s->as<ir::LoopStmt>()) {
      named_atoms(loop->body, out);
    } else if (const auto* only = s->as<ir::OnlyStmt>()) {
      named_atoms(only->body, out);
    } else if (const auto* branch = s->as<ir::IfStmt>()) {
      named_atoms(branch->then_body, out);
      named_atoms(branch->else_body, out);
    }
  }
}

}  // namespace

std::string default_arch(const ir::Kernel& kernel) {
  static constexpr std::array<const char*, 5> kCandidates = {"sm_80", "sm_90", "sm_90a", "sm_100a", "sm_120a"};
  std::set<std::string> names;
  named_atoms(kernel.body, names);
  for (const char* arch : kCandidates) {
    const bool has_all = std::ranges::all_of(names, [&](const std::string& name) {
      const std::vector<atoms::InstancePtr> family = atoms::find_family(name);
      // A name that nothing has is for the matcher to report.
      return family.empty() || std::ranges::any_of(family, [&](const auto& i) { return i->runs_on(arch); });
    });
    if (has_all) return arch;
  }
  return kCandidates.front();
}

}  // namespace graphene::lower
