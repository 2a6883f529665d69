#include "sim/bytecode.h"

#include <algorithm>
#include <set>
#include <unordered_set>

#include "base/grid.h"
#include "ir/print.h"
#include "sim/operands.h"

namespace graphene::sim {

namespace {

constexpr int kNamedBarriers = 16;  // of a block

// Mutable integers and loop counters, with what decides whether they differ between the lanes of a warp.
struct Variable {
  Expr var;
  std::vector<Expr> values;
};

class Compiler {
 public:
  Compiler(const lower::ProgramPtr& program, CompileOptions options) : options_(std::move(options)) {
    code_.program = program;
    code_.plans = std::make_unique<IntPlans>(program->block_threads, options_.sizes);
    code_.sizes = options_.sizes;
  }

  Bytecode run() {
    const lower::Program& p = *code_.program;
    place();
    classify(p.body);
    for (bool changed = true; changed;) {
      changed = false;
      for (const Variable& v : variables_) {
        if (varying_.contains(v.var.node())) continue;
        if (std::none_of(v.values.begin(), v.values.end(), [&](const Expr& e) { return plans().is_varying(e); }))
          continue;
        plans().declare_varying(v.var);
        varying_.insert(v.var.node());
        changed = true;
      }
    }
    for (const Variable& v : variables_) {
      if (!varying_.contains(v.var.node())) plans().declare_uniform(v.var);
    }
    block(p.body);
    emit(Instruction::Op::End, 0, nullptr);
    finish_memory();
    mark_own_scopes();
    return std::move(code_);
  }

 private:
  // Scopes around an instruction whose floats are a function of its author's.
  void mark_own_scopes() {
    std::vector<int> around;
    for (const Instruction& i : code_.instructions) {
      if (i.op == Instruction::Op::Enter) around.push_back(i.index);
      if (i.op == Instruction::Op::Leave) around.pop_back();
      if (i.op != Instruction::Op::Leaf) continue;
      const Leaf& f = code_.leaves[static_cast<std::size_t>(i.index)];
      const auto floats = [](const Operand& o) { return is_float(o.dtype); };
      if (f.kind != atoms::Kind::Spec || (std::ranges::none_of(f.out, floats) && std::ranges::none_of(f.in, floats)))
        continue;
      for (const int scope : around) code_.scopes[static_cast<std::size_t>(scope)].own = true;
    }
  }

  IntPlans& plans() { return *code_.plans; }

  void place() {
    const lower::Program& p = *code_.program;
    for (const lower::RegArray& a : p.registers) {
      const auto param = static_cast<std::size_t>(std::max(a.param, 0));
      if (a.param >= 0) {
        code_.initial.emplace_back(static_cast<int>(code_.register_types.size()),
                                   param < options_.scalars.size() ? options_.scalars[param] : 0);
      }
      code_.array_first.push_back(static_cast<int>(code_.register_types.size()));
      code_.register_types.insert(code_.register_types.end(), static_cast<std::size_t>(a.regs), a.dtype);
    }
    const auto number = [&](const Expr& e, const char* what) {
      const IntPlan n = plans().compile(e);
      GR_ASSERT(n.is_const(), std::string(what) + " depends on more than sizes: " + e.str());
      return n.constant;
    };
    for (const lower::MemBuffer& b : p.buffers) {
      const std::vector<Expr> shape = b.buffer->layout.shape().leaves();
      const bool empty = b.memory == ir::Memory::GL && std::any_of(shape.begin(), shape.end(), [&](const Expr& n) {
                           return number(n, "a size") == 0;  // whatever its strides are
                         });
      code_.buffer_elems.push_back(empty ? 0 : number(b.size_elems, "a buffer's size"));
      if (b.dtype != ir::ScalarType::mbar) continue;
      const auto count = static_cast<int>(code_.buffer_elems.back());
      code_.mbarriers.push_back({.buffer = static_cast<int>(code_.buffer_elems.size()) - 1,
                                 .first = code_.mbarrier_count,
                                 .count = count,
                                 .step = b.buffer->stages > 0 ? count / b.buffer->stages : 1,
                                 .wanted = b.buffer->arrivals});
      code_.mbarrier_count += count;
    }
    code_.written.assign(p.buffers.size(), 0);
    for (std::size_t i = 0; i < p.grid.size() && i < 3; ++i) {
      code_.grid[i] = number(p.grid[i], "the grid");
      if (code_.grid[i] >= 0 && code_.grid[i] <= kGridLimit[i]) continue;
      fail(Code::SIM_ARGUMENT, "a grid that no device launches",
           {"want: 0 to " + std::to_string(kGridLimit[i]) + " blocks along dimension " + std::to_string(i),
            "got: " + p.grid[i].str() + " = " + std::to_string(code_.grid[i])},
           "pass other sizes");
    }
  }

