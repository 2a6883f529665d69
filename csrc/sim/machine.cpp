#include "sim/machine.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <set>

#include "ir/print.h"

namespace graphene::sim {

namespace {

constexpr std::int64_t kShuffledBlocks = std::int64_t{1}
                                         << 24;  // larger grids run in their order: nobody waits for one

constexpr std::chrono::milliseconds kPause{50};

}  // namespace

std::string location_text(const ir::Stmt* stmt) {
  return stmt != nullptr && stmt->loc.known() ? stmt->loc.str() : "unknown location";
}

std::string statement_text(const ir::Stmt* stmt) { return stmt != nullptr ? ir::head_line(*stmt, true) : ""; }

Machine::Machine(const Bytecode& code, std::uint64_t seed)
    : happened_(code.instructions.size()), code_(code), random_(seed), shuffled_(seed != 0) {
  std::vector<ThreadGroup> blocks;
  for (int rank = 0; rank < code.cluster(); ++rank) {
    for (ThreadGroup group : code.groups) {
      for (auto& p : group) p.warp += rank * code.warps();
      groups_.push_back(std::move(group));
    }
    blocks.emplace_back();
    for (int w = 0; w < code.warps(); ++w) {
      Warp warp;
      warp.id = rank * code.warps() + w;
      warp.rank = rank;
      warp.local = w;
      warp.lanes = code.lanes_of(w);
      blocks.back().push_back({warp.id, warp.lanes});
      warp.ints.warp = w;
      warp.ints.resize(code.plans->uniform_slots(), code.plans->varying_slots());
      warps_.push_back(std::move(warp));
    }
  }
  ThreadGroup cluster;
  for (const ThreadGroup& block : blocks) cluster.insert(cluster.end(), block.begin(), block.end());
  groups_.insert(groups_.end(), blocks.begin(), blocks.end());
  groups_.push_back(std::move(cluster));
}

const ThreadGroup& Machine::members_of(const Warp& w, int group) const {
  const std::size_t each = code_.groups.size();
  const auto rank = static_cast<std::size_t>(w.rank);
  if (group == Warp::kCluster) return groups_.back();
  if (group < 0) return groups_[each * static_cast<std::size_t>(code_.cluster()) + rank];
  return groups_[rank * each + static_cast<std::size_t>(group)];
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
  const std::int64_t clusters = code_.grid[0] * code_.grid[1] * code_.grid[2] / code_.cluster();
  std::vector<std::int64_t> order;
  if (shuffled_ && clusters <= kShuffledBlocks) {
    order.resize(static_cast<std::size_t>(clusters));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
  }
  for (std::int64_t c = 0; c < clusters; ++c) {
    breathe();
    run_block((order.empty() ? c : order[static_cast<std::size_t>(c)]) * code_.cluster());
  }
}

void Machine::run_blocks(const std::vector<std::int64_t>& blocks) {
  std::set<std::int64_t> done;
  for (const std::int64_t b : blocks) {
    if (done.insert(b / code_.cluster()).second) run_block(b);
  }
}

void Machine::run_block(std::int64_t block) {
  block_ = block / code_.cluster() * code_.cluster();
  for (Warp& w : warps_) {
    std::int64_t rest = block_of(w);
    for (std::size_t d = 0; d < 3; ++d) {
      const std::int64_t index = rest % code_.grid[d];
      rest /= code_.grid[d];
      if (code_.block_slots[d] >= 0) w.ints.set_uniform(code_.block_slots[d], index);
    }
  }
  counts_.clear();
  for (int rank = 0; rank < code_.cluster(); ++rank) {
    for (const MBarrierCode& m : code_.mbarriers) {
      counts_.insert(counts_.end(), static_cast<std::size_t>(m.count), PhaseCount{.wanted = m.wanted});
    }
  }
  pieces_.clear();
  for (Warp& w : warps_) {
    pieces_.push_back(std::make_unique<Warp>(w));
    pieces_.back()->active = w.lanes;
  }
  ended_.assign(warps_.size(), 0);
  running_ = nullptr;
  try {
    begin_block();
    run_pieces();
    end_block();
    if (ended) ended(counts_);
  } catch (const Error& e) {
    // Memory that is not given is missed deep inside: the statement at hand is where.
    std::vector<Diagnostic> said = e.diagnostics();
    const ir::Stmt* at =
        running_ != nullptr ? code_.instructions[static_cast<std::size_t>(running_->pc)].origin : nullptr;
    if (said.front().code != Code::SIM_MEMORY || said.front().where.known() || at == nullptr) throw;
    said.front().where = at->loc;
    said.front().ir = {statement_text(at)};
    throw Error(std::move(said));
  }
}

void Machine::breathe_deeply() {
  const auto now = std::chrono::steady_clock::now();
  if (!poll || now - polled_ < kPause) return;
  polled_ = now;
  poll();
}

bool Machine::run_all() {
  std::vector<int> order(pieces_.size());
  std::iota(order.begin(), order.end(), 0);
  if (shuffled_) std::shuffle(order.begin(), order.end(), random_);
  bool ran = false;
  for (const int i : order) {
    Warp& w = *pieces_[static_cast<std::size_t>(i)];
    if (w.state == Warp::State::Phase && may_go_on(w)) w.state = Warp::State::Ready;
    if (w.state != Warp::State::Ready) continue;
    run_warp(w);
    ran = true;
  }
  return ran;
}

bool Machine::run_earliest() {
  Warp* first = nullptr;
  for (const auto& p : pieces_) {
    if (p->state != Warp::State::Ready && p->state != Warp::State::Phase) continue;
    if (first != nullptr && first->now <= p->now) continue;
    if (p->state == Warp::State::Ready || may_go_on(*p)) first = p.get();
  }
  if (first == nullptr) return false;
  first->state = Warp::State::Ready;
  run_warp(*first);
  return true;
}

void Machine::run_pieces() {
  while (!runs_through()) {
    bool ran = in_steps_ ? run_earliest() : run_all();
    // Lanes that wait for others behind a branch go on alone when nothing else can.
    if (!ran) {
      ran = std::any_of(pieces_.begin(), pieces_.end(), [&](const auto& p) { return join(*p, true); });
    }
    if (!ran) deadlock();
    if (pieces_.size() > warps_.size()) {  // joined ones have no lanes left
      std::erase_if(pieces_, [](const auto& p) { return p->active == 0; });
    }
  }
}

bool Machine::runs_through() const {
  return std::all_of(pieces_.begin(), pieces_.end(), [](const auto& p) { return p->state == Warp::State::Done; });
}

void Machine::end(Warp& w) {
  w.state = Warp::State::Done;
  ended_[static_cast<std::size_t>(w.id)] |= w.active;
  if (w.active == w.lanes) return;
  for (const auto& p : pieces_) {  // nobody waits for lanes that have ended
    if (p->id == w.id && join(*p, false)) return;
  }
}

void Machine::run_warp(Warp& w) {
  using Op = Instruction::Op;
  running_ = &w;
  const std::int64_t began = w.now;
  for (;;) {
    breathe();
    if (in_steps_ && w.now != began) return;
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
      case Op::Arrive:
        arrive_at_phase(w, code_.phase_syncs[index]);
        ++w.pc;
        break;
      case Op::WaitPhase:
        if (!wait_for_phase(w, code_.phase_syncs[index])) return;
        ++w.pc;
        break;
      case Op::Fence:
        fence(w, code_.fences[index]);
        ++w.pc;
        break;
      case Op::Converge:
        converge(w);
        ++w.pc;
        break;
      case Op::LoopBegin:
        loop_begin(w, i);
        break;
      case Op::LoopEnd:
        if (!loop_end(w, i)) return;
        break;
      case Op::If: {
        const Mask m = plans().nonzero(code_.conditions[index], w.ints, w.active);
        const int after = code_.instructions[static_cast<std::size_t>(i.target)].target + 1;
        if (m != w.active) happened_[static_cast<std::size_t>(w.pc)] |= kDidNotHold;
        if (m != 0) {
          w.frames.push_back({.outer = w.active, .other = w.active & ~m, .alternative = i.target + 1, .after = after});
          w.active = m;
          ++w.pc;
        } else {
          w.frames.push_back({.outer = w.active, .after = after});
          w.pc = i.target + 1;
        }
        break;
      }
      case Op::Else: {
        Warp::Frame& frame = w.frames.back();
        if (frame.other != 0) {
          w.active = frame.other;
          frame.other = 0;
          frame.alternative = -1;
          ++w.pc;
        } else {
          w.pc = i.target;
        }
        break;
      }
      case Op::EndIf:
        if (!leave_construct(w, w.pc + 1)) return;
        break;
      case Op::ExitIf: {
        const Mask m = plans().nonzero(code_.conditions[index], w.ints, w.active);
        if (m == 0) {
          ++w.pc;
          break;
        }
        if (m != w.lanes) divergent(w, i.origin, w.lanes & ~m, "exit_if holds for a part of the block");
        end(w);
        return;
      }
      case Op::Set: {
        const SetCode& set = code_.sets[index];
        if (set.from >= 0) {
          read_index(w, set, w.ints.varying[static_cast<std::size_t>(set.slot)], i.origin);
        } else if (set.uniform) {
          w.ints.set_uniform(set.slot, plans().uniform(set.value, w.ints));
        } else {
          Lanes v;
          plans().lanes(set.value, w.ints, w.active, v);
          Lanes& to = w.ints.varying[static_cast<std::size_t>(set.slot)];
          for (std::size_t l = 0; l < kLanes; ++l) {
            if ((w.active >> l & 1) != 0) to[l] = v[l];
          }
        }
        if (set.from < 0) check_facts(w, set, i.origin);
        ++w.pc;
        break;
      }
      case Op::Tell:
        tell(w, code_.tells[index], i.origin);
        ++w.pc;
        break;
      case Op::Enter:
        enter(w, i.index);
        ++w.pc;
        break;
      case Op::Leave:
        leave(w, i.index);
        ++w.pc;
        break;
      case Op::End:
        end(w);
        return;
    }
  }
}

