#include "lower/outside.h"

#include <map>
#include <set>

#include "ir/print.h"

namespace graphene::lower {

namespace {

// Points at which claims are tried, of one program: a pass that is asked for by everybody must end soon.
constexpr std::int64_t kMaxPoints = 1 << 18;

using Point = std::map<const sym::VarInfo*, std::int64_t>;

struct Domain {
  const sym::VarInfo* var;
  std::vector<std::int64_t> values;  // some that it takes
};

class Search {
 public:
  explicit Search(const Program& program) : program_(program) {}

  std::vector<Diagnostic> run() {
    walk(program_.body);
    return std::move(problems_);
  }

 private:
  void walk(const Block& block) {
    for (const NodePtr& n : block) {
      if (unknown_) return;
      node(*n);
    }
  }

  void under(const Expr& condition, const Block& block) {
    conditions_.push_back(sym::expand_coords(condition));
    walk(block);
    conditions_.pop_back();
  }

  void node(const Node& n) {
    if (const auto* loop = n.as<Loop>()) {
      counted(*loop);
    } else if (const auto* branch = n.as<If>()) {
      under(branch->condition, branch->then_body);
      under(sym::logical_not(branch->condition), branch->else_body);
    } else if (const auto* scope = n.as<SpecScope>()) {
      walk(scope->body);
    } else if (const auto* exit = n.as<ExitIf>()) {
      unknown_ = !conditions_.empty() || !counters_.empty();  // who is left depends on when it was reached
      exits_.push_back(sym::expand_coords(sym::logical_not(exit->condition)));
    } else if (const auto* call = n.as<AtomCall>()) {
      leaf(*call, *n.origin);
    }
  }

  // Only of loops that certainly run: the first and the last turn.
  void counted(const Loop& loop) {
    if (!loop.start.is_const() || !loop.stop.is_const() || !loop.step.is_const()) return;
    const std::int64_t first = loop.start.value();
    if (first >= loop.stop.value()) return;
    const std::int64_t last = first + (loop.stop.value() - 1 - first) / loop.step.value() * loop.step.value();
    counters_.push_back({&loop.var.var(), {first}});
    if (last != first) counters_.back().values.push_back(last);
    walk(loop.body);
    counters_.pop_back();
  }

  void leaf(const AtomCall& call, const ir::Stmt& origin) {
    if (call.atom->thread_count > 1) return;  // some lanes' addresses may mean nothing
    for (const auto* list : {&call.out, &call.in}) {
      for (const Operand& o : *list) {
        const auto* m = std::get_if<MemRef>(&o);
        if (m == nullptr) continue;
        for (const Claim& c : m->claims) {
          if (!reported_.contains(origin.id)) attempt(c, *m, origin);
        }
      }
    }
  }

  // The variables of the expressions with values that they take; nothing where one depends on what is not known here.
  std::optional<std::vector<Domain>> domains(const std::vector<Expr>& of) const {
    std::vector<Domain> out;
    std::set<const sym::VarInfo*> seen;
    for (const Expr& e : of) {
      for (const Expr& v : sym::free_vars(e)) {
        const sym::VarInfo& var = v.var();
        if (!seen.insert(&var).second) continue;
        Domain d{&var, {}};
        if (var.kind == sym::VarKind::ThreadIdx) {
          for (std::int64_t t = 0; t < program_.block_threads; ++t) d.values.push_back(t);
        } else if (var.kind == sym::VarKind::BlockIdx) {
          const auto axis = static_cast<std::size_t>(var.name.back() - 'x');
          if (axis >= program_.grid.size() || !program_.grid[axis].is_const()) return std::nullopt;
          const std::int64_t blocks = program_.grid[axis].value();
          if (blocks < 1) return std::nullopt;
          d.values.push_back(0);
          if (blocks > 1) d.values.push_back(blocks - 1);
        } else {
          for (const Domain& c : counters_) {
            if (c.var == &var) d = c;
          }
          if (d.values.empty()) return std::nullopt;
        }
        out.push_back(std::move(d));
      }
    }
    return out;
  }

  void attempt(const Claim& claim, const MemRef& ref, const ir::Stmt& origin) {
    std::vector<Expr> needed = conditions_;
    needed.insert(needed.end(), exits_.begin(), exits_.end());
    needed.push_back(sym::expand_coords(claim.where));
    const Expr at = sym::expand_coords(claim.at);
    const Expr size = sym::expand_coords(claim.size.value_or(Expr(0)));
    std::vector<Expr> all = needed;
    all.insert(all.end(), {at, size});
    const auto domains = this->domains(all);
    if (!domains) return;
    std::int64_t count = 1;
    for (const Domain& d : *domains) {
      count *= static_cast<std::int64_t>(d.values.size());
      if (count > kMaxPoints - points_) return;
    }
    points_ += count;
    for (std::int64_t n = 0; n < count; ++n) {
      Point point;
      std::int64_t rest = n;
      for (const Domain& d : *domains) {
        const auto values = static_cast<std::int64_t>(d.values.size());
        point[d.var] = d.values[static_cast<std::size_t>(rest % values)];
        rest /= values;
      }
      const auto value = [&](const Expr& e) {
        return sym::evaluate(e, [&](const sym::VarInfo& v) { return point.at(&v); });
      };
      bool reached = true;
      for (const Expr& e : needed) reached = reached && value(e) != 0;
      if (!reached) continue;
      const std::int64_t got = value(at);
      if (claim.size ? got < value(size) : got >= 0) continue;
      std::string by;
      for (const Domain& d : *domains)
        by += (by.empty() ? " where " : ", ") + d.var->name + " = " + std::to_string(point.at(d.var));
      report(claim, ref, origin, std::to_string(got) + by, claim.size ? value(size) - 1 : 0);
      return;
    }
  }

  void report(const Claim& claim, const MemRef& ref, const ir::Stmt& origin, const std::string& got,
              std::int64_t limit) {
    reported_.insert(origin.id);
    const std::string name = program_.buffers[static_cast<std::size_t>(ref.buffer)].buffer->name;
    Diagnostic d;
    d.code = Code::TENSOR_INDEX;
    d.where = origin.loc;
    d.message = (claim.size ? "an index past the end of a view of " : "a negative index of a view of ") + name;
    d.ir = {ir::head_line(origin, true)};
    d.details = {"index: " + claim.at.str(),
                 (claim.size ? "want: at most " : "want: at least ") + std::to_string(limit), "got: " + got};
    d.fix = "keep the index inside, or let only those threads access it whose index is inside: gr.if_(...)";
    problems_.push_back(std::move(d));
  }

  const Program& program_;
  std::vector<Expr> conditions_, exits_;  // of the branches around; of exits before
  std::vector<Domain> counters_;          // of the loops around
  std::set<int> reported_;
  std::int64_t points_ = 0;
  bool unknown_ = false;
  std::vector<Diagnostic> problems_;
};

}  // namespace

std::vector<Diagnostic> certainly_outside(const Program& program) { return Search(program).run(); }

}  // namespace graphene::lower
