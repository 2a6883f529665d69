#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "sim/interp.h"
#include "sim/simd.h"

namespace graphene::sim {

namespace {

template <class T>
GR_SIM_INLINE void gather(const char* base, const std::int32_t* offset, const LaneGroups& groups, std::int64_t delta,
                          char* out) {
  const T* p = reinterpret_cast<const T*>(base) + delta;
  T* d = reinterpret_cast<T*>(out);
  if (groups.run > 4) {
    for (int l = 0; l < kLanes; l += groups.run) std::fill_n(d + l, groups.run, p[offset[l]]);
  } else if (groups.period < kLanes) {
#pragma GCC unroll 4
    for (int l = 0; l < groups.period; ++l) d[l] = p[offset[l]];
    for (int l = groups.period; l < kLanes; l *= 2) std::memcpy(d + l, d, static_cast<std::size_t>(l) * sizeof(T));
  } else {
#pragma GCC unroll 8
    for (int l = 0; l < kLanes; ++l) d[l] = p[offset[l]];
  }
}

// Elements that share bytes: each as a byte of its own.
void gather_packed(ir::ScalarType type, const char* base, const std::int32_t* offset, std::int64_t delta, char* out) {
  for (int l = 0; l < kLanes; ++l) out[l] = static_cast<char>(load_element(type, base, offset[l] + delta));
}

void gather_bits(const Operand& o, const char* base, const std::int32_t* offset, const LaneGroups& groups,
                 std::int64_t delta, char* out) {
  if (ir::is_packed(o.dtype)) return gather_packed(o.dtype, base, offset, delta, out);
  switch (o.bytes) {
    case 1:
      return gather<std::uint8_t>(base, offset, groups, delta, out);
    case 2:
      return gather<std::uint16_t>(base, offset, groups, delta, out);
    case 4:
      return gather<std::uint32_t>(base, offset, groups, delta, out);
    default:
      return gather<std::uint64_t>(base, offset, groups, delta, out);
  }
}

template <class T>
GR_SIM_INLINE void scatter(char* base, const std::int32_t* offset, std::int64_t delta, Mask lanes, const char* in) {
  T* p = reinterpret_cast<T*>(base) + delta;
  const T* s = reinterpret_cast<const T*>(in);
  if (lanes == ~Mask{0}) {
#pragma GCC unroll 8
    for (int l = 0; l < kLanes; ++l) p[offset[l]] = s[l];
    return;
  }
  for (Mask m = lanes; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    p[offset[l]] = s[l];
  }
}

void scatter_bits(const Operand& o, char* base, const std::int32_t* offset, std::int64_t delta, Mask lanes,
                  const char* in) {
  if (ir::is_packed(o.dtype)) {
    for (Mask m = lanes; m != 0; m &= m - 1) {
      const int l = std::countr_zero(m);
      store_element(o.dtype, base, offset[l] + delta, static_cast<std::uint8_t>(in[l]));
    }
    return;
  }
  switch (o.bytes) {
    case 1:
      return scatter<std::uint8_t>(base, offset, delta, lanes, in);
    case 2:
      return scatter<std::uint16_t>(base, offset, delta, lanes, in);
    case 4:
      return scatter<std::uint32_t>(base, offset, delta, lanes, in);
    default:
      return scatter<std::uint64_t>(base, offset, delta, lanes, in);
  }
}

GR_SIM_INLINE void add_offsets(const std::int32_t* table, std::int32_t base, std::int32_t* out) {
  for (int l = 0; l < kLanes; ++l) out[l] = table[l] + base;
}

// Granules of part `part` of the elements at offset + delta; `out` or the offsets themselves.
const std::int32_t* granules(const std::int32_t* offset, std::int32_t delta, std::int32_t first, int ratio, int part,
                             std::int32_t* out) {
  if (ratio == 1 && first + delta == 0) return offset;
  for (int l = 0; l < kLanes; ++l) out[l] = first + (offset[l] + delta) * ratio + part;
  return out;
}

GR_SIM_INLINE std::uint64_t lane_count(Mask lanes) {  // without a popcount instruction the full mask is what matters
  return lanes == ~Mask{0} ? kLanes : static_cast<std::uint64_t>(std::popcount(lanes));
}

constexpr std::int64_t kMaxGranules = std::int64_t{1} << 31;

}  // namespace

void Interpreter::place_arguments(std::span<const Argument> arguments) {
  const lower::Program& p = *code_.program;
  struct Range {
    char* begin;
    char* end;
    std::vector<int> buffers;
    bool written;
  };
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < p.buffers.size(); ++i) {
    const lower::MemBuffer& b = p.buffers[i];
    if (b.memory != ir::Memory::GL) continue;
    const Argument& a = arguments[static_cast<std::size_t>(b.argument)];
    const std::int64_t bytes = ir::bytes_of_elems(b.dtype, code_.buffer_elems[i]);
    if (a.bytes < bytes) {
      fail(Code::SIM_ARGUMENT, "argument " + b.buffer->name + " is too small",
           {"want: " + std::to_string(bytes) + " bytes", "got: " + std::to_string(a.bytes)});
    }
    ranges.push_back({a.data, a.data + bytes, {static_cast<int>(i)}, code_.written[i] != 0});
  }
  // Arguments that overlap form one arena, so that races through either name are found.
  std::sort(ranges.begin(), ranges.end(), [](const Range& x, const Range& y) { return x.begin < y.begin; });
  std::vector<Range> merged;
  for (Range& r : ranges) {
    if (!merged.empty() && r.begin < merged.back().end) {
      Range& m = merged.back();
      m.end = std::max(m.end, r.end);
      m.buffers.push_back(r.buffers.front());
      m.written = m.written || r.written;
    } else {
      merged.push_back(std::move(r));
    }
  }
  for (const Range& r : merged) {
    Arena a;
    a.data = r.begin;
    a.granule_bits = 64;
    bool undefined = false;
    bool defined = false;
    for (const int i : r.buffers) {
      const lower::MemBuffer& b = p.buffers[static_cast<std::size_t>(i)];
      a.granule_bits = std::min(a.granule_bits, ir::bits(b.dtype));
      (b.buffer->role == ir::Role::Output ? undefined : defined) = true;
    }
    a.granules = (r.end - r.begin) * 8 / a.granule_bits;
    if (a.granules >= kMaxGranules) {
      fail(Code::SIM_ARGUMENT, "an argument is too large to simulate",
           {"got: " + std::to_string(a.granules) + " elements"}, "simulate a smaller problem");
    }
    a.tracked = r.written || undefined;
    if (a.tracked) a.shadow = Shadow(static_cast<std::size_t>(a.granules), defined ? kInitial : kNeverWritten);
    for (const int i : r.buffers) {
      const lower::MemBuffer& b = p.buffers[static_cast<std::size_t>(i)];
      char* data = arguments[static_cast<std::size_t>(b.argument)].data;
      if ((data - r.begin) * 8 % a.granule_bits != 0) {
        fail(Code::SIM_ARGUMENT, "argument " + b.buffer->name + " overlaps another one at an odd address");
      }
      Place& place = this->place(i, 0);
      place = {static_cast<int>(arenas_.size()), static_cast<std::int32_t>((data - r.begin) * 8 / a.granule_bits),
               ir::bits(b.dtype) / a.granule_bits, data};
    }
    for (int rank = 1; rank < code_.cluster(); ++rank) {
      for (const int i : r.buffers) place(i, rank) = place(i, 0);
    }
    if (undefined && defined) {
      // Spans of strided views interleave: between the elements of an output lie those of an input.
      for (const bool output : {true, false})
        for (const int i : r.buffers) {
          if ((p.buffers[static_cast<std::size_t>(i)].buffer->role == ir::Role::Output) != output) continue;
          const Place& place = this->place(i, 0);
          for (std::int64_t e = 0; e < code_.buffer_elems[static_cast<std::size_t>(i)] * place.ratio; ++e)
            a.shadow.set_undefined(place.first + static_cast<std::int32_t>(e), output);
        }
    }
    arenas_.push_back(std::move(a));
  }
}