  // Finds every variable, and under which conditions it is assigned.
  void classify(const lower::Block& body) {
    for (const lower::NodePtr& n : body) {
      if (const auto* loop = n->as<lower::Loop>()) {
        see(loop->start);
        see(loop->stop);
        see(loop->step);
        see(loop->condition);
        assign(loop->var, {loop->start, loop->step});
        control_.push_back(loop->stop);
        control_.push_back(loop->condition);
        classify(loop->body);
        control_.pop_back();
        control_.pop_back();
      } else if (const auto* branch = n->as<lower::If>()) {
        see(branch->condition);
        control_.push_back(branch->condition);
        classify(branch->then_body);
        classify(branch->else_body);
        control_.pop_back();
      } else if (const auto* set = n->as<lower::ScalarSet>()) {
        see(set->value);
        std::vector<Expr> values = control_;
        values.push_back(set->value);
        if (set->from) plans().declare_varying(set->var), varying_.insert(set->var.node());
        assign(set->var, std::move(values));
      } else if (const auto* exit = n->as<lower::ExitIf>()) {
        see(exit->condition);
      } else if (const auto* scope = n->as<lower::SpecScope>()) {
        classify(scope->body);
      } else if (const auto* tell = n->as<lower::Tell>()) {
        if (tell->condition) see(*tell->condition);
        for (const lower::Operand& v : tell->values) {
          if (const auto* e = std::get_if<lower::ExprRef>(&v)) see(e->value);
        }
      } else if (const auto* call = n->as<lower::AtomCall>()) {
        see(call->predicate);
        for (const auto* list : {&call->out, &call->in, &call->aux}) {
          for (const lower::Operand& o : *list) {
            if (const auto* m = std::get_if<lower::MemRef>(&o)) {
              see(m->offset);
              see(m->member);
              see(m->inside);
              for (const lower::Claim& c : m->claims) {
                see(c.at);
                see(c.where);
                if (c.size) see(*c.size);
              }
              if (m->valid_values) see(*m->valid_values);
              if (m->boxed) {
                for (const Expr& at : m->boxed->at) see(at);
              }
              if (m->rank) see(*m->rank);
            } else if (const auto* e = std::get_if<lower::ExprRef>(&o)) {
              see(e->value);
            }
          }
        }
        if (call->to != nullptr) see(call->to->offset);
        for (const auto& [name, value] : call->attrs) {
          if (const auto* e = std::get_if<Expr>(&value)) see(*e);
        }
      }
    }
  }

  void assign(const Expr& var, std::vector<Expr> values) {
    for (Variable& v : variables_) {
      if (v.var.node() == var.node()) {
        v.values.insert(v.values.end(), values.begin(), values.end());
        return;
      }
    }
    variables_.push_back({var, std::move(values)});
  }

  void see(const Expr& e) {
    if (e.is_const() || !seen_.insert(e.node()).second) return;
    for (const Expr& v : plans().free_vars(e)) {
      if (v.var().kind == sym::VarKind::BlockIdx) {
        const std::string& name = v.var().name;
        const int dim = name.empty() ? 0 : name.back() == 'y' ? 1 : name.back() == 'z' ? 2 : 0;
        code_.block_slots[static_cast<std::size_t>(dim)] = plans().declare_uniform(v);
      } else if (v.var().kind == sym::VarKind::Size || v.var().kind == sym::VarKind::Param) {
        fail(Code::SIM_ARGUMENT, "no value is known for the symbol " + v.var().name, {},
             "pass arguments whose shapes give it");
      }
    }
  }

  std::size_t emit(Instruction::Op op, std::size_t index, const ir::Stmt* origin) {
    code_.instructions.push_back({op, static_cast<int>(index), 0, origin});
    return code_.instructions.size() - 1;
  }
  int here() const { return static_cast<int>(code_.instructions.size()); }

  int slot(const Expr& var, bool uniform) {
    return uniform ? plans().declare_uniform(var) : plans().declare_varying(var);
  }

