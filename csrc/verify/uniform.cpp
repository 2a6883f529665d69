#include "verify/uniform.h"

#include <algorithm>

#include "verify/group.h"

namespace graphene::verify {

namespace {

Expr first_of(const ir::ThreadTensor* group) { return group == nullptr ? Expr(0) : sym::expand_coords(group->offset); }

std::string key_of(const ir::ThreadTensor* group) {
  return group == nullptr ? "" : first_of(group).str() + "|" + group->type_str();
}

}  // namespace

bool Uniformity::depends_on(const Expr& e, const Scalars& scalars) {
  return sym::depends_on(e, [&](const sym::VarInfo& v) {
    return (v.kind == sym::VarKind::Scalar || v.kind == sym::VarKind::Data) &&
           std::ranges::any_of(scalars, [&](const sym::Node* n) { return n->var == &v; });
  });
}

bool Uniformity::varies(const Expr& e, const ir::ThreadTensor* group) {
  if (!c_.thread_dependent(e)) return false;
  if (group != nullptr && group->size().is_const(1)) return false;
  const Expr spelt = sym::expand_coords(e);
  const std::string key = spelt.str() + "|" + key_of(group);
  const auto it = c_.varies.find(key);
  if (it != c_.varies.end()) return it->second;
  return c_.varies[key] = compare(spelt, group, divergent(group));
}

const std::vector<Member>& Uniformity::members(const std::string& key, const ir::ThreadTensor* group) {
  const auto [known, fresh] = c_.members.try_emplace(key);
  if (!fresh) return known->second;
  const InThread first(first_of(group), block_);
  const InThread belongs(group == nullptr ? Expr(1) : is_member(*group, false), block_);
  std::map<std::string, std::size_t> numbers;
  for (std::int64_t t = 0; t < block_; ++t) {
    if (belongs(t).is_const(0)) continue;
    const std::size_t next = numbers.size();
    known->second.push_back({t, numbers.emplace(first(t).str(), next).first->second});
  }
  return known->second;
}

bool Uniformity::compare(const Expr& e, const ir::ThreadTensor* group, const Scalars& scalars) {
  if (e.is_const()) return false;
  if (depends_on(e, scalars)) return true;
  const std::string key = key_of(group);
  const auto [known, fresh] = c_.differ.try_emplace({key, e.node()}, false);
  if (!fresh) return known->second;
  const InThread in(e, block_);
  std::map<std::size_t, Expr> of_group;
  for (const Member& m : members(key, group)) {
    const Expr value = in(m.thread);
    const auto [it, first] = of_group.emplace(m.of, value);
    if (!first && !identical(it->second, value)) return known->second = true;
  }
  return false;
}

bool Uniformity::splits(const ir::Stmt& s, const ir::ThreadTensor* group) {
  if (const auto* branch = s.as<ir::IfStmt>()) return varies(branch->condition, group);
  if (const auto* only = s.as<ir::OnlyStmt>()) return varies(is_member(*only->group, only->elect), group);
  const auto* loop = s.as<ir::LoopStmt>();
  return loop != nullptr && (varies(loop->start, group) || varies(loop->stop, group) || varies(loop->step, group) ||
                             varies(loop->condition, group));
}

const ir::Stmt* Uniformity::diverges(const ir::ThreadTensor* group) {
  for (auto it = c_.enclosing().rbegin(); it != c_.enclosing().rend(); ++it)
    if (splits(**it, group)) return *it;
  return nullptr;
}

const Uniformity::Scalars& Uniformity::divergent(const ir::ThreadTensor* group) {
  const std::string key = key_of(group);
  const auto known = c_.divergent_in.find(key);
  if (known != c_.divergent_in.end()) return known->second;
  Scalars found;
  for (bool changed = true; changed;) {
    changed = false;
    const auto differs = [&](const Expr& e) {
      return c_.thread_dependent(e) && compare(sym::expand_coords(e), group, found);
    };
    for (const Assigned& a : c_.assigned) {
      if (found.contains(a.var) || !c_.divergent_scalars.contains(a.var)) continue;
      const bool between = std::ranges::any_of(a.between, [&](const ir::Stmt* s) {
        if (const auto* branch = s->as<ir::IfStmt>()) return differs(branch->condition);
        if (const auto* only = s->as<ir::OnlyStmt>()) return differs(is_member(*only->group, only->elect));
        const auto* loop = s->as<ir::LoopStmt>();
        return loop != nullptr &&
               (differs(loop->start) || differs(loop->stop) || differs(loop->step) || differs(loop->condition));
      });
      if (!a.from_data && !between && !differs(a.value)) continue;
      found.insert(a.var);
      changed = true;
    }
  }
  return c_.divergent_in[key] = std::move(found);
}

}  // namespace graphene::verify
