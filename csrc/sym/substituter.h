#pragma once

#include <unordered_map>

#include "sym/expr.h"

namespace graphene::sym {

// Puts the same values in the place of variables of many expressions: what these share is rewritten once.
class Substituter {
 public:
  explicit Substituter(Substitution known) : known_(std::move(known)) {}
  Expr operator()(const Expr& e);

 private:
  Substitution known_;
  std::unordered_map<const Node*, Expr> done_;
};

}  // namespace graphene::sym
