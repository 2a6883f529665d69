// The values that JSON statements are made of: expressions, layouts, types, attributes, references.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/assemble.h"
#include "ir/json_at.h"

namespace graphene::ir {

class JsonReader {
 public:
  explicit JsonReader(const std::string& kernel) : as_(kernel) {}

 protected:
  [[nodiscard]] Expr expr(const At& j) const;
  [[nodiscard]] IntTuple tuple(const At& j, int depth = 0) const;
  [[nodiscard]] Layout layout(const At& j) const;
  [[nodiscard]] std::vector<LevelDecl> levels(const At& j) const;
  static ScalarType dtype(const At& j);
  [[nodiscard]] TypeDecl type(const At& j) const;
  [[nodiscard]] FactsDecl facts(const At& j) const;
  static double number(const At& j);
  [[nodiscard]] AttrValue attribute(const At& j) const;
  [[nodiscard]] Attrs attributes(const At& j) const;
  [[nodiscard]] TensorPtr tensor(const At& j) const;
  [[nodiscard]] ThreadPtr threads(const At& j) const;
  [[nodiscard]] layout::Tiler tiler(const At& j) const;
  [[nodiscard]] std::vector<IndexArg> index(const At& j) const;
  static SourceLoc location(const At& j);
  // A value that follows from the rest and is stated for other programs.
  void check_same(const At& j, const Expr& want) const;

  Assembler as_;
};

}  // namespace graphene::ir
