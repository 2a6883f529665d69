// Recipes of operators, as Python's functions make them.
#pragma once

#include <vector>

#include "bind/bind.h"
#include "torch/operator.h"

namespace graphene::bind {

// What configures an operator: a function of its arguments, tensors as (shape, strides, dtype, device, alignment), that
// returns a Recipe.
[[nodiscard]] torch::Operator::Configure configure_by(const std::vector<torch::Param>& params, py::object function);

// The Python object of a kernel that a recipe of Python launches.
[[nodiscard]] const py::object& kernel_of(const torch::KernelSource& source);

void register_recipe(py::module_& m);

}  // namespace graphene::bind
