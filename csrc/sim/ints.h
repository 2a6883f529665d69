// Integer expressions compiled for a launch: sizes are numbers, and an expression is split into a part that is uniform
// over a warp (loops, blocks, scalars), a per-lane table that never changes (functions of the thread index), and a tree
// evaluated lane by lane for the rest.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "sim/clocks.h"
#include "sym/drafts.h"
#include "sym/substituter.h"

namespace graphene::sim {

using Lanes = std::array<std::int64_t, kLanes>;

// value(lane) = constant + sum(coef * uniform) + table(lane) + tree(lane)
struct IntPlan {
  struct Term {
    std::int64_t coef;
    int slot;  // of a uniform variable; -1: `tree` is uniform and gives the value
    int tree;
  };
  std::int64_t constant = 0;
  std::vector<Term> terms;
  int table = -1;
  int tree = -1;

  [[nodiscard]] bool is_const() const { return terms.empty() && table < 0 && tree < 0; }
  [[nodiscard]] bool is_const(std::int64_t v) const { return is_const() && constant == v; }
  [[nodiscard]] bool is_uniform() const { return table < 0 && tree < 0; }
  [[nodiscard]] bool is_separable() const { return tree < 0; }
};

// The variables of one warp while it runs.
class IntState {
 public:
  int warp = 0;
  std::vector<Lanes> varying;

  void resize(int uniform_slots, int varying_slots) {
    uniform_.resize(static_cast<std::size_t>(uniform_slots));
    varying.resize(static_cast<std::size_t>(varying_slots));
  }
  [[nodiscard]] std::int64_t uniform(int slot) const { return uniform_[static_cast<std::size_t>(slot)]; }
  void set_uniform(int slot, std::int64_t v) {
    std::int64_t& now = uniform_[static_cast<std::size_t>(slot)];
    if (now == v) return;
    now = v;
    ++version_;
  }

 private:
  friend class IntPlans;
  struct Known {
    std::uint64_t version = 0;
    std::int64_t value = 0;
  };
  std::vector<std::int64_t> uniform_;
  std::uint64_t version_ = 1;         // of the uniform variables' values
  mutable std::vector<Known> known_;  // by tree: its value, and at which version
};

class IntPlans {
 public:
  struct Table {
    std::vector<std::int64_t> values;    // by thread, padded to whole warps with the warp's first thread
    std::vector<std::int64_t> min, max;  // per warp
    std::vector<std::int32_t> narrow;    // the same values where they all fit
  };

  // `known`: sizes and parameters. Variables that vary by lane other than the thread index must be declared before use.
  IntPlans(std::int64_t block_threads, sym::Substitution known);

  int declare_uniform(const Expr& var);  // its slot
  int declare_varying(const Expr& var);
  [[nodiscard]] IntPlan compile(const Expr& e);
  [[nodiscard]] Expr resolve(const Expr& e);                 // known values substituted, coordinates expanded; it stays
  [[nodiscard]] std::vector<Expr> free_vars(const Expr& e);  // of what it resolves to
  // Whether its value may differ between the threads of a warp, given what has been declared.
  [[nodiscard]] bool is_varying(const Expr& e);

  [[nodiscard]] int uniform_slots() const { return uniform_count_; }
  [[nodiscard]] int varying_slots() const { return varying_count_; }
  [[nodiscard]] const Table& table(int i) const { return tables_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] std::int64_t block_threads() const { return block_threads_; }
  [[nodiscard]] std::size_t draft_bytes() const { return drafts_.bytes(); }
  // Value for one thread, of an expression over the thread index and known values alone.
  [[nodiscard]] std::int64_t at_thread(const Expr& e, std::int64_t tid);

  // The part shared by the lanes.
  [[nodiscard]] std::int64_t at_lane(const IntPlan& p, const IntState& s, int lane) const {
    if (p.is_uniform()) return uniform(p, s);
    Lanes v;
    lanes(p, s, 1U << lane, v);
    return v[static_cast<std::size_t>(lane)];
  }
  [[nodiscard]] std::int64_t uniform(const IntPlan& p, const IntState& s) const {
    std::int64_t v = p.constant;
    for (const IntPlan::Term& t : p.terms) {
      v += t.coef * (t.slot >= 0 ? s.uniform(t.slot) : uniform_tree(t.tree, s));
    }
    return v;
  }
  // Values of the active lanes; others are unspecified.
  void lanes(const IntPlan& p, const IntState& s, Mask active, Lanes& out) const;
  [[nodiscard]] Mask nonzero(const IntPlan& p, const IntState& s, Mask active) const;

 private:
  struct Tree {  // op over the arguments; Add sums them, a variable of a lane has none
    sym::Op op = sym::Op::Const;
    int varying_slot = -1;
    std::vector<IntPlan> args;
  };
  enum class Depends : std::uint8_t { Nothing, Uniform, Thread, Mixed };  // Uniform | Thread is Mixed
  [[nodiscard]] Expr drafted(const Expr& e);                              // resolved; while drafts are in use
  [[nodiscard]] Depends depends(const Expr& e);
  [[nodiscard]] IntPlan compile_resolved(const Expr& e);
  [[nodiscard]] IntPlan compile_uniform(const Expr& e);
  int add_table(const Expr& e);
  int add_tree(const Expr& e);
  [[nodiscard]] std::int64_t uniform_tree(int tree, const IntState& s) const;

  std::int64_t block_threads_;
  // What known values make of expressions is of use to these plans alone, and other sizes make other expressions. The
  // maps below name drafts by their nodes.
  sym::Drafts drafts_;
  sym::Substitution known_;
  sym::Substituter drafted_;
  std::map<const sym::Node*, int> uniform_, varying_;
  int uniform_count_ = 0;
  int varying_count_ = 0;
  std::vector<Table> tables_;
  std::vector<Tree> trees_;
  // What was asked before: statements share most of their expressions.
  std::unordered_map<const sym::Node*, Depends> depends_;
  std::unordered_map<const sym::Node*, IntPlan> compiled_;  // of expressions as they stand in the text
  std::unordered_map<const sym::Node*, int> table_of_, tree_of_;
};

}  // namespace graphene::sim
