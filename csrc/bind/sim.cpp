// The simulator, seen from Python.
#include <cstring>
#include <memory>

#include "bind/arguments.h"
#include "bind/bind.h"
#include "bind/gil.h"
#include "bind/manifest.h"
#include "bind/python_arguments.h"
#include "bind/sim_results.h"
#include "bind/torch_written.h"
#include "runtime/strides.h"
#include "sim/blocks.h"
#include "sim/own_meaning.h"

namespace graphene::bind {

namespace {

// The arguments of a call, checked against the manifest as a launch checks them.
struct BoundArguments {
  CallArgs call;
  std::vector<sim::Argument> tensors;
  sym::Substitution sizes;
  std::vector<std::uint64_t> scalars;
  // An empty grid, and no output that it leaves unwritten. Sizes of 0 may then stand where others divide by them.
  bool nothing_to_do = false;
};

std::int64_t signed_bits(std::uint64_t bits, ir::ScalarType t) {
  const int shift = 64 - ir::bits(t);
  if (ir::info(t).cls == ir::ScalarInfo::Class::Signed) return static_cast<std::int64_t>(bits << shift) >> shift;
  return static_cast<std::int64_t>(bits);
}

// Calls graphene.own_meanings.evaluate: operands are (type, values of a thread, 64 bits a value).
void apply_python_meaning(const std::string& atom, std::size_t threads, const std::vector<sim::OwnOperand>& in,
                          std::vector<sim::OwnOperand>& out) {
  const GilHeld held;
  const auto bytes_of_bits = [](const std::vector<std::uint64_t>& bits) {
    return py::bytes(reinterpret_cast<const char*>(bits.data()), bits.size() * sizeof(std::uint64_t));
  };
  py::list ins;
  py::list outs;
  for (const sim::OwnOperand& x : in) ins.append(py::make_tuple(ir::name(x.type), x.values, bytes_of_bits(x.bits)));
  for (const sim::OwnOperand& x : out) outs.append(py::make_tuple(ir::name(x.type), x.values));
  const py::object evaluate = py::module_::import("graphene.own_meanings").attr("evaluate");
  const auto results = evaluate(atom, threads, ins, outs).cast<std::vector<py::bytes>>();
  GR_ASSERT(results.size() == out.size(), "as many results as outputs");
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto bits = static_cast<std::string_view>(results[i]);
    GR_ASSERT(bits.size() == out[i].bits.size() * sizeof(std::uint64_t), "64 bits for every value");
    std::memcpy(out[i].bits.data(), bits.data(), bits.size());
  }
}

BoundArguments bind_arguments(const lower::Program& program, const py::tuple& args, const py::dict& named) {
  const runtime::LaunchManifest manifest = make_manifest(program);
  BoundArguments out{read_call(manifest, args, named), {}, {}, {}, false};
  runtime::DeviceLimits limits;
  limits.sm_count = sim::kMultiprocessors;
  limits.grid = {2147483647, 2147483647, 2147483647};
  const runtime::BoundCall bound = runtime::bind_args(manifest, out.call.values, limits);
  out.nothing_to_do = bound.empty();
  for (std::size_t i = 0; i < out.call.values.size(); ++i) {
    for (const runtime::TensorArg& t : out.call.values[i].tensors) {
      if (manifest.args[i].access == runtime::Access::Write && t.numel() != 0) out.nothing_to_do = false;
      if (!t.device.on_host()) {
        fail(Code::SIM_ARGUMENT, "argument '" + manifest.args[i].name + "' is not in the host's memory",
             {"got: a tensor on " + t.device.str()}, "pass tensor.cpu(), or call the kernel to launch it");
      }
      if (t.readonly && manifest.args[i].access != runtime::Access::Read) {
        fail(Code::SIM_ARGUMENT, "argument '" + manifest.args[i].name + "' is written but read-only", {},
             "pass a writable copy");
      }
      out.tensors.push_back({static_cast<char*>(t.data), runtime::byte_span(t).last});
    }
  }
  for (const Expr& symbol : program.kernel->symbols) {
    for (std::size_t i = 0; i < manifest.symbols.size(); ++i) {
      if (manifest.symbols[i].name == symbol.var().name) out.sizes[symbol.node()] = Expr(bound.symbols[i]);
    }
  }
  for (std::size_t i = 0; i < program.kernel->params.size(); ++i) {
    const ir::ScalarParam& p = program.kernel->params[i];
    if (p.var.is_var()) out.sizes[p.var.node()] = Expr(signed_bits(bound.scalars[i], p.dtype));
    out.scalars.push_back(bound.scalars[i]);
  }
  return out;
}

// Calls reference(name, inputs, output shapes) -> outputs as flat lists, the first dimension fastest, or a string that
// says why there are none. Inputs are (shape, flat list).
sim::ReferenceResult evaluate_reference(const py::object& reference, const std::string& name,
                                        const std::vector<sim::ReferenceArray>& inputs,
                                        const std::vector<std::vector<std::int64_t>>& outputs) {
  const GilHeld held;
  py::list arrays;
  for (const sim::ReferenceArray& a : inputs) arrays.append(py::make_tuple(a.extents, a.values));
  const py::object result = reference(name, arrays, outputs);
  sim::ReferenceResult out;
  if (py::isinstance<py::str>(result)) {
    out.problem = printable_text(result);
  } else {
    out.outputs = result.cast<std::vector<std::vector<double>>>();
  }
  return out;
}

// `tell_written`: also which elements of each argument were written; `tell_roundings`: which are the rounding points.
CallRecord run_call(const std::shared_ptr<lower::Program>& program, const py::dict& named, std::uint64_t seed,
                    std::vector<std::int64_t> blocks, std::int64_t memory_bytes, bool tell_written, bool tell_roundings,
                    sim::CodeCache* codes) {
  const BoundArguments bound = bind_arguments(*program, py::tuple(), named);
  if (bound.nothing_to_do) return {};
  sim::SimulateOptions options;
  options.sizes = bound.sizes;
  options.scalars = bound.scalars;
  options.seed = seed;
  options.blocks = std::move(blocks);
  options.memory_bytes = memory_bytes;
  options.codes = codes;
  sim::Coverage coverage;
  options.coverage = &coverage;
  std::vector<sim::Rounding> found;
  if (tell_roundings) options.roundings = &found;
  std::vector<std::vector<char>> elements;
  if (tell_written) options.written = &elements;
  options.poll = check_signals;
  sim::Stats stats;
  {
    const GilReleased released;
    stats = sim::simulate(program, bound.tensors, options);
  }
  CallRecord out = call_record(stats, coverage, found);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const lower::MemBuffer& b = program->buffers[i];
    if (!elements[i].empty() && b.buffer->count == 0)
      out.written[py::str(b.buffer->name)] = py::bytes(elements[i].data(), elements[i].size());
  }
  return out;
}

}  // namespace

