// kernel.check(): a run that looks for hazards, then the ghost run that holds every decomposed spec to its promise.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/simulate.h"

namespace graphene::sim {

struct CheckResult {
  std::vector<Diagnostic> problems;  // hazards, or the specs that break their promise; empty: none found
  int promises = 0;                  // instances whose promise was checked
  Stats stats;                       // of the hazard run
  std::vector<std::pair<std::string, std::int64_t>> sizes;
  std::int64_t blocks = 0;  // that ran
};

struct CheckOptions {
  std::uint64_t seed = 0;
  Reference reference;           // meanings that are functions
  std::vector<int> skip, relax;  // as SimulateOptions
  // A call of these sizes, whose integers are taken as they are; what is not in here is random, as all floats are.
  std::vector<Argument> arguments;                // one for each tensor
  sym::Substitution parameters;                   // integer ones
  bool hazards_alone = false;                     // no promises
  std::int64_t memory_bytes = kCheckMemoryBytes;  // that the call may hold, arguments included: else SIM_MEMORY
  bool promises_alone = false;                    // no run that looks for hazards: it has been made
  std::vector<std::int64_t> blocks;               // that run, linear; empty: those that `chosen_blocks` gives
  std::function<void()> poll;                     // as SimulateOptions
};

// Sizes for the kernel's symbols: those given, else two tiles and a ragged part where the facts allow it. A tile is the
// largest number that the grid or a loop divides the symbol by. A symbol that is a stride alone gets the smallest value
// with which no argument overlaps itself. Throws SIM_ARGUMENT for an unknown name or a size that
// breaks the symbol's facts.
[[nodiscard]] std::vector<std::pair<Expr, std::int64_t>> problem_sizes(
    const lower::Program& program, const std::map<std::string, std::int64_t>& given);

// First, middle and last blocks along every dimension of the grid, linear, in order; all where there are at most `few`.
[[nodiscard]] std::vector<std::int64_t> chosen_blocks(const Bytecode& code, std::int64_t few);

// Specs that are not algebraic, or that `reference` gives a meaning, are compared in float64. Runs first, middle and
// last blocks along every dimension of the grid (all of them where there are few), on random arguments.
[[nodiscard]] CheckResult check(const lower::ProgramPtr& program, const std::map<std::string, std::int64_t>& sizes,
                                const CheckOptions& options);

}  // namespace graphene::sim
