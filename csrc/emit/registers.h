// Register tensors as C variables, one for each register: indices are constants, and compilers take twice as long over
// arrays. 8- and 16-bit types are stored several to a 32-bit word when they are only used by words, one by one when
// they are only used so, and as a union of two arrays otherwise. Those of 4 bits are fields of words.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "emit/names.h"
#include "lower/lowered.h"

namespace graphene::emit {

class Registers {
 public:
  // `in_flight`: lower::sums_in_flight of the program.
  Registers(const std::vector<lower::RegArray>& arrays, std::vector<bool> in_flight, Names& names);

  // One value, an lvalue. Its C type is c_type(dtype).
  std::string value(int array, int index);
  // Where products in flight keep a value of which the compiler knows no more than that: a register of the PTX text.
  // nullopt: they keep it in the variable.
  std::optional<std::string> in_flight(int array, int index);
  // Values packed in one 32-bit word, an lvalue; nullopt unless they are that word in order.
  std::optional<std::string> word(int array, const std::vector<int>& values);

  [[nodiscard]] const std::string& name_of(int buffer) const;  // of the array that is this buffer's
  [[nodiscard]] const lower::RegArray& array(int i) const { return arrays_[static_cast<std::size_t>(i)]; }
  // Declarations of the arrays that are used, from what was asked for so far.
  [[nodiscard]] std::vector<std::string> declarations() const;

 private:
  struct Use {
    bool values = false, words = false, in_flight = false;
  };
  [[nodiscard]] bool both(int array) const;
  [[nodiscard]] std::vector<std::string> variables(const std::string& type, std::size_t array, int count) const;

  const std::vector<lower::RegArray>& arrays_;
  std::vector<bool> in_flight_;
  std::vector<std::string> names_;
  std::vector<std::vector<std::string>> elements_;  // of arrays of several registers: a name for each
  std::vector<Use> uses_;
};

}  // namespace graphene::emit
