#include "bind/sim_results.h"

#include "bind/record.h"
#include "ir/print.h"

namespace graphene::bind {

namespace {

template <class Rows, class Make>
py::tuple tuple_of(const Rows& rows, const Make& make) {
  py::tuple out(rows.size());
  std::size_t i = 0;
  for (const auto& row : rows) out[i++] = py::cast(make(row));
  return out;
}

py::dict sizes_of(const std::vector<std::pair<std::string, std::int64_t>>& sizes) {
  py::dict out;
  for (const auto& [name, size] : sizes) out[py::str(name)] = size;
  return out;
}

std::string text_of(const ir::Stmt* s) { return s != nullptr ? ir::head_line(*s) : ""; }
std::string where_of(const ir::Stmt* s) { return s != nullptr ? s->loc.str() : ""; }

// What a call may reach: numbers that are the same in every call of a kernel.
int key(const sim::Coverage::Event& e) { return 8 * e.stmt->id + static_cast<int>(e.what); }

std::string unreached(const sim::Coverage::Event& e) {
  const bool loop = e.what == sim::Coverage::What::Repeated;
  return (loop ? "no thread repeated " : "no thread executed ") + ir::head_line(*e.stmt);
}

AccessRecord access_record(const sim::AccessReport& a) {
  const char* op = a.later ? (a.writes ? "copy to" : "copy from") : a.writes ? "store" : "load";
  const auto limit = [](const auto& l) { return WidthLimitRecord{l.first, l.second}; };
  return {where_of(a.origin),
          text_of(a.origin),
          a.atom,
          a.buffer,
          ir::name(a.memory),
          op,
          a.vector_bytes,
          a.requests,
          a.lanes,
          a.bytes,
          a.wavefronts,
          a.conflicts,
          a.ways,
          a.sectors,
          a.ideal_sectors,
          tuple_of(a.limits, limit)};
}

}  // namespace

WroteRecord wrote_record(const sim::Wrote& w) {
  WroteRecord out{w.step, where_of(w.origin), text_of(w.origin), w.block, w.thread, w.place, py::none()};
  if (w.undefined) return out;
  const bool is_float = ir::info(w.dtype).cls == ir::ScalarInfo::Class::Float;
  if (is_float) {
    out.value = py::float_(sim::decode(w.dtype, w.bits));
  } else if (w.dtype == ir::ScalarType::pred) {
    out.value = py::bool_(w.bits != 0);
  } else if (w.dtype == ir::ScalarType::u64) {
    out.value = py::int_(w.bits);
  } else {
    out.value = py::int_(sim::decode_int(w.dtype, w.bits));
  }
  return out;
}

py::tuple trace_events(const sim::Trace& trace, const sim::Bytecode& code) {
  static constexpr const char* kKinds[] = {"leaf",   "barrier", "commit", "wait",    "in flight",
                                           "arrive", "fence",   "copy",   "product", "phase"};
  const auto shared = [&](const sim::TraceEvent& e, bool writes) {
    py::list out;
    for (const auto& u : e.uses) {
      if (u.writes != writes) continue;
      const ir::Buffer& b = *code.program->buffers[static_cast<std::size_t>(u.buffer)].buffer;
      out.append(b.name + (u.stage >= 0 ? "[" + std::to_string(u.stage) + "]" : ""));
    }
    return py::tuple(out);
  };
  return tuple_of(trace.events(), [&](const sim::TraceEvent& e) {
    const std::string domain = e.domain == sim::Trace::kProducts ? "wgmma"
                               : e.domain >= 0                   ? code.copy_domains[static_cast<std::size_t>(e.domain)]
                                                                 : "";
    const auto* sync = e.origin != nullptr ? e.origin->as<ir::SyncStmt>() : nullptr;
    return TraceEventRecord{kKinds[static_cast<std::size_t>(e.kind)],
                            e.warp,
                            domain,
                            e.start,
                            e.end,
                            e.count,
                            e.call != nullptr ? e.call->atom->family : "",
                            e.call != nullptr ? atoms::name(e.call->atom->atom.kind) : "",
                            sync != nullptr ? sync->op : "",
                            e.origin != nullptr ? e.origin->id : -1,
                            text_of(e.origin),
                            where_of(e.origin),
                            e.landed,
                            e.block,
                            e.begin,
                            e.until,
                            e.bytes,
                            e.flops,
                            e.barrier >= 0 ? code.barrier_name(e.barrier) : "",
                            e.phase,
                            shared(e, false),
                            shared(e, true)};
  });
}

py::tuple rounding_points(const std::vector<sim::Rounding>& found) {
  return tuple_of(found, [](const sim::Rounding& r) {
    return RoundingRecord{r.tensor, ir::name(r.from), ir::name(r.to), where_of(r.origin)};
  });
}

CallRecord call_record(const sim::Stats& stats, const sim::Coverage& coverage,
                       const std::vector<sim::Rounding>& found) {
  const auto missed = [](const sim::Coverage::Event& e) {
    return UnreachedRecord{key(e), e.stmt->id, unreached(e), e.stmt->loc.str()};
  };
  return {
      stats.lane_ops, tuple_of(coverage.missed, missed), rounding_points(found), tuple_of(coverage.reached, key), {}};
}

CheckRecord check_record(const sim::CheckResult& result) {
  const auto same = [](const std::string& s) { return s; };
  const auto problem = [&](const Diagnostic& d) {
    return ProblemRecord{code_info(d.code).name,    d.message, d.where.str(), tuple_of(d.ir, same),
                         tuple_of(d.details, same), d.str()};
  };
  return {tuple_of(result.problems, problem),
          result.promises,
          result.stats.lane_ops,
          result.stats.accesses,
          sizes_of(result.sizes),
          result.blocks};
}

ReportRecord report_record(const sim::Report& report) {
  static constexpr const char* kWhat[] = {"load", "store", "copy", "product"};
  const auto agent = [](const sim::AgentReport& a) {
    return AgentWorkRecord{where_of(a.origin),
                           text_of(a.origin),
                           kWhat[static_cast<std::size_t>(a.what)],
                           a.atom,
                           a.source,
                           a.target,
                           a.blocks,
                           a.count,
                           a.bytes,
                           a.flops};
  };
  const auto barrier = [](const sim::BarrierReport& b) {
    return BarrierPhasesRecord{b.name, b.named, b.stages, b.arrivals, b.phases};
  };
  return {tuple_of(report.rows, access_record),
          tuple_of(report.agents, agent),
          tuple_of(report.barriers, barrier),
          sizes_of(report.sizes),
          report.blocks,
          report.grid_blocks};
}

py::list sync_records(const ir::Kernel& kernel) {
  py::list out;
  for (const ir::Stmt* s : sim::sync_statements(kernel)) {
    const ir::SyncStmt& sync = *s->as<ir::SyncStmt>();
    const bool expects = !sync.expect.empty() || !identical(sync.expect_bytes, Expr(0));
    out.append(SyncRecord{s->id, sync.op, ir::head_line(*s), s->loc.str(), sync.attrs.contains("release"), expects});
  }
  return out;
}

void register_sim_results(py::module_& m) {
  using E = TraceEventRecord;
  register_record<E>(
      m, "TraceEvent",
      R"doc(One event of a trace. Time counts steps: the page on the simulator states the rule. It is not a device's time.

``kind``: of a warp "leaf", "barrier", "commit", "wait", "arrive", "fence"; "in flight": a group of a thread's copies
from its first instruction until the wait that covers it (``landed``; else none did). Of an agent "copy" (TMA) and
"product" (``wgmma``), from the issue to the completion; from ``begin`` to ``until`` the agent is at it. "phase": of
an mbarrier or a named barrier. ``warp``, ``block``: in the cluster; of a copy the block that receives it, of a phase
the barrier's (``warp`` is -1). ``domain``: of copies and products. ``start``, ``end``: steps [start, end). ``count``:
executions of one leaf in a row, or instructions of a group. ``atom``, ``spec``: the atomic spec and its kind. ``op``:
the operation of a synchronising statement. ``id``, ``text``, ``where``: the IR statement and its Python ``file:line``. ``bytes``: of a copy. ``flops``: of a product.
``barrier``, ``phase``: at which an arrival, a wait or a copy is. ``reads``, ``writes``: stages of shared
memory.)doc",
      field("kind", &E::kind), field("warp", &E::warp), field("domain", &E::domain), field("start", &E::start),
      field("end", &E::end), field("count", &E::count), field("atom", &E::atom), field("spec", &E::spec),
      field("op", &E::op), field("id", &E::id), field("text", &E::text), field("where", &E::where),
      field("landed", &E::landed), field("block", &E::block), field("begin", &E::begin), field("until", &E::until),
      field("bytes", &E::bytes), field("flops", &E::flops), field("barrier", &E::barrier), field("phase", &E::phase),
      field("reads", &E::reads), field("writes", &E::writes));
  using R = RoundingRecord;
  register_record<R>(m, "Rounding", R"doc(A value becomes narrower than fp32 and is then computed with.

``tensor``: the name of the tensor that takes the narrower value. ``source``: the widest type that the statement
computes from. ``type``: the tensor's type. ``where``: Python ``file:line`` of the statement.)doc",
                     field("tensor", &R::tensor), field("source", &R::source), field("type", &R::type),
                     field("where", &R::where));
  using S = SimulationRecord;
  register_record<S>(m, "Simulation", R"doc(What a simulation did.

``lane_ops``: one thread executing one atomic spec each. ``accesses``: elements read or written in memory.
``events``: of the first block, ``roundings``: where values became narrower; both empty where they were not asked
for.)doc",
                     field("lane_ops", &S::lane_ops), field("accesses", &S::accesses), field("events", &S::events),
                     field("roundings", &S::roundings));
  using O = WroteRecord;
  register_record<O>(m, "Wrote", R"doc(What a register or an element in memory held after a statement that wrote it.

``step``: how many statements warps executed before. ``where``: Python ``file:line`` of the statement, ``statement`` its
text. ``block``, ``thread``: who wrote it. ``place``: "r[2]", "s[3,1]". ``value``: a number, or None where a register
holds what was never written.)doc",
                     field("step", &O::step), field("where", &O::where), field("statement", &O::statement),
                     field("block", &O::block), field("thread", &O::thread), field("place", &O::place),
                     field("value", &O::value));
  using U = UnreachedRecord;
  register_record<U>(m, "Unreached", R"doc(A statement that no thread executed, or a loop that none repeated.

``id``: the same number in every call of the kernel. ``statement``: the number of the statement in the kernel.
``text``: which of both, in words. ``where``: ``file:line``.)doc",
                     field("id", &U::id), field("statement", &U::statement), field("text", &U::text),
                     field("where", &U::where));
  using C = CallRecord;
  register_record<C>(m, "CallRun", R"doc(What a call did, and what of the kernel it reached.

``reached``: numbers, as ``id`` of what is unreached. ``written``: of ``run_blocks``: by argument a byte for each
element, 1 where it was written by no atomic update.)doc",
                     field("lane_ops", &C::lane_ops), field("unreached", &C::unreached),
                     field("roundings", &C::roundings), field("reached", &C::reached), field("written", &C::written));
  using T = TellingBlocksRecord;
  register_record<T>(m, "TellingBlocks", R"doc(Blocks of a grid such that whatever a block does, one of them does, too.

``blocks``: linear numbers. ``looked_at``: how many were compared, of ``grid_blocks``.)doc",
                     field("blocks", &T::blocks), field("looked_at", &T::looked_at),
                     field("grid_blocks", &T::grid_blocks));
  using P = ProblemRecord;
  register_record<P>(m, "Problem", R"doc(A hazard, or a spec that breaks its promise.

``code``: SIM_* or CHECK_*. ``where``: Python ``file:line`` of the statement. ``ir``: its IR text, and that of the
other side of a race. ``text``: everything, as an exception would print it.)doc",
                     field("code", &P::code), field("message", &P::message), field("where", &P::where),
                     field("ir", &P::ir), field("details", &P::details), field("text", &P::text));
  using K = CheckRecord;
  register_record<K>(m, "CheckRun", R"doc(What looking for hazards and broken promises found.

``promises``: instances of specs that were held to theirs. ``sizes``: of the kernel's symbols. ``blocks``: that
ran.)doc",
                     field("problems", &K::problems), field("promises", &K::promises), field("lane_ops", &K::lane_ops),
                     field("accesses", &K::accesses), field("sizes", &K::sizes), field("blocks", &K::blocks));
  using W = WidthLimitRecord;
  register_record<W>(m, "WidthLimit", R"doc(The reason why an access does not take 16 bytes a thread at once.

``what``: "contiguity", "tile" (the leaf is smaller), "alignment" (no larger one is proven), "swizzle", "bounds"
(the end of the tensor may cut the access) or "atom" (the chosen atom takes less). ``text``: the same in words,
with the reason and what to change.)doc",
                     field("what", &W::what), field("text", &W::text));
  using A = AccessRecord;
  register_record<A>(m, "Access", "One memory operand of one IR statement, over all blocks that ran.",
                     field("where", &A::where), field("text", &A::text), field("atom", &A::atom),
                     field("buffer", &A::buffer), field("memory", &A::memory), field("op", &A::op),
                     field("vector_bytes", &A::vector_bytes), field("requests", &A::requests),
                     field("lanes", &A::lanes), field("bytes", &A::bytes), field("wavefronts", &A::wavefronts),
                     field("conflicts", &A::conflicts), field("ways", &A::ways), field("sectors", &A::sectors),
                     field("ideal_sectors", &A::ideal_sectors), field("limits", &A::limits));
  using G = AgentWorkRecord;
  register_record<G>(m, "AgentWork", R"doc(Copies or products of one IR statement, over all blocks that ran.

``what``: "load" and "store" (by TMA, to and from shared memory), "copy" (between shared memories) or "product"
(``wgmma``). ``source``, ``target``: names of tensors; of a product the factors, and the sums. ``blocks``: that
receive each copy; its bytes are counted once. ``count``: copies or instructions. ``bytes``: that are copied, without
those outside of the tensor; of a product those that it reads from shared memory. ``flops``: of a product.)doc",
                     field("where", &G::where), field("text", &G::text), field("what", &G::what),
                     field("atom", &G::atom), field("source", &G::source), field("target", &G::target),
                     field("blocks", &G::blocks), field("count", &G::count), field("bytes", &G::bytes),
                     field("flops", &G::flops));
  using H = BarrierPhasesRecord;
  register_record<H>(m, "BarrierPhases", R"doc(An allocation of mbarriers, or a named barrier, over all blocks that ran.

``stages``: how many barriers it has. ``arrivals``: that a phase waits for; of a named barrier: threads. ``phases``:
that were over, of all stages together.)doc",
                     field("name", &H::name), field("named", &H::named), field("stages", &H::stages),
                     field("arrivals", &H::arrivals), field("phases", &H::phases));
  using Q = ReportRecord;
  register_record<Q>(
      m, "MemoryReport",
      R"doc(What the memory system makes of every access, and what agents do: ``rows`` and ``agents`` in textual order;
``blocks`` of ``grid_blocks`` ran.)doc",
      field("rows", &Q::rows), field("agents", &Q::agents), field("barriers", &Q::barriers), field("sizes", &Q::sizes),
      field("blocks", &Q::blocks), field("grid_blocks", &Q::grid_blocks));
  using Y = SyncRecord;
  register_record<Y>(m, "Sync", R"doc(A synchronisation statement.

``id``: for ``skip=`` and ``relax=``. ``op``: "barrier", "commit", "wait", ... ``text``: its IR. ``where``: the
Python ``file:line`` that built it. Of an arrival, ``releases``: it passes on what was written before, to a cluster;
``expects``: bytes of copies.)doc",
                     field("id", &Y::id), field("op", &Y::op), field("text", &Y::text), field("where", &Y::where),
                     field("releases", &Y::releases), field("expects", &Y::expects));
}

}  // namespace graphene::bind