  void block(const lower::Block& body) {
    for (const lower::NodePtr& n : body) node(*n);
  }

  void node(const lower::Node& n) {
    using Op = Instruction::Op;
    if (const auto* call = n.as<lower::AtomCall>()) {
      if (!chosen_at_run_time(n)) atom(n, *call);
    } else if (const auto* loop = n.as<lower::Loop>()) {
      const bool uniform = !varying_.contains(loop->var.node());
      code_.loops.push_back({uniform, slot(loop->var, uniform), plans().compile(loop->start),
                             plans().compile(loop->stop), plans().compile(loop->step),
                             plans().compile(loop->condition)});
      const std::size_t index = code_.loops.size() - 1;
      const std::size_t begin = emit(Op::LoopBegin, index, n.origin);
      block(loop->body);
      const std::size_t end = emit(Op::LoopEnd, index, n.origin);
      code_.instructions[begin].target = here();
      code_.instructions[end].target = static_cast<int>(begin) + 1;
    } else if (const auto* branch = n.as<lower::If>()) {
      code_.conditions.push_back(plans().compile(branch->condition));
      const std::size_t index = code_.conditions.size() - 1;
      const auto* only = n.origin != nullptr ? n.origin->as<ir::OnlyStmt>() : nullptr;
      if (only != nullptr && only->elect && code_.mbarrier_count != 0) emit(Op::Converge, 0, n.origin);
      const std::size_t begin = emit(Op::If, index, n.origin);
      block(branch->then_body);
      const std::size_t middle = emit(Op::Else, index, n.origin);
      code_.instructions[begin].target = static_cast<int>(middle);
      block(branch->else_body);
      code_.instructions[middle].target = here();
      emit(Op::EndIf, index, n.origin);
    } else if (const auto* exit = n.as<lower::ExitIf>()) {
      code_.conditions.push_back(plans().compile(exit->condition));
      emit(Op::ExitIf, code_.conditions.size() - 1, n.origin);
    } else if (const auto* set = n.as<lower::ScalarSet>()) {
      const bool uniform = !varying_.contains(set->var.node());
      code_.sets.push_back(
          {.uniform = uniform, .slot = slot(set->var, uniform), .value = plans().compile(set->value), .var = set->var});
      if (set->from) {
        SetCode& code = code_.sets.back();
        code.from = code_.array_first[static_cast<std::size_t>(set->from->array)] + set->from->values.front();
      }
      emit(Op::Set, code_.sets.size() - 1, n.origin);
    } else if (const auto* tell = n.as<lower::Tell>()) {
      code_.tells.push_back(compile_tell(*tell, code_));
      emit(Op::Tell, code_.tells.size() - 1, n.origin);
    } else if (const auto* scope = n.as<lower::SpecScope>()) {
      if (options_.scopes) {
        Meaning means{.kind = scope->kind, .attrs = scope->attrs, .reference = {}};
        if (scope->kind == ir::SpecKind::Spec && !scope->means.empty()) {
          means = parse_means(scope->means, n.origin != nullptr ? n.origin->loc : SourceLoc{});
        }
        std::optional<IntPlan> accumulate;
        if (const auto it = means.attrs.find("accumulate"); it != means.attrs.end()) {
          if (const auto* e = std::get_if<Expr>(&it->second)) accumulate = plans().compile(*e);
        }
        code_.scopes.push_back({scope, n.origin, std::move(means), accumulate});
        const std::size_t index = code_.scopes.size() - 1;
        emit(Op::Enter, index, n.origin);
        block(scope->body);
        emit(Op::Leave, index, n.origin);
      } else {
        block(scope->body);
      }
    }
  }