bool Machine::leave_construct(Warp& w, int pc) {
  Warp::Frame& frame = w.frames.back();
  w.active = frame.outer;
  w.pc = pc;
  if (frame.whole != 0) {
    w.state = Warp::State::Joining;
    return join(w, false);
  }
  w.frames.pop_back();
  return true;
}

// The lanes `waiting` stay where they are. The others of the warp are behind a construct that the waiting ones are
// still inside of, or about to enter an else part: they become pieces of their own.
void Machine::come_apart(Warp& w, Mask waiting) {
  for (Warp::Frame& f : w.frames) {
    if (f.whole == 0) f.whole = f.outer;
  }
  Mask inside = waiting;
  for (std::size_t k = w.frames.size(); k-- > 0;) {
    const Warp::Frame frame = w.frames[k];
    const Mask rest = frame.outer & ~inside;
    inside = frame.outer;
    if (rest == 0) continue;
    const Mask alternative = rest & frame.other;
    if (alternative != 0) add_piece(w, alternative, k + 1, frame.alternative, Warp::State::Ready);
    if ((rest & ~alternative) != 0) add_piece(w, rest & ~alternative, k + 1, frame.after, Warp::State::Joining);
  }
  keep(w, waiting);
}

void Machine::keep(Warp& w, Mask lanes) {
  for (Warp::Frame& f : w.frames) {
    f.outer &= lanes;
    f.other &= lanes;
  }
  w.active = lanes;
}

