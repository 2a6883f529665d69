#include "emit/expressions.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/diag.h"

namespace graphene::emit {

using sym::Op;
using sym::VarKind;

namespace {

constexpr std::int64_t kMin32 = std::numeric_limits<std::int32_t>::min();
constexpr std::int64_t kMax32 = std::numeric_limits<std::int32_t>::max();
constexpr int kWorthNaming = 2;  // operators

bool has_thread_index(const Expr& e) {
  return std::ranges::any_of(sym::free_vars(e), [](const Expr& v) {
    return v.var().kind == VarKind::ThreadIdx || (v.var().kind == VarKind::Coord && has_thread_index(*v.var().def));
  });
}

// Whether the lanes of a warp agree on it: they see the thread's index through quotients by multiples of 32 alone.
bool alike_in_warp(const Expr& e) {
  if (e.is_const() || !has_thread_index(e)) return true;
  if (e.is_var()) return e.var().kind == VarKind::Coord && alike_in_warp(*e.var().def);
  const sym::Node& n = *e.node();
  if (n.op == Op::FloorDiv && n.args[1].is_const() && n.args[1].value() % 32 == 0 && n.args[0].is_var() &&
      n.args[0].var().kind == VarKind::ThreadIdx) {
    return true;
  }
  return std::ranges::all_of(n.args, alike_in_warp);
}

struct Range {
  std::int64_t lo, hi;
  [[nodiscard]] bool narrow() const { return lo >= kMin32 && hi <= kMax32; }
};

Range range_of(const Expr& e) { return {sym::lower_bound(e), sym::upper_bound(e)}; }

std::int64_t saturating_add(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  if (!__builtin_add_overflow(a, b, &out)) return out;
  return a < 0 ? sym::kMinInt : sym::kMaxInt;
}

// Every value on the way is non-negative, so unsigned hardware registers may stand in it as they are.
bool never_negative(const Expr& e) {
  if (e.is_const()) return e.value() >= 0;
  const sym::Node& n = *e.node();
  if (n.lo < 0 || n.constant < 0) return false;
  if (std::ranges::any_of(n.coef, [](std::int64_t c) { return c < 0; })) return false;
  return std::ranges::all_of(n.args, never_negative);
}

CText literal(std::int64_t v) {
  CText out{.text = std::to_string(v), .prec = v < 0 ? Prec::Unary : Prec::Primary};
  if (v < kMin32 || v > kMax32) {
    out.text += "LL";
    out.wide = true;
    if (v == sym::kMinInt) out = {.text = "(-9223372036854775807LL - 1)", .prec = Prec::Primary, .wide = true};
  }
  return out;
}

CText widened(const CText& t) {
  if (t.wide) return t;
  return {.text = "(i64)" + t.in(Prec::Unary), .prec = Prec::Unary, .wide = true};
}

}  // namespace

bool fits_32(const Expr& e) { return range_of(e).narrow(); }

std::string CText::in(Prec outer) const { return prec < outer ? "(" + text + ")" : text; }

void Expressions::start_pass(bool counting) {
  counting_ = counting;
  next_ordinal_ = 0;
  role_ = 0;
  scopes_.clear();
  declared_.clear();
  loop_depth_.clear();
  open();
}

void Expressions::declare(const Expr& var, const std::string& c_name, bool wide) {
  declared_[var.node()] = {.text = c_name, .wide = wide};
}

void Expressions::open() {
  scopes_.emplace_back();
  scopes_.back().ordinal = next_ordinal_++;
}

void Expressions::open_loop(const Expr& var, const std::string& c_name, bool wide) {
  open();
  scopes_.back().loop_var = var.node();
  loop_depth_[var.node()] = current();
  declare(var, c_name, wide);
}

std::vector<std::string> Expressions::close() {
  Scope done = std::move(scopes_.back());
  scopes_.pop_back();
  if (done.loop_var != nullptr) {
    loop_depth_.erase(done.loop_var);
    declared_.erase(done.loop_var);
  }
  return std::move(done.definitions);
}

int Expressions::depth(const Expr& e) {
  int out = role_;
  for (const Expr& v : sym::free_vars(e)) {
    switch (v.var().kind) {
      case VarKind::Coord:
        GR_ASSERT(v.var().def.has_value(), "coordinate " + v.var().name + " has no definition");
        out = std::max(out, depth(*v.var().def));
        break;
      case VarKind::Loop: {
        const auto it = loop_depth_.find(v.node());
        GR_ASSERT(it != loop_depth_.end(), "loop counter " + v.var().name + " used outside its loop");
        out = std::max(out, it->second);
        break;
      }
      case VarKind::Scalar:
      case VarKind::Data:
        return kNever;
      default:
        break;
    }
  }
  return out;
}

int Expressions::cost(const Expr& e) {
  if (e.is_const() || e.op() == Op::Var) return 0;
  const auto it = cost_.find(e.node());
  if (it != cost_.end()) return it->second;
  const sym::Node& n = *e.node();
  int out = std::max<int>(1, static_cast<int>(n.args.size()) - 1);
  if (n.op == Op::Add) {
    out = static_cast<int>(n.args.size()) - 1 + (n.constant != 0 ? 1 : 0);
    for (const std::int64_t c : n.coef) out += c != 1 && c != -1 ? 1 : 0;
  }
  for (const Expr& a : n.args) out += cost(a);
  return cost_[e.node()] = out;
}

const CText* Expressions::find(const Expr& e) {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const auto it = scope->named.find(e.node());
    if (it != scope->named.end()) return &it->second;
  }
  return nullptr;
}

