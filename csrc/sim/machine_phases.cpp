// mbarriers as they count: arrivals, waits, bytes that land; and what is said where nothing goes on.
#include <algorithm>
#include <bit>
#include <set>

#include "sim/machine.h"

namespace graphene::sim {

std::vector<int> Machine::ranks(const Warp& w, const Ranks& to) const {
  if (to.empty()) return {w.rank};
  std::vector<int> out;
  for (const IntPlan& block : to) {
    const std::int64_t b = plans().at_lane(block, w.ints, std::countr_zero(w.active));
    out.push_back(static_cast<int>(b % code_.cluster()));
  }
  return out;
}

void Machine::ranks(const Warp& w, const Leaf& f, const Operand& o, Mask lanes, Lanes& out) const {
  plans().lanes(o.rank, w.ints, lanes, out);
  for (Mask m = lanes; m != 0; m &= m - 1) {
    const std::int64_t rank = out[static_cast<std::size_t>(std::countr_zero(m))];
    if (rank >= 0 && rank < code_.cluster()) continue;
    fail(Code::SIM_OUT_OF_BOUNDS, "a block that the cluster does not have",
         {"want: a rank from 0 to " + std::to_string(code_.cluster() - 1), "got: " + std::to_string(rank)}, {},
         f.origin != nullptr ? f.origin->loc : SourceLoc{});
  }
}

int Machine::mbarrier(const Warp& w, const MBarrierRef& ref, int rank, int lane) const {
  const MBarrierCode& m = code_.mbarriers[static_cast<std::size_t>(ref.of)];
  const std::int64_t element = plans().at_lane(ref.element, w.ints, lane);
  if (element < 0 || element >= m.count) {
    fail(Code::SIM_OUT_OF_BOUNDS,
         m.buffer < 0
             ? "a barrier that the block does not have"
             : "an mbarrier outside of " + code_.program->buffers[static_cast<std::size_t>(m.buffer)].buffer->name,
         {"want: a stage from 0 to " + std::to_string(m.count - 1), "got: " + std::to_string(element)}, {},
         running_ != nullptr && code_.instructions[static_cast<std::size_t>(running_->pc)].origin != nullptr
             ? code_.instructions[static_cast<std::size_t>(running_->pc)].origin->loc
             : SourceLoc{});
  }
  return rank * code_.mbarrier_count + m.first + static_cast<int>(element);
}

std::string Machine::mbarrier_text(int mbarrier) const {
  const int rank = mbarrier / code_.mbarrier_count;
  return code_.barrier_name(mbarrier % code_.mbarrier_count) +
         (code_.cluster() > 1 ? " of block " + block_text(block_ + rank) : "");
}

int Machine::named_first() const {
  const auto is_named = [](const MBarrierCode& m) { return m.buffer < 0; };
  const auto it = std::find_if(code_.mbarriers.begin(), code_.mbarriers.end(), is_named);
  return it == code_.mbarriers.end() ? code_.mbarrier_count : it->first;
}

void Machine::end_phase(int mbarrier) {
  PhaseCount& c = counts_[static_cast<std::size_t>(mbarrier)];
  if (c.arrivals < c.wanted) return;
  judge_phase(mbarrier);
  if (c.is_over()) c.next();
}

void Machine::arrive_at_phase(Warp& w, const PhaseSync& s) {
  if (first_and_last_turns_) return;
  if (s.threads > 0 && w.active != w.lanes) {
    divergent(w, s.origin, w.lanes & ~w.active, "a part of a warp arrives at a named barrier");
  }
  Lanes expect;
  plans().lanes(s.expect, w.ints, w.active, expect);
  const std::vector<int> targets = ranks(w, s.to);
  int at = 0;
  for (Mask m = w.active; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    for (const int rank : targets) {
      at = mbarrier(w, s.barrier, rank, lane);
      PhaseCount& c = counts_[static_cast<std::size_t>(at)];
      if (s.threads > 0) c.wanted = s.threads;
      judge_arrival(w, lane, at, s);
      w.round = c.phases;
      ++c.arrivals;
      c.expected += expect[static_cast<std::size_t>(lane)];
      end_phase(at);
    }
  }
  arrived(w, s, at);
}

void Machine::land(const Warp& w, const Leaf& f, Mask lanes) {
  if (f.done.of < 0 || first_and_last_turns_) return;
  const Operand& o = f.out.front();
  for (Mask m = lanes; m != 0; m &= m - 1) {
    for (const int rank : ranks(w, f.to)) {
      const int at = mbarrier(w, f.done, rank, std::countr_zero(m));
      counts_[static_cast<std::size_t>(at)].bytes += std::int64_t{o.values} * o.bytes;
      end_phase(at);
    }
  }
}

bool Machine::may_go_on(const Warp& w) const {
  const PhaseSync& s = code_.phase_syncs[static_cast<std::size_t>(w.barrier)];
  Lanes parity;
  plans().lanes(s.parity, w.ints, w.active, parity);
  for (Mask m = w.active; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const int at = mbarrier(w, s.barrier, w.rank, lane);
    if (passes(w, s, at, parity[static_cast<std::size_t>(lane)])) return true;
  }
  return false;
}

// Lanes may wait for different phases: those that are told go on without the others.
bool Machine::wait_for_phase(Warp& w, const PhaseSync& s) {
  if (first_and_last_turns_) return true;
  Lanes parity;
  plans().lanes(s.parity, w.ints, w.active, parity);
  Mask stays = 0;
  for (Mask todo = w.active; todo != 0;) {
    const int lane = std::countr_zero(todo);
    const int at = mbarrier(w, s.barrier, w.rank, lane);
    const std::int64_t p = parity[static_cast<std::size_t>(lane)];
    Mask same = 0;
    for (Mask m = todo; m != 0; m &= m - 1) {
      const int l = std::countr_zero(m);
      const bool uniform = s.barrier.element.is_uniform() || mbarrier(w, s.barrier, w.rank, l) == at;
      same |= static_cast<Mask>(uniform && parity[static_cast<std::size_t>(l)] == p) << l;
    }
    if (passes(w, s, at, p)) {
      judge_wait(w, same, at, s);
    } else {
      stays |= same;
    }
    todo &= ~same;
  }
  if (stays == 0) return true;
  const int sync = static_cast<int>(&s - code_.phase_syncs.data());
  if (stays != w.active || (!w.frames.empty() && w.frames.front().outer != w.active)) come_apart(w, w.active);
  if (stays != w.active) {
    Warp& piece = add_piece(w, stays, w.frames.size(), w.pc, Warp::State::Phase);
    piece.barrier = sync;
    keep(w, w.active & ~stays);
    return true;
  }
  w.state = Warp::State::Phase;
  w.barrier = sync;
  return false;
}

std::string lanes_text(Mask lanes) {
  std::string text;
  for (Mask m = lanes; m != 0; m &= m - 1) {
    const int first = std::countr_zero(m);
    int last = first;
    while (last + 1 < kLanes && (m >> (last + 1) & 1) != 0) m &= m - 1, ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(first) + (last > first ? "-" + std::to_string(last) : "");
  }
  return text;
}

std::string Machine::members_text(const Warp& w) const {
  if (w.group == Warp::kCluster) return "the cluster";
  if (w.group < 0) return "the block";
  const ThreadGroup& group = code_.groups[static_cast<std::size_t>(w.group)];
  if (group.size() == 1) return "its lanes " + lanes_text(group.front().lanes);
  std::string members;
  for (const auto& p : group) members += (members.empty() ? "" : ", ") + std::to_string(p.warp);
  return "warps " + members;
}

// Each warp and what it waits for, then each mbarrier that somebody waits for: its phase, and what is missing.
void Machine::deadlock() const {
  Diagnostic d;
  d.code = Code::SIM_DEADLOCK;
  const bool several = code_.cluster() > 1;
  d.message = several ? "the cluster makes no progress" : "the block makes no progress";
  if (!several) d.details.push_back("block: " + block_text(block_));
  bool ended = false;
  std::set<int> waited;
  for (const auto& piece : pieces_) {
    const Warp& w = *piece;
    if (w.active == 0) continue;
    std::string line = (several ? "block " + block_text(w) + ", warp " : "warp ") + std::to_string(w.local) +
                       (w.active == w.lanes ? "" : ", lanes " + lanes_text(w.active)) + ": ";
    const ir::Stmt* at = nullptr;
    if (w.state == Warp::State::Done) {
      line += "has ended";
      ended = true;
    } else if (w.state == Warp::State::Phase) {
      const PhaseSync& s = code_.phase_syncs[static_cast<std::size_t>(w.barrier)];
      at = s.origin;
      const int barrier = mbarrier(w, s.barrier, w.rank, std::countr_zero(w.active));
      waited.insert(barrier);
      line += "waits for " + mbarrier_text(barrier) + ", " + location_text(at);
    } else if (w.state == Warp::State::Joining) {
      line += "waits for its other lanes";
    } else {
      at = code_.barriers[static_cast<std::size_t>(w.barrier)].origin;
      line += "waits at the barrier of " + members_text(w) + ", " + location_text(at);
    }
    if (at != nullptr && !d.where.known()) d.where = at->loc;
    if (at != nullptr && (d.ir.empty() || d.ir.back() != statement_text(at))) d.ir.push_back(statement_text(at));
    d.details.push_back(std::move(line));
  }
  bool bytes = false;
  for (const int barrier : waited) {
    const PhaseCount& c = count(barrier);
    std::string line = mbarrier_text(barrier) + " is in phase " + std::to_string(c.phases) + ": " +
                       std::to_string(c.arrivals) + " of " + std::to_string(c.wanted) + " arrivals";
    if (c.expected != 0 || c.bytes != 0) {
      line += ", " + std::to_string(c.bytes) + " of " + std::to_string(c.expected) + " bytes";
    }
    bytes = bytes || (c.arrivals == c.wanted && c.bytes != c.expected);
    d.details.push_back(std::move(line));
  }
  if (bytes) {
    d.fix = "an arrival expects bytes that no copy brings: expect= names what the copies of the phase write";
  } else if (!waited.empty()) {
    d.fix = "add the arrival that the phase still misses, or wait for the other parity";
  } else {
    d.fix = ended ? "every warp must arrive: a barrier stands in a branch or loop that some warps leave out"
                  : "warps wait for each other at different barriers: let them arrive in the same order";
  }
  throw Error(std::move(d));
}

}  // namespace graphene::sim
