// What no verified kernel does, made by hand: divergent barriers, barriers that a warp leaves out, accesses that are
// out of bounds or misaligned.
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

// Each thread loads `width` elements of A, which has 64, from `offset` on.
lower::ProgramPtr load(const Expr& offset, int width) {
  auto buffer = std::make_shared<ir::Buffer>();
  buffer->id = 1;
  buffer->name = "A";
  buffer->layout = Layout(IntTuple(64));
  buffer->role = ir::Role::Input;
  auto registers = std::make_shared<ir::Buffer>();
  registers->id = 2;
  registers->name = "r";
  registers->memory = ir::Memory::RF;
  lower::AtomCall call;
  call.atom = atoms::find(width == 4 ? "ld.global.v4.b32/b32" : "ld.global.b32/b32");
  call.dtype = ir::ScalarType::fp32;
  lower::RegRef to;
  lower::MemRef from;
  from.offset = offset;
  for (int v = 0; v < width; ++v) {
    to.values.push_back(v);
    from.deltas.push_back(v);
  }
  call.out = {to};
  call.in = {from};
  static const ir::StmtPtr statement = barrier_statement();
  auto n = std::make_shared<lower::Node>();
  n->origin = statement.get();
  n->node = call;
  auto p = std::make_shared<lower::Program>(*program({n}));
  p->registers = {{registers, "r", ir::ScalarType::fp32, width}};
  p->buffers = {{buffer, "A", ir::ScalarType::fp32, ir::Memory::GL, 64, 0, 0}};
  return p;
}

int failures = 0;

void expect(const char* name, Code code, const std::string& part, const lower::ProgramPtr& p) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    try {
      std::vector<float> a(64);
      const std::vector<sim::Argument> arguments = {{reinterpret_cast<char*>(a.data()), 256}};
      sim::simulate(p, arguments, {.sizes = {}, .seed = seed, .skip = {}, .poll = {}});
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
         program({branch(s, sym::lt(tid, 16), {barrier(s)})}));
  expect("every second lane", Code::SIM_DIVERGENT_COLLECTIVE, "missing lanes: 1, 3, 5",
         program({branch(s, sym::eq(sym::mod(tid, 2), 0), {barrier(s)})}));
  expect("one warp alone", Code::SIM_DEADLOCK, "warp 1: has ended",
         program({branch(s, sym::lt(tid, 32), {barrier(s)})}));
  expect("a part of the block exits", Code::SIM_DIVERGENT_COLLECTIVE, "exit_if",
         program({exit_if(s, sym::lt(tid, 8))}));
  expect("a warp exits before a barrier", Code::SIM_DEADLOCK, "warp 0: has ended",
         program({exit_if(s, sym::lt(tid, 32)), barrier(s)}));
  expect("one element too far", Code::SIM_OUT_OF_BOUNDS, "got: 64", load(tid + Expr(1), 1));
  expect("before the first", Code::SIM_OUT_OF_BOUNDS, "got: -1", load(tid - Expr(1), 1));
  expect("a lane out of the table", Code::SIM_OUT_OF_BOUNDS, "got: 66",
         load(sym::max(tid, tid * Expr(3) - Expr(90)), 1));
  expect("half a vector off", Code::SIM_MISALIGNED, "a multiple of 4",
         load(sym::floor_div(tid, 8) * Expr(4) + Expr(2), 4));
  sim::simulate(program({barrier(s), branch(s, sym::lt(tid, 16), {}), barrier(s)}), {},
                {.sizes = {}, .seed = 1, .skip = {}, .poll = {}});
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
