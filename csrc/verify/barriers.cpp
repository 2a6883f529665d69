// Rules about what asynchronous kernels are made of: barriers with phases, named barriers, clusters, registers of
// roles.
#include "ir/barriers.h"

#include <algorithm>
#include <numeric>

#include "ir/print.h"
#include "verify/group.h"
#include "verify/uniform.h"

namespace graphene::verify {

namespace {

constexpr std::int64_t kRegistersOfBlock = 65536;
constexpr std::int64_t kWarp = 32;
constexpr std::int64_t kWarpgroup = 128;

// Threads that gr.only lets through to the statement; what cannot be decided counts as yes.
std::vector<bool> reaching(const Context& c) {
  const std::int64_t block = c.kernel().block->launch_size().value();
  const Expr tid = ir::tid_var(block);
  std::vector<bool> out(static_cast<std::size_t>(block), true);
  for (const ir::Stmt* s : c.enclosing()) {
    const auto* only = s->as<ir::OnlyStmt>();
    if (only == nullptr) continue;
    const Expr member = sym::expand_coords(is_member(*only->group, only->elect));
    for (std::int64_t t = 0; t < block; ++t)
      if (sym::substitute(member, {{tid.node(), Expr(t)}}).is_const(0)) out[static_cast<std::size_t>(t)] = false;
  }
  return out;
}

// Whether each run of `unit` threads, from the first on, is there as a whole or not at all.
bool whole(const std::vector<bool>& threads, std::int64_t unit) {
  for (std::size_t i = 0; i < threads.size(); ++i) {
    if (threads[i] != threads[i - i % static_cast<std::size_t>(unit)]) return false;
  }
  return static_cast<std::int64_t>(threads.size()) % unit == 0 || !threads.back();
}

// An mbarrier is initialised where it is declared, once.
void declared_once(Context& c, const ir::Stmt& s) {
  const auto* alloc = s.as<ir::AllocStmt>();
  if (alloc == nullptr || alloc->tensor->dtype != ir::ScalarType::mbar) return;
  for (const ir::Stmt* e : c.enclosing()) {
    if (e->as<ir::SpecStmt>() != nullptr) continue;
    c.problem(s, Code::VERIFY_BARRIER, "an mbarrier is declared where every thread gets to, once",
              {"barrier: " + alloc->tensor->buffer->name, within(*e)}, "declare it before the block of statements");
    return;
  }
}

// What the kernel does with each mbarrier.
struct Uses {
  std::set<const ir::Buffer*> arrived_at;
  std::vector<const ir::Stmt*> waits;

