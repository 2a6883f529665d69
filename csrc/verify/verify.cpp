#include "verify/verify.h"

#include <algorithm>

#include "ir/print.h"
#include "verify/rule.h"

namespace graphene::verify {

namespace {

using StatementFn = std::function<void(const ir::Stmt&)>;

void walk(const ir::Block& block, std::vector<const ir::Stmt*>& enclosing, const StatementFn& fn) {
  for (const ir::StmtPtr& s : block) {
    fn(*s);
    enclosing.push_back(s.get());
    if (const auto* spec = s->as<ir::SpecStmt>()) {
      walk(spec->body, enclosing, fn);
    } else if (const auto* loop = s->as<ir::LoopStmt>()) {
      walk(loop->body, enclosing, fn);
    } else if (const auto* only = s->as<ir::OnlyStmt>()) {
      walk(only->body, enclosing, fn);
    } else if (const auto* branch = s->as<ir::IfStmt>()) {
      walk(branch->then_body, enclosing, fn);
      walk(branch->else_body, enclosing, fn);
    }
    enclosing.pop_back();
  }
}

Expr condition_of(const ir::Stmt& s) {
  if (const auto* branch = s.as<ir::IfStmt>()) return branch->condition;
  if (const auto* loop = s.as<ir::LoopStmt>()) return loop->start + loop->stop + loop->step + loop->condition;
  return 0;
}

// What every thread loads alike: an element at one address, of an argument that no thread writes or of shared memory.
// Of the latter, threads read the same unless one of them writes between their reads; then those that must work
// together do not meet, which the simulator tells.
bool same_everywhere(const Context& c, const ir::Operand& operand) {
  const auto* const tensor = std::get_if<ir::TensorPtr>(&operand);
  if (tensor == nullptr) return false;
  const ir::Tensor& t = **tensor;
  const bool unwritten = t.memory() == ir::Memory::GL && t.buffer->role == ir::Role::Input;
  return (unwritten || t.memory() == ir::Memory::SH) && !c.thread_dependent(t.offset) &&
         std::ranges::none_of(t.bounds, [&](const ir::DimBound& b) { return c.thread_dependent(b.base); });
}

// Registers that hold such an element, and nothing else.
std::set<const ir::Buffer*> shared_values(Context& c) {
  std::set<const ir::Buffer*> shared, others;
  walk(c.kernel().body, c.enclosing_, [&](const ir::Stmt& s) {
    const auto* spec = s.as<ir::SpecStmt>();
    if (spec == nullptr) return;
    const bool same = spec->kind == ir::SpecKind::Move && spec->ins.size() == 1 && same_everywhere(c, spec->ins[0]);
    for (const ir::TensorPtr& t : spec->outs)
      if (t->memory() == ir::Memory::RF) (same ? shared : others).insert(t->buffer.get());
  });
  for (const ir::Buffer* b : others) shared.erase(b);
  return shared;
}

// A scalar is the same in every thread unless it is assigned something that is not, or under a condition that is not;
// one that is read from data, unless all threads read the same.
void find_divergent_scalars(Context& c) {
  for (bool changed = true; changed;) {
    changed = false;
    const std::set<const ir::Buffer*> shared = shared_values(c);
    walk(c.kernel().body, c.enclosing_, [&](const ir::Stmt& s) {
      const auto* scalar = s.as<ir::ScalarStmt>();
      if (scalar == nullptr || c.divergent_scalars.contains(scalar->var.node())) return;
      const bool divergent =
          c.thread_dependent(scalar->value) ||
          (scalar->from != nullptr && !shared.contains(scalar->from->buffer.get())) ||
          std::ranges::any_of(c.enclosing_, [&](const ir::Stmt* e) {
            return (e->as<ir::OnlyStmt>() != nullptr && !scalar->declare) || c.thread_dependent(condition_of(*e));
          });
      if (!divergent) return;
      c.divergent_scalars.insert(scalar->var.node());
      changed = true;
    });
  }
}

void find_assignments(Context& c) {
  std::map<const sym::Node*, std::size_t> depth;  // of what is around a declaration
  std::set<const ir::Buffer*> shared = shared_values(c);
  walk(c.kernel().body, c.enclosing_, [&](const ir::Stmt& s) {
    const auto* scalar = s.as<ir::ScalarStmt>();
    if (scalar == nullptr) return;
    const sym::Node* var = scalar->var.node();
    if (scalar->declare) depth[var] = c.enclosing_.size();
    Assigned a{.var = var,
               .value = scalar->value,
               .from_data = scalar->from != nullptr && !shared.contains(scalar->from->buffer.get()),
               .between = {}};
    for (std::size_t i = depth[var]; i < c.enclosing_.size(); ++i) a.between.push_back(c.enclosing_[i]);
    c.assigned.push_back(std::move(a));
  });
}

const std::vector<const std::vector<Rule>*>& tables() {
  static const std::vector<const std::vector<Rule>*> all = {&launch_rules(), &shape_rules(), &thread_rules(),
                                                            &barrier_rules()};
  return all;
}

}  // namespace

void Context::problem(const ir::Stmt& s, Code code, std::string message, std::vector<std::string> details,
                      std::string fix) {
  result_.problems.push_back({.code = code,
                              .where = s.loc,
                              .message = std::move(message),
                              .ir = {ir::head_line(s, true)},
                              .details = std::move(details),
                              .fix = std::move(fix)});
  result_.statements.insert(s.id);
}

bool Context::thread_dependent(const Expr& e) const {
  return sym::depends_on(sym::expand_coords(e), [&](const sym::VarInfo& v) {
    if (v.kind == sym::VarKind::ThreadIdx) return true;
    return (v.kind == sym::VarKind::Scalar || v.kind == sym::VarKind::Data) &&
           std::ranges::any_of(divergent_scalars, [&](const sym::Node* n) { return n->var == &v; });
  });
}

Result check(const ir::Kernel& kernel) {
  Context c(kernel);
  for (const std::vector<Rule>* table : tables()) {
    for (const Rule& r : *table) {
      if (r.kernel != nullptr) r.kernel(c);
    }
  }
  find_divergent_scalars(c);
  if (!c.divergent_scalars.empty()) find_assignments(c);
  walk(kernel.body, c.enclosing_, [&](const ir::Stmt& s) {
    for (const std::vector<Rule>* table : tables()) {
      for (const Rule& r : *table) {
        if (r.statement == nullptr) continue;
        try {
          r.statement(c, s);
        } catch (const Error& e) {
          // What a rule asks of the layouts may itself be refused: that is a problem of the statement.
          for (const Diagnostic& d : e.diagnostics()) {
            if (d.code == Code::INTERNAL) throw;
            c.problem(s, d.code, d.message, d.details, d.fix);
          }
        }
      }
    }
  });
  return std::move(c.result_);
}

std::vector<RuleInfo> rules() {
  std::vector<RuleInfo> out;
  for (const std::vector<Rule>* table : tables()) {
    for (const Rule& r : *table) out.push_back({r.name, r.doc});
  }
  return out;
}

}  // namespace graphene::verify
