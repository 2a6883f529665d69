// The arguments of one call as plain data, and the form that calls are remembered by.
#pragma once

#include <algorithm>
#include <bit>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "call/param.h"
#include "call/room.h"
#include "runtime/args.h"

namespace graphene::call {

inline constexpr std::size_t kMaxTensors = 264;
using TensorMask = std::bitset<kMaxTensors>;      // tensors of a call, those of lists in their order
inline constexpr std::int64_t kNone = INT64_MIN;  // an absent number, string or dtype; as a number it is -0

// A tensor in one word: its type, rank, device and how its address is aligned, up to 2^`align` bytes.
[[nodiscard]] inline std::int64_t head_word(const runtime::TensorArg& t, int align) {
  const auto address = reinterpret_cast<std::uintptr_t>(t.data);
  const int zeros = address == 0 ? align : std::min(std::countr_zero(address), align);
  return static_cast<std::int64_t>(
      static_cast<std::uint64_t>(runtime::apart(t.code)) | static_cast<std::uint64_t>(runtime::apart(t.bits)) << 8 |
      static_cast<std::uint64_t>(runtime::apart(t.lanes)) << 16 | static_cast<std::uint64_t>(t.ndim & 0xff) << 32 |
      static_cast<std::uint64_t>(zeros) << 40 | static_cast<std::uint64_t>(t.device.id & 0xff) << 44 |
      static_cast<std::uint64_t>(t.device.type & 0xff) << 52 | static_cast<std::uint64_t>(t.readonly) << 60 |
      static_cast<std::uint64_t>(t.raw_bits) << 61);
}

// A call in the making: arguments are added in the order of the parameters.
class Arguments {
 public:
  // A tensor is written where it stays, and then added: copying it would cost more than looking at it.
  [[nodiscard]] runtime::TensorArg& next() { return tensors_.next().arg; }
  void add_next(int align) {
    Tensor& t = tensors_.next();
    t.head = head_word(t.arg, align);
    form_size_ += 1 + 2 * static_cast<std::size_t>(t.arg.ndim);
    tensors_.push_next();
  }
  void add_absent() {
    Tensor& t = tensors_.next();
    t.arg = {};
    t.arg.lanes = 0;
    t.head = 0;
    ++form_size_;
    tensors_.push_next();
  }
  void add(std::int64_t word) { words_.push(word); }
  void add(double number) { add(std::bit_cast<std::int64_t>(number == 0 ? 0.0 : number)); }
  // Throws OP_ARGUMENT for a text that is not among the choices.
  void add(const Param& p, std::string_view text, const std::string& op);
  // Any text, as one word.
  void add_text(std::string_view text);
  void add_number(const Param& p, std::uint64_t bits) {
    if (!p.decides_sizes && words_.size() < kPassedOn) passed_on_ |= std::uint64_t{1} << words_.size();
    add(static_cast<std::int64_t>(bits));
  }

  [[nodiscard]] std::size_t tensor_count() const { return tensors_.size(); }
  [[nodiscard]] const runtime::TensorArg& tensor(std::size_t i) const { return tensors_[i].arg; }
  [[nodiscard]] bool present(std::size_t i) const { return tensors_[i].arg.lanes != 0; }
  [[nodiscard]] std::int64_t head(std::size_t i) const { return tensors_[i].head; }
  // Scalars one after the other, in the order of the parameters.
  [[nodiscard]] const std::int64_t* words() const { return words_.data(); }
  [[nodiscard]] std::size_t word_count() const { return words_.size(); }

  // The form spells out all that a launch depends on besides addresses: of each tensor its type, device, shape, strides
  // and how its address is aligned, and every scalar that is not only passed on. Calls with equal words are of one
  // form.
  [[nodiscard]] std::size_t form_size() const { return 1 + form_size_ + words_.size(); }
  // `f(word)` for each, until one is false; false then.
  template <class F>
  bool each_word(F&& f) const {
    if (!f(static_cast<std::int64_t>(tensors_.size()))) return false;
    for (const auto& [t, head] : tensors_) {
      if (!f(head)) return false;
      for (int d = 0; d < t.ndim; ++d)
        if (!f(t.shape[d])) return false;
      if (t.strides != nullptr) {
        for (int d = 0; d < t.ndim; ++d)
          if (!f(t.strides[d])) return false;
      } else {
        for (int d = 0; d < t.ndim; ++d)
          if (!f(t.stride(d))) return false;
      }
    }
    for (std::size_t i = 0; i < words_.size(); ++i)
      if (!f(i < kPassedOn && (passed_on_ >> i & 1U) != 0 ? 0 : words_[i])) return false;
    return true;
  }

 private:
  static constexpr std::size_t kPassedOn = 64;
  struct Tensor {
    runtime::TensorArg arg;
    std::int64_t head;
  };

  std::size_t form_size_ = 0;    // of the tensors
  std::uint64_t passed_on_ = 0;  // which of the first words no size depends on
  Room<Tensor, 10> tensors_;
  Room<std::int64_t, 48> words_;
};

// The class of a call: dtypes, devices, alignment up to 16 bytes and scalars as they are; extents by magnitude, four
// steps to a factor of two, and where it matters by divisibility (0, 1 and what `exact_dims` and `exact_by` say by
// value); strides by whether they are 0 or 1, by divisibility and by whether the dimension merges with the next one.
// Calls of one class use one kernel.
[[nodiscard]] std::vector<std::int64_t> class_key(const Arguments& call, const std::vector<Param>& params);

// Throws OP_OUT where a tensor that is written has several elements at one address, or shares memory with another
// argument: blocks run in any order.
void check_written(const Arguments& call, const std::vector<Param>& params, const std::string& op);

// Of each tensor of the call: whether its parameter says that it is written.
[[nodiscard]] std::vector<bool> written_tensors(const Arguments& call, const std::vector<Param>& params);

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
// The scalars of a call, in the order of the parameters.
[[nodiscard]] std::vector<ScalarValue> scalars_of(const Arguments& call, const std::vector<Param>& params);
// How many tensors each parameter stands for, 0 for scalars.
[[nodiscard]] std::vector<std::size_t> tensor_counts(const Arguments& call, const std::vector<Param>& params);

// 1, 2, 4, ... 128: what divides the address.
[[nodiscard]] std::int64_t alignment_of(const void* address);

}  // namespace graphene::call
