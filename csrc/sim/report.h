// kernel.report(): what the memory system makes of every access. Addresses are those of the lowered tree; values play
// no part.
//
// Rules. A warp's instruction is one request per contiguous vector of its lanes. What a request costs is said in
// layout/banks.h. Arguments count as aligned to 256 bytes.
// Agents take no part in that: their copies and products are counted as bytes and operations, those of a copy that
// several blocks receive once. Bytes outside of a tensor are not loaded.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/simulate.h"

namespace graphene::sim {

struct AccessReport {  // of one operand of one IR statement, over all blocks that ran
  const ir::Stmt* origin = nullptr;
  std::string atom, buffer;
  ir::Memory memory = ir::Memory::GL;
  bool writes = false, later = false;  // later: an asynchronous copy
  int vector_bytes = 0;                // of one lane, contiguous
  std::uint64_t requests = 0, lanes = 0, bytes = 0;
  std::uint64_t wavefronts = 0, conflicts = 0;              // shared memory
  int ways = 0;                                             // the most words that one bank holds in one group
  std::uint64_t sectors = 0, ideal_sectors = 0;             // global memory
  std::vector<std::pair<std::string, std::string>> limits;  // why a lane's vector is not 16 bytes: what, in words
};

struct AgentReport {  // copies or products of one IR statement, over all blocks that ran
  enum class What : std::uint8_t { Load, Store, Copy, Product } what = What::Load;
  const ir::Stmt* origin = nullptr;
  std::string atom, source, target;  // buffers; of products the factors, and the accumulators
  int blocks = 1;                    // that receive a copy
  std::uint64_t count = 0, bytes = 0, flops = 0;
};

struct BarrierReport {  // an allocation of mbarriers, or a named barrier, over all blocks that ran
  std::string name;
  bool named = false;
  int stages = 1;
  int arrivals = 1;  // that a phase waits for
  std::uint64_t phases = 0;
};

struct Report {
  std::vector<AccessReport> rows;  // in textual order
  std::vector<AgentReport> agents;
  std::vector<BarrierReport> barriers;
  std::vector<std::pair<std::string, std::int64_t>> sizes;
  std::int64_t blocks = 0;  // that ran
  std::int64_t grid_blocks = 0;
};

// A call whose integers are taken as they are. Its tensors are copied.
struct ReportedCall {
  sym::Substitution values;  // of sizes and integer parameters
  std::vector<std::uint64_t> scalars;
  std::vector<Argument> tensors;
};

// `all_blocks`: else first, middle and last ones along every dimension of a large grid. `call`: null: values of sizes
// that are not given are chosen, and addresses that come from data are the smallest that its facts allow. Where a
// call's data decide addresses it runs with values, and throws what simulate() throws.
[[nodiscard]] Report report(const lower::ProgramPtr& program, const std::map<std::string, std::int64_t>& sizes,
                            bool all_blocks, const std::function<void()>& poll, const ReportedCall* call = nullptr);

// What keeps the access from taking 16 bytes at once; empty where it does.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> width_limits(const lower::AtomCall& call,
                                                                            const lower::MemRef& ref,
                                                                            const ir::Tensor& view,
                                                                            const lower::MemBuffer& buffer, bool named);

}  // namespace graphene::sim
