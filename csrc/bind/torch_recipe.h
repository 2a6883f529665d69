// Recipes of operators, as Python's functions make them.
#pragma once

#include <vector>

#include "bind/bind.h"
#include "call/operator.h"

namespace graphene::bind {

// A kernel that a recipe launches, and its arguments.
struct RecipeLaunch {
  py::object kernel;
  py::list arguments;
};

// What configures an operator: a function of its arguments, tensors as (shape, strides, dtype, device, alignment), that
// returns a Recipe.
[[nodiscard]] call::Operator::Configure configure_by(const std::vector<call::Param>& params, py::object function);

void register_recipe(py::module_& m);

}  // namespace graphene::bind
