#include <algorithm>
#include <bit>
#include <map>
#include <set>

#include "atoms/arch.h"
#include "atoms/cache.h"
#include "ir/print.h"
#include "lower/boxes.h"
#include "lower/in_flight.h"
#include "lower/lowered.h"
#include "lower/memory.h"
#include "lower/operands.h"
#include "lower/other_arch.h"
#include "lower/substitute.h"
#include "lower/sync.h"
#include "verify/group.h"
#include "verify/verify.h"

namespace graphene::lower {

namespace {

// Statements that unrolling may produce; a kernel of this size compiles for minutes.
constexpr std::int64_t kMaxNodes = 65'536;
// Statements that unrolling may go through, those that lower to nothing included: a few seconds.
constexpr std::int64_t kMaxVisits = std::int64_t{1} << 20;
constexpr std::size_t kMaxProblems = 50;
// Statements that fail: behind these, copies of an unrolled loop say nothing new, and each costs as much as an error.
constexpr std::int64_t kMaxFailures = 1000;

// At most `kMaxVisits` + 1: the bounds are any integers, and their difference need not be one.
std::int64_t iterations(std::int64_t start, std::int64_t stop, std::int64_t step) {
  if (start >= stop) return 0;
  const std::uint64_t span = static_cast<std::uint64_t>(stop) - static_cast<std::uint64_t>(start);
  const std::uint64_t times = (span - 1) / static_cast<std::uint64_t>(step) + 1;
  return static_cast<std::int64_t>(std::min<std::uint64_t>(times, kMaxVisits + 1));
}

bool is_loop_counter(const sym::VarInfo& v) { return v.kind == sym::VarKind::Loop; }

class Lowering {
 public:
  Lowering(const ir::KernelPtr& kernel, const std::string& arch, verify::Result checked, const Poll& poll)
      : kernel_(kernel),
        arch_(arch),
        boxes_(*kernel),
        problems_(std::move(checked.problems)),
        refused_(std::move(checked.statements)),
        poll_(poll) {}

  ProgramPtr run() {
    buffers_ = place_buffers(*kernel_, problems_);
    auto program = std::make_shared<Program>();
    program->kernel = kernel_;
    program->arch = arch_;
    if (kernel_->grid != nullptr) program->grid = kernel_->grid->dims;
    if (kernel_->block != nullptr) program->block_threads = kernel_->block->launch_size().value();
    sync_.block_threads = program->block_threads;
    initialise_barriers(program->prologue);
    program->body = complete_registers(block(kernel_->body));
    place_for_agents();
    for (const auto& [id, bytes] : needs_) program->shared_align_bytes = std::max(program->shared_align_bytes, bytes);
    program->maps = boxes_.take_maps();
    program->cluster = kernel_->cluster;
    place_fill_rows();
    check_shared_limit();
    other_arch_.report(problems_);
    if (!problems_.empty()) throw Error(std::move(problems_));
    program->registers = std::move(buffers_.registers);
    program->buffers = std::move(buffers_.memory);
    program->shared_bytes = buffers_.shared_bytes;
    program->fill_rows = std::move(fill_rows_);
    program->facts = std::move(facts_);
    return program;
  }

 private:
  void check_shared_limit() {
    const std::int64_t limit = shared_limit_bytes(arch_);
    if (limit == 0 || buffers_.shared_bytes <= limit) return;
    Diagnostic d;
    d.code = Code::LOWER_SHARED_LIMIT;
    d.message = "more shared memory than a block of " + arch_ + " may have";
    for (const MemBuffer& b : buffers_.memory) {
      if (b.memory != ir::Memory::SH) continue;
      const std::int64_t bytes = ir::bytes_of_elems(b.dtype, b.size_elems.value());
      d.details.push_back(b.buffer->name + ": " + std::to_string(bytes) + " bytes");
      if (!d.where.known()) d.where = b.buffer->loc;
    }
    for (const FillRow& r : fill_rows_) {
      d.details.push_back("what is outside of partial tiles: " + std::to_string(r.bytes) + " bytes");
    }
    d.details.push_back("want: at most " + std::to_string(limit) + " bytes");
    d.details.push_back("got: " + std::to_string(buffers_.shared_bytes));
    d.fix = "use smaller tiles or fewer stages, or reuse bytes with over=";
    problems_.push_back(std::move(d));
  }

