// The ghost run: the bytecode with every float an element of a prime field, and the promise of every decomposed spec
// held against what its decomposition did.
//
// An instance of a spec: one statement, one entry of one thread group. It ends when every thread of the group has left.
// An input is the one version of each element that the instance saw; an output before is what its first access found,
// after what its own last write left; the promise is after == F(before). It writes no kernel argument and no input
// that is not an output. A failing instance is blamed when none of its children fails and it read nothing that a
// failing instance wrote.
#pragma once

#include <memory>
#include <optional>
#include <random>
#include <unordered_map>
#include <vector>

#include "sim/ghost_numbers.h"
#include "sim/ghost_seen.h"
#include "sim/ghost_view.h"
#include "sim/machine.h"

namespace graphene::sim {

struct Instance {
  int id = 0;
  int scope = 0;
  Instance* parent = nullptr;
  std::size_t depth = 0;  // instances around it
  std::int64_t block = 0;
  int group = 0;
  std::int64_t expected = 0, left = 0;  // threads
  View out;
  std::vector<View> more_outs;  // of a spec with several
  std::vector<View> ins;
  bool accumulates = true;  // where a condition says it
  bool readable = true;     // every operand could be resolved: else only the frame is checked
  SeenCells seen;
  CountedSet<Instance*> sources;  // whose writes it read
  Instance* last_source = nullptr;
  bool children = false;  // specs were decomposed inside it
  bool failed = false, child_failed = false;
  std::optional<Diagnostic> problem;
};

using Integers = std::vector<std::vector<std::int64_t>>;  // that arguments hold, by buffer; empty: small random ones

class Ghost final : public Machine {
 public:
  // `real`: floats are doubles that nothing rounds, else elements of the field. Over the field, operations that are not
  // algebraic are hashes, and only specs of algebraic ones are held to their promise; over the reals all of them are,
  // and those that `reference` gives a meaning, up to a tolerance from the output's type.
  Ghost(const Bytecode& code, std::uint64_t seed, const Integers& integers, bool real = false,
        Reference reference = {});

  // Runs these blocks (linear indices) and returns what is to blame, in the order in which it ended.
  [[nodiscard]] std::vector<Diagnostic> check(const std::vector<std::int64_t>& blocks);
  // Instances whose promise was checked; over the reals those that the field does not decide.
  [[nodiscard]] int promises() const { return promises_; }

 protected:
  void begin_block() override;
  void end_block() override;
  void leaf(Warp& w, const Leaf& f) override;
  void read_index(Warp& w, const SetCode& set, Lanes& to, const ir::Stmt* origin) override;
  void enter(Warp& w, int scope) override;
  void leave(Warp& w, int scope) override;

 private:
  using Vector = std::array<std::uint64_t, kLanes>;
  struct Cell {
    std::uint64_t value = 0;
    std::uint32_t version = 0;
    Instance* writer = nullptr;
    Instance* reader = nullptr;  // the last one since it was written: it and those around it have seen this version
  };
  struct ScopePlan {
    std::vector<std::optional<ViewPlan>> outs;
    std::vector<std::optional<ViewPlan>> ins;  // nullopt with no tensor: a number
    bool whole_grid = false;
    bool followed = true;                            // its instances are held to anything
    int around = -1;                                 // the scope that it stands in
    std::vector<int> inner;                          // the next ones inside it that are followed
    std::vector<int> group_of;                       // per thread
    std::vector<std::vector<std::int64_t>> members;  // per group
  };
  struct Key {
    Instance* parent;
    int scope;
    int group;
    std::int64_t block;
    std::int64_t ordinal;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Hash {
    std::size_t operator()(const Key& k) const;
  };

  void plan_scopes();
  void nest_scopes();
  Instance* open(const Key& key, const Warp& w, int lane, const std::vector<std::int64_t>& members);
  void close(Instance& i);
  void finish_all();

  std::uint64_t read(std::int64_t thread, std::int64_t cell);
  void write(std::int64_t thread, std::int64_t cell, std::uint64_t value);
  void touch(Instance& i, std::int64_t cell, const Cell& before, bool writes, std::uint64_t value);