void Interpreter::place_shared(int rank) {
  const lower::Program& p = *code_.program;
  struct Range {
    std::int64_t begin, end;
    std::vector<int> buffers;
  };
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < p.buffers.size(); ++i) {
    const lower::MemBuffer& b = p.buffers[i];
    if (b.memory != ir::Memory::SH) continue;
    const std::int64_t bytes = ir::bytes_of_elems(b.dtype, code_.buffer_elems[i]);
    ranges.push_back({b.shared_offset_bytes, b.shared_offset_bytes + bytes, {static_cast<int>(i)}});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& x, const Range& y) { return x.begin < y.begin; });
  std::vector<Range> merged;
  for (Range& r : ranges) {
    if (!merged.empty() && r.begin < merged.back().end) {
      merged.back().end = std::max(merged.back().end, r.end);
      merged.back().buffers.push_back(r.buffers.front());
    } else {
      merged.push_back(std::move(r));
    }
  }
  for (const Range& r : merged) {
    Arena a;
    a.granule_bits = 64;
    for (const int i : r.buffers) {
      a.granule_bits = std::min(a.granule_bits, ir::bits(p.buffers[static_cast<std::size_t>(i)].dtype));
    }
    a.own.resize(static_cast<std::size_t>(r.end - r.begin) + 8);
    a.granules = ((r.end - r.begin) * 8 + a.granule_bits - 1) / a.granule_bits;
    a.tracked = true;
    a.shared = true;
    a.overlapped = r.buffers.size() > 1;
    a.shadow = Shadow(static_cast<std::size_t>(a.granules), kNeverWritten);
    arenas_.push_back(std::move(a));
    Arena& stored = arenas_.back();
    stored.data = stored.own.data();
    for (const int i : r.buffers) {
      const lower::MemBuffer& b = p.buffers[static_cast<std::size_t>(i)];
      const std::int64_t at = b.shared_offset_bytes - r.begin;
      place(i, rank) = {static_cast<int>(arenas_.size()) - 1, static_cast<std::int32_t>(at * 8 / stored.granule_bits),
                        ir::bits(b.dtype) / stored.granule_bits, stored.data + at};
    }
  }
}

