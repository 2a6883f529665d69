// The part of the reader that knows the header and the declarations of a kernel.
#pragma once

#include <string>

#include "ir/parse_expr.h"

namespace graphene::ir {

class DeclReader : public ExprReader {
 public:
  explicit DeclReader(std::string_view text) : ExprReader(text), as_(header()) {}

 protected:
  std::optional<Expr> lookup(std::string_view name) override { return as_.variable(name); }

  bool declaration();       // reads one, if one stands here
  void end_of_statement();  // the end of its line, or the brace that closes its block
  FactsDecl facts();
  // Reads what an arrival or a wait says of its barrier, "phase=..."; false: an attribute like any other stands here.
  bool of_barrier(SyncStmt& s);
  TensorPtr tensor_ref();
  ThreadPtr thread_ref();
  static Role role_of(const Token& t);  // "input", ...; Free: none of them

  Assembler as_;

 private:
  std::string header();
  [[nodiscard]] bool is_argument() const;
  [[nodiscard]] bool is_launch() const;
  void param();
  void argument();
};

}  // namespace graphene::ir