  // A problem of one statement: reported once, however often unrolling repeats it; lowering goes on behind it.
  void report(const Error& e, const ir::Stmt& s) {
    if (++failures_ >= kMaxFailures) given_up_ = true;
    for (Diagnostic d : e.diagnostics()) {
      if (d.code == Code::INTERNAL) throw e;
      if (!d.where.known()) d.where = s.loc;
      if (d.ir.empty()) d.ir.push_back(ir::head_line(s, true));
      if (!reported_.insert({s.id, static_cast<int>(d.code)}).second) continue;
      if (const auto* other = dynamic_cast<const atoms::OtherArch*>(&e)) {
        other_arch_.add(*other, std::move(d));
        continue;
      }
      // A Python loop makes many statements of one line: the first of them speaks for those that fail alike.
      if (s.loc.known()) {
        const auto [like, first] = alike_.try_emplace(s.loc.str() + d.message + d.fix, problems_.size());
        constexpr std::size_t kListed = 8;  // of details
        if (!first && like->second < problems_.size()) {
          std::vector<std::string>& details = problems_[like->second].details;
          if (details.size() < kListed) details.push_back("the same of: " + ir::head_line(s, true));
          continue;
        }
      }
      if (problems_.size() < kMaxProblems) problems_.push_back(std::move(d));
    }
  }

  Block block(const ir::Block& statements) {
    Block out;
    for (const ir::StmtPtr& s : statements) {
      if (given_up_) break;
      if ((++visits_ & 0xff) == 0 && poll_) poll_();
      try {
        if (!unrolling_.empty() && visits_ > kMaxVisits) refuse_unrolling(*s, kMaxVisits, "statements");
        statement(*s, out);
      } catch (const Error& e) {
        report(e, *s);
      }
    }
    return out;
  }

  [[noreturn]] void refuse_unrolling(const ir::Stmt& at, std::int64_t limit, const char* what) {
    given_up_ = true;
    fail(Code::LOWER_UNROLL_SIZE, "unrolling makes more than " + std::to_string(limit) + " " + what,
         {"innermost unrolled loop: " + (unrolling_.empty() ? "none" : ir::head_line(*unrolling_.back()))},
         "unroll less: a loop with unroll=1 prints as a loop", unrolling_.empty() ? at.loc : unrolling_.back()->loc);
  }

  template <class T>
  void add(Block& out, const ir::Stmt& origin, T node) {
    if (++nodes_ > kMaxNodes && !given_up_) refuse_unrolling(origin, kMaxNodes, "instructions");
    auto n = std::make_shared<Node>();
    n->origin = &origin;
    n->node = std::move(node);
    out.push_back(std::move(n));
  }

  Expr now(const Expr& e) const { return unrolled_.empty() ? e : sym::substitute(e, unrolled_); }

