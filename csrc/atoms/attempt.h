// One entry against one leaf: the bindings, or what differs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "atoms/match.h"

namespace graphene::atoms {

// What an entry was refused for, in the order of matching.
enum class Aspect : std::uint8_t { Arch, Counts, Attribute, Threads, Memory, Dtype, Shape, Strides, Layout };
struct Mismatch {
  Aspect aspect;
  std::string text;  // "src dtype: want a 16-bit type, got fp32"
  int input = -1;    // of an input's dtype: its position, for the fix
  ir::ScalarType want = ir::ScalarType::fp32;
};

struct Attempt {
  Match match;
  std::vector<Mismatch> mismatches;
  std::string register_error, register_fix;  // it matches, but its registers cannot be addressed
  [[nodiscard]] bool fits() const { return mismatches.empty(); }
};

// `attrs`: the spec's with the kind's defaults. `all`: keep going after the first mismatch (for messages).
[[nodiscard]] Attempt attempt(const InstancePtr& entry, const ir::SpecStmt& spec, const ir::Attrs& attrs,
                              const std::string& arch, bool all);

[[nodiscard]] std::string attr_text(const ir::AttrValue& v);
[[nodiscard]] std::string want_dtype(const TypePattern& p);  // "a 16-bit type", "fp16"
[[nodiscard]] std::string operand_text(const ir::Operand& o);
[[nodiscard]] std::string pattern_levels(const OperandInstance& o);  // "[1,8:_,1]"

}  // namespace graphene::atoms
