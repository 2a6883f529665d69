// Entry points of the simulator.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "sim/interp.h"

namespace graphene::sim {

// Code of calls that ran, for calls of equal sizes: compiling takes as long as a small call runs. A run takes its code
// out meanwhile, so that threads may share a cache.
class CodeCache {
 public:
  // Null where there is none for these sizes.
  [[nodiscard]] std::shared_ptr<Bytecode> take(const lower::ProgramPtr& program, const sym::Substitution& sizes);
  void keep(std::shared_ptr<Bytecode> code);  // and forgets those that were used longest ago

 private:
  struct Kept {
    std::shared_ptr<Bytecode> code;
    std::size_t bytes = 0;
  };
  std::mutex mutex_;
  std::list<Kept> kept_;  // the last one used first
  std::size_t bytes_ = 0;
};

struct SimulateOptions {
  sym::Substitution sizes;                        // values of the kernel's sizes and integer parameters
  std::vector<std::uint64_t> scalars;             // bits of the scalar arguments, in order
  std::uint64_t seed = 0;                         // order of blocks and warps
  std::vector<int> skip;                          // ids of synchronisation statements left out
  std::vector<int> relax;                         // ids of statements made weaker: CompileOptions::relax
  bool unguarded = false;                         // without the predicates of partial tiles
  std::vector<Rounding>* roundings = nullptr;     // where wanted: where values become narrower than fp32 on their way
  std::function<void()> poll;                     // called now and then; may throw
  std::function<void(const std::string&)> print;  // where wanted: called with what threads print, line by line
  std::int64_t memory_bytes = kSimulateMemoryBytes;  // that may be held besides the arguments: else SIM_MEMORY
  // Called at the end with what the first block did; statements live as long as the program.
  std::function<void(const Trace&, const Bytecode&)> trace;
  // The blocks that run, linear; empty: all of the grid. Of some no output is missed.
  std::vector<std::int64_t> blocks;
  Coverage* coverage = nullptr;  // where wanted
  Watch* watch = nullptr;        // where wanted
  CodeCache* codes = nullptr;    // where wanted; not with `skip`, `relax` or `unguarded`
  // Where wanted: of every buffer of the program, which elements were written, by no atomic update.
  std::vector<std::vector<char>>* written = nullptr;
};

// Runs the whole grid on the arguments, in place. Throws SimulationError (SIM_*) at the first hazard.
Stats simulate(const lower::ProgramPtr& program, std::span<const Argument> arguments, const SimulateOptions& options);

// The lowest architecture from sm_80 up that has every atom the kernel names; "sm_80" when none of them is known.
[[nodiscard]] std::string default_arch(const ir::Kernel& kernel);

// The synchronisation statements of a kernel in textual order.
[[nodiscard]] std::vector<const ir::Stmt*> sync_statements(const ir::Kernel& kernel);

}  // namespace graphene::sim