Warp& Machine::add_piece(const Warp& w, Mask lanes, std::size_t frames, int pc, Warp::State state) {
  pieces_.push_back(std::make_unique<Warp>(w));
  Warp& piece = *pieces_.back();
  piece.frames.resize(frames);
  keep(piece, lanes);
  if (!piece.frames.empty()) piece.frames.back().other = 0;  // the else part is where it goes
  piece.pc = pc;
  piece.state = state;
  return piece;
}

// Makes one of all pieces of the warp that have arrived behind the construct that `w` has left: once nobody is missing,
// or without the rest. True: it goes on.
bool Machine::join(Warp& w, bool without_the_rest) {
  if (w.state != Warp::State::Joining || w.active == 0) return false;
  const auto here = [&](const Warp& p) {
    return p.id == w.id && p.active != 0 && p.state == Warp::State::Joining && p.pc == w.pc &&
           p.frames.size() == w.frames.size();
  };
  Mask arrived = 0;
  for (const auto& p : pieces_) arrived |= here(*p) ? p->active : 0;
  const Mask expected = w.frames.back().whole & ~ended_[static_cast<std::size_t>(w.id)];
  if ((expected & ~arrived) != 0 && !without_the_rest) return false;
  for (const auto& p : pieces_) {
    if (p.get() == &w || !here(*p)) continue;
    for (std::size_t k = 0; k < w.frames.size(); ++k) {
      w.frames[k].outer |= p->frames[k].outer;
      w.frames[k].other |= p->frames[k].other;
    }
    for (std::size_t s = 0; s < w.ints.varying.size(); ++s) {
      for (std::size_t l = 0; l < kLanes; ++l) {
        if ((p->active >> l & 1) != 0) w.ints.varying[s][l] = p->ints.varying[s][l];
      }
    }
    w.now = std::max(w.now, p->now);
    p->active = 0;
    p->state = Warp::State::Done;
  }
  w.active = w.frames.back().outer;
  w.frames.pop_back();
  // Constructs around came apart only together with this one: whole again, unless others are missing.
  for (Warp::Frame& f : w.frames) {
    if (f.outer == f.whole) f.whole = 0;
  }
  w.state = Warp::State::Ready;
  return true;
}