std::vector<char> Interpreter::written(std::size_t buffer) const {
  const Place& place = places_[buffer];
  const Arena& arena = arenas_[static_cast<std::size_t>(place.arena)];
  std::vector<char> out(static_cast<std::size_t>(code_.buffer_elems[buffer]));
  for (std::size_t e = 0; arena.tracked && e < out.size(); ++e) {
    const std::int32_t at = place.first + static_cast<std::int32_t>(e) * place.ratio;
    out[e] = static_cast<char>(epoch_of(arena.shadow.last_write(at)) != 0 && !arena.shadow.updated_atomically(at));
  }
  return out;
}

// Of the lanes that access memory: others' indices mean nothing.
void Interpreter::check_claims(const Warp& w, const Leaf& f, Mask lanes) const {
  for (const auto* list : {&f.out, &f.in}) {
    for (const Operand& o : *list) {
      if (o.claims.empty()) continue;
      Mask access = o.lanes.empty() ? lanes : 0;
      for (const Mask ranks : o.lanes) access |= lanes & lanes_of_ranks(w, f, ranks);
      for (const Claim& c : o.claims) {
        const Mask where = c.where.is_const(1) ? access : plans().nonzero(c.where, w.ints, access);
        if (where == 0) continue;
        Lanes at;
        Lanes size;
        plans().lanes(c.at, w.ints, where, at);
        plans().lanes(c.size, w.ints, where, size);
        for (Mask m = where; m != 0; m &= m - 1) {
          const int lane = std::countr_zero(m);
          const auto l = static_cast<std::size_t>(lane);
          if (c.past ? at[l] >= size[l] : at[l] < 0) claim_broken({w, f, o}, c, lane, at[l], size[l]);
        }
      }
    }
  }
}