// Defines `e` at the top of scope `at`, composed of what may stand there.
CText Expressions::name(const Expr& e, int at, std::string_view hint, std::string_view suffix) {
  if (const CText* known = find(e)) return *known;
  std::vector<Scope> inner;
  while (current() > at) {
    inner.push_back(std::move(scopes_.back()));
    scopes_.pop_back();
  }
  CText value = e.op() == Op::Add ? sum_from_another(e, hint) : compose(e, hint);
  if (e.op() == Op::Add) scopes_.back().sums.emplace_back(e, hint);
  const bool condition = e.op() >= Op::Lt;
  const char* type = condition ? "bool" : value.wide ? "i64" : "int";
  const CText named{.text = names_.fresh(std::string(hint) + std::string(suffix)), .wide = value.wide};
  scopes_.back().definitions.push_back("const " + std::string(type) + " " + named.text + " = " + value.text + ";");
  scopes_.back().named[e.node()] = named;
  for (; !inner.empty(); inner.pop_back()) scopes_.push_back(std::move(inner.back()));
  return named;
}

// `saved`: operators that a name spares.
bool Expressions::worth_naming(const Expr& e, int at, int saved) {
  if (inline_only_ || e.is_const() || at > current() || saved < kWorthNaming) return false;
  if (at < current()) return true;
  int& uses = uses_[{scopes_.back().ordinal, e.node()}];
  if (counting_) return ++uses > 1;
  return uses > 1;
}

CText Expressions::plain(const Expr& e) {
  inline_only_ = true;
  CText out = compose(same_.empty() ? e : sym::substitute(e, same_), "");
  inline_only_ = false;
  return out;
}

CText Expressions::text(const Expr& e, std::string_view hint) {
  return text_of(same_.empty() ? e : sym::substitute(e, same_), hint);
}

CText Expressions::text_of(const Expr& e, std::string_view hint) {
  if (e.is_const()) return literal(e.value());
  if (!raw_hardware_) {
    const auto it = coordinate_of_.find(e.node());
    if (it != coordinate_of_.end() && !defining_coordinate_) return variable(it->second);
  }
  if (e.is_var()) return variable(e);
  if (const CText* known = find(e)) return *known;
  if (e.op() == Op::Add) return sum(e, hint);
  const int at = depth(e);
  if (worth_naming(e, at, cost(e))) return name(e, at, hint, e.op() >= Op::Lt ? "_in" : "_x");
  return compose(e, hint);
}

void Expressions::define_if_used(const Expr& coordinate) {
  if (coordinate.is_var() && coordinates_.contains(coordinate.node()) && depth(coordinate) == 0) variable(coordinate);
}

