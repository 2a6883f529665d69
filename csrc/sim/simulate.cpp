#include "sim/simulate.h"

#include <algorithm>
#include <set>

#include "atoms/arch.h"
#include "atoms/match.h"

namespace graphene::sim {

namespace {

template <class F>
void each_statement(const ir::Block& block, const F& f) {
  for (const ir::StmtPtr& s : block) {
    f(*s);
    if (const auto* spec = s->as<ir::SpecStmt>()) each_statement(spec->body, f);
    if (const auto* loop = s->as<ir::LoopStmt>()) each_statement(loop->body, f);
    if (const auto* only = s->as<ir::OnlyStmt>()) each_statement(only->body, f);
    if (const auto* branch = s->as<ir::IfStmt>()) {
      each_statement(branch->then_body, f);
      each_statement(branch->else_body, f);
    }
  }
}

}  // namespace

Stats simulate(const lower::ProgramPtr& program, std::span<const Argument> arguments, const SimulateOptions& options) {
  const Budget budget(options.memory_bytes);
  const Bytecode code = compile(program, {.sizes = options.sizes,
                                          .scalars = options.scalars,
                                          .skip = options.skip,
                                          .relax = options.relax,
                                          .scopes = false,
                                          .unguarded = options.unguarded});
  Interpreter interpreter(code, arguments, options.seed);
  interpreter.poll = options.poll;
  interpreter.print = options.print;
  interpreter.watch = options.watch;
  Trace trace;
  if (options.trace) interpreter.trace = &trace;
  if (options.roundings != nullptr) interpreter.track_roundings();
  if (options.blocks.empty()) {
    interpreter.simulate();
  } else {
    for (const std::int64_t b : options.blocks) {
      if (b < 0 || b >= code.grid[0] * code.grid[1] * code.grid[2])
        fail(Code::SIM_ARGUMENT, "the grid has no block " + std::to_string(b));
    }
    interpreter.run_blocks(options.blocks);
  }
  if (options.roundings != nullptr) *options.roundings = interpreter.roundings();
  if (options.trace) options.trace(trace, code);
  if (options.written != nullptr) {
    for (std::size_t i = 0; i < program->buffers.size(); ++i) {
      const bool is_output = program->buffers[i].memory == ir::Memory::GL && code.written[i] != 0;
      options.written->push_back(is_output ? interpreter.written(i) : std::vector<char>());
    }
  }
  if (options.coverage != nullptr) *options.coverage = interpreter.coverage();
  return interpreter.stats();
}

std::string default_arch(const ir::Kernel& kernel) {
  std::set<std::string> names;
  each_statement(kernel.body, [&](const ir::Stmt& s) {
    if (const auto* spec = s.as<ir::SpecStmt>(); spec != nullptr && !spec->atom.empty()) names.insert(spec->atom);
    if (const auto* sync = s.as<ir::SyncStmt>(); sync != nullptr && !sync->atom.empty()) names.insert(sync->atom);
  });
  const auto has_all = [&](const std::string& arch) {
    return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
      const auto family = atoms::find_family(name);
      return family.empty() ||
             std::any_of(family.begin(), family.end(), [&](const auto& a) { return a->runs_on(arch); });
    });
  };
  const std::string lowest = "sm_80";
  bool from_here = false;
  for (const atoms::Arch& arch : atoms::archs()) {
    from_here = from_here || arch.name == lowest;
    if (!from_here) continue;
    if (has_all(arch.name)) return arch.name;
    const std::string own = arch.name + std::string("a");  // with this chip's own instructions
    if (atoms::find_arch(own) == &arch && has_all(own)) return own;
  }
  return lowest;
}

std::vector<const ir::Stmt*> sync_statements(const ir::Kernel& kernel) {
  std::vector<const ir::Stmt*> out;
  each_statement(kernel.body, [&](const ir::Stmt& s) {
    const auto* sync = s.as<ir::SyncStmt>();
    if (sync != nullptr && sync->op != ir::kPrint && sync->op != ir::kAssert) out.push_back(&s);
  });
  return out;
}

}  // namespace graphene::sim