void Interpreter::address(const Warp& w, const Leaf& f, const Operand& o, Mask lanes, Address& a) {
  a.lanes = o.inside.is_const(1) ? lanes : plans().nonzero(o.inside, w.ints, lanes);
  if (a.lanes == 0) return;
  const std::int64_t size = code_.buffer_elems[static_cast<std::size_t>(o.buffer)];
  const auto warp = static_cast<std::size_t>(w.local);
  if (o.cut) {
    Lanes valid;
    plans().lanes(o.valid, w.ints, a.lanes, valid);
    a.inside.assign(static_cast<std::size_t>(o.values), 0);
    for (std::size_t v = 0; v < a.inside.size(); ++v) {
      for (std::size_t l = 0; l < kLanes; ++l) {
        a.inside[v] |= static_cast<Mask>(static_cast<std::int64_t>(v) < valid[l]) << l;
      }
      a.inside[v] &= a.lanes;
    }
  }
  if (a.lanes == w.lanes && !o.groups.empty() && !o.cut) {
    const std::int64_t u = plans().uniform(o.offset, w.ints);
    const IntPlans::Table* t = o.offset.table >= 0 ? &plans().table(o.offset.table) : nullptr;
    const std::int64_t lo = u + (t != nullptr ? t->min[warp] : 0);
    const std::int64_t hi = u + (t != nullptr ? t->max[warp] : 0);
    if (lo + o.lowest >= 0 && hi + o.highest < size) {
      if (t != nullptr) {
        add_offsets(&t->narrow[warp * kLanes], static_cast<std::int32_t>(u), a.offset);
      } else {
        std::fill_n(a.offset, kLanes, static_cast<std::int32_t>(u));
      }
      a.groups = &o.groups[warp];
      if (o.align_elems > 1) check_alignment(w, f, o, a);
      return;
    }
  }
  Lanes v;
  plans().lanes(o.offset, w.ints, a.lanes, v);
  for (Mask m = a.lanes; m != 0; m &= m - 1) {
    const auto l = static_cast<std::size_t>(std::countr_zero(m));
    for (std::size_t i = 0; i < o.deltas.size(); ++i) {
      const std::int32_t d = o.deltas[i];
      if (o.cut && (a.inside[i] >> l & 1) == 0) continue;
      if (v[l] + d < 0 || v[l] + d >= size) out_of_bounds({w, f, o}, static_cast<int>(l), v[l] + d);
    }
  }
  // Lanes that access nothing take a harmless offset: vectors are gathered whole.
  const std::int64_t spare = v[static_cast<std::size_t>(std::countr_zero(a.lanes))];
  for (std::size_t l = 0; l < kLanes; ++l) {
    a.offset[l] = static_cast<std::int32_t>((a.lanes >> l & 1) != 0 ? v[l] : spare);
  }
  a.built.build(a.lanes, a.offset);
  a.groups = &a.built;
  if (o.align_elems > 1) check_alignment(w, f, o, a);
}

void Interpreter::check_alignment(const Warp& w, const Leaf& f, const Operand& o, const Address& a) const {
  std::int32_t bad = 0;
  const std::int32_t first = o.deltas.front();
  for (int l = 0; l < kLanes; ++l) bad |= (a.offset[l] + first) % o.align_elems;
  if (bad == 0) return;
  for (Mask m = a.lanes; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    if ((a.offset[l] + first) % o.align_elems != 0) misaligned({w, f, o}, l, a.offset[l] + first);
  }
}