CText Expressions::variable(const Expr& e) {
  const sym::VarInfo& v = e.var();
  if (counting_ && v.kind == VarKind::Coord) coordinates_.insert(e.node());
  const auto it = declared_.find(e.node());
  if (it != declared_.end()) return it->second;
  if (const CText* known = find(e)) return *known;
  if (v.kind == VarKind::ThreadIdx || v.kind == VarKind::BlockIdx) {
    const std::string hardware = v.kind == VarKind::ThreadIdx ? "threadIdx.x" : "blockIdx" + v.name.substr(3);
    if (raw_hardware_) return {.text = hardware};
    const CText named{.text = names_.fresh(v.kind == VarKind::ThreadIdx ? "tid" : "bid_" + v.name.substr(4))};
    scopes_.front().definitions.push_back("const int " + named.text + " = " + hardware + ";");
    scopes_.front().named[e.node()] = named;
    return named;
  }
  GR_ASSERT(v.kind == VarKind::Coord && v.def.has_value(), "variable " + v.name + " has no C name");
  // A coordinate is defined where the loops it depends on are open.
  const int at = depth(e);
  std::vector<Scope> inner;
  while (current() > at) {
    inner.push_back(std::move(scopes_.back()));
    scopes_.pop_back();
  }
  const bool outer_inline = inline_only_;
  const bool outer_raw = raw_hardware_;
  const bool outer_defining = defining_coordinate_;
  defining_coordinate_ = true;
  inline_only_ = true;
  raw_hardware_ = never_negative(*v.def);
  CText value = compose(*v.def, v.name);
  inline_only_ = outer_inline;
  raw_hardware_ = outer_raw;
  defining_coordinate_ = outer_defining;
  if (shared_in_warps_ && at == role_ && has_thread_index(*v.def) && alike_in_warp(*v.def)) {
    value.text = "__shfl_sync(0xffffffff, " + value.text + ", 0)";
  }
  const CText named{.text = names_.fresh(v.name), .wide = value.wide};
  scopes_.back().definitions.push_back((value.wide ? "const i64 " : "const int ") + named.text + " = " + value.text +
                                       ";");
  scopes_.back().named[e.node()] = named;
  for (; !inner.empty(); inner.pop_back()) scopes_.push_back(std::move(inner.back()));
  return named;
}

// Terms in the order of the loops they depend on. What is the same in all iterations of a loop is named outside of it,
// together with what was named further out.
CText Expressions::sum(const Expr& e, std::string_view hint, bool being_named) {
  const sym::Node& n = *e.node();
  std::vector<Term> terms;
  for (std::size_t i = 0; i < n.args.size(); ++i) {
    const Expr value = n.args[i] * Expr(n.coef[i]);
    terms.push_back({value, depth(value)});
  }
  std::ranges::stable_sort(terms, {}, &Term::depth);
  // The longest run of groups, outermost first, that has or deserves a name; it takes in what was named further out.
  std::size_t named_end = 0;
  Expr named = 0;
  Expr prefix = 0;
  for (std::size_t i = 0; i < terms.size();) {
    std::size_t end = i;
    Expr group = 0;
    for (; end < terms.size() && terms[end].depth == terms[i].depth; ++end) group = group + terms[end].value;
    prefix = prefix + group;
    const bool whole = being_named && end == terms.size();
    if (find(prefix) != nullptr || (!whole && worth_naming(prefix, terms[i].depth, cost(group)))) {
      named_end = end;
      named = prefix;
    }
    i = end;
  }
  std::vector<std::pair<CText, Expr>> parts;
  if (named_end > 0) {
    const CText* known = find(named);
    parts.emplace_back(known != nullptr ? *known : name(named, terms[named_end - 1].depth, hint, "_at"), named);
  }
  for (std::size_t i = named_end; i < terms.size(); ++i) {
    parts.emplace_back(product(terms[i].value, 1, hint), terms[i].value);
  }
  std::stable_partition(parts.begin(), parts.end(), [](const auto& p) { return !p.first.text.starts_with('-'); });
  return join_sum(parts, n.constant);
}

// A sum that differs little from one that has a name already.
CText Expressions::sum_from_another(const Expr& e, std::string_view hint) {
  const std::pair<Expr, std::string>* best = nullptr;
  int best_cost = cost(e) / 2;
  for (const Scope& scope : scopes_) {
    for (const auto& other : scope.sums) {
      if (other.second != hint) continue;
      const int left = cost(e - other.first) + 1;
      if (left > best_cost) continue;
      best = &other;
      best_cost = left;
    }
  }
  if (best == nullptr) return sum(e, hint, true);
  const Expr rest = e - best->first;
  const CText* known = find(best->first);
  std::vector<std::pair<CText, Expr>> parts{{*known, best->first}};
  if (rest.is_const()) return join_sum(parts, rest.value());
  if (rest.op() != Op::Add) {
    parts.emplace_back(product(rest, 1, hint), rest);
    return join_sum(parts, 0);
  }
  for (std::size_t i = 0; i < rest.node()->args.size(); ++i) {
    const Expr value = rest.node()->args[i] * Expr(rest.node()->coef[i]);
    parts.emplace_back(product(value, 1, hint), value);
  }
  return join_sum(parts, rest.node()->constant);
}

