// Counted loops, and loops that a condition ends, of warps whose lanes may take different numbers of turns.
#include "sim/machine.h"

namespace graphene::sim {

// Which lanes take another turn: those below the bound for which the condition holds.
Mask Machine::loop_continues(const Warp& w, const LoopCode& loop, const ir::Stmt* origin) const {
  const Mask below = below_bound(w, loop);
  if (loop.condition.is_const(1)) return below;
  const Mask holds = plans().nonzero(loop.condition, w.ints, w.active);
  if ((holds & ~below) != 0) past_bound(w, holds & ~below, origin);
  return holds & below;
}

Mask Machine::below_bound(const Warp& w, const LoopCode& loop) const {
  const auto slot = static_cast<std::size_t>(loop.slot);
  if (loop.uniform && loop.stop.is_uniform()) {
    return w.ints.uniform(loop.slot) < plans().uniform(loop.stop, w.ints) ? w.active : 0;
  }
  Lanes stop;
  plans().lanes(loop.stop, w.ints, w.active, stop);
  Mask m = 0;
  for (std::size_t l = 0; l < kLanes; ++l) {
    const std::int64_t v = loop.uniform ? w.ints.uniform(loop.slot) : w.ints.varying[slot][l];
    m |= static_cast<Mask>(v < stop[l]) << l;
  }
  return m & w.active;
}

void Machine::loop_begin(Warp& w, const Instruction& i) {
  const LoopCode& loop = code_.loops[static_cast<std::size_t>(i.index)];
  const auto slot = static_cast<std::size_t>(loop.slot);
  if (loop.uniform) {
    w.ints.set_uniform(loop.slot, plans().uniform(loop.start, w.ints));
  } else {
    Lanes v;
    plans().lanes(loop.start, w.ints, w.active, v);
    w.ints.varying[slot] = v;
  }
  const Mask m = loop_continues(w, loop, i.origin);
  if (m == 0) {
    happened_[static_cast<std::size_t>(w.pc)] |= kDidNotHold;
    w.pc = i.target;
    return;
  }
  if (loop.step.is_uniform() && plans().uniform(loop.step, w.ints) <= 0) {
    fail(Code::SIM_ENDLESS_LOOP, "a loop whose step is not positive", {"loop: " + statement_text(i.origin)}, {},
         i.origin != nullptr ? i.origin->loc : SourceLoc{});
  }
  w.frames.push_back({.outer = w.active, .after = i.target});
  w.active = m;
  ++w.pc;
}

bool Machine::loop_end(Warp& w, const Instruction& i) {
  const LoopCode& loop = code_.loops[static_cast<std::size_t>(i.index)];
  const auto slot = static_cast<std::size_t>(loop.slot);
  if (loop.uniform) {
    w.ints.set_uniform(loop.slot, w.ints.uniform(loop.slot) + plans().uniform(loop.step, w.ints));
  } else {
    Lanes step;
    plans().lanes(loop.step, w.ints, w.active, step);
    for (std::size_t l = 0; l < kLanes; ++l) w.ints.varying[slot][l] += step[l];
  }
  const Mask m = loop_continues(w, loop, i.origin);
  if (m != 0) {
    if (first_and_last_turns_ && loop.uniform && loop.stop.is_uniform() && loop.condition.is_const(1)) {
      const std::int64_t at = w.ints.uniform(loop.slot);
      const std::int64_t rest = plans().uniform(loop.stop, w.ints) - 1 - at;
      w.ints.set_uniform(loop.slot, at + rest - rest % plans().uniform(loop.step, w.ints));
    }
    happened_[static_cast<std::size_t>(w.pc)] |= kWentOn;
    w.active = m;
    w.pc = i.target;
    return true;
  }
  return leave_construct(w, w.pc + 1);
}

}  // namespace graphene::sim