  void look(const ir::Block& block) {
    for (const ir::StmtPtr& s : block) {
      if (const auto* sync = s->as<ir::SyncStmt>()) {
        if (sync->op == "arrive") arrived_at.insert(sync->barrier->buffer.get());
        if (sync->op == "wait_phase") waits.push_back(s.get());
      } else if (const auto* spec = s->as<ir::SpecStmt>()) {
        look(spec->body);
      } else if (const auto* loop = s->as<ir::LoopStmt>()) {
        look(loop->body);
      } else if (const auto* only = s->as<ir::OnlyStmt>()) {
        look(only->body);
      } else if (const auto* branch = s->as<ir::IfStmt>()) {
        look(branch->then_body);
        look(branch->else_body);
      }
    }
  }
};

void arrived_at(Context& c) {
  Uses uses;
  uses.look(c.kernel().body);
  std::set<const ir::Buffer*> said;
  for (const ir::Stmt* s : uses.waits) {
    const ir::Buffer* b = s->as<ir::SyncStmt>()->barrier->buffer.get();
    if (uses.arrived_at.contains(b) || !said.insert(b).second) continue;
    c.problem(
        *s, Code::VERIFY_BARRIER, "a phase that nothing arrives at does not end",
        {"barrier: " + b->name, "want: " + std::to_string(b->arrivals) + " arrivals a phase"},
        "let who fills the stage arrive: " + b->name + "[i].arrive(expect=[tile]); a copy alone is not an arrival");
  }
}

// A named barrier counts warps.
void whole_warps(Context& c, const ir::Stmt& s) {
  const auto* sync = s.as<ir::SyncStmt>();
  if (sync == nullptr || sync->barrier == nullptr || sync->barrier->dtype != ir::ScalarType::bar || !launched(c))
    return;
  const std::string barrier = "barrier: " + ir::ref(sync->barrier, true) + " of " + sync->barrier->buffer->name;
  if (!whole(reaching(c), kWarp)) {
    c.problem(s, Code::VERIFY_BARRIER, "whole warps are at a named barrier, not a part of one", {barrier},
              "move it out of gr.only(...elect()), or use gr.mbarrier");
    return;
  }
  const ir::ThreadTensor warps = ir::tile(*c.kernel().block, {Layout(kWarp, 1)});
  const std::vector<std::vector<Expr>> own = warps.indices();
  std::vector<ir::IndexArg> mine;
  for (const Expr& e : own.front()) mine.push_back({ir::IndexArg::Kind::At, e, {}});
  const ir::ThreadTensor warp = ir::index(warps, mine);
  const ir::Stmt* where = Uniformity(c).diverges(&warp);
  if (where == nullptr) return;
  c.problem(s, Code::VERIFY_BARRIER_DIVERGENT, "a named barrier that a part of a warp reaches",
            {barrier, within(*where)}, "branch on something that is the same in the whole warp");
}

// ---- clusters

// The executing block's cluster is number `cluster` of its row, and the block `rank` of it.
sym::Substitution as_in_cluster(const Context& c, std::int64_t rank) {
  const std::int64_t n = c.kernel().cluster;
  const Expr extent = c.kernel().grid->dims.at(0);
  sym::VarInfo info;
  info.name = "cluster";
  info.kind = sym::VarKind::Coord;
  info.hi = sym::floor_div(extent, n) - 1;
  if (extent.is_const()) info.max = std::max<std::int64_t>(extent.value() / n - 1, 0);
  return {{ir::bid_var(0, extent).node(), sym::make_var(info) * n + rank}};
}

// Whether all members are in the executing block's own cluster.
bool in_own_cluster(const Context& c, const ir::ThreadTensor& group) {
  const std::int64_t n = c.kernel().cluster;
  Expr reach = 0;
  for (const Layout& l : group.levels) reach = reach + (l.cosize() - 1);
  const Expr from_own = sym::expand_coords(group.offset) - group.linear_index();
  for (std::int64_t rank = 0; rank < n; ++rank) {
    const Expr first = sym::substitute(from_own, as_in_cluster(c, rank)) + rank;
    const Expr last = first + reach;
    if (!first.is_const() || first.value() < 0 || !last.is_const() || last.value() >= n) return false;
  }
  return true;
}

void check_blocks(Context& c, const ir::Stmt& s, const ir::ThreadPtr& group, bool all) {
  if (group == nullptr || group->unit != ir::ThreadUnit::Block || !launched(c)) return;
  const std::int64_t n = c.kernel().cluster;
  const std::vector<std::string> details = {"blocks: " + ir::ref(group, true), "cluster: " + std::to_string(n)};
  if (n == 1) {
    c.problem(s, Code::VERIFY_CLUSTER, "blocks that are named are a cluster, and this kernel has none", details,
              "declare it: gr.blocks(..., cluster=2)");
    return;
  }
  const bool inside = in_own_cluster(c, *group);
  if (inside && (!all || group->size().is_const(n))) return;
  c.problem(s, Code::VERIFY_CLUSTER,
            inside ? "a barrier of blocks is one of the whole cluster" : "blocks that are not of the own cluster",
            details, "name the own cluster: blocks[c] with c, r = blocks.indices()");
}

// Whether blocks of one cluster may take the branch, or repeat the loop, differently.
bool differs_in_cluster(const Context& c, const Expr& e) {
  const Expr spelt = sym::expand_coords(e);
  const Expr first = sym::substitute(spelt, as_in_cluster(c, 0));
  for (std::int64_t rank = 1; rank < c.kernel().cluster; ++rank)
    if (!identical(sym::substitute(spelt, as_in_cluster(c, rank)), first)) return true;
  return false;
}

void in_clusters(Context& c, const ir::Stmt& s) {
  if (const auto* spec = s.as<ir::SpecStmt>()) check_blocks(c, s, spec->to, false);
  const auto* sync = s.as<ir::SyncStmt>();
  if (sync == nullptr) return;
  check_blocks(c, s, sync->to, false);
  if (sync->op != "barrier" || sync->group == nullptr || sync->group->unit != ir::ThreadUnit::Block) return;
  check_blocks(c, s, sync->group, true);
  if (!launched(c)) return;
  const ir::Stmt* where = Uniformity(c).diverges(nullptr);
  for (const ir::Stmt* e : c.enclosing()) {
    const auto* branch = e->as<ir::IfStmt>();
    const auto* loop = e->as<ir::LoopStmt>();
    const bool apart = (branch != nullptr && differs_in_cluster(c, branch->condition)) ||
                       (loop != nullptr && (differs_in_cluster(c, loop->start) || differs_in_cluster(c, loop->stop) ||
                                            differs_in_cluster(c, loop->step)));
    if (apart) where = e;
  }
  if (where == nullptr) return;
  c.problem(s, Code::VERIFY_BARRIER_DIVERGENT, "a barrier that not all of its threads reach",
            {"barrier: of the cluster " + ir::ref(sync->group, true), within(*where)}, "move it out of the branch");
}

// ---- registers of roles

// What each thread is given; 0: nothing is said.
struct Registers {
  Context& c;
  std::vector<std::int64_t> of_thread = {};
  const ir::Stmt* last = nullptr;
  bool wrong = false;

