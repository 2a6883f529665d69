// The elements that an expression is evaluated at: loops over the registers in which the executing thread holds them,
// and for every operand the register that belongs to the current element.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "build/affine.h"
#include "build/held.h"
#include "build/nest.h"

namespace graphene::build {

class Frame {
 public:
  // The elements of `like`: a fragment (each thread its own), private registers, or null: one element for each thread.
  Frame(ir::Builder& b, const ir::SpecStmt& spec, ir::TensorPtr like, std::vector<std::int64_t> shape);

  // Shape of the destination whose coordinates an integer names; empty: none.
  [[nodiscard]] static std::vector<std::int64_t> placeholder_shape(const Expr& e);

  // What will be accessed, before each(). `like`: `t` is an array() of a frame over `like`.
  void reads(const ir::TensorPtr& t, const ir::TensorPtr& like);
  void uses(const Expr& e);  // an integer that may name coordinates
  // Some element is read from another register than the one it is written to, and that register is written, too.
  [[nodiscard]] bool permutes(const ir::TensorPtr& written) const;
  // Elements come in runs of n, each in neighbouring registers of `t`, the first one a multiple of n.
  [[nodiscard]] bool in_runs(const ir::TensorPtr& t, std::int64_t n) const;
  [[nodiscard]] bool paired(const ir::TensorPtr& t) const { return in_runs(t, 2); }

  // One private register per element.
  ir::TensorPtr array(ir::ScalarType type);

  // Records `body` for every run of n elements.
  void each(std::int64_t n, const std::function<void()>& body);
  // Inside of it:
  ir::TensorPtr element(const ir::TensorPtr& t);  // the register of `t` that belongs to the element
  ir::TensorPtr run(const ir::TensorPtr& t);      // ... the registers that belong to the run, two or more
  void each_of_pair(const std::function<void()>& body);
  ir::TensorPtr half_of(const ir::TensorPtr& two);  // of two private registers, the element's
  Expr here(const Expr& e);                         // an integer at the element

 private:
  struct Access {
    std::size_t first = 0, columns = 0;
    ir::TensorPtr view, runs;  // indexed by the columns; by the first one over the length of a run
  };
  [[nodiscard]] std::vector<std::size_t> positions(const ir::TensorPtr& like) const;
  [[nodiscard]] bool runs_possible(std::int64_t n) const;
  void add_column(const std::vector<std::int64_t>& values);
  void record_views();
  void record_coordinates();

  ir::Builder& b_;
  const ir::SpecStmt& spec_;
  Nest nest_;
  ir::TensorPtr like_;
  std::vector<std::int64_t> shape_;
  Held held_;
  std::vector<Row> rows_;  // per element: columns
  std::map<const ir::Tensor*, Access> access_;
  std::vector<ir::TensorPtr> order_;  // of access_
  std::size_t coordinates_ = 0;       // first column of the element's coordinates; 0: none
  std::vector<Expr> lane_;            // what the thread adds to them
  std::vector<Expr> at_;              // per column, in the body
  Row pair_step_;
  std::int64_t run_ = 2;
  Expr pair_index_;
};

// What each thread holds of private registers or of a fragment.
[[nodiscard]] Held held_of(const ir::SpecStmt& spec, const ir::TensorPtr& t);

}  // namespace graphene::build
