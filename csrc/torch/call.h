// The arguments of one call of an operator as plain data, and the two keys that calls are remembered by.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/args.h"

namespace graphene::torch {

enum class ParamKind : std::uint8_t {
  Tensor,
  OptionalTensor,
  Int,
  Float,
  Bool,
  OptionalFloat,
  OptionalString,  // one of `choices`, or none
  IntList,
  OptionalDtype,  // PyTorch's number of an element type, or none
  TensorList,
  BoolList,
  StringList,  // any strings
};

struct Param {
  std::string name;
  ParamKind kind = ParamKind::Tensor;
  std::vector<std::string> choices = {};
  // Of a tensor, or of each of a list: so many of its last extents belong to a configuration by value; the others by
  // their class.
  int exact_dims = 0;
  int exact_by = -1;     // and so does the dimension that this parameter, an Int, names
  bool written = false;  // a tensor that the operator writes its result to

  [[nodiscard]] bool is_tensor() const { return kind == ParamKind::Tensor || kind == ParamKind::OptionalTensor; }
  [[nodiscard]] bool holds_tensors() const { return is_tensor() || kind == ParamKind::TensorList; }
};

inline constexpr std::size_t kMaxTensors = 264;
using TensorMask = std::bitset<kMaxTensors>;      // tensors of a call, those of lists in their order
inline constexpr std::int64_t kNone = INT64_MIN;  // an absent number, string or dtype; as a number it is -0

// A call in the making: arguments are added in the order of the parameters. Nothing is initialised before it is used.
//
// The key spells out all that a launch depends on besides addresses: of each tensor its type, device, shape, strides
// and how its address is aligned, and every scalar.
class Call {
 public:
  Call() {}  // NOLINT(modernize-use-equals-default): `= default` with () would clear the arrays

  void add(const runtime::TensorArg& t);
  void add_absent();
  void add(std::int64_t word);
  void add(double number);
  // Throws OP_ARGUMENT for a text that is not among the choices.
  void add(const Param& p, std::string_view text, const std::string& op);
  void add(const std::int64_t* list, std::size_t count);
  // A list of tensors: its length, then each of them. Of strings: its length, then `add_text` of each.
  void add_length(std::size_t count) { word(static_cast<std::int64_t>(count)); }
  void add_text(std::string_view text);

  // False: more tensors, dimensions or numbers than a call may have.
  [[nodiscard]] bool fits() const { return !overflow_; }

  [[nodiscard]] std::size_t tensor_count() const { return tensor_count_; }
  [[nodiscard]] const runtime::TensorArg* tensors() const { return tensors_.data(); }
  [[nodiscard]] bool present(std::size_t i) const { return tensors_[i].lanes != 0; }

  [[nodiscard]] const std::int64_t* key() const { return words_.data(); }
  [[nodiscard]] std::size_t key_size() const { return size_; }
  [[nodiscard]] std::uint64_t hash() const;

 private:
  static constexpr std::size_t kMaxWords = 1800;

  void word(std::int64_t w) {
    if (size_ < kMaxWords)
      words_[size_++] = w;
    else
      overflow_ = true;
  }

  union {
    std::array<runtime::TensorArg, kMaxTensors> tensors_;
  };
  std::array<std::int64_t, kMaxWords> words_;
  std::size_t tensor_count_ = 0;
  std::size_t size_ = 0;
  bool overflow_ = false;
};

// The class of a call: dtypes, devices, alignment up to 16 bytes and scalars as they are; extents by magnitude, four
// steps to a factor of two, and where it matters by divisibility (0, 1 and what `exact_dims` and `exact_by` say by
// value); strides by whether they are 0 or 1, by divisibility and by whether the dimension merges with the next one.
// Calls of one class use one kernel.
[[nodiscard]] std::vector<std::int64_t> class_key(const Call& call, const std::vector<Param>& params);

// Throws OP_OUT where a tensor that is written has several elements at one address, or shares memory with another
// argument: blocks run in any order.
void check_written(const Call& call, const std::vector<Param>& params, const std::string& op);

// An argument without tensors, as it was added.
struct ScalarValue {
  ParamKind kind = ParamKind::Int;
  bool present = true;
  std::int64_t i = 0;
  double f = 0;
  std::string text;
  std::vector<std::int64_t> list;
  std::vector<std::string> texts;
};
// The scalars of a call, in the order of the parameters, read back from its key.
[[nodiscard]] std::vector<ScalarValue> scalars_of(const Call& call, const std::vector<Param>& params);
// How many tensors each parameter stands for, 0 for scalars.
[[nodiscard]] std::vector<std::size_t> tensor_counts(const Call& call, const std::vector<Param>& params);

// 1, 2, 4, ... 128: what divides the address.
[[nodiscard]] std::int64_t alignment_of(const void* address);

}  // namespace graphene::torch
