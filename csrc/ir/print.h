// The text form of the IR (docs/ir_text.md).
//
// Laws: parse(print(k)) == k for every kernel k; print(parse(s)) is canonical: printing what it parses to gives it
// again.
#pragma once

#include <string>
#include <string_view>

#include "ir/stmt.h"

namespace graphene::ir {

inline constexpr int kTextFormat = 1;  // the `format=` of the header line

[[nodiscard]] std::string print(const Kernel& kernel);

// A statement's own line, without its body: "%20 <- MatMul<<<#21, #22>>>(%18, %19)". What code generation and the
// simulator show; `types` spells operands with their types, for error messages:
//   %11:[2,2].[1,2].fp16.RF <- Move<<<#3:[1].block, #4:[32].thread>>>(%10:[1,8].fp16.SH)
[[nodiscard]] std::string head_line(const Stmt& stmt, bool types = false);
[[nodiscard]] std::string head_line(const SpecStmt& spec, bool types = false);

// "%7" or, with its type, "%7:[8,8:1,8].fp16.SH"; "#5" and "#5:[32].thread". Threads without an id: "[].thread".
[[nodiscard]] std::string ref(const TensorPtr& t, bool type = false);
[[nodiscard]] std::string ref(const ThreadPtr& t, bool type = false);

// Shortest decimal that reads back to the same double, never like an integer: "1.0", "0.1", "1e-05", "-inf", "nan".
[[nodiscard]] std::string number_text(double v);
// "[8]", "[4,2:1,16]", "[4,:2,]": Layout::graphene_str, but for the stride of a rank-1 unit-stride layout.
[[nodiscard]] std::string layout_text(const Layout& l);
// "[128,_]" when every entry is contiguous, else a bracket an entry: "[2:2], [2,2:1,4], [_]".
[[nodiscard]] std::string tiler_text(const layout::Tiler& tiler);
// The symbol of an operation where it has one: "mul" is "*". Its inverse is op_from_symbol.
[[nodiscard]] std::string_view op_symbol(std::string_view op);
[[nodiscard]] std::string_view op_from_symbol(std::string_view symbol);  // "" when there is none

}  // namespace graphene::ir
