// Builds a kernel statement by statement for the readers of the text and of JSON: names and scopes, numbering, and
// every view computed again with the same functions that the builder uses. Throws Error without a position; readers add
// it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ir/stmt.h"

namespace graphene::ir {

// A type as written. A level without strides says nothing about them.
struct LevelDecl {
  IntTuple shape;
  std::optional<IntTuple> stride;
};
struct TypeDecl {
  std::vector<LevelDecl> levels;
  ScalarType dtype = ScalarType::fp32;
  Memory memory = Memory::GL;
  std::optional<std::string> label;  // of RF<label>
};
struct ThreadTypeDecl {
  std::vector<LevelDecl> levels;
  ThreadUnit unit = ThreadUnit::Thread;
};

// Facts of a variable as written; what is absent follows from its declaration.
struct FactsDecl {
  std::optional<std::int64_t> min, max, multiple_of;
  std::optional<std::optional<Expr>> lo, hi;  // written as "()": there is none
  void apply(sym::VarInfo& info) const;
};

// One entry of `(@bm, 0) = #4.indices()`: a coordinate to be named, or an expression that the index must be.
struct CoordDecl {
  std::string name;
  FactsDecl facts;
  std::optional<Expr> value;
};

class Assembler {
 public:
  explicit Assembler(std::string kernel_name);

  // Declarations, before the statements. Each throws IR_DUPLICATE when the name is taken, KERNEL_NAME when it
  // cannot be one.
  void symbol(const std::string& name, const FactsDecl& facts);
  // `id`: of the private scalar that a parameter of no integer type is.
  void param(const std::string& name, ScalarType dtype, const FactsDecl& facts, std::optional<int> id);
  void argument(int id, Buffer buffer, const TypeDecl& type);
  void launch(int id, const ThreadTypeDecl& type, std::int64_t cluster = 1);
  [[nodiscard]] std::int64_t cluster() const { return kernel_.cluster; }

  // What a name stands for; nullopt / IR_UNDEFINED when it is not visible.
  [[nodiscard]] std::optional<Expr> variable(std::string_view name) const;
  [[nodiscard]] TensorPtr tensor(int id) const;
  [[nodiscard]] ThreadPtr threads(int id) const;
  [[nodiscard]] ThreadPtr each(ThreadUnit unit) const;  // "[].thread" without a name: each member for itself

  // Statements of the innermost open block. An id is taken before the body is read: pre-order numbers.
  int next_id() { return ++last_id_; }
  void open();
  [[nodiscard]] Block close();
  template <class Node>
  void add(int id, Node node, SourceLoc loc = {}) {
    scopes_.back().block.push_back(
        std::make_shared<const Stmt>(Stmt{.id = id, .loc = std::move(loc), .node = std::move(node)}));
  }

  // Each makes the result of a view, defines its name and returns the completed statement. IR_TYPE_MISMATCH when the
  // result's type is not the one written.
  [[nodiscard]] ViewStmt view(int id, ViewStmt v, const std::optional<TypeDecl>& type);
  [[nodiscard]] ThreadStmt thread_view(int id, ThreadStmt t, const std::optional<ThreadTypeDecl>& type);
  // `vars` as written: a list a level.
  [[nodiscard]] IndicesStmt indices(const ThreadPtr& group, const std::vector<std::vector<CoordDecl>>& vars);
  [[nodiscard]] AllocStmt allocate(int id, Buffer buffer, const TypeDecl& type);
  // The counter of a loop, visible in the innermost open block; a mutable scalar.
  Expr counter(const std::string& name, const FactsDecl& facts, const Expr& start, const Expr& stop, const Expr& step);
  Expr scalar(const std::string& name, const FactsDecl& facts);
  // An integer read from a register.
  Expr index(const std::string& name, const FactsDecl& facts, const TensorPtr& from);
  // IR_OPERANDS unless the kind takes their number. Fills in the attributes' defaults.
  static void complete(SpecStmt& s);

  [[nodiscard]] Kernel finish();

 private:
  struct Scope {
    std::map<std::string, Expr, std::less<>> variables;
    std::vector<int> tensors, threads;
    Block block;
  };
  Expr define(const sym::VarInfo& info);
  void argument_name(const std::string& name, const char* what);
  void define(const TensorPtr& t);
  void define(const ThreadPtr& t);
  void take_id(char sigil, int id);

  Kernel kernel_;
  std::vector<Scope> scopes_;
  std::map<int, TensorPtr> tensors_;  // visible now
  std::map<int, ThreadPtr> threads_;
  std::set<int> ids_;           // taken, visible or not: "%7" and "#7" share one numbering
  std::set<std::string> args_;  // names of kernel arguments
  int last_id_ = 0;
};

}  // namespace graphene::ir