  void statement(const ir::Stmt& s, Block& out) {
    if (const auto* spec = s.as<ir::SpecStmt>()) {
      if (spec->decomposed) {
        decomposed(s, *spec, out);
      } else {
        leaf(s, *spec, out);
      }
    } else if (const auto* loop = s.as<ir::LoopStmt>()) {
      counted_loop(s, *loop, out);
    } else if (const auto* branch = s.as<ir::IfStmt>()) {
      conditional(s, *branch, out);
    } else if (const auto* only = s.as<ir::OnlyStmt>()) {
      const ir::ThreadPtr group = substitute(only->group, unrolled_);
      add(out, s, If{verify::is_member(*group, only->elect), block(only->body), {}, group});
    } else if (const auto* exit = s.as<ir::ExitIfStmt>()) {
      const Expr condition = now(exit->condition);
      if (!condition.is_const(0)) add(out, s, ExitIf{condition});
    } else if (const auto* scalar = s.as<ir::ScalarStmt>()) {
      std::optional<RegRef> from;
      if (scalar->from) {
        const ir::TensorPtr held = substitute(scalar->from, unrolled_);
        from = RegRef{buffers_.array_of.at(held->buffer->id), {static_cast<int>(held->offset.value())}};
      }
      add(out, s, ScalarSet{scalar->var, now(scalar->value), scalar->declare, std::move(from)});
    } else if (const auto* told = s.as<ir::SyncStmt>(); told != nullptr && is_told(*told)) {
      add(out, s, tell(*told));
    } else if (const auto* sync = s.as<ir::SyncStmt>()) {
      if (sync->op == ir::kWaitKernels) waits_ = &s;  // it stands before every access of global memory
      ir::SyncStmt stmt = *sync;
      stmt.group = substitute(sync->group, unrolled_);
      stmt.attrs = substitute(sync->attrs, unrolled_);
      stmt.barrier = substitute(sync->barrier, unrolled_);
      stmt.to = substitute(sync->to, unrolled_);
      if (sync->phase) stmt.phase = now(*sync->phase);
      stmt.expect_bytes = now(sync->expect_bytes);
      add(out, s, lower_sync(stmt, arch_, s.loc, buffers_, sync_));
    } else if (const auto* indices = s.as<ir::IndicesStmt>()) {
      redefine(*indices);
    } else if (const auto* view = s.as<ir::ViewStmt>()) {
      boxes_.see(*view);
    }
  }

  static bool is_told(const ir::SyncStmt& s) { return s.op == ir::kPrint || s.op == ir::kAssert; }

  Tell tell(const ir::SyncStmt& s) const {
    Tell out{.text = std::get<std::string>(s.attrs.at("text")), .values = {}, .condition = std::nullopt};
    if (const auto it = s.attrs.find("condition"); it != s.attrs.end()) out.condition = now(std::get<Expr>(it->second));
    for (const ir::Operand& v : s.values) {
      if (const auto* t = std::get_if<ir::TensorPtr>(&v)) {
        const ir::TensorPtr held = substitute(*t, unrolled_);
        if (!held->offset.is_const())
          fail(Code::LOWER_REGISTER_INDEX, "a register shown whose number is not a constant",
               {"index: " + held->offset.str() + " of " + held->buffer->name}, "unroll the loop around it: unroll=0");
        out.values.emplace_back(
            RegRef{buffers_.array_of.at(held->buffer->id), {static_cast<int>(held->offset.value())}});
      } else if (const auto* d = std::get_if<double>(&v)) {
        out.values.emplace_back(ImmRef{*d, ir::ScalarType::fp64});
      } else {
        out.values.emplace_back(ExprRef{now(std::get<Expr>(v)), ir::ScalarType::i64});
      }
    }
    return out;
  }

  // Coordinates of a group that an unrolled counter selects have another definition in every copy.
  void redefine(const ir::IndicesStmt& indices) {
    if (unrolled_.empty()) return;
    for (const std::vector<Expr>& level : indices.vars) {
      for (const Expr& v : level) {
        if (!v.is_var() || !v.var().def) continue;
        const Expr def = now(*v.var().def);
        if (identical(def, *v.var().def)) {
          unrolled_.erase(v.node());
        } else {
          unrolled_[v.node()] = def;
        }
      }
    }
  }

