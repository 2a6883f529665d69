// Reads the text form of the IR (docs/ir_text.md).
#pragma once

#include <string_view>

#include "ir/stmt.h"

namespace graphene::ir {

// Throws Error with "line:column: message", the line and a caret: IR_PARSE for grammar, IR_UNDEFINED, IR_DUPLICATE,
// IR_TYPE_MISMATCH, ... for meaning, and what views and expressions throw themselves (TENSOR_*, THREAD_*, SYM_*).
[[nodiscard]] Kernel parse(std::string_view text, const CompleteSpec& complete = {});

}  // namespace graphene::ir
