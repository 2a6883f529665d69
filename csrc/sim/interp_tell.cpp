// What threads say of themselves: gr.print, gr.assert_, and loops that a condition should have ended.
#include <bit>
#include <cmath>

#include "ir/print.h"
#include "sim/interp.h"

namespace graphene::sim {

namespace {

std::string told_text(ir::ScalarType t, std::uint64_t bits) {
  if (t == ir::ScalarType::pred) return bits != 0 ? "true" : "false";
  if (is_float(t)) return ir::number_text(decode(t, bits));
  if (!is_signed(t)) return std::to_string(static_cast<std::uint64_t>(decode_int(t, bits)));
  return std::to_string(decode_int(t, bits));
}

}  // namespace

std::string Interpreter::shown(const Warp& w, const TellCode& code, int lane) {
  WarpData& d = data(w);
  std::string line = code.tell->text;
  for (const Operand& o : code.values) {
    line += line.empty() ? "" : " ";
    if (o.kind == Operand::Kind::Constant) {
      line += told_text(o.dtype, o.constant);
    } else if (o.kind == Operand::Kind::Integer) {
      line += std::to_string(plans().at_lane(o.integer, w.ints, lane));
    } else {
      const int r = o.registers.front();
      const bool undefined = (d.undefined[static_cast<std::size_t>(r)] >> lane & 1) != 0;
      line += undefined ? "(never written)" : told_text(o.dtype, load_bits(reg(d, r) + lane * o.bytes, o.bytes));
    }
  }
  return line;
}

void Interpreter::tell(Warp& w, const TellCode& code, const ir::Stmt* origin) {
  Mask lanes = w.active;
  if (code.condition) lanes &= ~plans().nonzero(*code.condition, w.ints, lanes);
  for (Mask m = lanes; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    if (!code.condition) {
      if (print) print(location_text(origin) + ": " + thread_text(w, lane) + ": " + shown(w, code, lane));
      continue;
    }
    Diagnostic p;
    p.code = Code::SIM_ASSERT;
    p.where = origin != nullptr ? origin->loc : SourceLoc{};
    p.message = "a condition that the kernel asserts does not hold";
    p.ir.push_back(statement_text(origin));
    p.details = {"condition: " + code.tell->condition->str(), "in: " + thread_text(w, lane)};
    if (const std::string values = shown(w, code, lane); !values.empty()) p.details.push_back("says: " + values);
    throw Error(std::move(p));
  }
}

void Interpreter::past_bound(const Warp& w, Mask lanes, const ir::Stmt* origin) const {
  const int lane = std::countr_zero(lanes);
  fail(Code::SIM_ENDLESS_LOOP, "a loop whose condition still holds at its bound",
       {"loop: " + statement_text(origin), "in: " + thread_text(w, lane)},
       "give gr.while_ a larger bound, or look why its condition lasts", origin != nullptr ? origin->loc : SourceLoc{});
}

}  // namespace graphene::sim
