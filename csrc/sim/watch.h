// What threads wrote, statement by statement, for whoever looks inside of a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/stmt.h"

namespace graphene::sim {

// A register of a thread, or an element in memory, after a statement that wrote it.
struct Wrote {
  std::int64_t step = 0;  // statements that the warps executed before this one, in the order of the run
  const ir::Stmt* origin = nullptr;
  std::int64_t block = 0;
  int thread = 0;
  std::string place;  // "r[2]", "s[3,1]"
  ir::ScalarType dtype = ir::ScalarType::fp32;
  std::uint64_t bits = 0;
  bool undefined = false;  // a register that holds what was never written
};

struct Watch {
  std::string name;         // of registers or of a tensor in memory; "": all of them
  std::int64_t block = -1;  // linear; -1: all
  int thread = -1;          // of the block; -1: all
  std::size_t limit = 0;    // what comes later is left out, and counted
  std::vector<Wrote> wrote;
  std::uint64_t left_out = 0;
  std::int64_t step = 0;
};

}  // namespace graphene::sim
