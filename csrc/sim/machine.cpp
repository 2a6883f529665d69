#include "sim/machine.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "ir/print.h"

namespace graphene::sim {

std::string location_text(const ir::Stmt* stmt) {
  return stmt != nullptr && stmt->loc.known() ? stmt->loc.str() : "unknown location";
}

std::string statement_text(const ir::Stmt* stmt) { return stmt != nullptr ? ir::head_line(*stmt, true) : ""; }

Machine::Machine(const Bytecode& code, std::uint64_t seed) : code_(code), random_(seed), shuffled_(seed != 0) {
  for (int w = 0; w < code.warps(); ++w) {
    everyone_.push_back({w, code.lanes_of(w)});
    Warp warp;
    warp.id = w;
    warp.lanes = code.lanes_of(w);
    warp.ints.warp = w;
    warp.ints.uniform.resize(static_cast<std::size_t>(code.plans->uniform_slots()));
    warp.ints.varying.resize(static_cast<std::size_t>(code.plans->varying_slots()));
    warps_.push_back(std::move(warp));
  }
}

std::string Machine::block_text(std::int64_t block) const {
  std::string s;
  for (std::size_t i = 0; i < std::max<std::size_t>(code_.program->grid.size(), 1); ++i) {
    s += (i == 0 ? "" : ", ") + std::to_string(block % code_.grid[i]);
    block /= code_.grid[i];
  }
  return "(" + s + ")";
}

void Machine::run() {
  std::vector<std::int64_t> order(static_cast<std::size_t>(code_.grid[0] * code_.grid[1] * code_.grid[2]));
  std::iota(order.begin(), order.end(), 0);
  if (shuffled_) std::shuffle(order.begin(), order.end(), random_);
  for (const std::int64_t b : order) {
    if (poll) poll();
    run_block(b);
  }
}

void Machine::run_block(std::int64_t block) {
  block_ = block;
  std::int64_t rest = block;
  for (std::size_t d = 0; d < 3; ++d) {
    const std::int64_t index = rest % code_.grid[d];
    rest /= code_.grid[d];
    if (code_.block_slots[d] < 0) continue;
    for (Warp& w : warps_) w.ints.uniform[static_cast<std::size_t>(code_.block_slots[d])] = index;
  }
  for (Warp& w : warps_) {
    w.active = w.lanes;
    w.pc = 0;
    w.state = Warp::State::Ready;
    w.frames.clear();
  }
  begin_block();
  std::vector<int> order(warps_.size());
  std::iota(order.begin(), order.end(), 0);
  for (;;) {
    if (shuffled_) std::shuffle(order.begin(), order.end(), random_);
    bool ran = false;
    for (const int i : order) {
      Warp& w = warps_[static_cast<std::size_t>(i)];
      if (w.state != Warp::State::Ready) continue;
      run_warp(w);
      ran = true;
    }
    if (ran) continue;
    if (std::all_of(warps_.begin(), warps_.end(), [](const Warp& w) { return w.state == Warp::State::Done; })) break;
    deadlock();
  }
  end_block();
}

void Machine::run_warp(Warp& w) {
  using Op = Instruction::Op;
  for (;;) {
    const Instruction& i = code_.instructions[static_cast<std::size_t>(w.pc)];
    const auto index = static_cast<std::size_t>(i.index);
    switch (i.op) {
      case Op::Leaf:
        leaf(w, code_.leaves[index]);
        ++w.pc;
        break;
      case Op::Barrier:
        ++w.pc;
        if (!arrive(w, i.index)) return;
        break;
      case Op::Group:
        group(w, code_.group_syncs[index]);
        ++w.pc;
        break;
      case Op::LoopBegin:
        loop_begin(w, i);
        break;
      case Op::LoopEnd:
        loop_end(w, i);
        break;
      case Op::If: {
        const Mask m = plans().nonzero(code_.conditions[index], w.ints, w.active);
        w.frames.push_back({w.active, w.active & ~m});
        if (m != 0) {
          w.active = m;
          ++w.pc;
        } else {
          w.pc = i.target + 1;
        }
        break;
      }
      case Op::Else:
        w.active = w.frames.back().other;
        w.pc = w.active != 0 ? w.pc + 1 : i.target;
        break;
      case Op::EndIf:
        w.active = w.frames.back().outer;
        w.frames.pop_back();
        ++w.pc;
        break;
      case Op::ExitIf: {
        const Mask m = plans().nonzero(code_.conditions[index], w.ints, w.active);
        if (m == 0) {
          ++w.pc;
          break;
        }
        if (m != w.lanes) divergent(w, i.origin, w.lanes & ~m, "exit_if holds for a part of the block");
        w.state = Warp::State::Done;
        return;
      }
      case Op::Set: {
        const SetCode& set = code_.sets[index];
        if (set.uniform) {
          w.ints.uniform[static_cast<std::size_t>(set.slot)] = plans().uniform(set.value, w.ints);
        } else {
          Lanes v;
          plans().lanes(set.value, w.ints, w.active, v);
          Lanes& to = w.ints.varying[static_cast<std::size_t>(set.slot)];
          for (std::size_t l = 0; l < kLanes; ++l) {
            if ((w.active >> l & 1) != 0) to[l] = v[l];
          }
        }
        ++w.pc;
        break;
      }
      case Op::Enter:
        enter(w, i.index);
        ++w.pc;
        break;
      case Op::Leave:
        leave(w, i.index);
        ++w.pc;
        break;
      case Op::End:
        w.state = Warp::State::Done;
        return;
    }
  }
}

Mask Machine::loop_continues(const Warp& w, const LoopCode& loop) const {
  const auto slot = static_cast<std::size_t>(loop.slot);
  if (loop.uniform && loop.stop.is_uniform()) {
    return w.ints.uniform[slot] < plans().uniform(loop.stop, w.ints) ? w.active : 0;
  }
  Lanes stop;
  plans().lanes(loop.stop, w.ints, w.active, stop);
  Mask m = 0;
  for (std::size_t l = 0; l < kLanes; ++l) {
    const std::int64_t v = loop.uniform ? w.ints.uniform[slot] : w.ints.varying[slot][l];
    m |= static_cast<Mask>(v < stop[l]) << l;
  }
  return m & w.active;
}

void Machine::loop_begin(Warp& w, const Instruction& i) {
  const LoopCode& loop = code_.loops[static_cast<std::size_t>(i.index)];
  const auto slot = static_cast<std::size_t>(loop.slot);
  if (loop.uniform) {
    w.ints.uniform[slot] = plans().uniform(loop.start, w.ints);
  } else {
    Lanes v;
    plans().lanes(loop.start, w.ints, w.active, v);
    w.ints.varying[slot] = v;
  }
  const Mask m = loop_continues(w, loop);
  if (m == 0) {
    w.pc = i.target;
    return;
  }
  if (loop.step.is_uniform() && plans().uniform(loop.step, w.ints) <= 0) {
    fail(Code::SIM_ENDLESS_LOOP, "a loop whose step is not positive", {"loop: " + statement_text(i.origin)}, {},
         i.origin != nullptr ? i.origin->loc : SourceLoc{});
  }
  w.frames.push_back({w.active, 0});
  w.active = m;
  ++w.pc;
}

void Machine::loop_end(Warp& w, const Instruction& i) {
  const LoopCode& loop = code_.loops[static_cast<std::size_t>(i.index)];
  const auto slot = static_cast<std::size_t>(loop.slot);
  if (loop.uniform) {
    w.ints.uniform[slot] += plans().uniform(loop.step, w.ints);
  } else {
    Lanes step;
    plans().lanes(loop.step, w.ints, w.active, step);
    for (std::size_t l = 0; l < kLanes; ++l) w.ints.varying[slot][l] += step[l];
  }
  const Mask m = loop_continues(w, loop);
  if (m != 0) {
    w.active = m;
    w.pc = i.target;
    if ((++iterations_ & 0xfffffU) == 0 && poll) poll();
    return;
  }
  w.active = w.frames.back().outer;
  w.frames.pop_back();
  ++w.pc;
}

bool Machine::arrive(Warp& w, int barrier) {
  const Barrier& b = code_.barriers[static_cast<std::size_t>(barrier)];
  if (b.block) {
    if (w.active != w.lanes) {
      divergent(w, b.origin, w.lanes & ~w.active, "a part of a warp arrives at a barrier of the block");
    }
    w.group = -1;
  } else {
    int group = -1;
    Mask todo = w.active;
    while (todo != 0) {
      const int lane = std::countr_zero(todo);
      group = b.group_of[static_cast<std::size_t>(w.id * kLanes + lane)];
      if (group < 0) divergent(w, b.origin, 1U << lane, "a thread that is not of the group arrives at its barrier");
      const ThreadGroup& members = code_.groups[static_cast<std::size_t>(group)];
      const auto mine = std::find_if(members.begin(), members.end(), [&](const auto& p) { return p.warp == w.id; });
      if ((mine->lanes & ~w.active) != 0) {
        divergent(w, b.origin, mine->lanes & ~w.active, "a part of a group's lanes arrives at its barrier");
      }
      todo &= ~mine->lanes;
      if (members.size() == 1) {
        synchronise(members);
      } else if (todo != 0) {
        fail(Code::SIM_UNSUPPORTED, "the simulator does not run barriers of groups that share warps", {}, {},
             b.origin != nullptr ? b.origin->loc : SourceLoc{});
      }
    }
    if (code_.groups[static_cast<std::size_t>(group)].size() == 1) return true;
    w.group = group;
  }
  w.state = Warp::State::Waiting;
  w.barrier = barrier;
  const ThreadGroup& members = w.group < 0 ? everyone_ : code_.groups[static_cast<std::size_t>(w.group)];
  for (const auto& p : members) {
    const Warp& other = warps_[static_cast<std::size_t>(p.warp)];
    if (other.state != Warp::State::Waiting || other.group != w.group) return false;
  }
  synchronise(members);
  for (const auto& p : members) warps_[static_cast<std::size_t>(p.warp)].state = Warp::State::Ready;
  return true;
}

void Machine::divergent(const Warp& w, const ir::Stmt* origin, Mask missing, const std::string& what) const {
  std::string lanes;
  for (Mask m = missing; m != 0; m &= m - 1) {
    const int first = std::countr_zero(m);
    int last = first;
    while (last + 1 < kLanes && (m >> (last + 1) & 1) != 0) m &= m - 1, ++last;
    lanes += (lanes.empty() ? "" : ", ") + std::to_string(first) + (last > first ? "-" + std::to_string(last) : "");
  }
  Diagnostic d;
  d.code = Code::SIM_DIVERGENT_COLLECTIVE;
  d.where = origin != nullptr ? origin->loc : SourceLoc{};
  d.message = what;
  d.ir = {statement_text(origin)};
  d.details = {"block: " + block_text() + ", warp " + std::to_string(w.id), "missing lanes: " + lanes};
  d.fix = "let all of them execute it, or none: move it out of the branch";
  throw Error(std::move(d));
}

void Machine::deadlock() const {
  Diagnostic d;
  d.code = Code::SIM_DEADLOCK;
  d.message = "the block makes no progress";
  d.details.push_back("block: " + block_text());
  bool ended = false;
  for (const Warp& w : warps_) {
    std::string line = "warp " + std::to_string(w.id) + ": ";
    if (w.state == Warp::State::Done) {
      line += "has ended";
      ended = true;
    } else {
      const ir::Stmt* at = code_.barriers[static_cast<std::size_t>(w.barrier)].origin;
      if (at != nullptr && !d.where.known()) d.where = at->loc;
      if (d.ir.empty() || d.ir.back() != statement_text(at)) d.ir.push_back(statement_text(at));
      line += "waits at the barrier of ";
      if (w.group < 0) {
        line += "the block";
      } else {
        std::string members;
        for (const auto& p : code_.groups[static_cast<std::size_t>(w.group)]) {
          members += (members.empty() ? "" : ", ") + std::to_string(p.warp);
        }
        line += "warps " + members;
      }
      line += ", " + location_text(at);
    }
    d.details.push_back(std::move(line));
  }
  d.fix = ended ? "every warp must arrive: a barrier stands in a branch or loop that some warps leave out"
                : "warps wait for each other at different barriers: let them arrive in the same order";
  throw Error(std::move(d));
}

}  // namespace graphene::sim
