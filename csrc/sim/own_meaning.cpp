#include "sim/own_meaning.h"

#include <bit>

#include "sim/ghost.h"
#include "sim/interp.h"

namespace graphene::sim {

namespace {

OwnMeaning& the_meaning() {
  static OwnMeaning meaning;
  return meaning;
}

std::vector<const Operand*> operands_read(const Leaf& f) {
  std::vector<const Operand*> out;
  for (const Operand& o : f.in) out.push_back(&o);
  for (const Operand& o : f.out) {
    if (o.access == atoms::Access::Update) out.push_back(&o);
  }
  return out;
}

std::vector<OwnOperand> results_of(const Leaf& f, std::size_t threads) {
  std::vector<OwnOperand> out;
  for (const Operand& o : f.out)
    out.push_back({o.dtype, o.values, std::vector<std::uint64_t>(threads * static_cast<std::size_t>(o.values))});
  return out;
}

const std::string& name_of(const Leaf& f) { return f.call->atom->atom.name; }

}  // namespace

void set_own_meaning(OwnMeaning meaning) { the_meaning() = std::move(meaning); }
const OwnMeaning& own_meaning() { return the_meaning(); }

void Interpreter::apply_own(const Warp& w, const Leaf& f, Mask lanes) {
  std::vector<OwnOperand> in;
  Mask undefined = 0;
  std::uint32_t cause = 0;
  for (const Operand* o : operands_read(f)) {
    fetch(w, f, *o, lanes, 0);
    OwnOperand& x = in.emplace_back(OwnOperand{o->dtype, o->values, {}});
    for (Mask m = lanes; m != 0; m &= m - 1) {
      for (int v = 0; v < o->values; ++v)
        x.bits.push_back(
            load_bits(values_[0][static_cast<std::size_t>(v)].bits + std::countr_zero(m) * o->bytes, o->bytes));
    }
    for (int v = 0; v < o->values; ++v) {
      const Value& value = values_[0][static_cast<std::size_t>(v)];
      if ((value.undefined & lanes) != 0) cause = value.cause;
      undefined |= value.undefined & lanes;
    }
  }
  const auto threads = static_cast<std::size_t>(std::popcount(lanes));
  std::vector<OwnOperand> out = results_of(f, threads);
  own_meaning()(name_of(f), threads, in, out);
  for (std::size_t i = 0; i < f.out.size(); ++i) {
    const Operand& o = f.out[i];
    Values& results = values_[kResult];
    for (int v = 0; v < o.values; ++v) {
      char* to = scratch_[kResult].data() + std::ptrdiff_t{v} * o.bytes * kLanes;
      results[static_cast<std::size_t>(v)] = {to, undefined, cause};
      std::size_t at = static_cast<std::size_t>(v);
      for (Mask m = lanes; m != 0; m &= m - 1, at += static_cast<std::size_t>(o.values))
        store_bits(to + std::countr_zero(m) * o.bytes, o.bytes, out[i].bits[at]);
    }
    put_registers(w, f, o, lanes, results);
  }
}

// Over the field a float has no bits: what a function makes of it is drawn from it.
void Ghost::apply_own(const Warp& w, const Leaf& f, Mask lanes) {
  std::vector<OwnOperand> in;
  bool exact = true;
  for (const Operand* o : operands_read(f)) {
    exact = exact && (numbers_.real || !is_float(o->dtype));
    fetch(w, f, *o, lanes, values_[0]);
    OwnOperand& x = in.emplace_back(OwnOperand{o->dtype, o->values, {}});
    for (Mask m = lanes; m != 0; m &= m - 1) {
      for (const Vector& v : values_[0])
        x.bits.push_back(numbers_.raw(o->dtype, v[static_cast<std::size_t>(std::countr_zero(m))]));
    }
  }
  const auto threads = static_cast<std::size_t>(std::popcount(lanes));
  std::vector<OwnOperand> out = results_of(f, threads);
  for (const OwnOperand& o : out) exact = exact && (numbers_.real || !is_float(o.type));
  if (exact) own_meaning()(name_of(f), threads, in, out);
  const std::uint64_t function = std::hash<std::string>{}(name_of(f));
  for (std::size_t k = 0; k < out.size() && !exact; ++k) {
    const auto values = static_cast<std::size_t>(out[k].values);
    for (std::size_t i = 0; i < out[k].bits.size(); ++i) {
      std::uint64_t mixed = field::hashed(300 + k, function + i % values);
      for (const OwnOperand& x : in) {
        const auto each = static_cast<std::size_t>(x.values);
        for (std::size_t v = 0; v < each; ++v) mixed = field::hashed(299, mixed ^ x.bits[i / values * each + v]);
      }
      out[k].bits[i] = mixed;
    }
  }
  for (std::size_t i = 0; i < f.out.size(); ++i) {
    const Operand& o = f.out[i];
    const std::int64_t first = map_.thread(w, 0);
    std::size_t at = 0;
    for (Mask m = lanes; m != 0; m &= m - 1) {
      const std::int64_t thread = first + std::countr_zero(m);
      for (const int r : o.registers) write(thread, map_.reg(r, thread), numbers_.of_raw(o.dtype, out[i].bits[at++]));
    }
  }
}

}  // namespace graphene::sim