CText Expressions::join_sum(const std::vector<std::pair<CText, Expr>>& terms, std::int64_t constant) {
  // Partial sums are checked in the order they are printed: the total may fit where a part does not.
  std::vector<CText> texts;
  Range range{0, 0};
  bool any_wide = false;
  bool overflow = false;
  for (const auto& [text, value] : terms) {
    texts.push_back(text);
    const Range r = range_of(value);
    range = {saturating_add(range.lo, r.lo), saturating_add(range.hi, r.hi)};
    any_wide = any_wide || text.wide;
    overflow = overflow || (!any_wide && !range.narrow());
  }
  range = {saturating_add(range.lo, constant), saturating_add(range.hi, constant)};
  const CText last = literal(constant);
  any_wide = any_wide || last.wide;
  overflow = overflow || (!any_wide && !range.narrow());
  if (overflow) texts.front() = widened(texts.front());

  CText out{.text = texts.front().in(Prec::Add), .prec = Prec::Add, .wide = any_wide || overflow};
  for (std::size_t i = 1; i < texts.size(); ++i) {
    const CText& t = texts[i];
    if (t.text.starts_with('-') && t.prec >= Prec::Mul) {
      out.text += " - " + t.text.substr(1);
    } else {
      out.text += " + " + t.in(Prec::Mul);
    }
  }
  if (constant != 0) {
    if (last.text.starts_with('-')) {
      out.text += " - " + last.text.substr(1);
    } else {
      out.text += " + " + last.text;
    }
  } else if (texts.size() == 1) {
    out.prec = texts.front().prec;
    out.text = texts.front().text;
  }
  return out;
}

// coef * e, where e is a Mul or an atom.
CText Expressions::product(const Expr& e, std::int64_t coef, std::string_view hint) {
  std::vector<Expr> factors;
  if (e.op() == Op::Add && e.node()->args.size() == 1 && e.node()->constant == 0) {
    return product(e.node()->args[0], e.node()->coef[0], hint);
  }
  if (e.op() == Op::Mul) {
    factors.assign(e.node()->args.begin(), e.node()->args.end());
  } else {
    factors = {e};
  }
  std::vector<CText> texts;
  bool wide = false;
  for (const Expr& f : factors) {
    texts.push_back(text_of(f, hint));
    wide = wide || texts.back().wide;
  }
  const CText scale = literal(coef < 0 && coef != sym::kMinInt ? -coef : coef);
  const bool negative = coef < 0 && coef != sym::kMinInt;
  wide = wide || (scale.wide && coef != 1 && coef != -1);
  // Factors multiply from the left: what precedes the first 64-bit one must fit 32 bits by itself.
  Expr partial = 1;
  bool overflows = false;
  bool narrow = true;
  for (std::size_t i = 0; i < factors.size() && narrow; ++i) {
    narrow = !texts[i].wide;
    partial = partial * factors[i];
    overflows = overflows || (narrow && !fits_32(partial));
  }
  if (overflows || (!wide && !fits_32(e * Expr(coef)))) {
    texts.front() = widened(texts.front());
    wide = true;
  }
  CText out = texts.front();
  if (texts.size() > 1 || scale.text != "1") out = {.text = out.in(Prec::Mul), .prec = Prec::Mul};
  for (std::size_t i = 1; i < texts.size(); ++i) out.text += " * " + texts[i].in(Prec::Unary);
  if (scale.text != "1") out.text += " * " + scale.in(Prec::Unary);
  if (negative) out = {.text = "-" + out.in(Prec::Mul), .prec = std::min(out.prec, Prec::Unary)};
  out.wide = wide;
  return out;
}

CText Expressions::binary(const Expr& e, std::string_view op, Prec prec, std::string_view hint) {
  CText out{.prec = prec};
  const bool condition = e.op() >= Op::Lt;
  for (std::size_t i = 0; i < e.node()->args.size(); ++i) {
    const CText t = text_of(e.node()->args[i], hint);
    // Comparisons and divisions do not chain; && || ^ do.
    const bool chains = op == "&&" || op == "||" || op == "^";
    const Prec need = i == 0 || chains ? prec : static_cast<Prec>(static_cast<int>(prec) + 1);
    // Bitwise operators read better with parentheses around sums.
    const bool clarify =
        (op == "^" && t.prec != Prec::Primary && t.prec != Prec::BitXor) || (op == "||" && t.prec == Prec::And);
    out.text += (i == 0 ? "" : " " + std::string(op) + " ") + (clarify ? "(" + t.text + ")" : t.in(need));
    out.wide = !condition && (out.wide || t.wide);
  }
  return out;
}

