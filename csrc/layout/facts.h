// What the layout algebra asks of its integers: constants are decided at once, symbols by their facts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/diag.h"
#include "layout/layout.h"

namespace graphene::layout {

// What one operation on some layouts may ask. The sizes of the layouts count as non-zero: an empty layout has no
// coordinates to be wrong about.
class Facts {
 public:
  struct Operand {
    const char* label;
    const Layout* layout;
  };
  Facts(const char* operation, std::initializer_list<Operand> operands) : operation_(operation), operands_(operands) {}

  // nullopt: the facts do not decide.
  [[nodiscard]] std::optional<bool> le(const Expr& a, const Expr& b) const {
    if (a.is_const() && b.is_const()) return a.value() <= b.value();
    return decide(sym::le(a, b));
  }
  [[nodiscard]] std::optional<bool> divides(const Expr& divisor, const Expr& e) const;

  // Refuted: fails with `refuted` and message(). Undecided: LAYOUT_FACT, which names the missing fact.
  template <class Message>
  void need_le(const Expr& a, const Expr& b, Code refuted, Message message) const {
    const std::optional<bool> known = le(a, b);
    if (known.value_or(false)) return;
    if (known) fail(refuted, message(), details());
    missing(a.str() + " <= " + b.str(), le_fix(a, b));
  }
  template <class Message>
  void need_divides(const Expr& divisor, const Expr& e, Code refuted, Message message) const {
    const std::optional<bool> known = divides(divisor, e);
    if (known.value_or(false)) return;
    if (known) fail(refuted, message(), details());
    missing(e.str() + " % " + divisor.str() + " == 0", divides_fix(divisor, e));
  }
  [[noreturn]] void missing(const std::string& condition, const std::string& fix) const;
  [[nodiscard]] std::vector<std::string> details() const;
  [[nodiscard]] const char* operation() const { return operation_; }

  // How the caller can supply a fact.
  [[nodiscard]] static std::string le_fix(const Expr& a, const Expr& b);
  [[nodiscard]] static std::string divides_fix(const Expr& divisor, const Expr& e);

 private:
  [[nodiscard]] std::optional<bool> decide(const Expr& condition) const;

  const char* operation_;
  std::vector<Operand> operands_;
};

// Leaves in order: as a function a layout is exactly this.
struct Flat {
  std::vector<Expr> shape;
  std::vector<Expr> stride;

  [[nodiscard]] std::size_t rank() const { return shape.size(); }
  void push(const Expr& s, const Expr& d) {
    shape.push_back(s);
    stride.push_back(d);
  }
  [[nodiscard]] Layout layout() const;  // 1:0 without modes, a leaf with one, else a flat tuple
};

[[nodiscard]] Flat flatten(const Layout& l);
[[nodiscard]] Flat coalesced(const Flat& f);  // at least one mode; an empty layout is 0:0
// The same function for every index, also past the size, where it continues along the last mode.
[[nodiscard]] Flat coalesced_open_ended(const Flat& f);
[[nodiscard]] Flat filtered(const Flat& f);  // no stride-0 and size-1 modes; may have none

// The modes of a filtered layout by increasing stride, proven to nest: each stride is at least the extent (size x
// stride) of the mode before. LAYOUT_INJECTIVE where they do not, LAYOUT_FACT where that is open.
[[nodiscard]] std::vector<std::size_t> nested_order(const Flat& f, const Facts& facts);

}  // namespace graphene::layout
