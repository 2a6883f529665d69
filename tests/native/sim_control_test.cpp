// Control flow that no verified kernel has, made by hand: divergent barriers, and barriers that a warp leaves out.
#include <cstdio>
#include <cstdlib>

#include "atoms/match.h"
#include "sim/simulate.h"

namespace {

using namespace graphene;

ir::StmtPtr barrier_statement() {
  auto s = std::make_shared<ir::Stmt>();
  s->node = ir::SyncStmt{.op = "barrier", .group = nullptr, .atom = {}, .attrs = {}};
  return s;
}

lower::NodePtr barrier(const ir::StmtPtr& s) {
  auto n = std::make_shared<lower::Node>();
  lower::AtomCall call;
  call.atom = atoms::find("bar.sync");
  n->origin = s.get();
  n->node = call;
  return n;
}

lower::NodePtr branch(const ir::StmtPtr& s, const Expr& condition, lower::Block body) {
  auto n = std::make_shared<lower::Node>();
  n->origin = s.get();
  n->node = lower::If{condition, std::move(body), {}, nullptr};
  return n;
}

lower::NodePtr exit_if(const ir::StmtPtr& s, const Expr& condition) {
  auto n = std::make_shared<lower::Node>();
  n->origin = s.get();
  n->node = lower::ExitIf{condition};
  return n;
}

lower::ProgramPtr program(lower::Block body) {
  auto p = std::make_shared<lower::Program>();
  p->kernel = std::make_shared<ir::Kernel>();
  p->arch = "sm_80";
  p->block_threads = 64;
  p->body = std::move(body);
  return p;
}

int failures = 0;

void expect(const char* name, Code code, const std::string& part, lower::Block body) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    try {
      sim::simulate(program(body), {}, {.sizes = {}, .seed = seed, .skip = {}, .poll = {}});
      std::printf("%s: nothing was raised\n", name);
      ++failures;
    } catch (const Error& e) {
      const std::string text = e.what();
      if (e.diagnostics().front().code == code && text.find(part) != std::string::npos) continue;
      std::printf("%s: %s\n", name, text.c_str());
      ++failures;
    }
  }
}

}  // namespace

int main() {
  const Expr tid = ir::tid_var(64);
  const ir::StmtPtr s = barrier_statement();
  expect("half a warp", Code::SIM_DIVERGENT_COLLECTIVE, "missing lanes: 16-31",
         {branch(s, sym::lt(tid, 16), {barrier(s)})});
  expect("every second lane", Code::SIM_DIVERGENT_COLLECTIVE, "missing lanes: 1, 3, 5",
         {branch(s, sym::eq(sym::mod(tid, 2), 0), {barrier(s)})});
  expect("one warp alone", Code::SIM_DEADLOCK, "warp 1: has ended", {branch(s, sym::lt(tid, 32), {barrier(s)})});
  expect("a part of the block exits", Code::SIM_DIVERGENT_COLLECTIVE, "exit_if", {exit_if(s, sym::lt(tid, 8))});
  expect("a warp exits before a barrier", Code::SIM_DEADLOCK, "warp 0: has ended",
         {exit_if(s, sym::lt(tid, 32)), barrier(s)});
  sim::simulate(program({barrier(s), branch(s, sym::lt(tid, 16), {}), barrier(s)}), {},
                {.sizes = {}, .seed = 1, .skip = {}, .poll = {}});
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
