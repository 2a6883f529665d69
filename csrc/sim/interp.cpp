#include "sim/interp.h"

#include <algorithm>
#include <set>

namespace graphene::sim {

Interpreter::Interpreter(const Bytecode& code, std::span<const Argument> arguments, std::uint64_t seed)
    : Machine(code, seed), places_(code.program->buffers.size() * static_cast<std::size_t>(code.cluster())) {
  arenas_.reserve(code.program->buffers.size());
  place_arguments(arguments);
  for (int rank = 0; rank < code.cluster(); ++rank) place_shared(rank);
  for (const ir::ScalarType t : code.register_types) {
    register_at_.push_back(register_bytes_);
    register_bytes_ += static_cast<std::size_t>(std::max(bytes_of(t), 2)) * kLanes;  // vectors stay aligned
  }
  warp_data_.resize(warps_.size());
  for (WarpData& d : warp_data_) {
    d.registers.resize(register_bytes_);
    d.memos.resize(static_cast<std::size_t>(code.memos));
  }
  ran_.resize(code.leaves.size());
  std::size_t values = 1;
  for (const Leaf& f : code.leaves) {
    if (f.bulk) continue;
    for (const auto* list : {&f.in, &f.out}) {
      for (const Operand& o : *list) values = std::max(values, static_cast<std::size_t>(o.values));
    }
  }
  for (std::size_t s = 0; s < kSlots; ++s) {
    values_[s].resize(values);
    scratch_[s].resize(values * kLanes * 8);
  }
}

void Interpreter::simulate() {
  run();
  check_outputs();
}

namespace {

// Whether its number of turns is left open, and may be two.
bool may_repeat(const ir::LoopStmt& loop) {
  const Expr turns = loop.stop - loop.start;
  return !turns.is_const() && !(loop.step.is_const() && sym::upper_bound(turns) <= loop.step.value());
}

// Code that nothing reaches, and the text says so.
bool never_turns(const ir::LoopStmt& loop) {
  const Expr turns = loop.stop - loop.start;
  return turns.is_const() && turns.value() <= 0;
}

}  // namespace

Coverage Interpreter::coverage() const {
  using What = Coverage::What;
  std::set<Coverage::Event> reached, wanted;
  Coverage out;
  const auto want = [&](const ir::Stmt* s, What what) {
    if (wanted.insert({s, what}).second) out.missed.push_back({s, what});
  };
  for (const Leaf& f : code_.leaves) {
    const char ran = f.origin != nullptr ? ran_[f.site - 1] : char{0};
    if ((ran & kExecuted) != 0) reached.insert({f.origin, What::Executed});
    if ((ran & kLeft) != 0) reached.insert({f.origin, What::Left});
  }
  int again = 0;  // the end of the outermost loop at hand that went on
  for (int i = 0; i < static_cast<int>(code_.instructions.size()); ++i) {
    const Instruction& at = code_.instructions[static_cast<std::size_t>(i)];
    const bool is_leaf = at.op == Instruction::Op::Leaf;
    const ir::Stmt* s = is_leaf ? code_.leaves[static_cast<std::size_t>(at.index)].origin : at.origin;
    if (s == nullptr) continue;
    if (is_leaf) {
      if (i < again && reached.contains({s, What::Executed})) reached.insert({s, What::Again});
      want(s, What::Executed);
    }
    if ((happened_[static_cast<std::size_t>(i)] & kDidNotHold) != 0) reached.insert({s, What::DidNotHold});
    const auto* loop = at.op == Instruction::Op::LoopBegin ? s->as<ir::LoopStmt>() : nullptr;
    if (loop == nullptr) continue;
    if (never_turns(*loop)) {
      i = at.target - 1;
    } else if (may_repeat(*loop)) {
      if ((happened_[static_cast<std::size_t>(at.target - 1)] & kWentOn) != 0) {
        reached.insert({s, What::Repeated});
        again = std::max(again, at.target);
      }
      want(s, What::Repeated);
    }
  }
  std::erase_if(out.missed, [&](const Coverage::Event& e) { return reached.contains(e); });
  out.reached.assign(reached.begin(), reached.end());
  return out;
}

void Interpreter::begin_block() {
  std::vector<Mask> lanes;
  for (const Warp& w : warps_) lanes.push_back(w.lanes);
  const Epoch last = order_ ? order_->last_epoch() : 0;
  const auto domains = static_cast<int>(code_.copy_domains.size());
  const HappensBefore::Counts counts{
      .copy_domains = domains,
      .mbarriers = code_.mbarrier_count * code_.cluster(),
      .agents = code_.products ? (static_cast<int>(warps_.size()) + kWarpgroup - 1) / kWarpgroup : 0,
      .async_domains = code_.async_domains};
  order_.emplace(std::move(lanes), counts, last);
  if (order_->agent(counts.agents) > kMaxOwner) {
    fail(Code::SIM_UNSUPPORTED, "the simulator does not run this many warps and mbarriers together",
         {"want: at most " + std::to_string(kMaxOwner) + " of both, warps once for each kind of copy",
          "got: " + std::to_string(order_->agent(counts.agents))});
  }
  copied_.assign(static_cast<std::size_t>(counts.mbarriers), {});
  arrived_.assign(static_cast<std::size_t>(code_.cluster()), {});
  reached_.assign(static_cast<std::size_t>(code_.cluster()), {});
  closed_.assign(static_cast<std::size_t>(counts.agents), 0);
  know_named();
  settled_ = 0;
  if (trace != nullptr) trace->begin(code_);
  in_steps_ = traces();
  sets_.begin_block();
  block_epochs_.emplace_back(order_->first_epoch(), block_);
  for (Arena& a : arenas_) {
    if (a.shared) a.shadow.reset(kNeverWritten);
  }
  for (std::size_t i = 0; i < warp_data_.size(); ++i) {
    WarpData& d = warp_data_[i];
    d.undefined.assign(register_at_.size(), ~Mask{0});
    d.used.assign(code_.products ? register_at_.size() : 0, {});
    d.groups = d.done = 0;
    d.cause.assign(register_at_.size(), 0);
    for (const auto& [r, bits] : code_.initial) {
      const int bytes = bytes_of(code_.register_types[static_cast<std::size_t>(r)]);
      for (int l = 0; l < kLanes; ++l) store_bits(reg(d, r) + l * bytes, bytes, bits);
      d.undefined[static_cast<std::size_t>(r)] = 0;
    }
    d.issuer.order = &*order_;
    d.issuer.warp = static_cast<int>(i);
    d.issuer.refresh();
    d.copier.order = &*order_;
    d.copier.warp = static_cast<int>(i);
    d.by = &d.issuer;
    d.reads_shared.assign(code_.copy_domains.size(), {});
    for (AccessMemo& m : d.memos) m.version = 0;
  }
}

void Interpreter::end_block() {
  if (trace != nullptr) trace->end();
  in_steps_ = false;
  check_unfinished();
  check_landed();
  check_arrivals();
  check_reached();
  check_products();
  if (undefined_) throw Error(*undefined_);
}

void Interpreter::group(Warp& w, const GroupSync& g) {
  if (g.products) return group_products(w, g);
  if (traces()) trace->group(w, g);
  for (const int domain : {g.domain, g.reads}) {
    if (domain < 0) continue;
    if (g.commits) order_->commit_copies(w.id, w.active, domain);
    if (g.waits) order_->wait_copies(w.id, w.active, domain, g.pending);
  }
}

void Interpreter::meet(const ThreadGroup& members) {
  if (traces()) Trace::meet(present(members));
}

void Interpreter::synchronise(const ThreadGroup& members) {
  if (traces()) trace->barrier(present(members), waiting_at(members));
  order_->barrier(members);
  if (code_.mbarrier_count != 0) know_initialised(members);
  if (order_->settled() != settled_) {
    settled_ = order_->settled();
    sets_.settle();
  }
  for (const auto& p : members) warp_data_[static_cast<std::size_t>(p.warp)].issuer.refresh();
}

}  // namespace graphene::sim