  void problem(const ir::Stmt& s, std::string message, std::vector<std::string> details, std::string fix = {}) {
    c.problem(s, Code::VERIFY_REGISTERS, std::move(message), std::move(details), std::move(fix));
    wrong = true;
  }

  void look(const ir::Block& block) {
    bool begun = false;
    for (const ir::StmtPtr& s : block) {
      const auto* sync = s->as<ir::SyncStmt>();
      if (sync != nullptr && sync->op == "setmaxnreg") statement(*s, *sync, begun);
      begun = begun || s->as<ir::SpecStmt>() != nullptr || sync != nullptr || s->as<ir::LoopStmt>() != nullptr ||
              s->as<ir::IfStmt>() != nullptr;
      c.enclosing_.push_back(s.get());
      if (const auto* spec = s->as<ir::SpecStmt>()) look(spec->body);
      if (const auto* loop = s->as<ir::LoopStmt>()) look(loop->body);
      if (const auto* only = s->as<ir::OnlyStmt>()) look(only->body);
      if (const auto* branch = s->as<ir::IfStmt>()) {
        look(branch->then_body);
        look(branch->else_body);
      }
      c.enclosing_.pop_back();
    }
  }

  void statement(const ir::Stmt& s, const ir::SyncStmt& sync, bool begun) {
    last = &s;
    const auto it = sync.attrs.find("registers");
    const auto* n = it == sync.attrs.end() ? nullptr : std::get_if<std::int64_t>(&it->second);
    if (n == nullptr || *n < 24 || *n > 256 || *n % 8 != 0)
      return problem(s, "a thread has 24 to 256 registers, a multiple of 8",
                     {"got: " + (n == nullptr ? std::string("no integer") : std::to_string(*n))});
    const bool role = !c.enclosing().empty() && c.enclosing().back()->as<ir::OnlyStmt>() != nullptr;
    const bool plain = std::ranges::all_of(c.enclosing(), [](const ir::Stmt* e) {
      return e->as<ir::OnlyStmt>() != nullptr || e->as<ir::SpecStmt>() != nullptr;
    });
    if (!role || !plain || begun)
      return problem(s, "registers are given at the start of a role", {},
                     "let it be the first statement of `with gr.only(warpgroups[i]):`");
    const std::vector<bool> threads = reaching(c);
    if (!whole(threads, kWarpgroup))
      return problem(s, "registers are given to whole warpgroups, 128 threads from a multiple of 128", {},
                     "tile the threads by 128 and name warpgroups in gr.only");
    of_thread.resize(threads.size(), 0);
    for (std::size_t t = 0; t < threads.size(); ++t) {
      if (!threads[t]) continue;
      if (of_thread[t] != 0)
        return problem(s, "registers given twice to the same threads", {"thread: " + std::to_string(t)});
      of_thread[t] = *n;
    }
  }

  void sum() {
    if (last == nullptr || wrong) return;
    const auto threads = static_cast<std::int64_t>(of_thread.size());
    if (const auto none = std::ranges::find(of_thread, 0); none != of_thread.end())
      return problem(*last, "warpgroups that say nothing of their registers",
                     {"thread: " + std::to_string(none - of_thread.begin())},
                     "let every role begin with gr.setmaxnreg: what one gives up another may take");
    const std::int64_t launched_with = kRegistersOfBlock / threads / 8 * 8;
    const std::int64_t want = launched_with * threads;
    const std::int64_t got = std::accumulate(of_thread.begin(), of_thread.end(), std::int64_t{0});
    if (got <= want) return;
    problem(*last, "more registers than the block is launched with",
            {"want: at most " + std::to_string(want) + ", which is " + std::to_string(launched_with) + " for each of " +
                 std::to_string(threads) + " threads",
             "got: " + std::to_string(got)},
            "ask for fewer registers: the role would wait for ever for registers that the block does not have");
  }
};

void registers(Context& c) {
  if (!launched(c)) return;
  Registers r{c};
  r.look(c.kernel().body);
  r.sum();
}

}  // namespace

const std::vector<Rule>& barrier_rules() {
  static const std::vector<Rule> table = {
      {"barriers.declared", "An mbarrier is declared outside of loops and branches.", nullptr, declared_once},
      {"barriers.arrivals", "Something arrives at every mbarrier that is waited for.", arrived_at, nullptr},
      {"barriers.warps", "Whole warps reach a named barrier, together.", nullptr, whole_warps},
      {"threads.cluster", "Blocks that are named are of the own cluster, whose blocks reach its barrier together.",
       nullptr, in_clusters},
      {"threads.registers",
       "Registers are given once to every warpgroup, at the start of its role, within what the block is launched with.",
       registers, nullptr},
  };
  return table;
}

}  // namespace graphene::verify
