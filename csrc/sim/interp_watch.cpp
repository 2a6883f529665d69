// What a leaf has written, read back from registers and memory once it is done.
#include <algorithm>
#include <bit>

#include "sim/bulk.h"
#include "sim/interp.h"

namespace graphene::sim {

void Interpreter::note(const Wrote& wrote) {
  if (watch->wrote.size() < watch->limit) {
    watch->wrote.push_back(wrote);
  } else {
    ++watch->left_out;
  }
}

void Interpreter::note_registers(const Warp& w, const Leaf& f, const Operand& o, Mask lanes) {
  const lower::Program& p = *code_.program;
  for (const int r : o.registers) {
    const auto array = static_cast<std::size_t>(
        std::upper_bound(code_.array_first.begin(), code_.array_first.end(), r) - code_.array_first.begin() - 1);
    const lower::RegArray& a = p.registers[array];
    if (!watch->name.empty() && a.buffer->name != watch->name) continue;
    const std::string place =
        a.buffer->name + (a.regs > 1 ? "[" + std::to_string(r - code_.array_first[array]) + "]" : "");
    for (int i = 0; i < f.span; ++i) {
      WarpData& d = warp_data_[static_cast<std::size_t>(w.id + i)];
      for (Mask m = lanes; m != 0; m &= m - 1) {
        const int l = std::countr_zero(m);
        const int thread = (w.local + i) * kLanes + l;
        if (watch->thread >= 0 && watch->thread != thread) continue;
        note({watch->step, f.origin, block_of(w), thread, place, o.dtype, load_bits(reg(d, r) + l * o.bytes, o.bytes),
              (d.undefined[static_cast<std::size_t>(r)] >> l & 1) != 0});
      }
    }
  }
}

void Interpreter::note_memory(const Warp& w, const Leaf& f, const Operand& o, Mask lanes) {
  const std::string& name = code_.program->buffers[static_cast<std::size_t>(o.buffer)].buffer->name;
  if (!watch->name.empty() && name != watch->name) return;
  const Place& place = place_of(w, o);
  const auto element = [&](int lane, std::int64_t at) {
    const int thread = w.local * kLanes + lane;
    if (watch->thread >= 0 && watch->thread != thread) return;
    note({watch->step, f.origin, block_of(w), thread, element_text(o.buffer, at), o.dtype,
          load_element(o.dtype, place.data, at), false});
  };
  if (f.bulk) {
    std::vector<std::int64_t> to;
    for (Mask m = lanes; m != 0; m &= m - 1) {
      bulk_elements(plans(), w, o, std::countr_zero(m), to);
      for (const std::int64_t at : to) {
        if (at != kOutside) element(std::countr_zero(m), at);
      }
    }
    return;
  }
  if (!o.inside.is_const(1)) lanes = plans().nonzero(o.inside, w.ints, lanes);
  if (lanes == 0) return;
  Lanes offset;
  plans().lanes(o.offset, w.ints, lanes, offset);
  for (std::size_t v = 0; v < o.deltas.size(); ++v) {
    Mask active = lanes;
    if (!o.lanes.empty()) active &= lanes_of_ranks(w, f, o.lanes[v]);
    for (Mask m = active; m != 0; m &= m - 1) {
      const int l = std::countr_zero(m);
      element(l, offset[static_cast<std::size_t>(l)] + o.deltas[v]);
    }
  }
}

void Interpreter::note_written(const Warp& w, const Leaf& f, Mask lanes) {
  if (watch->block >= 0 && watch->block != block_of(w)) return;
  for (const Operand& o : f.out) {
    if (o.kind == Operand::Kind::Registers) note_registers(w, f, o, lanes);
    if (o.kind == Operand::Kind::Memory && !o.remote) note_memory(w, f, o, lanes);
  }
  ++watch->step;
}

}  // namespace graphene::sim