  void decomposed(const ir::Stmt& s, const ir::SpecStmt& spec, Block& out) {
    ir::SpecStmt head = substitute_head(spec, unrolled_);
    add(out, s,
        SpecScope{head.kind, std::move(head.attrs),
                  [&] {
                    std::vector<ir::Tensor> outs;
                    for (const ir::TensorPtr& t : head.outs) outs.push_back(*t);
                    return outs;
                  }(),
                  [&] {
                    std::vector<std::variant<ir::Tensor, double, Expr>> ins;
                    for (const ir::Operand& o : head.ins) {
                      if (const auto* t = std::get_if<ir::TensorPtr>(&o)) {
                        ins.emplace_back(**t);
                      } else if (const auto* d = std::get_if<double>(&o)) {
                        ins.emplace_back(*d);
                      } else {
                        ins.emplace_back(std::get<Expr>(o));
                      }
                    }
                    return ins;
                  }(),
                  head.blocks, head.threads, spec.means, block(spec.body)});
  }

  // The matcher refuses registers whose number is not a constant; here we know the loop to blame.
  void check_register_indices(const ir::SpecStmt& spec) const {
    const auto check = [&](const ir::TensorPtr& t) {
      if (t == nullptr || t->memory() != ir::Memory::RF) return;
      for (const Expr& v : sym::free_vars(t->offset)) {
        if (!is_loop_counter(v.var())) continue;
        const ir::Stmt* loop = find_loop(v);
        fail(Code::LOWER_REGISTER_INDEX, "registers indexed by the counter of a loop that is not unrolled",
             {"index: " + t->offset.str() + " of " + t->buffer->name,
              "loop: " + (loop != nullptr ? ir::head_line(*loop) + (loop->loc.known() ? "  at " + loop->loc.str() : "")
                                          : v.var().name)},
             "unroll the loop \"" + v.var().name + "\": unroll=0, or a Python range");
      }
    };
    for (const ir::TensorPtr& t : spec.outs) check(t);
    for (const ir::Operand& o : spec.ins) {
      if (const auto* t = std::get_if<ir::TensorPtr>(&o)) check(*t);
    }
  }

  const ir::Stmt* find_loop(const Expr& var) const {
    for (const ir::Stmt* l : loops_) {
      if (identical(l->as<ir::LoopStmt>()->var, var)) return l;
    }
    return nullptr;
  }

  void leaf(const ir::Stmt& s, const ir::SpecStmt& spec, Block& out) {
    if (refused_.contains(s.id)) return;  // its problem is known: what the matcher says about it would be noise
    const ir::SpecStmt head = substitute_head(spec, unrolled_);
    check_register_indices(head);
    const atoms::Match match = atoms::match(head, arch_, s.loc);
    AtomCall call;
    if (waits_ != nullptr && !atoms::is_coherent(match.instance->atom)) check_coherence(head);
    call.atom = match.instance;
    call.dtype = match.dtype;
    call.attrs = match.attrs;
    call.threads = head.threads;
    call.to = head.to;
    std::vector<atoms::LaunchFact> facts = match.facts;
    if (match.instance->atom.guard == atoms::Guard::Clipped) {
      boxes(match, call, facts);
    } else {
      for (const atoms::OperandBinding& b : match.out) call.out.push_back(operand(b, *match.instance, false));
      for (const atoms::OperandBinding& b : match.in) call.in.push_back(operand(b, *match.instance, true));
      predicate(call);
      redirect(call);
    }
    for (const atoms::OperandBinding& b : match.in) {
      if (b.form) need(*b.tensor, std::int64_t{8} * b.form->form->span_bytes);
    }
    for (const atoms::OperandBinding& b : match.aux) call.aux.push_back(operand(b, *match.instance, false));
    for (const atoms::LaunchFact& f : facts) add_fact(f, s);
    add(out, s, std::move(call));
  }

