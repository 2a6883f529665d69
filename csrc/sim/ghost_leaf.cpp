// Leaves over the field: gather, the kind's meaning, scatter.
#include <bit>
#include <cmath>

#include "sim/bulk.h"
#include "sim/ghost.h"
#include "sim/ghost_numbers.h"

namespace graphene::sim {

std::uint64_t Ghost::apply(const Leaf& f, std::uint64_t x, std::uint64_t y, std::uint64_t z) const {
  const Pointwise& p = f.op;
  if (p.op == Op::Where) return x != 0 ? y : z;
  if (p.op == Op::Exchange) return y;
  if (p.op == Op::Cas) return x == z ? y : x;
  if (p.op == Op::Bitcast) return numbers_.of_raw(p.out, numbers_.raw(p.a, x));
  const bool from = is_float(p.a);
  const bool to = is_float(p.out);
  if (p.op == Op::Cast && from != to) {
    if (to) return numbers_.of_int(static_cast<std::int64_t>(x));
    if (numbers_.real) return static_cast<std::uint64_t>(std::llrint(std::trunc(Numbers::as_double(x))));
    return p.out == ir::ScalarType::pred ? static_cast<std::uint64_t>(x != 0) : field::hashed(99, x) & 0x7f;
  }
  if (from) return numbers_.apply(p.op, x, y, z);
  // Integers are what they are.
  char in[3][kLanes * 8] = {};
  char out[kLanes * 8] = {};
  store_bits(in[0], bytes_of(p.a), x);
  store_bits(in[1], bytes_of(p.b), y);
  store_bits(in[2], bytes_of(p.c), z);
  p(in[0], in[1], in[2], out);
  return static_cast<std::uint64_t>(decode_int(p.out, load_bits(out, bytes_of(p.out))));
}

void Ghost::locate(const Warp& w, const Operand& o, Mask& lanes, Lanes& offsets) const {
  if (!o.inside.is_const(1)) lanes = plans().nonzero(o.inside, w.ints, lanes);
  if (lanes != 0) plans().lanes(o.offset, w.ints, lanes, offsets);
}

void Ghost::fetch(const Warp& w, const Leaf& f, const Operand& o, Mask lanes, std::vector<Vector>& out) {
  out.resize(static_cast<std::size_t>(o.values));
  const std::int64_t first = map_.thread(w, 0);
  const auto span = static_cast<std::size_t>(f.span);
  switch (o.kind) {
    case Operand::Kind::Registers:
      for (std::size_t i = 0; i < out.size(); ++i) {
        const std::int64_t from = first + static_cast<std::int64_t>(i % span) * kLanes;
        for (Mask m = lanes; m != 0; m &= m - 1) {
          const int l = std::countr_zero(m);
          out[i][static_cast<std::size_t>(l)] = read(from + l, map_.reg(o.registers[i / span], from + l));
        }
      }
      return;
    case Operand::Kind::Memory: {
      if (o.whole) return fetch_whole(w, o, out);
      Mask inside = lanes;
      Lanes offsets;
      locate(w, o, inside, offsets);
      Lanes rank;
      rank.fill(w.rank);
      if (o.remote) ranks(w, f, o, inside, rank);
      const std::uint64_t fill = numbers_.of_bits(o.dtype, o.fill);
      for (std::size_t v = 0; v < static_cast<std::size_t>(o.values); ++v) {
        out[v].fill(fill);
        Mask active = inside;
        if (!o.lanes.empty()) {
          Mask holders = 0;
          for (const auto& group : f.collective->groups[static_cast<std::size_t>(w.local)]) {
            for (std::size_t r = 0; r < group.size(); ++r) {
              if ((o.lanes[v] >> r & 1) != 0) holders |= 1U << group[r];
            }
          }
          active &= holders;
        }
        if (o.cut && active != 0) {
          Lanes valid;
          plans().lanes(o.valid, w.ints, active, valid);
          for (std::size_t l = 0; l < kLanes; ++l) {
            if (static_cast<std::int64_t>(v) >= valid[l]) active &= ~(1U << l);
          }
        }
        for (Mask m = active; m != 0; m &= m - 1) {
          const auto l = static_cast<std::size_t>(std::countr_zero(m));
          const std::int64_t cell = map_.first(o.buffer, static_cast<int>(rank[l])) + offsets[l] + o.deltas[v];
          out[v][l] = read(first + static_cast<std::int64_t>(l), cell);
        }
      }
      return;
    }
    case Operand::Kind::Constant:
      for (Vector& v : out) v.fill(numbers_.of_bits(o.dtype, o.constant));
      return;
    case Operand::Kind::Integer: {
      Lanes x;
      plans().lanes(o.integer, w.ints, lanes, x);
      for (Vector& v : out) {
        for (std::size_t l = 0; l < kLanes; ++l) {
          v[l] = is_float(o.dtype) ? numbers_.of_int(x[l]) : static_cast<std::uint64_t>(x[l]);
        }
      }
      return;
    }
  }
}

void Ghost::fetch_whole(const Warp& w, const Operand& o, std::vector<Vector>& out) {
  const std::int64_t first = map_.first(o.buffer, w.rank) + plans().at_lane(o.offset, w.ints, 0);
  for (std::size_t e = 0; e < o.deltas.size(); ++e) {
    out[e / kLanes][e % kLanes] = read(map_.thread(w, 0), first + o.deltas[e]);
  }
}

void Ghost::put(const Warp& w, const Leaf& f, Mask lanes, const std::vector<Vector>& values) {
  const Operand& o = f.out.front();
  const std::int64_t first = map_.thread(w, 0);
  Lanes offsets;
  if (o.kind == Operand::Kind::Memory) locate(w, o, lanes, offsets);
  Lanes rank;
  rank.fill(w.rank);
  if (o.remote) ranks(w, f, o, lanes, rank);
  const auto span = static_cast<std::size_t>(f.span);
  for (std::size_t v = 0; v < static_cast<std::size_t>(o.values); ++v) {
    for (Mask m = lanes; m != 0; m &= m - 1) {
      const auto l = static_cast<std::size_t>(std::countr_zero(m));
      const std::int64_t thread = first + static_cast<std::int64_t>(v % span * kLanes + l);
      const std::int64_t cell = o.kind == Operand::Kind::Memory
                                    ? map_.first(o.buffer, static_cast<int>(rank[l])) + offsets[l] + o.deltas[v]
                                    : map_.reg(o.registers[v / span], thread);
      write(thread, cell, values[v][l]);
    }
  }
}

void Ghost::copy_bulk(const Warp& w, const Leaf& f, int lane) {
  const Operand& in = f.in.front();
  const Operand& out = f.out.front();
  std::vector<std::int64_t> from, to;
  bulk_elements(plans(), w, in, lane, from);
  bulk_elements(plans(), w, out, lane, to);
  const std::int64_t thread = map_.thread(w, lane);
  const std::uint64_t fill = numbers_.of_bits(in.dtype, 0);
  for (const int rank : ranks(w, f.to)) {
    for (std::size_t i = 0; i < to.size(); ++i) {
      if (to[i] == kOutside) continue;
      std::uint64_t value = from[i] == kOutside ? fill : read(thread, map_.first(in.buffer, w.rank) + from[i]);
      if (f.atomic) value = apply(f, read(thread, map_.first(out.buffer, rank) + to[i]), value, 0);
      write(thread, map_.first(out.buffer, rank) + to[i], value);
    }
  }
  land(w, f, 1U << lane);
}

void Ghost::accumulate(const Warp& w, const Leaf& f, Mask lane) {
  std::vector<Vector>& old = values_[3];
  fetch(w, f, f.out.front(), lane, old);
  std::vector<Vector> out(old.size());
  const auto l = static_cast<std::size_t>(std::countr_zero(lane));
  for (std::size_t v = 0; v < out.size(); ++v) {
    const auto in = [&](std::size_t i) {
      return i < f.in.size() ? values_[i][static_cast<std::size_t>(f.takes[i][v])][l] : 0;
    };
    out[v][l] = apply(f, old[v][l], in(0), in(1));
  }
  put(w, f, lane, out);
  if (f.out.size() < 2) return;
  if (!f.out.front().inside.is_const(1)) lane = plans().nonzero(f.out.front().inside, w.ints, lane);
  const std::int64_t thread = map_.thread(w, static_cast<int>(l));
  for (std::size_t v = 0; v < old.size() && lane != 0; ++v) {
    write(thread, map_.reg(f.out[1].registers[v], thread), old[v][l]);
  }
}

// The bits of the input's values one after the other, as the output's values.
void Ghost::regroup(const Warp& w, const Leaf& f, Mask lanes) {
  const Operand& in = f.in.front();
  const Operand& o = f.out.front();
  std::vector<Vector> out(static_cast<std::size_t>(o.values));
  const auto width = [](const Operand& x) { return static_cast<unsigned>(ir::bits(x.dtype)); };
  for (Mask m = lanes; m != 0; m &= m - 1) {
    const auto l = static_cast<std::size_t>(std::countr_zero(m));
    std::uint64_t all = 0;
    for (std::size_t v = 0; v < values_[0].size(); ++v)
      all |= numbers_.raw(in.dtype, values_[0][v][l]) << (width(in) * v);
    for (std::size_t v = 0; v < out.size(); ++v) out[v][l] = numbers_.of_raw(o.dtype, all >> (width(o) * v));
  }
  put(w, f, lanes, out);
}

void Ghost::leaf(Warp& w, const Leaf& f) {
  using atoms::Kind;
  Mask lanes = w.active;
  if (!f.always) lanes = plans().nonzero(f.predicate, w.ints, lanes);
  if (lanes == 0) return;
  if (f.bulk) {
    for (Mask m = lanes; m != 0; m &= m - 1) copy_bulk(w, f, std::countr_zero(m));
    return;
  }
  if (f.span > 1 && f.collective->groups[static_cast<std::size_t>(w.local)].empty()) return;  // the first warp does it
  if (f.kind == Kind::Spec) return apply_own(w, f, lanes);
  for (std::size_t i = 0; i < f.in.size(); ++i) fetch(w, f, f.in[i], lanes, values_[i]);
  const Operand& o = f.out.front();
  if (f.regroups) return regroup(w, f, lanes);
  if (f.atomic) {  // lane after lane: they may share elements
    for (Mask m = lanes; m != 0; m &= m - 1) accumulate(w, f, m & -m);
    return;
  }
  const bool update =
      o.access == atoms::Access::Update && (f.einsum == nullptr || plans().nonzero(f.accumulate, w.ints, lanes) != 0);
  std::vector<Vector>& old = values_[3];
  if (update) fetch(w, f, o, lanes, old);
  std::vector<Vector> out(static_cast<std::size_t>(o.values));
  if (f.collective == nullptr || f.kind == Kind::Unary) {
    for (std::size_t v = 0; v < out.size(); ++v) {
      const auto in = [&](std::size_t i, std::size_t l) {
        return i < f.in.size() ? values_[i][static_cast<std::size_t>(f.takes[i][v])][l] : 0;
      };
      const bool copies = f.kind == Kind::Move || f.kind == Kind::Init;
      if (numbers_.real && !copies && f.op.op != Op::Where && f.op.op != Op::Bitcast) {
        Vector x[3] = {};
        for (Mask m = lanes; m != 0; m &= m - 1) {
          const auto l = static_cast<std::size_t>(std::countr_zero(m));
          x[0][l] = in(0, l);
          x[1][l] = in(1, l);
          x[2][l] = update ? old[v][l] : in(2, l);
        }
        apply_real(f.op, x[0].data(), x[1].data(), x[2].data(), out[v].data());
        continue;
      }
      for (Mask m = lanes; m != 0; m &= m - 1) {
        const auto l = static_cast<std::size_t>(std::countr_zero(m));
        if (copies) {
          out[v][l] = in(0, l);
        } else {
          out[v][l] = apply(f, in(0, l), in(1, l), update ? old[v][l] : in(2, l));
        }
      }
    }
    return put(w, f, lanes, out);
  }
  Lanes arg{};
  if (f.kind == Kind::Shfl) plans().lanes(f.arg, w.ints, lanes, arg);
  for (const auto& group : f.collective->groups[static_cast<std::size_t>(w.local)]) {
    const auto lane = [&](Holder h) { return static_cast<std::size_t>(group[static_cast<std::size_t>(h.rank)]); };
    if (f.kind == Kind::Move) {
      for (std::size_t v = 0; v < out.size(); ++v) {
        for (std::size_t r = 0; r < group.size(); ++r) {
          const Holder h = f.from[v][r];
          out[v][static_cast<std::size_t>(group[r])] = values_[0][static_cast<std::size_t>(h.value)][lane(h)];
        }
      }
    } else if (f.kind == Kind::Shfl) {
      const auto width = static_cast<std::int64_t>(group.size());
      for (std::size_t v = 0; v < out.size(); ++v) {
        for (std::size_t r = 0; r < group.size(); ++r) {
          const auto own = static_cast<std::int64_t>(r);
          const std::int64_t n = arg[static_cast<std::size_t>(group[r])];
          std::int64_t from = f.mode == "bfly"   ? own ^ n
                              : f.mode == "up"   ? own - n
                              : f.mode == "down" ? own + n
                                                 : n % width;
          if (from < 0 || from >= width) from = own;
          out[v][static_cast<std::size_t>(group[r])] =
              values_[0][v][static_cast<std::size_t>(group[static_cast<std::size_t>(from)])];
        }
      }
    } else if (f.kind == Kind::MatMul) {
      const Einsum& e = *f.einsum;
      for (int i = 0; i < e.batch; ++i) {
        for (int x = 0; x < e.m; ++x) {
          for (int y = 0; y < e.n; ++y) {
            const auto& to = e.d[static_cast<std::size_t>((i * e.m + x) * e.n + y)];
            std::uint64_t sum =
                e.accumulate && update ? old[static_cast<std::size_t>(to.front().value)][lane(to.front())] : 0;
            for (int z = 0; z < e.k; ++z) {
              const Holder a = e.a[static_cast<std::size_t>((i * e.m + x) * e.k + z)];
              const Holder b = e.b[static_cast<std::size_t>((i * e.k + z) * e.n + y)];
              sum = numbers_.add(sum, numbers_.multiply(values_[0][static_cast<std::size_t>(a.value)][lane(a)],
                                                        values_[1][static_cast<std::size_t>(b.value)][lane(b)]));
            }
            for (const Holder h : to) out[static_cast<std::size_t>(h.value)][lane(h)] = sum;
          }
        }
      }
    } else if (f.op.op == Op::Ballot || f.op.op == Op::Match) {
      for (const int own : group) {
        std::uint64_t votes = 0;
        for (std::size_t r = 0; r < group.size(); ++r) {
          const std::uint64_t x = values_[0][0][static_cast<std::size_t>(group[r])];
          const bool holds = f.op.op == Op::Ballot ? x != 0 : x == values_[0][0][static_cast<std::size_t>(own)];
          votes |= static_cast<std::uint64_t>(holds) << r;
        }
        out[0][static_cast<std::size_t>(own)] = votes;
      }
    } else {
      for (std::size_t e = 0; e < f.reduced.size(); ++e) {
        if (f.holders[e].empty()) continue;
        bool first = !update;
        const Holder own = f.holders[e].front();
        std::uint64_t x = update ? old[static_cast<std::size_t>(own.value)][lane(own)] : 0;
        for (const Holder h : f.reduced[e]) {
          const std::uint64_t y = values_[0][static_cast<std::size_t>(h.value)][lane(h)];
          x = first ? y : apply(f, x, y, 0);
          first = false;
        }
        for (const Holder h : f.holders[e]) out[static_cast<std::size_t>(h.value)][lane(h)] = x;
      }
    }
  }
  put(w, f, lanes, out);
}

}  // namespace graphene::sim
