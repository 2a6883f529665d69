// What the simulator's functions give Python: records with named fields, statements as their text and line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bind/bind.h"
#include "sim/check.h"
#include "sim/report.h"
#include "sim/simulate.h"

namespace graphene::bind {

struct TraceEventRecord {
  std::string kind;
  int warp = 0;
  std::string domain;
  std::int64_t start = 0, end = 0, count = 0;
  std::string atom, spec, op;
  int id = -1;
  std::string text, where;
  bool landed = true;
  int block = 0;
  std::int64_t begin = 0, until = 0, bytes = 0, flops = 0;
  std::string barrier;
  std::int64_t phase = 0;
  py::tuple reads = py::tuple(), writes = py::tuple();
};
struct RoundingRecord {
  std::string tensor, source, type, where;
};
struct SimulationRecord {
  std::uint64_t lane_ops = 0, accesses = 0;
  py::tuple events = py::tuple();
  py::tuple roundings = py::tuple();
};

// A register or an element in memory, after a statement that wrote it.
struct WroteRecord {
  std::int64_t step = 0;
  std::string where, statement;
  std::int64_t block = 0;
  int thread = 0;
  std::string place;
  py::object value = py::none();
};
[[nodiscard]] WroteRecord wrote_record(const sim::Wrote& w);

struct UnreachedRecord {
  int id = 0, statement = 0;
  std::string text, where;
};
struct CallRecord {
  std::uint64_t lane_ops = 0;
  py::tuple unreached = py::tuple();
  py::tuple roundings = py::tuple();
  py::tuple reached = py::tuple();
  py::dict written = py::dict();
};
struct TellingBlocksRecord {
  py::tuple blocks = py::tuple();
  std::int64_t looked_at = 0, grid_blocks = 0;
};

struct ProblemRecord {
  std::string code, message, where;
  py::tuple ir = py::tuple();
  py::tuple details = py::tuple();
  std::string text;
};
struct CheckRecord {
  py::tuple problems = py::tuple();
  int promises = 0;
  std::uint64_t lane_ops = 0, accesses = 0;
  py::dict sizes = py::dict();
  std::int64_t blocks = 0;
};

struct WidthLimitRecord {
  std::string what, text;
};
struct AccessRecord {
  std::string where, text, atom, buffer, memory, op;
  int vector_bytes = 0;
  std::uint64_t requests = 0, lanes = 0, bytes = 0, wavefronts = 0, conflicts = 0;
  int ways = 0;
  std::uint64_t sectors = 0, ideal_sectors = 0;
  py::tuple limits = py::tuple();
};
struct AgentWorkRecord {
  std::string where, text, what, atom, source, target;
  int blocks = 1;
  std::uint64_t count = 0, bytes = 0, flops = 0;
};
struct BarrierPhasesRecord {
  std::string name;
  bool named = false;
  int stages = 1, arrivals = 1;
  std::uint64_t phases = 0;
};
struct ReportRecord {
  py::tuple rows = py::tuple(), agents = py::tuple(), barriers = py::tuple();
  py::dict sizes = py::dict();
  std::int64_t blocks = 0, grid_blocks = 0;
};

struct SyncRecord {
  int id = 0;
  std::string op, text, where;
  bool releases = false, expects = false;
};

void register_sim_results(py::module_& m);

[[nodiscard]] py::tuple trace_events(const sim::Trace& trace, const sim::Bytecode& code);
[[nodiscard]] py::tuple rounding_points(const std::vector<sim::Rounding>& found);
[[nodiscard]] CallRecord call_record(const sim::Stats& stats, const sim::Coverage& coverage,
                                     const std::vector<sim::Rounding>& found);
[[nodiscard]] CheckRecord check_record(const sim::CheckResult& result);
[[nodiscard]] ReportRecord report_record(const sim::Report& report);
[[nodiscard]] py::list sync_records(const ir::Kernel& kernel);

}  // namespace graphene::bind