  // A copy between a box of an argument and shared memory, either way.
  void boxes(const atoms::Match& match, AtomCall& call, std::vector<atoms::LaunchFact>& facts) {
    const bool load = match.instance->in.front().def.via == atoms::Via::TensorMap;
    const ir::Tensor& global = *(load ? match.in : match.out).front().tensor;
    const ir::Tensor& shared = *(load ? match.out : match.in).front().tensor;
    Boxes::Copy copy = boxes_.copy(global, shared, buffers_, unrolled_, facts);
    call.out.emplace_back(load ? std::move(copy.shared) : std::move(copy.global));
    call.in.emplace_back(load ? std::move(copy.global) : std::move(copy.shared));
    need(shared, copy.align_bytes);
  }

  void need(const ir::Tensor& shared, std::int64_t align_bytes) {
    std::int64_t& known = needs_[shared.buffer->id];
    known = std::max(known, align_bytes);
  }

  // A kernel that waits has started before those ahead have ended: memory that they write is written while it runs.
  void check_coherence(const ir::SpecStmt& spec) const {
    for (const ir::Operand& o : spec.ins) {
      const auto* t = std::get_if<ir::TensorPtr>(&o);
      if (t == nullptr || (*t)->memory() != ir::Memory::GL) continue;
      fail(Code::VERIFY_WAIT, "a read through the non-coherent cache of what kernels before this one may have written",
           {"argument: " + (*t)->buffer->name, "waits for them: " + waits_->loc.str()},
           "that cache is for memory that nobody writes while the kernel runs, its part before gr.wait_kernels() "
           "included: load by ld.global");
    }
  }

  Operand operand(const atoms::OperandBinding& binding, const atoms::Instance& atom, bool is_input) const {
    Operand out = resolve(binding, buffers_, atom, is_input);
    if (auto* m = std::get_if<MemRef>(&out)) m->inside = without_known(m->inside);
    return out;
  }

  // What the branches around have tested already need not be tested again.
  Expr without_known(const Expr& e) const {
    if (e.is_const()) return e;
    for (const Expr& k : known_) {
      if (identical(e, k)) return 1;
      if (k.op() != sym::Op::And) continue;
      for (const Expr& part : k.node()->args) {
        if (identical(e, part)) return 1;
      }
    }
    if (e.op() != sym::Op::And) return e;
    Expr out = 1;
    for (const Expr& part : e.node()->args) out = sym::logical_and(out, without_known(part));
    return out;
  }

  void add_fact(const atoms::LaunchFact& fact, const ir::Stmt& s) {
    if (!fact_texts_.insert({fact.text, s.id}).second) return;
    facts_.push_back({fact, &s});
  }

  void predicate(AtomCall& call) const {
    const bool adds = call.atom->atom.kind == atoms::Kind::MatMul;
    bool inputs_outside = false;
    std::vector<const MemRef*> deciding;
    const auto needs = [&](const MemRef& m) {
      call.predicate = sym::logical_and(call.predicate, m.inside);
      deciding.push_back(&m);
    };
    for (const Operand& o : call.out) {
      if (const auto* m = std::get_if<MemRef>(&o)) needs(*m);
    }
    const auto accumulate = call.attrs.find("accumulate");
    const bool accumulates = accumulate == call.attrs.end() || std::get_if<bool>(&accumulate->second) == nullptr ||
                             std::get<bool>(accumulate->second);
    for (Operand& o : call.in) {
      auto* m = std::get_if<MemRef>(&o);
      if (m == nullptr || m->inside.is_const(1)) continue;
      if (adds && accumulates) {
        needs(*m);
      } else {
        inputs_outside = true;
      }
    }
    for (auto* list : {&call.out, &call.in}) {
      for (Operand& o : *list) {
        auto* m = std::get_if<MemRef>(&o);
        if (m == nullptr || m->claims.empty()) continue;
        Expr others = 1;
        for (const MemRef* d : deciding) {
          if (d != m) others = sym::logical_and(others, d->tiles);
        }
        for (Claim& c : m->claims) c.where = others;
      }
    }
    if (call.predicate.is_const(1) && !inputs_outside) return;
    check_guard(call);
  }

