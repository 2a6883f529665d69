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

constexpr std::size_t kKeptBytes = std::size_t{1} << 26;

// What code takes besides its program, about.
std::size_t bytes_of_code(const Bytecode& code) {
  std::size_t bytes =
      code.instructions.size() * sizeof(Instruction) + code.leaves.size() * sizeof(Leaf) + code.plans->draft_bytes();
  for (const Leaf& f : code.leaves) {
    for (const auto* list : {&f.out, &f.in}) {
      for (const Operand& o : *list) {
        bytes += sizeof(Operand) + (o.deltas.size() + o.registers.size()) * sizeof(std::int32_t);
        for (const LaneGroups& g : o.groups)
          bytes += sizeof(LaneGroups) + g.leaders.size() * (sizeof(int) + sizeof(Mask));
      }
    }
    for (const auto& from : f.from) bytes += from.size() * sizeof(Holder);
    for (const auto& takes : f.takes) bytes += takes.size() * sizeof(int);
  }
  return bytes;
}

void set_scalars(Bytecode& code, std::span<const std::uint64_t> scalars) {
  std::size_t next = 0;
  for (const lower::RegArray& a : code.program->registers) {
    if (a.param < 0) continue;
    const auto param = static_cast<std::size_t>(a.param);
    code.initial[next++].second = param < scalars.size() ? scalars[param] : 0;
  }
}

std::shared_ptr<Bytecode> code_for(const lower::ProgramPtr& program, const SimulateOptions& options) {
  if (options.codes != nullptr) {
    if (auto known = options.codes->take(program, options.sizes)) {
      set_scalars(*known, options.scalars);
      return known;
    }
  }
  return std::make_shared<Bytecode>(compile(program, {.sizes = options.sizes,
                                                      .scalars = options.scalars,
                                                      .skip = options.skip,
                                                      .relax = options.relax,
                                                      .scopes = false,
                                                      .unguarded = options.unguarded}));
}

}  // namespace

std::shared_ptr<Bytecode> CodeCache::take(const lower::ProgramPtr& program, const sym::Substitution& sizes) {
  const std::scoped_lock lock(mutex_);
  const auto same = [](const auto& x, const auto& y) { return x.first == y.first && identical(x.second, y.second); };
  for (auto at = kept_.begin(); at != kept_.end(); ++at) {
    if (at->code->program != program || !std::ranges::equal(at->code->sizes, sizes, same)) continue;
    std::shared_ptr<Bytecode> code = std::move(at->code);
    bytes_ -= at->bytes;
    kept_.erase(at);
    return code;
  }
  return nullptr;
}

void CodeCache::keep(std::shared_ptr<Bytecode> code) {
  const std::size_t bytes = bytes_of_code(*code);
  const std::scoped_lock lock(mutex_);
  kept_.push_front({std::move(code), bytes});
  for (bytes_ += bytes; bytes_ > kKeptBytes; kept_.pop_back()) bytes_ -= kept_.back().bytes;
}

Stats simulate(const lower::ProgramPtr& program, std::span<const Argument> arguments, const SimulateOptions& options) {
  const Budget budget(options.memory_bytes);
  const std::shared_ptr<Bytecode> owned = code_for(program, options);
  const Bytecode& code = *owned;
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
  if (options.codes != nullptr) options.codes->keep(owned);
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