void register_sim(py::module_& m) {
  register_sim_results(m);
  py::class_<sim::CodeCache>(m, "CodeCache", "Code of calls that ran, for calls of equal sizes.").def(py::init<>());
  m.def(
      "simulate",
      [](const std::shared_ptr<lower::Program>& program, const py::tuple& args, const py::dict& named,
         const Arg<"seed", std::uint64_t>& seed, std::vector<int> skip, std::vector<int> relax, bool unguarded,
         bool trace, bool roundings, const Arg<"memory_bytes", std::int64_t>& memory_bytes) -> SimulationRecord {
        const BoundArguments bound = bind_arguments(*program, args, named);
        announce_written(bound.call, program->kernel->name);
        if (bound.nothing_to_do) return {};
        sim::SimulateOptions options;
        options.sizes = bound.sizes;
        options.scalars = bound.scalars;
        options.seed = seed;
        options.skip = std::move(skip);
        options.relax = std::move(relax);
        options.unguarded = unguarded;
        options.memory_bytes = memory_bytes;
        py::tuple events;
        if (trace) {
          options.trace = [&](const sim::Trace& t, const sim::Bytecode& code) {
            const GilHeld held;
            events = trace_events(t, code);
          };
        }
        std::vector<sim::Rounding> found;
        if (roundings) options.roundings = &found;
        options.poll = check_signals;
        options.print = [](const std::string& line) {
          const GilHeld held;
          py::print(line);
        };
        sim::Stats stats;
        {
          const GilReleased released;
          stats = sim::simulate(program, bound.tensors, options);
        }
        return {stats.lane_ops, stats.accesses, std::move(events), rounding_points(found)};
      },
      py::arg("program"), py::arg("args"), py::arg("named"), py::arg("seed") = 0, py::arg("skip") = std::vector<int>{},
      py::arg("relax") = std::vector<int>{}, py::arg("unguarded") = false, py::arg("trace") = false,
      py::arg("roundings") = false, py::arg("memory_bytes") = sim::kSimulateMemoryBytes,
      "Runs a lowered kernel on host tensors, in place; events of the first block where a trace is wanted, rounding "
      "points where they are. Raises SimulationError.");
  m.def(
      "watch",
      [](const std::shared_ptr<lower::Program>& program, const py::tuple& args, const py::dict& named,
         const Arg<"seed", std::uint64_t>& seed, std::string name, const Arg<"block", std::int64_t>& block,
         const Arg<"thread", std::int64_t>& thread, const Arg<"limit", std::int64_t>& limit,
         py::list into) -> std::uint64_t {
        const BoundArguments bound = bind_arguments(*program, args, named);
        announce_written(bound.call, program->kernel->name);
        if (bound.nothing_to_do) return 0;
        sim::Watch watch;
        watch.name = std::move(name);
        watch.block = block;
        watch.thread = static_cast<int>(thread);
        watch.limit = static_cast<std::size_t>(static_cast<std::int64_t>(limit));
        sim::SimulateOptions options;
        options.sizes = bound.sizes;
        options.scalars = bound.scalars;
        options.seed = seed;
        options.watch = &watch;
        options.poll = check_signals;
        const auto tell = [&] {
          for (const sim::Wrote& w : watch.wrote) into.append(wrote_record(w));
        };
        try {
          const GilReleased released;
          sim::simulate(program, bound.tensors, options);
        } catch (...) {  // what was written until then says why
          tell();
          throw;
        }
        tell();
        return watch.left_out;
      },
      py::arg("program"), py::arg("args"), py::arg("named"), py::arg("seed"), py::arg("name"), py::arg("block"),
      py::arg("thread"), py::arg("limit"), py::arg("into"),
      "Runs a lowered kernel on host tensors, and appends what threads wrote to a list, at most `limit` times; how "
      "many "
      "more there were. A name of \"\" is of all registers and tensors, -1 of all blocks or threads. Raises "
      "SimulationError.");
  m.def(
      "run_call",
      [](const std::shared_ptr<lower::Program>& program, const py::dict& named, const Arg<"seed", std::uint64_t>& seed,
         const Arg<"memory_bytes", std::int64_t>& memory_bytes, bool roundings,
         sim::CodeCache* codes) { return run_call(program, named, seed, {}, memory_bytes, false, roundings, codes); },
      py::arg("program"), py::arg("named"), py::arg("seed") = 0, py::arg("memory_bytes") = sim::kSimulateMemoryBytes,
      py::arg("roundings") = true, py::arg("codes") = nullptr,
      "Runs a lowered kernel, and says what it reached, and its rounding points unless these are not wanted. `codes` "
      "keeps what is compiled for calls of equal sizes. Raises SimulationError.");
  m.def(
      "run_blocks",
      [](const std::shared_ptr<lower::Program>& program, const py::dict& named, const Arg<"seed", std::uint64_t>& seed,
         std::vector<std::int64_t> blocks, const Arg<"memory_bytes", std::int64_t>& memory_bytes) {
        return run_call(program, named, seed, std::move(blocks), memory_bytes, true, true, nullptr);
      },
      py::arg("program"), py::arg("named"), py::arg("seed"), py::arg("blocks"),
      py::arg("memory_bytes") = sim::kSimulateMemoryBytes,
      "Runs some blocks of a lowered kernel. ``written``: by argument a byte for each element, which is 1 where they "
      "wrote it by no atomic update. Raises SimulationError.");
  m.def(
      "telling_blocks",
      [](const std::shared_ptr<lower::Program>& program, const py::dict& named,
         const Arg<"few", std::int64_t>& few) -> TellingBlocksRecord {
        const BoundArguments bound = bind_arguments(*program, py::tuple(), named);
        sim::ChosenBlocks chosen;
        if (!bound.nothing_to_do) {
          const GilReleased released;
          sim::CompileOptions options;
          options.sizes = bound.sizes;
          options.scalars = bound.scalars;
          chosen = sim::telling_blocks(sim::compile(program, std::move(options)), few, check_signals);
        }
        return {py::tuple(py::cast(chosen.blocks)), chosen.looked_at, chosen.grid};
      },
      py::arg("program"), py::arg("named"), py::arg("few"),
      "Blocks of a call's grid such that whatever a block does, one of them does, too: all of a grid of no more than "
      "`few`.");
  m.def(
      "default_arch", [](const ir::Kernel& kernel) { return sim::default_arch(kernel); }, py::arg("kernel"),
      "The lowest architecture from sm_80 up that has every atom the kernel names.");
  m.def(
      "argument_sizes",
      [](const std::shared_ptr<lower::Program>& program, const py::tuple& args) {
        const BoundArguments bound = bind_arguments(*program, args, py::dict());
        py::dict out;
        for (const Expr& symbol : program->kernel->symbols) {
          out[py::str(symbol.var().name)] = bound.sizes.at(symbol.node()).value();
        }
        return out;
      },
      py::arg("program"), py::arg("args"), "The sizes that host arguments give the kernel's symbols.");
  m.def(
      "launch_conditions",
      [](const std::shared_ptr<lower::Program>& program) {
        std::vector<std::string> out;
        for (const lower::Fact& f : program->facts) {
          if (!f.fact.condition.is_const(1)) out.push_back(f.fact.condition.str());
        }
        return out;
      },
      py::arg("program"),
      "What a launch asks of sizes and strides beyond the symbols' own facts: expressions that must not be 0.");
  m.def(
      "check",
      [](const std::shared_ptr<lower::Program>& program, const Arg<"sizes", std::map<std::string, std::int64_t>>& sizes,
         const Arg<"seed", std::uint64_t>& seed, const py::object& reference, std::vector<int> skip,
         std::vector<int> relax, bool hazards_alone, const py::tuple& args, bool promises_alone,
         std::vector<std::int64_t> blocks, const Arg<"memory_bytes", std::int64_t>& memory_bytes) {
        sim::CheckResult r;
        sim::CheckOptions options;
        std::unique_ptr<const BoundArguments> bound;  // keeps what the options refer to
        if (!args.empty()) {
          bound.reset(new BoundArguments(bind_arguments(*program, args, py::dict())));
          options.arguments = bound->tensors;
          options.parameters = bound->sizes;
        }
        options.seed = seed;
        options.skip = std::move(skip);
        options.relax = std::move(relax);
        options.hazards_alone = hazards_alone;
        options.promises_alone = promises_alone;
        options.blocks = std::move(blocks);
        options.memory_bytes = memory_bytes;
        options.poll = check_signals;
        if (!reference.is_none()) {
          options.reference = [&](const std::string& name, const std::vector<sim::ReferenceArray>& inputs,
                                  const std::vector<std::vector<std::int64_t>>& outputs) {
            return evaluate_reference(reference, name, inputs, outputs);
          };
        }
        {
          const GilReleased released;
          r = sim::check(program, sizes, options);
        }
        return check_record(r);
      },
      py::arg("program"), py::arg("sizes"), py::arg("seed") = 0, py::arg("reference") = py::none(),
      py::arg("skip") = std::vector<int>{}, py::arg("relax") = std::vector<int>{}, py::arg("hazards_alone") = false,
      py::arg("args") = py::tuple(), py::arg("promises_alone") = false, py::arg("blocks") = std::vector<std::int64_t>{},
      py::arg("memory_bytes") = sim::kCheckMemoryBytes, "Looks for hazards, then for specs that break their promise.");
  m.def(
      "report",
      [](const std::shared_ptr<lower::Program>& program, const Arg<"sizes", std::map<std::string, std::int64_t>>& sizes,
         const Arg<"all_blocks", bool>& all_blocks, const py::tuple& args) {
        sim::Report r;
        std::unique_ptr<const BoundArguments> bound;  // keeps what the call refers to
        sim::ReportedCall call;
        if (!args.empty()) {
          bound.reset(new BoundArguments(bind_arguments(*program, args, py::dict())));
          call = {bound->sizes, bound->scalars, bound->tensors};
        }
        {
          const GilReleased released;
          r = sim::report(program, sizes, all_blocks, check_signals, bound != nullptr ? &call : nullptr);
        }
        return report_record(r);
      },
      py::arg("program"), py::arg("sizes"), py::arg("all_blocks") = false, py::arg("args") = py::tuple(),
      "Counts bank conflicts and sectors of every memory access.");
  sim::set_own_meaning(apply_python_meaning);
  m.def(
      "sync_statements", [](const ir::Kernel& kernel) { return sync_records(kernel); }, py::arg("kernel"),
      "Every synchronisation statement, in textual order.");
}

}  // namespace graphene::bind
