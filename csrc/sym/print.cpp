// IR text and C text of expressions. Terms print by degree, then by falling coefficient, the constant last; terms that
// share a factor print as (sum)*factor.
#include "sym/internal.h"

namespace graphene::sym {

namespace {

// Binding strength, Python's; in C ^ binds weaker than comparisons, so operators there are parenthesised by kXor.
enum Level : int { kAny = 0, kOr = 1, kAnd = 2, kCompare = 3, kXor = 4, kSum = 5, kProduct = 6, kUnary = 7, kAtom = 8 };

constexpr std::size_t kMostGrouped = 48;  // terms printed as one factor: few enough to be distributed when read back

struct Item {
  Expr inner;   // a monomial, or a sum to be multiplied by `factor`
  Expr factor;  // 1 for a monomial
  std::int64_t coef = 1;
};

class Printer {
 public:
  using Name = std::function<std::string(const VarInfo&)>;
  explicit Printer(const Name* c_name) : c_name_(c_name) {}

  std::string take() { return std::move(out_); }

  void print(const Expr& e, int level) {
    const bool wrap = level_of(e) < level;
    if (wrap) out_ += '(';
    print_bare(e);
    if (wrap) out_ += ')';
  }

 private:
  [[nodiscard]] bool c() const { return c_name_ != nullptr; }

  static bool plain_division(const Node& n) { return prove_nonneg(n.args[0]) && prove_nonneg(n.args[1]); }

  [[nodiscard]] int level_of(const Expr& e) const {
    if (e.is_const()) return e.value() >= 0 ? kAtom : e.value() == kMinInt && c() ? kAtom : kUnary;
    const Node& n = *e.node();
    switch (n.op) {
      case Op::Add:
        return n.args.size() == 1 && n.constant == 0 && n.coef[0] > 0 ? kProduct : kSum;
      case Op::Mul:
        return kProduct;
      case Op::FloorDiv:
      case Op::Mod:
        return c() && !plain_division(n) ? kAtom : kProduct;
      case Op::Xor:
        return c() ? kCompare : kXor;
      case Op::Lt:
      case Op::Le:
      case Op::Eq:
      case Op::Ne:
        return kCompare;
      case Op::And:
        return kAnd;
      case Op::Or:
        return kOr;
      case Op::Not:
        return kCompare;
      default:
        return kAtom;
    }
  }

  void integer(std::int64_t v) {
    if (v == kMinInt && c())
      out_ += "(-9223372036854775807 - 1)";
    else
      out_ += std::to_string(v);
  }

  void print_bare(const Expr& e) {
    if (e.is_const()) return integer(e.value());
    const Node& n = *e.node();
    switch (n.op) {
      case Op::Const:
        break;
      case Op::Var:
        if (c())
          out_ += (*c_name_)(*n.var);
        else
          out_ += (n.var->kind == VarKind::Coord ? "@" : "") + n.var->name;
        break;
      case Op::Add:
        sum(e);
        break;
      case Op::Mul:
        product(n.args, 1);
        break;
      case Op::FloorDiv:
      case Op::Mod:
        division(n);
        break;
      case Op::Min:
      case Op::Max:
        call(n);
        break;
      case Op::Xor:
        infix(n, " ^ ", kSum);
        break;
      case Op::Lt:
        infix(n, " < ", kXor);
        break;
      case Op::Le:
        infix(n, " <= ", kXor);
        break;
      case Op::Eq:
        infix(n, " == ", kXor);
        break;
      case Op::Ne:
        infix(n, " != ", kXor);
        break;
      case Op::And:
        infix(n, c() ? " && " : " and ", kCompare);
        break;
      case Op::Or:
        infix(n, c() ? " || " : " or ", kCompare);
        break;
      case Op::Not:
        out_ += c() ? "!" : "not ";
        print(n.args[0], kAtom);
        break;
    }
  }

  // The arguments, for a commutative operator with the constant (first in the node) last.
  static SmallVec<Expr, 8> reading_order(const Node& n) {
    SmallVec<Expr, 8> args;
    args.append(n.args);
    const bool commutes = n.op == Op::Xor || n.op == Op::Min || n.op == Op::Max;
    if (commutes && args[0].is_const()) std::rotate(args.begin(), args.begin() + 1, args.end());
    return args;
  }

  void infix(const Node& n, const char* between, int level) {
    const auto args = reading_order(n);
    for (std::size_t i = 0; i < args.size(); ++i) {
      if (i > 0) out_ += between;
      print(args[i], level);
    }
  }

  void call(const Node& n) {
    const std::string name = std::string(c() ? "gr_" : "") + (n.op == Op::Min ? "min(" : "max(");
    const auto args = reading_order(n);
    for (std::size_t i = 0; i < args.size(); ++i) {
      const bool last = i + 1 == args.size();
      if (i == 0 || (c() && !last)) out_ += name;
      print(args[i], kAny);
      if (!last) out_ += ", ";
    }
    out_ += c() ? std::string(args.size() - 1, ')') : ")";
  }