bool Machine::arrive(Warp& w, int barrier) {
  const Barrier& b = code_.barriers[static_cast<std::size_t>(barrier)];
  if (b.block || b.cluster) {
    if (w.active != w.lanes) {
      // Others of the warp may wait for a phase that never ends: that says more.
      const auto waits = [&](const auto& p) { return p->id == w.id && p->state == Warp::State::Phase; };
      if (std::any_of(pieces_.begin(), pieces_.end(), waits)) deadlock();
      divergent(w, b.origin, w.lanes & ~w.active,
                "a part of a warp arrives at a barrier of the " + std::string(b.cluster ? "cluster" : "block"));
    }
    w.group = b.cluster ? Warp::kCluster : -1;
  } else if (b.within_warp) {
    return arrive_in_warp(w, barrier, b);
  } else {
    const int lane = std::countr_zero(w.active);
    const int group = b.group_of[static_cast<std::size_t>(w.local * kLanes + lane)];
    if (group < 0) divergent(w, b.origin, 1U << lane, "a thread that is not of the group arrives at its barrier");
    const ThreadGroup& members = members_of(w, group);
    const auto mine = std::find_if(members.begin(), members.end(), [&](const auto& p) { return p.warp == w.id; });
    if ((mine->lanes & ~w.active) != 0) {
      divergent(w, b.origin, mine->lanes & ~w.active, "a part of a group's lanes arrives at its barrier");
    }
    if (mine->lanes != w.active) {
      fail(Code::SIM_UNSUPPORTED, "the simulator does not run barriers of groups that share warps", {}, {},
           b.origin != nullptr ? b.origin->loc : SourceLoc{});
    }
    w.group = group;
  }
  w.state = Warp::State::Waiting;
  w.barrier = barrier;
  const ThreadGroup& members = members_of(w, w.group);
  const auto arrived = [&](const HappensBefore::Participant& p) {
    return std::any_of(pieces_.begin(), pieces_.end(), [&](const auto& other) {
      return other->id == p.warp && other->state == Warp::State::Waiting && other->group == w.group &&
             (p.lanes & ~other->active) == 0;
    });
  };
  if (!std::all_of(members.begin(), members.end(), arrived)) return false;
  b.orders ? synchronise(members) : meet(members);
  for (const auto& p : pieces_) {
    const bool one_of_them = p->rank == w.rank || w.group == Warp::kCluster;
    if (p->state == Warp::State::Waiting && p->group == w.group && one_of_them) p->state = Warp::State::Ready;
  }
  return true;
}