  // ---- ghost_leaf.cpp
  void fetch(const Warp& w, const Leaf& f, const Operand& o, Mask lanes, std::vector<Vector>& out);
  void fetch_whole(const Warp& w, const Operand& o, std::vector<Vector>& out);
  void put(const Warp& w, const Leaf& f, Mask lanes, const std::vector<Vector>& values);
  void copy_bulk(const Warp& w, const Leaf& f, int lane);
  void accumulate(const Warp& w, const Leaf& f, Mask lane);  // an atomic Move of one lane
  void regroup(const Warp& w, const Leaf& f, Mask lanes);
  void apply_own(const Warp& w, const Leaf& f, Mask lanes);
  void locate(const Warp& w, const Operand& o, Mask& lanes, Lanes& offsets) const;
  [[nodiscard]] std::uint64_t apply(const Leaf& f, std::uint64_t x, std::uint64_t y, std::uint64_t z) const;

  // ---- ghost_promise.cpp
  [[nodiscard]] std::optional<Diagnostic> promise(Instance& i);
  [[nodiscard]] std::optional<Diagnostic> matched(Instance& i, const std::vector<std::uint64_t>& want, bool difference);
  [[nodiscard]] std::optional<std::vector<std::uint64_t>> expected(const Instance& i, bool& difference);
  [[nodiscard]] std::optional<std::vector<std::uint64_t>> reduced(const Instance& i, Op op, std::size_t axis,
                                                                  std::vector<std::uint64_t> sums) const;
  [[nodiscard]] std::vector<std::uint64_t> product(const Instance& i, const std::vector<std::uint64_t>& a,
                                                   const std::vector<std::uint64_t>& b, bool difference);
  [[nodiscard]] std::vector<std::int64_t> suspicious_rows(const Instance& i, const std::vector<std::uint64_t>& a,
                                                          const std::vector<std::uint64_t>& b, bool difference);
  [[nodiscard]] std::optional<Diagnostic> held_to_reference(Instance& i);
  [[nodiscard]] std::optional<Diagnostic> compare(const Instance& i, const View& out,
                                                  const std::vector<std::uint64_t>& want, bool difference);
  void reseed(const Instance& i, const View& out, const std::vector<std::uint64_t>& want, bool difference);
  [[nodiscard]] bool equal(std::uint64_t got, std::uint64_t want, double size, ir::ScalarType t) const;
  [[nodiscard]] bool missed(const Instance& i, std::int64_t cell) const;  // of a part of the grid that did not run
  [[nodiscard]] std::vector<std::uint64_t> input_values(const Instance& i, std::size_t operand) const;
  [[nodiscard]] std::uint64_t before(const Instance& i, std::int64_t cell) const;
  [[nodiscard]] std::uint64_t after(const Instance& i, std::int64_t cell) const;
  [[nodiscard]] Diagnostic problem(const Instance& i, Code code, std::string message,
                                   std::vector<std::string> details) const;
  [[nodiscard]] std::string cell_text(std::int64_t cell) const;
  [[nodiscard]] std::string meaning(const Instance& i, std::uint64_t got, std::int64_t element,
                                    const std::vector<std::uint64_t>& want) const;

  CellMap map_;
  Numbers numbers_;
  Reference reference_;
  CountedVector<Cell> cells_;
  std::vector<ScopePlan> scopes_;
  CountedDeque<Instance> instances_;
  CountedMap<Key, Instance*, Hash> by_key_;
  std::vector<std::vector<Instance*>> stacks_;  // per thread of the block
  CountedVector<std::int64_t> entries_;         // per thread and scope: how often it entered it inside the one around
  // Private registers of a group: the logical element of each, found once by value. Per scope and group.
  std::unordered_map<std::int64_t, std::unordered_map<std::int64_t, std::int64_t>> distributions_;
  std::mt19937_64 random_;
  std::int64_t blocks_run_ = 1;
  bool every_block_ = true;
  int promises_ = 0;
  std::vector<Vector> values_[4];
};

}  // namespace graphene::sim