void Interpreter::load(const Warp& w, const Leaf& f, const Operand& o, Mask lanes, Address& a, bool update, Values& out,
                       char* scratch) {
  address(w, f, o, lanes, a);
  const Place& place = place_of(w, o);
  Arena& arena = arenas_[static_cast<std::size_t>(place.arena)];
  WarpData& d = data(w);
  const std::size_t stride = static_cast<std::size_t>(o.bytes) * kLanes;
  if (!arena.tracked && a.lanes == w.lanes && o.lanes.empty() &&
      !o.cut) {  // nobody writes it: it is defined and cannot race
    for (int v = 0; v < o.values; ++v) {
      char* to = scratch + static_cast<std::size_t>(v) * stride;
      out[static_cast<std::size_t>(v)] = {to, 0, f.site};
      gather_bits(o, place.data, a.offset, *a.groups, o.deltas[static_cast<std::size_t>(v)], to);
    }
    stats_.accesses += lane_count(a.lanes) * static_cast<std::uint64_t>(o.values);
    return;
  }
  if (update) a.unchanged.assign(static_cast<std::size_t>(o.values), 0);
  for (int v = 0; v < o.values; ++v) {
    char* to = scratch + static_cast<std::size_t>(v) * stride;
    Value& x = out[static_cast<std::size_t>(v)];
    x = {to, 0, f.site};
    Mask active = a.lanes;
    const LaneGroups* groups = a.groups;
    if (active != 0 && (!o.lanes.empty() || o.cut)) {  // where no lane is, address() says no more
      if (!o.lanes.empty()) active &= lanes_of_ranks(w, f, o.lanes[static_cast<std::size_t>(v)]);
      if (o.cut) active &= a.inside[static_cast<std::size_t>(v)];
      if (active != a.lanes && active != 0) {
        a.part.build(active, a.offset);
        groups = &a.part;
      }
    }
    if (active == 0) {
      for (int l = 0; l < kLanes; ++l) store_bits(to + l * o.bytes, o.bytes, o.fill);
      continue;
    }
    const std::int32_t delta = o.deltas[static_cast<std::size_t>(v)];
    if (arena.tracked) {
      alignas(64) std::int32_t buffer[kLanes];
      for (int i = 0; i < place.ratio; ++i) {
        const std::int32_t* at = granules(a.offset, delta, place.first, place.ratio, i, buffer);
        AccessMemo& memo = d.memos[static_cast<std::size_t>(o.memo + v)];
        const bool whole = update && groups->distinct && place.ratio == 1;
        const Shadow::Verdict verdict =
            whole ? arena.shadow.check_update(*d.by, active, at, f.site, sets_, memo)
                  : arena.shadow.read(*d.by, active, at, *groups, f.site, sets_, memo, v > 0 ? &memo - 1 : nullptr);
        if (verdict.conflict != 0) {
          race({w, f, o}, verdict.first, (verdict.first.offset - place.first) / place.ratio, false);
        }
        if (!f.coherent && !arena.shared) {
          Conflict c;
          if (!arena.shadow.freeze(*d.by, active, at, f.site, sets_, c)) {
            race({w, f, o}, c, (c.offset - place.first) / place.ratio, false);
          }
        }
        if (whole) a.unchanged[static_cast<std::size_t>(v)] = static_cast<char>(verdict.unchanged);
        x.undefined |= verdict.undefined;
        if (arena.overlapped) {  // bytes last written under another name
          for (Mask m = active; m != 0; m &= m - 1) {
            const int l = std::countr_zero(m);
            const std::uint32_t site = site_of(arena.shadow.last_write(at[l]));
            if (site == 0 || site == kMaxSite) continue;
            if (code_.leaves[site - 1].out.front().buffer != o.buffer) x.undefined |= 1U << l;
          }
        }
      }
    }
    if (o.cut) {  // the others may lie outside of the argument
      for (Mask m = active; m != 0; m &= m - 1) {
        const int l = std::countr_zero(m);
        store_bits(to + l * o.bytes, o.bytes, load_element(o.dtype, place.data, std::int64_t{a.offset[l]} + delta));
      }
    } else {
      gather_bits(o, place.data, a.offset, *groups, delta, to);
    }
    stats_.accesses += lane_count(active);
    if (active != w.lanes) {
      for (Mask m = ~active; m != 0; m &= m - 1) {
        store_bits(to + std::countr_zero(m) * o.bytes, o.bytes, o.fill);
      }
    }
  }
}