  // One row for each fill and type.
  void redirect(AtomCall& call) {
    if (call.atom->atom.guard != atoms::Guard::Redirect) return;
    for (Operand& o : call.in) {
      auto* m = std::get_if<MemRef>(&o);
      if (m == nullptr || m->inside.is_const(1)) continue;
      const MemBuffer& b = buffers_.memory[static_cast<std::size_t>(m->buffer)];
      GR_ASSERT(b.memory == ir::Memory::SH, "only reads of shared memory are redirected");
      FillRow row{.dtype = b.dtype, .value = ir::constant_attr(call.attrs, "fill")};
      row.bytes = (ir::bytes_of_elems(b.dtype, static_cast<std::int64_t>(m->deltas.size())) + 15) / 16 * 16;
      const auto same = std::ranges::find_if(fill_rows_, [&](const FillRow& r) {
        return r.dtype == row.dtype && ir::constant_bits(r.value, r.dtype) == ir::constant_bits(row.value, row.dtype);
      });
      m->fill_row = static_cast<int>(same - fill_rows_.begin());
      if (same == fill_rows_.end()) {
        fill_rows_.push_back(row);
      } else {
        same->bytes = std::max(same->bytes, row.bytes);
      }
    }
  }

  // Every mbarrier is told how many arrivals end a phase; the fence lets agents and other blocks know.
  void initialise_barriers(Block& out) {
    ir::SyncStmt start;
    start.op = "init";
    const auto stage = [&](const ir::BufferPtr& buffer, std::int64_t at) {
      ir::Tensor t;
      t.buffer = buffer;
      t.offset = at;
      t.dtype = buffer->dtype;
      return std::make_shared<const ir::Tensor>(std::move(t));
    };
    for (const MemBuffer& b : buffers_.memory) {
      if (b.dtype != ir::ScalarType::mbar) continue;
      start.attrs = {{"arrivals", std::int64_t{b.buffer->arrivals}}};
      for (std::int64_t i = 0; i < b.size_elems.value(); ++i) {
        start.barrier = stage(b.buffer, i);
        try {
          out.push_back(
              std::make_shared<Node>(Node{nullptr, lower_sync(start, arch_, b.buffer->loc, buffers_, sync_)}));
        } catch (const atoms::OtherArch& e) {
          other_arch_.add(e, e.diagnostics().front());
          return;
        } catch (const Error& e) {
          for (const Diagnostic& d : e.diagnostics()) problems_.push_back(d);
          return;
        }
      }
    }
    if (out.empty()) return;
    start.op = "fence";
    start.attrs.clear();
    AtomCall fence = lower_sync(start, arch_, {}, buffers_, sync_);
    fence.aux.clear();
    out.push_back(std::make_shared<Node>(Node{nullptr, std::move(fence)}));
  }

  // What copies and descriptors need of an allocation's address is known once they have been lowered.
  void place_for_agents() {
    if (needs_.empty()) return;
    std::vector<Diagnostic> known;
    const Buffers again = place_buffers(*kernel_, known, needs_);
    for (std::size_t i = 0; i < again.memory.size(); ++i)
      buffers_.memory[i].shared_offset_bytes = again.memory[i].shared_offset_bytes;
    buffers_.shared_bytes = again.shared_bytes;
  }

  void place_fill_rows() {
    for (FillRow& r : fill_rows_) {
      r.shared_offset_bytes = (buffers_.shared_bytes + 15) / 16 * 16;
      buffers_.shared_bytes = r.shared_offset_bytes + r.bytes;
    }
  }

