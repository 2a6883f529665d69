// What entries of kind Spec compute: a function that their author gives, outside of the simulator.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ir/types.h"

namespace graphene::sim {

// An operand of some threads: value v of thread t is bits[t * values + v].
struct OwnOperand {
  ir::ScalarType type = ir::ScalarType::u32;
  int values = 1;
  std::vector<std::uint64_t> bits;
};

// Writes the bits of `out`; `in` are the inputs and, behind them, former values of outputs that are updated.
using OwnMeaning = std::function<void(const std::string& atom, std::size_t threads, const std::vector<OwnOperand>& in,
                                      std::vector<OwnOperand>& out)>;

// Set once, by whoever knows the functions.
void set_own_meaning(OwnMeaning meaning);
[[nodiscard]] const OwnMeaning& own_meaning();

}  // namespace graphene::sim
