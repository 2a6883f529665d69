// Rules about who executes: groups of the launch, subsets, divergence.
#include <algorithm>

#include "ir/print.h"
#include "verify/group.h"
#include "verify/rule.h"
#include "verify/uniform.h"

namespace graphene::verify {

namespace {

const ir::Stmt* diverges(Context& c, const ir::ThreadTensor* group) { return Uniformity(c).diverges(group); }

// Whether every thread that reaches the statement belongs to the group; unknown counts as yes.
bool covers(Context& c, const ir::ThreadTensor& group) {
  const std::int64_t block = c.kernel().block->launch_size().value();
  const Expr member = is_member(group, false);
  std::string key = member.str();
  std::vector<InThread> reached;
  for (const ir::Stmt* e : c.enclosing()) {
    if (const auto* only = e->as<ir::OnlyStmt>()) {
      const Expr here = sym::expand_coords(is_member(*only->group, only->elect));
      key += "|" + here.str();
      reached.emplace_back(here, block);
    }
  }
  const auto [known, fresh] = c.covered.try_emplace(std::move(key), true);
  if (!fresh) return known->second;
  const InThread belongs(member, block);
  for (std::int64_t t = 0; t < block; ++t) {
    const bool here = std::ranges::all_of(reached, [&](const InThread& e) { return !e(t).is_const(0); });
    if (here && belongs(t).is_const(0)) return known->second = false;
  }
  return true;
}

void subset_inside_only(Context& c, const ir::Stmt& s) {
  if (!launched(c)) return;
  const auto misplaced = [&](const ir::ThreadPtr& group) {
    return group != nullptr && group->unit == ir::ThreadUnit::Thread && group->subset && !covers(c, *group);
  };
  const auto check = [&](const ir::ThreadPtr& group) {
    if (!misplaced(group)) return;
    // What decomposes a spec of such a group needs no report of its own.
    const auto said = [&](const ir::Stmt* e) {
      const auto* spec = e->as<ir::SpecStmt>();
      return spec != nullptr && misplaced(spec->threads);
    };
    if (std::ranges::any_of(c.enclosing(), said)) return;
    c.problem(s, Code::VERIFY_SUBSET, "threads that are only a part of those that get here",
              {"group: " + ir::ref(group, true)}, "put it inside `with gr.only(group):`");
  };
  if (const auto* spec = s.as<ir::SpecStmt>()) check(spec->threads);
  if (const auto* sync = s.as<ir::SyncStmt>()) check(sync->group);
}

void barrier_converged(Context& c, const ir::Stmt& s) {
  const auto* sync = s.as<ir::SyncStmt>();
  if (sync == nullptr || sync->op != "barrier" || !launched(c)) return;
  if (sync->group != nullptr && sync->group->unit == ir::ThreadUnit::Block) return;  // cluster.barrier
  const ir::Stmt* where = diverges(c, sync->group.get());
  if (where == nullptr) return;
  c.problem(s, Code::VERIFY_BARRIER_DIVERGENT, "a barrier that not all of its threads reach",
            {sync->group == nullptr ? "barrier: of the whole block" : "barrier: of " + ir::ref(sync->group, true),
             within(*where)},
            sync->group == nullptr ? "move it out of the branch, or name the threads: gr.barrier(on=group)"
                                   : "move it out of the branch");
}

void collective_converged(Context& c, const ir::Stmt& s) {
  const auto* spec = s.as<ir::SpecStmt>();
  if (spec == nullptr || spec->decomposed || spec->threads == nullptr || !launched(c)) return;
  const ir::Stmt* where = diverges(c, spec->threads.get());
  if (where == nullptr) return;
  c.problem(s, Code::VERIFY_COLLECTIVE_DIVERGENT, "threads that work together must get here together",
            {"group: " + ir::ref(spec->threads, true), within(*where)},
            "move it out of the branch, or branch on something that is the same in the whole group");
}

void exit_uniform(Context& c, const ir::Stmt& s) {
  const auto* exit = s.as<ir::ExitIfStmt>();
  if (exit == nullptr || !launched(c)) return;
  const ir::Stmt* where = diverges(c, nullptr);
  if (!c.thread_dependent(exit->condition) && where == nullptr) return;
  std::vector<std::string> details{"condition: " + exit->condition.str()};
  if (where != nullptr) details.push_back(within(*where));
  c.problem(s, Code::VERIFY_EXIT, "exit_if must be the same for the whole block", details,
            "use gr.if_ around the rest for a part of the threads");
}

}  // namespace

const std::vector<Rule>& thread_rules() {
  static const std::vector<Rule> table = {
      {"threads.subset", "A part of the threads is named only where no others get to.", nullptr, subset_inside_only},
      {"threads.barrier", "All threads of a barrier reach it together.", nullptr, barrier_converged},
      {"threads.collective", "All threads of a collective leaf reach it together.", nullptr, collective_converged},
      {"threads.exit", "exit_if has one value in the whole block.", nullptr, exit_uniform},
  };
  return table;
}

}  // namespace graphene::verify