CText Expressions::call(std::string_view function, const Expr& e, std::string_view hint) {
  CText out{.text = std::string(function) + "("};
  for (std::size_t i = 0; i < e.node()->args.size(); ++i) {
    const CText t = text_of(e.node()->args[i], hint);
    out.wide = out.wide || t.wide;
    // n-ary: f(a, f(b, c))
    if (i + 2 < e.node()->args.size()) {
      out.text += t.text + ", " + std::string(function) + "(";
    } else {
      out.text += t.text + (i + 1 < e.node()->args.size() ? ", " : "");
    }
  }
  out.text += std::string(std::max<std::size_t>(e.node()->args.size(), 2) - 1, ')');
  return out;
}

CText Expressions::compose(const Expr& e, std::string_view hint) {
  if (e.is_const()) return literal(e.value());
  const sym::Node& n = *e.node();
  // Division by zero is for nobody to round.
  const auto natural = [&] { return sym::lower_bound(n.args[0]) >= 0 && sym::lower_bound(n.args[1]) >= 0; };
  // A ring's next stage, (x + 1) % 6 where x < 6: the quotient is 0 or 1, which a comparison gives without a division.
  const auto at_most_once = [&] {
    const Expr& divisor = n.args[1];
    return natural() && divisor.is_const() && !std::has_single_bit(static_cast<std::uint64_t>(divisor.value())) &&
           sym::upper_bound(n.args[0]) < 2 * divisor.value() && cost(n.args[0]) <= 1;
  };
  switch (n.op) {
    case Op::Var:
      return variable(e);
    case Op::Mul:
      return product(e, 1, hint);
    case Op::Add: {
      if (n.args.size() == 1 && n.constant == 0) return product(n.args[0], n.coef[0], hint);
      std::vector<std::pair<CText, Expr>> parts;
      for (std::size_t i = 0; i < n.args.size(); ++i) {
        parts.emplace_back(product(n.args[i], n.coef[i], hint), n.args[i] * Expr(n.coef[i]));
      }
      // A sum reads better when it does not begin with a minus.
      std::stable_partition(parts.begin(), parts.end(), [](const auto& p) { return !p.first.text.starts_with('-'); });
      return join_sum(parts, n.constant);
    }
    case Op::FloorDiv:
      if (at_most_once()) return binary(e, ">=", Prec::Less, hint);
      return natural() ? binary(e, "/", Prec::Mul, hint) : call("gr_floor_div", e, hint);
    case Op::Mod:
      if (at_most_once()) {
        const CText x = text_of(n.args[0], hint);
        const CText less = text_of(n.args[0] - n.args[1], hint);
        return {.text = x.in(Prec::Less) + " < " + std::to_string(n.args[1].value()) + " ? " + x.in(Prec::Ternary) +
                        " : " + less.in(Prec::Ternary),
                .prec = Prec::Ternary,
                .wide = x.wide || less.wide};
      }
      return natural() ? binary(e, "%", Prec::Mul, hint) : call("gr_mod", e, hint);
    case Op::Min:
      return call("gr_min", e, hint);
    case Op::Max:
      return call("gr_max", e, hint);
    case Op::Xor:
      return binary(e, "^", Prec::BitXor, hint);
    case Op::Lt:
      return binary(e, "<", Prec::Less, hint);
    case Op::Le:
      return binary(e, "<=", Prec::Less, hint);
    case Op::Eq:
      return binary(e, "==", Prec::Equal, hint);
    case Op::Ne:
      return binary(e, "!=", Prec::Equal, hint);
    case Op::And:
      return binary(e, "&&", Prec::And, hint);
    case Op::Or:
      return binary(e, "||", Prec::Or, hint);
    case Op::Not:
      return {.text = "!" + text_of(n.args[0], hint).in(Prec::Unary), .prec = Prec::Unary};
    case Op::Const:
      break;
  }
  internal_error(__FILE__, __LINE__, "expression " + e.str());
}

}  // namespace graphene::emit