// The lanes of a warp may arrive one after the other, from different places.
bool Machine::arrive_in_warp(Warp& w, int barrier, const Barrier& b) {
  std::vector<std::pair<int, Mask>> waiting;  // groups that are not complete, with the lanes that are here
  Mask stays = 0;
  for (Mask todo = w.active; todo != 0;) {
    const int lane = std::countr_zero(todo);
    const int group = b.group_of[static_cast<std::size_t>(w.local * kLanes + lane)];
    if (group < 0) divergent(w, b.origin, 1U << lane, "a thread that is not of the group arrives at its barrier");
    const ThreadGroup& members = members_of(w, group);
    const Mask lanes = members.front().lanes;
    const auto waits = [&](const Warp& p) {
      return &p != &w && p.id == w.id && p.state == Warp::State::Waiting && p.group == group;
    };
    Mask arrived = w.active & lanes;
    for (const auto& p : pieces_) arrived |= waits(*p) ? p->active : 0;
    if (arrived == lanes) {
      synchronise(members);
      for (const auto& p : pieces_) {
        if (waits(*p)) p->state = Warp::State::Ready;
      }
    } else {
      waiting.emplace_back(group, w.active & lanes);
      stays |= w.active & lanes;
    }
    todo &= ~lanes;
  }
  if (stays == 0) return true;
  come_apart(w, w.active);
  const bool goes_on = stays != w.active;
  for (std::size_t i = goes_on ? 0 : 1; i < waiting.size(); ++i) {
    Warp& piece = add_piece(w, waiting[i].second, w.frames.size(), w.pc, Warp::State::Waiting);
    piece.barrier = barrier;
    piece.group = waiting[i].first;
  }
  if (goes_on) {
    keep(w, w.active & ~stays);
    return true;
  }
  keep(w, waiting.front().second);
  w.state = Warp::State::Waiting;
  w.barrier = barrier;
  w.group = waiting.front().first;
  return false;
}

std::vector<Warp*> Machine::present(const ThreadGroup& members) const {
  std::vector<Warp*> out;
  for (const auto& p : members) {
    Warp* there = nullptr;
    for (const auto& piece : pieces_) {
      if (piece->id == p.warp && (piece->active & p.lanes) != 0) there = piece.get();
    }
    GR_ASSERT(there != nullptr, "a member of a barrier has a piece at it");
    out.push_back(there);
  }
  return out;
}

std::vector<const ir::Stmt*> Machine::waiting_at(const ThreadGroup& members) const {
  std::vector<const ir::Stmt*> out;
  for (const auto& p : members) {
    const ir::Stmt* at = nullptr;
    for (const auto& piece : pieces_) {
      if (piece->id == p.warp && (piece->active & p.lanes) != 0 && piece->pc > 0) {
        at = code_.instructions[static_cast<std::size_t>(piece->pc - 1)].origin;
      }
    }
    out.push_back(at);
  }
  return out;
}

void Machine::divergent(const Warp& w, const ir::Stmt* origin, Mask missing, const std::string& what) const {
  Diagnostic d;
  d.code = Code::SIM_DIVERGENT_COLLECTIVE;
  d.where = origin != nullptr ? origin->loc : SourceLoc{};
  d.message = what;
  d.ir = {statement_text(origin)};
  d.details = {"block: " + block_text(w) + ", warp " + std::to_string(w.local),
               "missing lanes: " + lanes_text(missing)};
  d.fix = "let all of them execute it, or none: move it out of the branch";
  throw Error(std::move(d));
}

}  // namespace graphene::sim