  // An access to a tensor of a list that only the run chooses: one instruction for each of them, behind its condition.
  bool chosen_at_run_time(const lower::Node& n) {
    const auto find = [](auto& call) {
      std::remove_reference_t<decltype(std::get<lower::MemRef>(call.in.front()))>* found = nullptr;
      for (auto* list : {&call.out, &call.in}) {
        for (auto& o : *list) {
          auto* m = std::get_if<lower::MemRef>(&o);
          if (found == nullptr && m != nullptr && !m->member.is_const(0)) found = m;
        }
      }
      return found;
    };
    if (find(*n.as<lower::AtomCall>()) == nullptr) return false;
    auto copy = std::make_shared<lower::Node>(n);
    auto& fixed = std::get<lower::AtomCall>(copy->node);
    lower::MemRef* chosen = find(fixed);
    const Expr member = chosen->member;
    const int first = chosen->buffer;
    chosen->member = 0;
    if (member.is_const()) {
      chosen->buffer = first + static_cast<int>(member.value());
      node(*keep(std::move(copy)));
      return true;
    }
    const int count = code_.program->buffers[static_cast<std::size_t>(first)].buffer->count;
    // Outside of the list nothing is accessed: the access's own bound says so, whichever tensor stands for it.
    for (int i = 0; i < count; ++i) {
      auto one = std::make_shared<lower::Node>(*copy);
      find_buffer(std::get<lower::AtomCall>(one->node), first, first + i);
      Expr here = sym::eq(member, i);
      if (i == 0) here = sym::logical_or(here, sym::logical_or(sym::lt(member, 0), sym::le(count, member)));
      lower::Node branch;
      branch.origin = n.origin;
      branch.node = lower::If{here, {keep(std::move(one))}, {}, nullptr};
      node(branch);
    }
    return true;
  }

  static void find_buffer(lower::AtomCall& call, int from, int to) {
    for (auto* list : {&call.out, &call.in}) {
      for (lower::Operand& o : *list) {
        auto* m = std::get_if<lower::MemRef>(&o);
        if (m != nullptr && m->buffer == from && m->member.is_const(0)) m->buffer = to;
      }
    }
  }

  // Leaves point into the lowered tree: copies of its nodes live as long.
  lower::NodePtr keep(std::shared_ptr<lower::Node> node) {
    code_.copies.push_back(node);
    return node;
  }

  // A wait for the kernels ahead stands before every access of global memory: that is verified. Without it nothing is
  // known of what those still read and write.
  void check_order(const lower::Node& n, const lower::AtomCall& call) const {
    if (unordered_ == nullptr) return;
    for (const auto* list : {&call.out, &call.in}) {
      for (const lower::Operand& o : *list) {
        const auto* m = std::get_if<lower::MemRef>(&o);
        if (m == nullptr) continue;
        const lower::MemBuffer& b = code_.program->buffers[static_cast<std::size_t>(m->buffer)];
        if (b.memory != ir::Memory::GL) continue;
        fail(Code::SIM_RACE, "global memory that kernels before this one may still write or read",
             {"argument: " + b.buffer->name, "left out: " + ir::head_line(*unordered_, true)},
             "wait for them first: gr.wait_kernels()", n.origin != nullptr ? n.origin->loc : SourceLoc{});
      }
    }
  }

