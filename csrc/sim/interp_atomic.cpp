// A Move that combines with what is there, atomically: lanes one after the other.
#include <bit>

#include "sim/interp.h"

namespace graphene::sim {

// What was there before, to the registers of the lanes that had access.
void Interpreter::give_old(const Warp& w, const Leaf& f, std::size_t value, Mask lanes, const char* old,
                           Mask undefined) {
  const Operand& o = f.out[1];
  WarpData& d = data(w);
  const int r = o.registers[value];
  for (Mask m = lanes; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    store_bits(reg(d, r) + l * o.bytes, o.bytes, load_bits(old + l * o.bytes, o.bytes));
  }
  Mask& now = d.undefined[static_cast<std::size_t>(r)];
  now = (now & ~lanes) | undefined;
}

void Interpreter::accumulate(const Warp& w, const Leaf& f, Mask lanes) {
  for (std::size_t i = 0; i < f.in.size(); ++i) fetch(w, f, f.in[i], lanes, i);
  const Operand& o = f.out.front();
  Address& a = out_address_;
  address(w, f, o, lanes, a);
  const Place& place = place_of(w, o);
  Arena& arena = arenas_[static_cast<std::size_t>(place.arena)];
  alignas(64) char old[kLanes * 8];
  alignas(64) char sum[kLanes * 8];
  for (std::size_t v = 0; v < static_cast<std::size_t>(o.values); ++v) {
    const Value& x = values_[0][static_cast<std::size_t>(f.takes[0][v])];
    const std::int64_t delta = o.deltas[v];
    const Value* const expected = f.in.size() > 1 ? &values_[1][static_cast<std::size_t>(f.takes[1][v])] : nullptr;
    Mask undefined = (x.undefined | (expected != nullptr ? expected->undefined : 0)) & a.lanes;
    for (int i = 0; i < place.ratio; ++i) {
      std::int32_t at[kLanes] = {};
      for (Mask m = a.lanes; m != 0; m &= m - 1) {
        const int l = std::countr_zero(m);
        at[l] = place.first + static_cast<std::int32_t>((a.offset[l] + delta) * place.ratio) + i;
      }
      const Shadow::Verdict verdict =
          arena.shadow.update_atomically(*data(w).by, a.lanes, at, f.site, f.atomic_kind, sets_);
      check_frozen({w, f, o}, arena, place, a.lanes, at);
      if (verdict.conflict != 0) {
        race({w, f, o}, verdict.first, (verdict.first.offset - place.first) / place.ratio, true);
      }
      undefined |= verdict.undefined;
      for (Mask m = undefined; m != 0; m &= m - 1) arena.shadow.set_undefined(at[std::countr_zero(m)], true);
    }
    if (undefined != 0 && !arena.shared) {
      const int l = std::countr_zero(undefined);
      undefined_store({w, f, o}, l, a.offset[l] + delta, x.cause);
    }
    for (Mask m = a.lanes; m != 0; m &= m - 1) {
      const int l = std::countr_zero(m);
      char* element = place.data + (a.offset[l] + delta) * o.bytes;
      store_bits(old + l * o.bytes, o.bytes, load_bits(element, o.bytes));
      f.op(old, x.bits, expected != nullptr ? expected->bits : nullptr, sum);
      store_bits(element, o.bytes, load_bits(sum + l * o.bytes, o.bytes));
      ++stats_.accesses;
    }
    if (f.out.size() > 1) give_old(w, f, v, a.lanes, old, undefined);
  }
}

}  // namespace graphene::sim
