// The part of the reader that knows tokens, integer expressions, layouts and types, but no statements.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/assemble.h"
#include "ir/lexer.h"

namespace graphene::ir {

inline constexpr int kMaxInt32 = std::numeric_limits<int>::max();
inline constexpr int kMaxParenDepth = 256;
inline constexpr int kMaxExprDepth = 100;  // of what an expression simplifies to: prints within kMaxParenDepth
inline constexpr int kMaxOperators = 20000;

class ExprReader {
 public:
  explicit ExprReader(std::string_view text);
  virtual ~ExprReader() = default;
  ExprReader(const ExprReader&) = delete;
  ExprReader& operator=(const ExprReader&) = delete;

 protected:
  virtual std::optional<Expr> lookup(std::string_view name) = 0;

  // Tokens.
  [[nodiscard]] const Token& tok(std::size_t ahead = 0) const;
  void advance() { ++at_; }
  [[nodiscard]] bool accept(std::string_view punct);
  [[nodiscard]] bool accept_name(std::string_view name);
  void expect(std::string_view punct);
  void skip_newlines();
  [[nodiscard]] bool comma();  // accepts "," and line breaks after it
  [[noreturn]] void expected(const std::string& what) const;
  [[noreturn]] void fail_here(Code code, const std::string& message, std::vector<std::string> details = {},
                              std::string fix = {}) const;
  // Runs f; an error without a position gets that of `token`.
  template <class F>
  auto at(const Token& token, F&& f) const {
    try {
      return f();
    } catch (const PositionedError&) {
      throw;
    } catch (const Error& e) {
      source_.rethrow_at(token.offset, e);
    }
  }

  std::string_view name(const char* what);
  std::string string(const char* what);
  std::int64_t integer(const char* what);  // with a sign
  int small(const char* what, int min, int max);
  int id_after(char sigil);                      // "%7", "#7"
  [[nodiscard]] std::optional<double> number();  // a decimal, inf or nan with a sign, if one stands here alone

  Expr expr();
  Layout layout();
  layout::Tiler tiler();  // between the parentheses of .tile( )
  std::vector<IndexArg> index_args();
  TypeDecl type();
  ThreadTypeDecl thread_type();
  [[nodiscard]] bool at_type_of_threads() const;
  // A tuple, not the start of an expression such as "(M+1)*2": its closing parenthesis ends the item.
  [[nodiscard]] bool tuple_here() const;

  Source source_;

 private:
  Expr either();
  Expr both();
  Expr negation();
  Expr comparison();
  Expr exclusive();
  Expr sum();
  Expr product();
  Expr unary();
  Expr atom();
  void count(const Token& op);
  Expr apply(const Token& op, Expr (*f)(const Expr&, const Expr&), const Expr& a, const Expr& b);

  IntTuple sizes();  // of a layout, up to ":" or "]"
  IntTuple size();
  LevelDecl level();
  std::vector<LevelDecl> levels();

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
  int operators_ = 0;
};

}  // namespace graphene::ir