  void conditional(const ir::Stmt& s, const ir::IfStmt& branch, Block& out) {
    const Expr condition = now(branch.condition);
    const auto known = sym::decide(condition);
    if (known) {
      for (NodePtr& n : block(*known ? branch.then_body : branch.else_body)) out.push_back(std::move(n));
      return;
    }
    // A condition over what statements change need not hold any more further down.
    const bool lasts = !sym::depends_on(condition, [](const sym::VarInfo& v) {
      return v.kind == sym::VarKind::Scalar || v.kind == sym::VarKind::Data;
    });
    if (lasts) known_.push_back(condition);
    Block then_body = block(branch.then_body);
    if (lasts) known_.pop_back();
    add(out, s, If{condition, std::move(then_body), block(branch.else_body), nullptr});
  }

  void counted_loop(const ir::Stmt& s, const ir::LoopStmt& loop, Block& out) {
    const Expr start = now(loop.start);
    const Expr stop = now(loop.stop);
    const Expr step = now(loop.step);
    if (loop.unroll != 0) {
      loops_.push_back(&s);
      Block body = block(loop.body);
      loops_.pop_back();
      add(out, s, Loop{loop.var, start, stop, step, loop.unroll, now(loop.condition), std::move(body)});
      return;
    }
    if (!loop.condition.is_const(1)) {
      fail(Code::LOWER_UNROLL, "a loop that a condition ends cannot be unrolled",
           {"condition: " + loop.condition.str()}, "unroll=1");
    }
    if (!start.is_const() || !stop.is_const() || !step.is_const()) {
      fail(Code::LOWER_UNROLL, "a loop that must be unrolled has bounds that are not constant",
           {"got: " + start.str() + " to " + stop.str() + " step " + step.str()},
           "give the loop constant bounds, or unroll=1");
    }
    unrolling_.push_back(&s);
    const sym::Node* var = loop.var.node();
    const std::int64_t times = iterations(start.value(), stop.value(), step.value());
    if (times > kMaxVisits) refuse_unrolling(s, kMaxVisits, "statements");
    for (std::int64_t i = 0; i < times && !given_up_; ++i) {
      ++visits_;
      unrolled_[var] = Expr(start.value() + i * step.value());
      for (NodePtr& n : block(loop.body)) out.push_back(std::move(n));
    }
    unrolled_.erase(var);
    unrolling_.pop_back();
  }

  const ir::KernelPtr& kernel_;
  const std::string& arch_;
  Buffers buffers_;
  SyncState sync_;
  Boxes boxes_;
  std::map<int, std::int64_t> needs_;  // of allocations: bytes that their address is a multiple of, where it matters
  std::vector<FillRow> fill_rows_;
  std::vector<Fact> facts_;
  std::vector<Diagnostic> problems_;
  Substitution unrolled_;
  std::vector<Expr> known_;  // conditions of the branches around
  std::vector<const ir::Stmt*> loops_, unrolling_;
  const ir::Stmt* waits_ = nullptr;  // for kernels before this one
  std::set<std::pair<int, int>> reported_;
  std::map<std::string, std::size_t> alike_;  // problems of one line that say the same: where the first stands
  OtherArchs other_arch_{arch_};
  std::set<std::pair<std::string, int>> fact_texts_;
  std::set<int> refused_;
  const Poll& poll_;
  std::int64_t nodes_ = 0, visits_ = 0, failures_ = 0;
  bool given_up_ = false;  // what lies ahead is not looked at
};

}  // namespace

int symbol_bits(const Expr& symbol) {
  const bool fits = sym::upper_bound(symbol) <= 0x7fffffff && sym::lower_bound(symbol) >= -0x80000000LL;
  return fits ? 32 : 64;
}

ProgramPtr lower(const ir::KernelPtr& kernel, const std::string& arch, const Poll& poll) {
  atoms::require_arch(arch, "'" + arch + "'");
  verify::Result checked = verify::check(*kernel);
  return Lowering(kernel, arch, std::move(checked), poll).run();
}

ProgramPtr lower_unverified(const ir::KernelPtr& kernel, const std::string& arch, const Poll& poll) {
  atoms::require_arch(arch, "'" + arch + "'");
  return Lowering(kernel, arch, {}, poll).run();
}

}  // namespace graphene::lower
