// What a configuration of an operator does: which kernels it launches on which views of its arguments. A recipe holds
// for every call of the configuration: shapes and strides are said in terms of the arguments' dimensions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "call/arguments.h"
#include "call/kernel.h"

namespace graphene::call {

// An extent: that of a dimension of an argument (in a view also of an output, numbered on from the arguments), or with
// tensor == -1 the number itself; rounded up to a multiple.
struct Extent {
  int tensor = -1;
  std::int64_t dim = 1;
  std::int64_t multiple = 1;
};

// A dimension of a view: the product of `extents`; its stride is that of `own`, dimensions of the viewed tensor from
// the outermost to the innermost that lie one after the other. Without `own` every index means the same element.
struct ViewDim {
  std::vector<Extent> extents;
  std::vector<int> own;
};

// `source`: an argument (its place among the tensors of the call), or, from the number of those on, an output.
struct View {
  int source = 0;
  std::vector<ViewDim> dims;
};

// A tensor that the call makes, row-major.
struct OutputSpec {
  runtime::DType dtype;
  std::vector<std::vector<Extent>> dims;  // the product of each
};

struct KernelCall {
  std::shared_ptr<Kernel> kernel;
  std::vector<std::variant<View, runtime::ScalarArg, std::vector<View>>> args;  // in the manifest's order
};

enum class Outcome : std::uint8_t {
  Launch,
  Copy,   // the arguments of copy_mask must be made row-major first
  Torch,  // no kernel of ours: PyTorch's own operators
};

struct Recipe {
  Outcome outcome = Outcome::Launch;
  std::string reason = {};    // of Torch and Copy, for explain
  TensorMask copy_mask = {};  // tensors of the call
  std::vector<OutputSpec> outputs = {};
  std::size_t returned = 0;  // how many outputs, from the first on, are results; the others are work space
  std::vector<KernelCall> launches = {};
};

struct Shaped {
  std::vector<std::int64_t> shape, strides;
};
// Their product. `outputs`: of the recipe, evaluated.
[[nodiscard]] std::int64_t evaluate(const std::vector<Extent>& extents, const Arguments& call,
                                    const std::vector<Shaped>& outputs);
// Row-major.
[[nodiscard]] Shaped evaluate(const OutputSpec& spec, const Arguments& call);
// nullopt: the dimensions do not lie one after the other.
[[nodiscard]] std::optional<Shaped> evaluate(const View& view, const Arguments& call,
                                             const std::vector<Shaped>& outputs);

}  // namespace graphene::call