  void atom(const lower::Node& n, const lower::AtomCall& call) {
    if (call.atom->atom.kind == atoms::Kind::Sync) {
      const auto* sync = n.origin != nullptr ? n.origin->as<ir::SyncStmt>() : nullptr;
      if (n.origin != nullptr &&
          std::find(options_.skip.begin(), options_.skip.end(), n.origin->id) != options_.skip.end()) {
        if (sync != nullptr && sync->op == ir::kWaitKernels) unordered_ = n.origin;
        return;
      }
      if (sync != nullptr && (sync->op == ir::kWaitKernels || sync->op == ir::kStartKernels)) return;
      if (sync != nullptr && (sync->op == "commit" || sync->op == "wait")) {
        GroupSync group = compile_group_sync(call, n.origin, code_);
        const auto& relax = options_.relax;
        if (group.waits && std::find(relax.begin(), relax.end(), n.origin->id) != relax.end()) ++group.pending;
        code_.group_syncs.push_back(group);
        emit(Instruction::Op::Group, code_.group_syncs.size() - 1, n.origin);
        return;
      }
      if (sync != nullptr && sync->op == "setmaxnreg")
        return;  // how many registers a thread has is the compiler's to say
      if (sync != nullptr && sync->op == "fence") {
        code_.fences.push_back(compile_fence(call, n.origin));
        emit(Instruction::Op::Fence, code_.fences.size() - 1, n.origin);
        return;
      }
      const bool at_mbarrier = !call.aux.empty() && sync != nullptr;
      if (at_mbarrier && (sync->op == "arrive" || sync->op == "wait_phase")) {
        const auto& relax = options_.relax;
        const bool relaxed = n.origin != nullptr && std::find(relax.begin(), relax.end(), n.origin->id) != relax.end();
        code_.phase_syncs.push_back(compile_phase_sync(call, n.origin, relaxed, code_));
        const bool waits = sync->op == "wait_phase";
        emit(waits ? Instruction::Op::WaitPhase : Instruction::Op::Arrive, code_.phase_syncs.size() - 1, n.origin);
        return;
      }
      if (sync != nullptr && text_attr(call, "scope") == "named") {
        if (code_.mbarriers.empty() || code_.mbarriers.back().buffer >= 0) {
          code_.mbarriers.push_back({.buffer = -1, .first = code_.mbarrier_count, .count = kNamedBarriers});
          code_.mbarrier_count += kNamedBarriers;
        }
        code_.phase_syncs.push_back(compile_named_sync(call, n.origin, code_));
        emit(Instruction::Op::Arrive, code_.phase_syncs.size() - 1, n.origin);
        if (sync->op == "sync") emit(Instruction::Op::WaitPhase, code_.phase_syncs.size() - 1, n.origin);
        return;
      }
      if (sync == nullptr || sync->op != "barrier") {
        fail(Code::SIM_UNSUPPORTED, "the simulator does not run " + call.atom->atom.name, {}, {},
             n.origin != nullptr ? n.origin->loc : SourceLoc{});
      }
      code_.barriers.push_back(compile_barrier(call, n.origin, code_));
      emit(Instruction::Op::Barrier, code_.barriers.size() - 1, n.origin);
      return;
    }
    check_order(n, call);
    Leaf leaf = compile_leaf(call, n.origin, code_);
    if (options_.unguarded) {
      leaf.predicate = IntPlan{.constant = 1, .terms = {}};
      leaf.always = true;
      for (auto* list : {&leaf.out, &leaf.in}) {
        for (Operand& o : *list) {
          o.inside = leaf.predicate;
          o.cut = false;
        }
      }
    }
    for (const auto* list : {&leaf.out, &leaf.in}) {
      for (const Operand& o : *list) leaf.claims = leaf.claims || !o.claims.empty();
    }
    leaf.site = static_cast<std::uint32_t>(std::min<std::size_t>(code_.leaves.size() + 1, kMaxSite));
    for (const Operand& o : leaf.out) {
      if (o.kind == Operand::Kind::Memory) code_.written[static_cast<std::size_t>(o.buffer)] = 1;
    }
    const bool meets = leaf.span > 1;
    if (meets) code_.barriers.push_back(compile_meeting(leaf, code_));
    const std::size_t meeting = code_.barriers.size() - 1;
    code_.leaves.push_back(std::move(leaf));
    if (meets) emit(Instruction::Op::Barrier, meeting, n.origin);
    emit(Instruction::Op::Leaf, code_.leaves.size() - 1, n.origin);
    if (meets) emit(Instruction::Op::Barrier, meeting, n.origin);
  }

  // Memos, and the lanes that share an address where that never changes.
  void finish_memory() {
    for (Leaf& leaf : code_.leaves) {
      if (leaf.bulk) continue;
      for (auto* list : {&leaf.out, &leaf.in}) {
        for (Operand& o : *list) {
          if (o.kind != Operand::Kind::Memory || o.whole) continue;
          o.memo = code_.memos;
          code_.memos += o.values;
          if (!o.offset.is_separable()) continue;
          for (int w = 0; w < code_.warps(); ++w) {
            std::int32_t offsets[kLanes] = {};
            if (o.offset.table >= 0) {
              const IntPlans::Table& t = plans().table(o.offset.table);
              if (t.narrow.empty()) break;
              std::copy_n(t.narrow.begin() + std::ptrdiff_t{w} * kLanes, kLanes, offsets);
            }
            LaneGroups g;
            g.build(code_.lanes_of(w), offsets);
            o.groups.push_back(std::move(g));
          }
          if (static_cast<int>(o.groups.size()) != code_.warps()) o.groups.clear();
        }
      }
    }
  }

  CompileOptions options_;
  Bytecode code_;
  const ir::Stmt* unordered_ = nullptr;  // the wait for earlier kernels that is left out
  std::vector<Variable> variables_;
  std::set<const sym::Node*> varying_;
  std::unordered_set<const sym::Node*> seen_;
  std::vector<Expr> control_;
};

}  // namespace

Bytecode compile(const lower::ProgramPtr& program, CompileOptions options) {
  return Compiler(program, std::move(options)).run();
}

}  // namespace graphene::sim
