// The statements of a kernel as a tree that is read without a visitor, and without reading its text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/stmt.h"

namespace graphene::ir {

// How a line spells tensors. Numbers: "%7". Types: "%7:[8,8:1,8].fp16.SH". Names: what their buffers are called, for
// people; threads as Numbers.
enum class Refs : std::uint8_t { Numbers, Types, Names };

// A statement's own line (ir/print.h).
[[nodiscard]] std::string head_line(const Stmt& stmt, Refs refs);
// What stands in a spec's parentheses: operands, then the attributes that are not the usual ones: "x", "axis=1".
[[nodiscard]] std::vector<std::string> operand_texts(const SpecStmt& spec, Refs refs);

struct StatementView {
  std::string kind;                   // as in the JSON form: "spec", "sync", "for", "allocate", "view", ...
  int id = 0;                         // Stmt::id
  std::string what;                   // of a spec its kind, of a synchronising statement its operation, else ""
  std::string op;                     // the attribute `op` of a spec: "max"
  std::string atom;                   // that it asks for
  std::vector<TensorPtr> outs, ins;   // what it writes or makes; what it reads, waits for or makes it of
  std::vector<std::string> operands;  // of a spec: operands, then attributes that are not the usual ones, by names
  std::string text, named;            // its head_line with numbers, and with names of tensors in their place
  SourceLoc loc;
  std::vector<StatementView> body, otherwise;
};

// In textual order; the bodies of specs, loops and branches are in `body`, that of an `else` in `otherwise`.
[[nodiscard]] std::vector<StatementView> statements(const Kernel& kernel);

}  // namespace graphene::ir
