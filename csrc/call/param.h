// What is declared of the arguments of a kernel or an operator: what the reader of calls goes by.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/manifest.h"

namespace graphene::call {

enum class ParamKind : std::uint8_t {
  Tensor,
  OptionalTensor,
  TensorList,
  Number,  // what a kernel takes: a number in the bits of `dtype`
  Int,
  Float,
  Bool,
  OptionalFloat,
  OptionalString,  // one of `choices`, or none
  IntList,
  OptionalDtype,  // PyTorch's number of an element type, or none
  BoolList,
  StringList,  // any strings
};

inline constexpr int kMaxAlign = 7;  // log2 of the bytes up to which calls tell alignments apart

struct Param {
  std::string name;
  ParamKind kind = ParamKind::Tensor;
  std::vector<std::string> choices = {};
  // Of a tensor, or of each of a list: how many of its last extents belong to a configuration by value; the others by
  // their class.
  int exact_dims = 0;
  int exact_by = -1;     // and so does the dimension that this parameter, an Int, names
  bool written = false;  // a tensor that the callee writes
  // Of what a kernel takes.
  int align = kMaxAlign;      // log2 of the bytes: alignment beyond them makes no other form
  int count = 0;              // of a list of tensors; 0: any
  runtime::DType dtype = {};  // of a number
  bool decides_sizes = true;  // a number that is part of the form; another one is only passed on

  [[nodiscard]] bool is_tensor() const { return kind == ParamKind::Tensor || kind == ParamKind::OptionalTensor; }
  [[nodiscard]] bool holds_tensors() const { return is_tensor() || kind == ParamKind::TensorList; }
};

// The parameters of a kernel.
[[nodiscard]] std::vector<Param> params_of(const runtime::LaunchManifest& m);

}  // namespace graphene::call