  void division(const Node& n) {
    const bool quotient = n.op == Op::FloorDiv;
    const Expr& b = n.args[1];
    if (!c() || plain_division(n)) {
      print(n.args[0], kUnary);
      out_ += c() ? (quotient ? " / " : " % ") : (quotient ? "//" : "%");
      print(b, kUnary);
    } else if (b.is_const() && is_power_of_two(b.value())) {
      out_ += '(';
      print(n.args[0], kProduct);
      out_ += quotient ? " >> " : " & ";
      integer(quotient ? std::countr_zero(static_cast<std::uint64_t>(b.value())) : b.value() - 1);
      out_ += ')';
    } else {
      out_ += quotient ? "gr_floor_div(" : "gr_mod(";
      print(n.args[0], kAny);
      out_ += ", ";
      print(b, kAny);
      out_ += ')';
    }
  }

  // Factors, then the coefficient. A quotient or remainder needs no parentheses in front, unless a minus precedes it.
  void product(std::span<const Expr> fs, std::int64_t coef, bool after_minus = false) {
    const char* times = c() ? " * " : "*";
    for (std::size_t i = 0; i < fs.size(); ++i) {
      if (i > 0) out_ += times;
      print(fs[i], i == 0 && !after_minus ? kProduct : kUnary);
    }
    if (coef == 1) return;
    out_ += times;
    integer(coef);
  }

  // The factor that the most terms share; 1 if no two do.
  static Expr shared_factor(const Expr& e) {
    const TermView v(e);
    Expr best = 1;
    std::size_t most = 1;
    bool any_product = false;
    for (std::size_t i = 0; i < v.size(); ++i) any_product = any_product || v[i].m.op() == Op::Mul;
    if (!any_product) return 1;
    for (std::size_t i = 0; i < v.size(); ++i) {
      for (const Expr& f : factors(v[i].m)) {
        std::size_t count = 0;
        for (std::size_t j = 0; j < v.size(); ++j) count += mono_div(v[j].m, f) ? 1 : 0;
        if (count <= most) continue;
        most = count;
        best = f;
      }
    }
    return most <= kMostGrouped ? best : Expr(1);
  }

  static void collect(const Expr& e, SmallVec<Item, 8>& items) {
    const TermView v(e);
    const Expr f = shared_factor(e);
    if (!f.is_const()) {
      Poly inner;
      Poly rest;
      for (std::size_t i = 0; i < v.size(); ++i) {
        if (const auto q = mono_div(v[i].m, f))
          inner.add(*q, v[i].c);
        else
          rest.add_term(v[i].m, v[i].c);
      }
      const auto grouped = attempt([&] { return inner.finish(); });
      const auto others = attempt([&] { return rest.finish(); });
      const auto again = attempt([&] { return *grouped * f + *others + v.constant(); });
      if (grouped && others && again && identical(*again, e)) {
        items.push_back({*grouped, f, 1});
        if (!others->is_const()) collect(*others, items);
        return;
      }
    }
    for (std::size_t i = 0; i < v.size(); ++i) items.push_back({v[i].m, 1, v[i].c});
  }

  void sum(const Expr& e) {
    SmallVec<Item, 8> items;
    collect(e, items);
    const auto degree = [](const Item& i) { return i.factor.is_const() ? factors(i.inner).size() : 2; };
    std::sort(items.begin(), items.end(), [&](const Item& a, const Item& b) {
      if (degree(a) != degree(b)) return degree(a) > degree(b);
      if (magnitude(a.coef) != magnitude(b.coef)) return magnitude(a.coef) > magnitude(b.coef);
      return order(a.inner, b.inner) < 0;
    });
    // A sum starts with something positive if it can.
    std::int64_t constant = TermView(e).constant();
    bool started = false;
    const auto sign = [&](bool minus) {
      if (started)
        out_ += minus ? " - " : " + ";
      else if (minus)
        out_ += '-';
      started = true;
    };
    const auto positive = [](const Item& i) { return i.coef > 0 || i.coef == kMinInt; };
    Item* first = std::find_if(items.begin(), items.end(), positive);
    if (first != items.end()) {
      std::rotate(items.begin(), first, first + 1);
    } else if (constant > 0) {
      sign(false);
      integer(constant);
      constant = 0;
    }
    for (const Item& i : items) {
      const bool minus = !positive(i);
      const bool leading = minus && !started;
      sign(minus);
      const std::int64_t coef = minus ? -i.coef : i.coef;
      if (i.factor.is_const())
        product(factors(i.inner), coef, leading);
      else
        product(std::array{i.inner, i.factor}, coef, leading);
    }
    if (constant == 0) return;
    const bool minus = constant < 0 && constant != kMinInt;
    sign(minus);
    integer(minus ? -constant : constant);
  }

  const Name* c_name_;
  std::string out_;
};

}  // namespace

std::string Expr::str() const {
  Printer p(nullptr);
  p.print(*this, 0);
  return p.take();
}

std::string to_c(const Expr& e, const std::function<std::string(const VarInfo&)>& name) {
  Printer p(&name);
  p.print(e, 0);
  return p.take();
}

}  // namespace graphene::sym
