// Integer expressions as C text, and where they are computed: what a loop does not change is computed once, outside of
// it, under a name; what a scope uses twice is named too. 64-bit arithmetic wherever bounds do not prove 32 enough.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "emit/names.h"
#include "sym/expr.h"

namespace graphene::emit {

// How tightly the outermost operator of a text binds.
enum class Prec : int { Ternary = 1, Or, And, BitXor, Equal, Less, Add, Mul, Unary, Primary };

struct CText {
  std::string text = {};
  Prec prec = Prec::Primary;
  bool wide = false;  // its C type is i64, not int

  [[nodiscard]] std::string in(Prec outer) const;  // in parentheses if it binds less tightly than `outer`
};

// The kernel is printed twice: the first pass counts how often each candidate is used, the second names those used
// more than once.
class Expressions {
 public:
  explicit Expressions(Names& names) : names_(names) {}

  void start_pass(bool counting);

  // Coordinates that are the same function of the executing thread go by one name: `same` maps to it, and so does
  // `coordinate_of` from the function itself.
  void unify(sym::Substitution same, std::map<const sym::Node*, Expr> coordinate_of) {
    same_ = std::move(same);
    coordinate_of_ = std::move(coordinate_of);
  }

  // Coordinates that are the same for all lanes of a warp go through a shuffle, which tells the compiler so: matrices
  // in shared memory are addressed by registers that a warp shares.
  void share_in_warps() { shared_in_warps_ = true; }

  // A kernel parameter or a mutable scalar that already has a name.
  void declare(const Expr& var, const std::string& c_name, bool wide);

  // Scopes nest: the kernel (opened by start_pass), then loops. close() returns the definitions that go to its top.
  void open();
  void open_loop(const Expr& var, const std::string& c_name, bool wide);
  std::vector<std::string> close();
  // A role has registers of its own: nothing that it computes is computed before it, for other roles, too.
  void open_role() {
    open();
    role_ = current();
  }
  std::vector<std::string> close_role() {
    role_ = 0;
    return close();
  }

  // A coordinate that the counting pass met gets its definition now.
  void define_if_used(const Expr& coordinate);

  // `hint` names what has to be named.
  [[nodiscard]] CText text(const Expr& e, std::string_view hint);
  // The same without naming anything: for kernels' coordinates and for what stands once.
  [[nodiscard]] CText plain(const Expr& e);

 private:
  static constexpr int kNever = 1 << 20;  // depth of what may change between two statements

  struct Scope {
    int ordinal = 0;
    std::vector<std::string> definitions;
    std::map<const sym::Node*, CText> named;
    std::vector<std::pair<Expr, std::string>> sums;  // named ones with the hint they were named for
    const sym::Node* loop_var = nullptr;
  };
  struct Term {
    Expr value;  // coefficient included
    int depth;
  };

  [[nodiscard]] int current() const { return static_cast<int>(scopes_.size()) - 1; }
  int depth(const Expr& e);
  int cost(const Expr& e);
  const CText* find(const Expr& e);
  CText name(const Expr& e, int at, std::string_view hint, std::string_view suffix);
  bool worth_naming(const Expr& e, int at, int saved);
  CText compose(const Expr& e, std::string_view hint);
  CText text_of(const Expr& e, std::string_view hint);
  CText sum(const Expr& e, std::string_view hint, bool being_named = false);
  CText sum_from_another(const Expr& e, std::string_view hint);
  CText join_sum(const std::vector<std::pair<CText, Expr>>& terms, std::int64_t constant);
  CText product(const Expr& e, std::int64_t coef, std::string_view hint);
  CText variable(const Expr& e);
  CText binary(const Expr& e, std::string_view op, Prec prec, std::string_view hint);
  CText call(std::string_view function, const Expr& e, std::string_view hint);

  Names& names_;
  bool counting_ = false;
  bool inline_only_ = false;
  bool raw_hardware_ = false;  // threadIdx.x itself, unsigned
  bool defining_coordinate_ = false;
  bool shared_in_warps_ = false;
  int next_ordinal_ = 0;
  int role_ = 0;  // the scope of the role that is open; 0: none
  std::vector<Scope> scopes_;
  std::map<const sym::Node*, CText> declared_;
  std::map<const sym::Node*, int> loop_depth_;
  std::map<const sym::Node*, int> cost_;
  std::set<const sym::Node*> coordinates_;  // met while counting
  sym::Substitution same_;
  std::map<const sym::Node*, Expr> coordinate_of_;
  std::map<std::pair<int, const sym::Node*>, int> uses_;
};

[[nodiscard]] bool fits_32(const Expr& e);

}  // namespace graphene::emit
