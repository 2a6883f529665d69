// The JSON form of the IR, for other programs: the same content as the text, every field by name (docs/ir_text.md).
//
// Law: from_json(to_json(k)) == k for every kernel k.
#pragma once

#include <string>
#include <string_view>

#include "ir/stmt.h"

namespace graphene::ir {

inline constexpr int kJsonVersion = 1;  // the value of "graphene_ir"

struct JsonOptions {
  int indent = -1;         // spaces a level; -1: one line
  bool locations = false;  // with "loc": [file, line] of every statement and buffer that has one
};
[[nodiscard]] std::string to_json(const Kernel& kernel, const JsonOptions& options = {});

// Throws IR_JSON_SYNTAX with line and column for text that is not JSON, IR_FORMAT for another version, IR_JSON_VALUE
// and whatever the text's reader throws, behind the JSON pointer of the value: "/body/3/stop: no integer 'K' here".
[[nodiscard]] Kernel from_json(std::string_view text, const CompleteSpec& complete = {});

}  // namespace graphene::ir
