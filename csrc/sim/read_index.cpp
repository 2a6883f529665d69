// Integers read from data (gr.index): what the registers of the active lanes hold, within the facts of the variable.
#include <algorithm>
#include <bit>
#include <optional>

#include "sim/ghost.h"
#include "sim/interp.h"

namespace graphene::sim {

namespace {

// The number that keeps the facts and is nearest to `v`, from above if it can be.
std::int64_t kept(const sym::VarInfo& facts, std::int64_t v) {
  const std::int64_t step = facts.multiple_of;
  const std::int64_t up = sym::ceil_div(Expr(std::clamp(v, facts.min, facts.max)), Expr(step)).value() * step;
  return up > facts.max ? up - step : up;
}

bool keeps(const sym::VarInfo& facts, std::int64_t v) {
  return v >= facts.min && v <= facts.max && v % facts.multiple_of == 0;
}

std::string facts_text(const sym::VarInfo& f) {
  std::string s = std::to_string(f.min) + " to " + (f.max == sym::kMaxInt ? "any" : std::to_string(f.max));
  if (f.multiple_of != 1) s += ", a multiple of " + std::to_string(f.multiple_of);
  return s;
}

// What a scalar of 0 or more that is declared once says of the one integer of data in its value: N - index - 1 says
// that index is at most N - 1. gr.index states its bounds of sizes so.
struct Bound {
  Expr index;
  bool upper = true;
  Expr limit;
};

std::optional<Bound> bound_of_data(const sym::VarInfo& facts, const ir::Stmt* origin) {
  const auto* s = origin != nullptr ? origin->as<ir::ScalarStmt>() : nullptr;
  if (s == nullptr || !s->declare || facts.min != 0 || facts.max != sym::kMaxInt || facts.multiple_of != 1) return {};
  const auto is_data = [](const sym::VarInfo& v) { return v.kind == sym::VarKind::Data; };
  for (const Expr& v : sym::free_vars(s->value)) {
    if (!is_data(v.var())) continue;
    const auto without = [&](const Expr& e) {
      return !sym::depends_on(e, [&](const sym::VarInfo& o) { return &o == &v.var(); });
    };
    if (const Expr limit = s->value + v; without(limit)) return Bound{v, true, limit};
    if (const Expr limit = v - s->value; without(limit)) return Bound{v, false, limit};
  }
  return {};
}

}  // namespace

// Without data: the smallest number.
void Machine::read_index(Warp& w, const SetCode& set, Lanes& to, const ir::Stmt*) {
  for (Mask m = w.active; m != 0; m &= m - 1)
    to[static_cast<std::size_t>(std::countr_zero(m))] = kept(set.var.var(), set.var.var().min);
}

void Interpreter::read_index(Warp& w, const SetCode& set, Lanes& to, const ir::Stmt* origin) {
  WarpData& d = data(w);
  const auto r = static_cast<std::size_t>(set.from);
  const ir::ScalarType type = code_.register_types[r];
  const int bytes = bytes_of(type);
  const int shift = 64 - (ir::is_packed(type) ? 4 : 8 * bytes);
  const bool is_signed = ir::info(type).cls == ir::ScalarInfo::Class::Signed;
  for (Mask m = w.active; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const auto refuse = [&](Code code, const std::string& message, std::vector<std::string> details,
                            const std::string& fix) {
      Diagnostic p;
      p.code = code;
      p.where = origin != nullptr ? origin->loc : SourceLoc{};
      p.message = message;
      p.ir.push_back(statement_text(origin));
      p.details = std::move(details);
      p.details.push_back("in: " + thread_text(w, lane));
      p.fix = fix;
      throw Error(std::move(p));
    };
    if ((d.undefined[r] >> lane & 1) != 0)
      refuse(Code::SIM_UNDEFINED, "an index that was never written", {}, "initialise what it is read from");
    const std::uint64_t bits = load_bits(reg(d, set.from) + lane * bytes, bytes) << shift;
    const auto v = is_signed ? static_cast<std::int64_t>(bits) >> shift : static_cast<std::int64_t>(bits >> shift);
    if (!keeps(set.var.var(), v)) {
      refuse(Code::SIM_FACT, "an index read from data breaks its facts",
             {"want: " + facts_text(set.var.var()), "got: " + std::to_string(v)},
             "pass data that keeps them, or declare other facts");
    }
    to[static_cast<std::size_t>(lane)] = v;
  }
}

void Interpreter::check_facts(const Warp& w, const SetCode& set, const ir::Stmt* origin) const {
  const sym::VarInfo& facts = set.var.var();
  for (Mask m = w.active; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const std::int64_t v = set.uniform
                               ? w.ints.uniform(set.slot)
                               : w.ints.varying[static_cast<std::size_t>(set.slot)][static_cast<std::size_t>(lane)];
    if (keeps(facts, v)) {
      if (set.uniform) return;
      continue;
    }
    Diagnostic p;
    p.code = Code::SIM_FACT;
    p.where = origin != nullptr ? origin->loc : SourceLoc{};
    p.ir.push_back(statement_text(origin));
    if (const auto bound = bound_of_data(facts, origin)) {
      const std::int64_t read = plans().at_lane(code_.plans->compile(bound->index), w.ints, lane);
      const std::int64_t limit = bound->upper ? v + read : read - v;
      const std::string text = bound->limit.str();
      p.message = "an index read from data breaks its facts";
      p.details = {"want: " + bound->index.str() + (bound->upper ? " <= " : " >= ") + text +
                       (bound->limit.is_const() ? "" : ", which is " + std::to_string(limit)),
                   "got: " + std::to_string(read)};
      p.fix = "pass data that keeps them, or declare other facts";
    } else {
      p.message = "a value of the scalar " + facts.name + " breaks its facts";
      p.details = {"want: " + facts_text(facts), "got: " + std::to_string(v)};
      p.fix = "assign values that keep them, or declare other facts: gr.scalar(..., min=, max=, multiple_of=)";
    }
    p.details.push_back("in: " + thread_text(w, lane));
    throw Error(std::move(p));
  }
}

void Ghost::read_index(Warp& w, const SetCode& set, Lanes& to, const ir::Stmt*) {
  for (Mask m = w.active; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const std::int64_t cell = map_.reg(set.from, map_.thread(w, lane));
    // Data that break the facts have been refused before; what follows from floats is not a number here.
    to[static_cast<std::size_t>(lane)] =
        kept(set.var.var(), static_cast<std::int64_t>(cells_[static_cast<std::size_t>(cell)].value));
  }
}

}  // namespace graphene::sim
