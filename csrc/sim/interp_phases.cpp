// Acts at mbarriers, judged by what those who act know (phases.h), and what is said of them.
#include <algorithm>
#include <bit>

#include "sim/interp.h"

namespace graphene::sim {

// A barrier of all threads of a block stands behind the initialisation of its mbarriers, a cluster's behind all
// blocks'.
void Interpreter::know_initialised(const ThreadGroup& members) {
  Mask partial = 0;
  for (const auto& p : members) partial |= p.lanes ^ order_->lanes_of(p.warp);
  if (partial != 0 || members.size() % static_cast<std::size_t>(code_.warps()) != 0) return;
  const int first = members.front().warp / code_.warps();
  const int blocks = static_cast<int>(members.size()) / code_.warps();
  for (const auto& p : members) {
    for (int m = first * code_.mbarrier_count; m < (first + blocks) * code_.mbarrier_count; ++m) {
      order_->know_initialised(p.warp, m);
    }
  }
}

void Interpreter::know_named() {
  for (const Warp& w : warps_) {
    for (int rank = 0; rank < code_.cluster(); ++rank) {
      for (int m = named_first(); m < code_.mbarrier_count; ++m) {
        order_->know_initialised(w.id, rank * code_.mbarrier_count + m);
      }
    }
  }
}

void Interpreter::judge_arrival(const Warp& w, int lane, int mbarrier, const PhaseSync& s) {
  acts_ = {&w, lane, s.origin};
  const int rank = mbarrier / code_.mbarrier_count;
  const bool own = rank == w.rank;
  const Epoch epoch = order_->epoch(w.id);
  const Passes passes = own ? Passes::All : s.cluster ? Passes::Beyond : Passes::Happened;
  const PhaseFault fault = PhaseRules(*order_).arrive(w.id, lane, mbarrier, count(mbarrier), passes, s.copies);
  if (fault != PhaseFault::None) phase_error(fault, acts_, mbarrier, "an arrival at ");
  if (traces()) trace->counts(w, mbarrier);
  if (!own) arrived_[static_cast<std::size_t>(rank)][{w.id, lane}] = {epoch, mbarrier, s.origin};
  data(w).issuer.refresh();
}

void Interpreter::judge_phase(int mbarrier) {
  HappensBefore::Wait unseen;
  const PhaseCount& c = count(mbarrier);
  const PhaseFault fault = PhaseRules(*order_).over(mbarrier, c, unseen);
  if (traces() && c.is_over()) trace->phase(mbarrier, c.phases);
  if (fault == PhaseFault::None) return;
  Diagnostic d;
  d.code = fault == PhaseFault::Bytes ? Code::SIM_TRANSACTION : Code::SIM_PHASE;
  d.where = acts_.origin != nullptr ? acts_.origin->loc : SourceLoc{};
  d.ir = {statement_text(acts_.origin)};
  if (fault == PhaseFault::Bytes) {
    d.message = "more bytes than the phase expects: " + mbarrier_text(mbarrier);
    d.details = {"phase: " + std::to_string(c.phases), "want: " + std::to_string(c.expected) + " bytes",
                 "got: " + std::to_string(c.bytes), "by " + thread_text(*acts_.warp, acts_.lane)};
    if (const Leaf* f = copied_[static_cast<std::size_t>(mbarrier)].leaf; f != nullptr && f->origin != acts_.origin) {
      d.ir.push_back(statement_text(f->origin));
      d.details.push_back("the last copy: " + location_text(f->origin));
    }
    d.fix = "let one arrival of the phase expect all that its copies write: arrive(expect=[...])";
  } else {
    d.message = "a phase that may end before a thread has seen the one before: " + mbarrier_text(mbarrier);
    const Warp& waits = warps_[static_cast<std::size_t>(unseen.warp)];
    d.details = {"phase: " + std::to_string(c.phases), "ended by " + thread_text(*acts_.warp, acts_.lane),
                 "not known to have seen phase " + std::to_string(c.phases - 1) + ": " +
                     thread_text(waits, std::countr_zero(unseen.lanes))};
    d.fix = "arrive only behind what tells of that wait: an arrival of the waiting thread, or a barrier with it";
  }
  throw Error(std::move(d));
}

void Interpreter::arrived(Warp& w, const PhaseSync& s, int mbarrier) {
  if (traces()) trace->arrive(w, s, mbarrier, w.round);
}

void Interpreter::judge_wait(Warp& w, Mask lanes, int mbarrier, const PhaseSync& s) {
  int lane = 0;
  const PhaseFault fault = PhaseRules(*order_).wait(w.id, lanes, mbarrier, count(mbarrier), lane, s.cluster);
  if (fault != PhaseFault::None) phase_error(fault, {&w, lane, s.origin}, mbarrier, "a wait at ");
  data(w).issuer.refresh();
  if (traces()) trace->wait(w, s, mbarrier, s.threads > 0 ? w.round : count(mbarrier).phases - 1);
}

void Interpreter::fence(Warp& w, const ProxyFence& f) {
  if (traces()) trace->fence(w, f);
  if (f.registers) return fence_registers(w);
  if (f.shared) order_->fence_proxy(w.id, w.active, false);
  if (f.global) order_->fence_proxy(w.id, w.active, true);
  data(w).issuer.refresh();
}

void Interpreter::converge(Warp& w) {
  order_->converge(w.id, w.active);
  data(w).issuer.refresh();
}

void Interpreter::phase_error(PhaseFault fault, const Actor& by, int mbarrier, const char* what) const {
  const PhaseCount& c = count(mbarrier);
  const std::int64_t known = order_->known_phases(by.warp->id, by.lane, mbarrier);
  Diagnostic d;
  d.code = fault == PhaseFault::Arrivals ? Code::SIM_TRANSACTION : Code::SIM_PHASE;
  d.where = by.origin != nullptr ? by.origin->loc : SourceLoc{};
  d.ir = {statement_text(by.origin)};
  d.message = what + mbarrier_text(mbarrier);
  switch (fault) {
    case PhaseFault::Uninitialised:
      d.message += ", which may not be initialised yet";
      d.fix = "put a barrier of all threads behind its declaration: gr.barrier()";
      break;
    case PhaseFault::Arrivals:
      d.message += ", of which the phase has all arrivals";
      d.details = {"want: " + std::to_string(c.wanted) + " arrivals", "phase: " + std::to_string(c.phases)};
      d.fix = "declare as many arrivals as threads arrive: gr.mbarrier(..., arrivals=)";
      break;
    default:
      d.message += known < c.phases ? ", which may have gone on meanwhile" : ", which is not so far yet";
      d.details = {"phases that the thread knows to be over: " + std::to_string(known),
                   "phases that are over: " + std::to_string(c.phases)};
      d.fix = known < c.phases
                  ? "wait for the phases before: a thread acts at the phase behind the last that it knows of"
                  : "the phase that is meant has not begun: check the parity, and who arrives";
  }
  d.details.push_back("by " + thread_text(*by.warp, by.lane));
  if (const Leaf* f = copied_[static_cast<std::size_t>(mbarrier)].leaf; f != nullptr && f->origin != by.origin) {
    d.ir.push_back(statement_text(f->origin));
    d.details.push_back("the last copy: " + location_text(f->origin));
  }
  throw Error(std::move(d));
}

void Interpreter::copy_error(PhaseFault fault, const Warp& w, const Leaf& f, int lane, int mbarrier) const {
  if (fault == PhaseFault::Uninitialised) phase_error(fault, {&w, lane, f.origin}, mbarrier, "a copy for ");
  const std::int64_t known = order_->known_phases(w.id, lane, mbarrier);
  Diagnostic d;
  d.code = Code::SIM_TRANSACTION;
  d.where = f.origin != nullptr ? f.origin->loc : SourceLoc{};
  d.ir = {statement_text(f.origin)};
  d.message = "a copy for a phase at which its barrier does not stand: " + mbarrier_text(mbarrier);
  d.details = {"phases that the thread knows to be over: " + std::to_string(known),
               "phases that are over: " + std::to_string(count(mbarrier).phases), "by " + thread_text(w, lane)};
  d.fix = "wait until the stage is free before it is filled again, and count its bytes for the phase of the copy";
  throw Error(std::move(d));
}

// A block must not end while another one may still arrive at it: some thread of it must know of the arrival.
void Interpreter::check_arrivals() const {
  for (std::size_t rank = 0; rank < arrived_.size(); ++rank) {
    for (const auto& [who, arrival] : arrived_[rank]) {
      bool known = false;
      for (const Warp& w : warps_) {
        for (int l = 0; l < kLanes && w.rank == static_cast<int>(rank) && !known; ++l) {
          known = (w.lanes >> l & 1) != 0 && order_->saw(w.id, l, who.first, 1U << who.second, arrival.epoch);
        }
      }
      if (known) continue;
      Diagnostic d;
      d.code = Code::SIM_UNFINISHED_COPY;
      d.where = arrival.origin != nullptr ? arrival.origin->loc : SourceLoc{};
      d.ir = {statement_text(arrival.origin)};
      d.message = "a block may end before another one arrives at it: " + mbarrier_text(arrival.mbarrier);
      d.details = {"arrival of " + thread_text(warps_[static_cast<std::size_t>(who.first)], who.second)};
      d.fix = "let a thread of the block learn of it before the end: gr.barrier(on=cluster)";
      throw Error(std::move(d));
    }
  }
}

// A block must not end while a copy may still write its shared memory: some thread must know that the phase is over.
void Interpreter::check_landed() const {
  for (std::size_t m = 0; m < copied_.size(); ++m) {
    const Copied& c = copied_[m];
    if (c.leaf == nullptr) continue;
    const int rank = static_cast<int>(m) / code_.mbarrier_count;
    bool known = false;
    for (const Warp& w : warps_) {
      for (int l = 0; l < kLanes && w.rank == rank && !known; ++l) {
        known = (w.lanes >> l & 1) != 0 && order_->known_phases(w.id, l, static_cast<int>(m)) > c.phase;
      }
    }
    if (known) continue;
    Diagnostic d;
    d.code = Code::SIM_UNFINISHED_COPY;
    d.where = c.leaf->origin != nullptr ? c.leaf->origin->loc : SourceLoc{};
    d.ir = {statement_text(c.leaf->origin)};
    d.message = "the block ends while a copy may still write its shared memory";
    d.details = {"copy of " + thread_text(warps_[static_cast<std::size_t>(c.warp)], c.lane),
                 "completes on: " + mbarrier_text(static_cast<int>(m)) + ", phase " + std::to_string(c.phase)};
    d.fix = "let a thread of the block wait for that phase before the end";
    throw Error(std::move(d));
  }
}

void Interpreter::check_begun(const Warp& w, const Leaf& f, Mask lanes, int rank) const {
  for (Mask m = lanes; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    bool known = false;
    for (const Warp& other : warps_) {
      known = known || (other.rank == rank && order_->knows_begun(w.id, lane, other.id));
    }
    if (known) continue;
    Diagnostic d;
    d.code = Code::SIM_RACE;
    d.where = f.origin != nullptr ? f.origin->loc : SourceLoc{};
    d.ir = {statement_text(f.origin)};
    d.message = "an access to the shared memory of a block that may not have begun";
    d.details = {"by " + thread_text(w, lane), "of block " + block_text(block_ + rank)};
    d.fix = "let the blocks of the cluster meet before: gr.barrier(on=cluster)";
    throw Error(std::move(d));
  }
}

void Interpreter::check_reached() const {
  for (std::size_t rank = 0; rank < reached_.size(); ++rank) {
    for (const auto& [who, reached] : reached_[rank]) {
      bool known = false;
      for (const Warp& w : warps_) {
        for (int l = 0; l < kLanes && w.rank == static_cast<int>(rank) && !known; ++l) {
          known = (w.lanes >> l & 1) != 0 && order_->before(w.id, l, static_cast<std::uint32_t>(who.first),
                                                            1U << who.second, reached.epoch, Did::Read);
        }
      }
      if (known) continue;
      Diagnostic d;
      d.code = Code::SIM_UNFINISHED_COPY;
      d.where = reached.leaf->origin != nullptr ? reached.leaf->origin->loc : SourceLoc{};
      d.ir = {statement_text(reached.leaf->origin)};
      d.message = "a block may end before another one accesses its shared memory";
      d.details = {"by " + thread_text(warps_[static_cast<std::size_t>(who.first)], who.second),
                   "of block " + block_text(block_ + static_cast<std::int64_t>(rank))};
      d.fix = "let a thread of the block learn of it before the end: gr.barrier(on=cluster)";
      throw Error(std::move(d));
    }
  }
}

}  // namespace graphene::sim