void Interpreter::check_frozen(const At& at, const Arena& arena, const Place& place, Mask lanes,
                               const std::int32_t* granules) const {
  Conflict c;
  if (arena.shadow.frozen(*warp_data_[static_cast<std::size_t>(at.warp.id)].by, lanes, granules, c)) {
    race(at, c, (c.offset - place.first) / place.ratio, true);
  }
}

void Interpreter::check_equal_writes(const Warp& w, const Leaf& f, const Operand& o, const Address& a,
                                     const LaneGroups& groups, int v, const Value& x) const {
  for (std::size_t g = 0; g < groups.leaders.size(); ++g) {
    const int leader = groups.leaders[g];
    const std::uint64_t bits = load_bits(x.bits + leader * o.bytes, o.bytes);
    for (Mask m = groups.masks[g]; m != 0; m &= m - 1) {
      const int l = std::countr_zero(m);
      const std::uint64_t other = load_bits(x.bits + l * o.bytes, o.bytes);
      if (other != bits) {
        write_conflict({w, f, o}, leader, l, a.offset[l] + o.deltas[static_cast<std::size_t>(v)], bits, other);
      }
    }
  }
}

void Interpreter::store_value(const Warp& w, const Leaf& f, const Operand& o, Address& a, int v, const Value& x,
                              bool update) {
  const Place& place = place_of(w, o);
  Arena& arena = arenas_[static_cast<std::size_t>(place.arena)];
  WarpData& d = data(w);
  Mask active = a.lanes;
  const LaneGroups* groups = a.groups;
  if (!o.lanes.empty()) {
    active &= lanes_of_ranks(w, f, o.lanes[static_cast<std::size_t>(v)]);
    if (active == 0) return;
    if (active != a.lanes) {
      a.part.build(active, a.offset);
      groups = &a.part;
    }
  }
  const std::int32_t delta = o.deltas[static_cast<std::size_t>(v)];
  const Mask undefined = x.undefined & active;
  if (undefined != 0 && !arena.shared) {
    const int l = std::countr_zero(undefined);
    undefined_store({w, f, o}, l, a.offset[l] + delta, x.cause);
  }
  if (!groups->distinct) check_equal_writes(w, f, o, a, *groups, v, x);
  alignas(64) std::int32_t buffer[kLanes];
  for (int i = 0; i < place.ratio; ++i) {
    const bool checked = update && groups->distinct && place.ratio == 1;
    if (checked && a.unchanged[static_cast<std::size_t>(v)] != 0 && undefined == 0) continue;
    const std::int32_t* at = granules(a.offset, delta, place.first, place.ratio, i, buffer);
    check_frozen({w, f, o}, arena, place, active, at);
    if (checked) {
      arena.shadow.commit_update(*d.by, active, at, f.site, undefined);
      continue;
    }
    AccessMemo& memo = d.memos[static_cast<std::size_t>(o.memo + v)];
    const Shadow::Verdict verdict = arena.shadow.write(*d.by, active, at, *groups, f.site, undefined, sets_, memo);
    if (verdict.conflict != 0) {
      race({w, f, o}, verdict.first, (verdict.first.offset - place.first) / place.ratio, true);
    }
  }
  scatter_bits(o, place.data, a.offset, delta, active, x.bits);
  stats_.accesses += lane_count(active);
}

void Interpreter::store(const Warp& w, const Leaf& f, const Operand& o, Address& a, bool update, const Values& in) {
  if (a.lanes == 0) return;
  for (int v = 0; v < o.values; ++v) store_value(w, f, o, a, v, in[static_cast<std::size_t>(v)], update);
}

}  // namespace graphene::sim
