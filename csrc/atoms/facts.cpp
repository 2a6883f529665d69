#include "atoms/facts.h"

#include <numeric>

namespace graphene::atoms {

namespace {

std::int64_t gcd_with(std::int64_t n, const Expr& e) {
  if (e.is_const()) return std::gcd(n, e.value() < 0 ? -e.value() : e.value());
  const std::int64_t d = sym::divisor(e);
  return d == 0 ? n : std::gcd(n, d);
}

// One term of a sum: coef * factors. Divisible by n if the sizes among its factors make it so at launch.
bool term_at_launch(std::int64_t n, std::int64_t coef, const Expr& e, std::vector<Expr>* conditions) {
  std::vector<Expr> factors = {e};
  if (!e.is_const() && e.op() == sym::Op::Mul) factors.assign(e.node()->args.begin(), e.node()->args.end());
  std::int64_t rest = std::gcd(n, coef < 0 ? -coef : coef);
  rest = n / (rest == 0 ? n : rest);
  const Expr* size = nullptr;
  for (const Expr& f : factors) {
    const bool at_launch = f.is_var() && (f.var().kind == sym::VarKind::Size || f.var().kind == sym::VarKind::Param);
    if (at_launch && size == nullptr) {
      size = &f;
    } else {
      rest /= gcd_with(rest, f);
    }
  }
  if (rest == 1 || (size != nullptr && gcd_with(rest, *size) == rest)) return true;
  if (size == nullptr) return false;
  conditions->push_back(sym::eq(sym::mod(*size, rest), 0));
  return true;
}

// Conditions over sizes under which e is a multiple of n; false: nothing at launch decides it.
bool at_launch(std::int64_t n, const Expr& e, std::vector<Expr>* conditions) {
  if (gcd_with(n, e) == n) return true;
  if (e.is_const()) return false;
  if (e.op() != sym::Op::Add) return term_at_launch(n, 1, e, conditions);
  const sym::Node& node = *e.node();
  if (node.constant % n != 0) return false;
  for (std::size_t i = 0; i < node.args.size(); ++i) {
    if (!term_at_launch(n, node.coef[i], node.args[i], conditions)) return false;
  }
  return true;
}

std::string elements(std::int64_t n) { return std::to_string(n) + (n == 1 ? " element" : " elements"); }

}  // namespace

FactProblem check_alignment(const ir::Tensor& t, const OperandInstance& operand, const std::string& atom,
                            std::vector<LaunchFact>* launch) {
  const std::int64_t bytes = operand.align_bytes;
  const std::int64_t need = 8 * bytes / ir::bits(t.dtype);  // elements
  if (need <= 1) return {};
  const std::string fact = "align(" + operand.def.name + ") % " + std::to_string(bytes) + " == 0";
  const ir::Buffer& b = *t.buffer;
  const std::string name = b.name.empty() ? "the tensor" : b.name;

  if (b.align_bytes % bytes != 0 || b.align_bytes == 0) {
    if (t.memory() == ir::Memory::GL) {
      launch->push_back({b.id, static_cast<int>(bytes), Expr(1), fact + " of " + atom});
    } else {
      return {"does not hold: " + name + " is aligned to " + std::to_string(b.align_bytes) + " bytes",
              "allocate it with align_bytes=" + std::to_string(bytes)};
    }
  }
  std::vector<Expr> conditions;
  const Expr offset = sym::expand_coords(t.offset);
  if (gcd_with(need, t.offset) != need && !at_launch(need, offset, &conditions)) {
    const std::int64_t d = gcd_with(need, offset);
    const std::string of = " by " + elements(need) + " (" + std::to_string(bytes) + (bytes == 1 ? " byte)" : " bytes)");
    const char* narrower = bytes == 1 ? "begin at an even element: two share a byte" : "use a narrower access";
    if (t.offset.is_const()) {
      return {"does not hold: offset " + t.offset.str() + " of " + name + " does not divide" + of, narrower};
    }
    return {"cannot be proven: offset " + t.offset.str() + " of " + name + " is a multiple of " + std::to_string(d) +
                ", want a multiple of " + std::to_string(need) + " (" + std::to_string(bytes) + " bytes)",
            "give the symbols their facts (multiple_of=), or use a narrower access"};
  }
  for (const Expr& c : conditions) launch->push_back({-1, 0, c, fact + " of " + atom});
  if (!b.swizzle.trivial() && (std::int64_t{1} << b.swizzle.base) % need != 0) {
    return {"does not hold: the swizzle " + b.swizzle.str() + " of " + name + " keeps " +
                elements(std::int64_t{1} << b.swizzle.base) + " together, the access takes " + std::to_string(need),
            "use a swizzle whose base keeps " + elements(need) + " together"};
  }
  return {};
}

}  // namespace graphene::atoms
