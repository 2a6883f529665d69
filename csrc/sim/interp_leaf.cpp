#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "sim/interp.h"
#include "sim/matmul.h"

namespace graphene::sim {

namespace {

void splat(char* to, int bytes, std::uint64_t bits) {
  for (int l = 0; l < kLanes; ++l) store_bits(to + l * bytes, bytes, bits);
}

void copy_lane(int bytes, char* to, int to_lane, const char* from, int from_lane) {
  std::memcpy(to + to_lane * bytes, from + from_lane * bytes, static_cast<std::size_t>(bytes));
}

}  // namespace

void Interpreter::leaf(Warp& w, const Leaf& f) {
  Mask lanes = w.active;
  if (f.claims) check_claims(w, f, lanes);
  if (f.converge > 1) check_converged(w, f, lanes);
  if (!f.always) {
    const Mask asked = lanes;
    lanes = plans().nonzero(f.predicate, w.ints, lanes);
    if (lanes != asked) ran_[f.site - 1] |= kLeft;
    if (lanes == 0) return;
    if (f.collective != nullptr) check_converged(w, f, lanes);
  }
  ran_[f.site - 1] |= kExecuted;
  stats_.lane_ops += lanes == ~Mask{0} ? kLanes : static_cast<std::uint64_t>(std::popcount(lanes));
  if (f.span > 1 && f.collective->groups[static_cast<std::size_t>(w.local)].empty()) return;  // the first warp does it
  if (observe) [[unlikely]]
    observe(w, f, lanes);
  run_leaf(w, f, lanes);
  if (watch != nullptr) [[unlikely]]
    note_written(w, f, lanes);
}

void Interpreter::run_leaf(Warp& w, const Leaf& f, Mask lanes) {
  if (f.bulk) {
    for (Mask m = lanes; m != 0; m &= m - 1) copy_bulk(w, f, std::countr_zero(m));
    if (traces()) trace->leaf(w, f, {});
    return;
  }
  if (traces()) [[unlikely]] {
    std::vector<TraceEvent::Use> uses;
    if (!f.remote) uses = shared_uses(code_, w, f, lanes);
    if (f.product) trace->product(w, f, std::exchange(uses, {}));
    trace->leaf(w, f, std::move(uses));
  }
  if (f.remote) return execute_remote(w, f, lanes);
  if (f.domain < 0) {
    execute(w, f, lanes);
    if (tags_ != nullptr) [[unlikely]]
      tag_leaf(w, f, lanes);
    return;
  }
  // Nobody may look before the copy has been waited for, so it may as well land now.
  WarpData& d = data(w);
  order_->open_copies(w.id, lanes, f.domain);
  d.copier.act_as_copies(f.domain);
  d.by = &d.copier;
  execute(w, f, lanes);
  d.by = &d.issuer;
  if (tags_ != nullptr) tag_leaf(w, f, lanes);
  const auto reads_shared = [&](const Operand& o) {
    return o.kind == Operand::Kind::Memory && arenas_[static_cast<std::size_t>(place_of(w, o).arena)].shared;
  };
  if (std::none_of(f.in.begin(), f.in.end(), reads_shared)) return;
  for (Mask m = lanes; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    d.reads_shared[static_cast<std::size_t>(f.domain)][static_cast<std::size_t>(l)] =
        order_->copy_epoch(w.id, l, f.domain);
  }
}

// One block's memory at a time: its lanes execute the leaf by themselves.
void Interpreter::execute_remote(const Warp& w, const Leaf& f, Mask lanes) {
  const Operand* there = nullptr;
  for (const auto* list : {&f.out, &f.in}) {
    for (const Operand& o : *list) there = o.remote ? &o : there;
  }
  const Mask reach = there->inside.is_const(1) ? lanes : plans().nonzero(there->inside, w.ints, lanes);
  Lanes rank{};
  ranks(w, f, *there, reach, rank);
  for (Mask rest = lanes; rest != 0;) {  // lanes outside access nothing: they go with the first ones
    const Mask left = (reach & rest) != 0 ? reach & rest : rest;
    const std::int64_t at = rank[static_cast<std::size_t>(std::countr_zero(left))];
    Mask same = rest & ~reach;
    for (Mask m = rest & reach; m != 0; m &= m - 1) {
      const int l = std::countr_zero(m);
      same |= static_cast<Mask>(rank[static_cast<std::size_t>(l)] == at) << l;
    }
    rest &= ~same;
    remote_rank_ = static_cast<int>(at);
    if (remote_rank_ != w.rank) check_begun(w, f, same & reach, remote_rank_);
    execute(w, f, same);
    if (tags_ != nullptr) tag_leaf(w, f, same);
    for (Mask m = remote_rank_ != w.rank ? same & reach : 0; m != 0; m &= m - 1) {
      reached_[static_cast<std::size_t>(at)][{w.id, std::countr_zero(m)}] = {order_->epoch(w.id), &f};
    }
  }
}

void Interpreter::execute(const Warp& w, const Leaf& f, Mask lanes) {
  switch (f.kind) {
    case atoms::Kind::Shfl:
      return shuffle(w, f, lanes);
    case atoms::Kind::Reduction:
      return reduce(w, f, lanes);
    case atoms::Kind::MatMul:
      return f.einsum != nullptr ? multiply(w, f, lanes) : thread_leaf(w, f, lanes);
    case atoms::Kind::Move:
      if (f.atomic) return accumulate(w, f, lanes);
      return f.collective != nullptr ? move_together(w, f, lanes) : thread_leaf(w, f, lanes);
    case atoms::Kind::Spec:
      return apply_own(w, f, lanes);
    default:
      return thread_leaf(w, f, lanes);
  }
}

void Interpreter::check_converged(const Warp& w, const Leaf& f, Mask lanes) const {
  if (f.converge >= kLanes) {
    if (lanes != ~Mask{0}) {
      divergent(w, f.origin, ~lanes, "a part of a warp executes what all 32 lanes execute together");
    }
    return;
  }
  if (f.collective == nullptr) return;
  for (const auto& group : f.collective->groups[static_cast<std::size_t>(w.local)]) {
    Mask all = 0;
    for (const int l : group) all |= 1U << l;
    if ((lanes & all) != 0 && (lanes & all) != all) {
      divergent(w, f.origin, all & ~lanes, "a part of the threads executes what they must execute together");
    }
  }
}

Mask Interpreter::lanes_of_ranks(const Warp& w, const Leaf& f, Mask ranks) const {
  Mask m = 0;
  for (const auto& group : f.collective->groups[static_cast<std::size_t>(w.local)]) {
    for (std::size_t r = 0; r < group.size(); ++r) {
      if ((ranks >> r & 1) != 0) m |= 1U << group[r];
    }
  }
  return m;
}

void Interpreter::fetch(const Warp& w, const Leaf& f, const Operand& o, Mask lanes, std::size_t slot) {
  Values& out = values_[slot];
  char* scratch = scratch_[slot].data();
  switch (o.kind) {
    case Operand::Kind::Registers: {
      const auto span = static_cast<std::size_t>(f.span);
      for (std::size_t i = 0; i < span; ++i) {
        WarpData& d = warp_data_[static_cast<std::size_t>(w.id) + i];
        if (!d.used.empty() && !f.product) use_registers(warps_[static_cast<std::size_t>(w.id) + i], f, o);
        for (std::size_t v = 0; v < o.registers.size(); ++v) {
          const auto r = static_cast<std::size_t>(o.registers[v]);
          out[v * span + i] = {reg(d, o.registers[v]), d.undefined[r], d.cause[r]};
        }
      }
      return;
    }
    case Operand::Kind::Memory:
      if (o.whole) return fetch_whole(w, f, o, slot);
      return load(w, f, o, lanes, in_address_, false, out, scratch);
    case Operand::Kind::Constant:
      splat(scratch, o.bytes, o.constant);
      break;
    case Operand::Kind::Integer: {
      Lanes v;
      plans().lanes(o.integer, w.ints, lanes, v);
      for (int l = 0; l < kLanes; ++l) {
        const std::int64_t x = v[static_cast<std::size_t>(l)];
        const std::uint64_t bits =
            is_float(o.dtype) ? encode(o.dtype, static_cast<double>(x)) : static_cast<std::uint64_t>(x);
        store_bits(scratch + l * o.bytes, o.bytes, bits);
      }
      break;
    }
  }
  for (int v = 0; v < o.values; ++v) out[static_cast<std::size_t>(v)] = {scratch, 0, 0};
}

void Interpreter::fetch_old(const Warp& w, const Leaf& f, Mask lanes) {
  const Operand& o = f.out.front();
  if (o.kind == Operand::Kind::Memory) {
    load(w, f, o, lanes, out_address_, true, values_[kOld], scratch_[kOld].data());
  } else {
    fetch(w, f, o, lanes, kOld);
  }
}

// Writes the results to the output's registers or memory.
void Interpreter::put(const Warp& w, const Leaf& f, Mask lanes, const Values& values) {
  const Operand& o = f.out.front();
  if (o.kind == Operand::Kind::Memory) {
    const bool update = o.access == atoms::Access::Update;
    if (!update) address(w, f, o, lanes, out_address_);
    return store(w, f, o, out_address_, update, values);
  }
  put_registers(w, f, o, lanes, values);
}

void Interpreter::put_registers(const Warp& w, const Leaf& f, const Operand& o, Mask lanes, const Values& values) {
  const std::size_t bytes = static_cast<std::size_t>(o.bytes) * kLanes;
  const auto span = static_cast<std::size_t>(f.span);
  for (std::size_t i = 0; i < span && !data(w).used.empty() && !f.product; ++i) {
    use_registers(warps_[static_cast<std::size_t>(w.id) + i], f, o);
  }
  for (std::size_t i = 0; i < o.registers.size() * span; ++i) {
    WarpData& d = warp_data_[static_cast<std::size_t>(w.id) + i % span];
    const auto r = static_cast<std::size_t>(o.registers[i / span]);
    char* to = reg(d, o.registers[i / span]);
    const Value& x = values[i];
    if (lanes == w.lanes) {
      if (to != x.bits) std::memcpy(to, x.bits, bytes);
      d.undefined[r] = x.undefined;
    } else {
      for (Mask m = lanes; m != 0; m &= m - 1) {
        const int l = std::countr_zero(m);
        copy_lane(o.bytes, to, l, x.bits, l);
      }
      d.undefined[r] = (d.undefined[r] & ~lanes) | (x.undefined & lanes);
    }
    if ((x.undefined & lanes) != 0) d.cause[r] = x.cause;
  }
}

// The bits of the input's values one after the other, as the output's values.
void Interpreter::regroup(const Warp& w, const Leaf& f, Mask lanes) {
  const Operand& in = f.in.front();
  const Operand& o = f.out.front();
  Values& results = values_[kResult];
  for (int v = 0; v < o.values; ++v) {
    Value& r = results[static_cast<std::size_t>(v)];
    char* const to =
        scratch_[kResult].data() + static_cast<std::size_t>(v) * static_cast<std::size_t>(o.bytes) * kLanes;
    r = {to, 0, 0};
    const int out_bits = ir::bits(o.dtype);
    const int in_bits = ir::bits(in.dtype);
    const int step = std::min(out_bits, in_bits);  // the wider one is a multiple of it
    for (int l = 0; l < kLanes; ++l) {
      std::uint64_t all = 0;
      for (int b = 0; b < out_bits; b += step) {
        const int at = v * out_bits + b;
        const Value& x = values_[0][static_cast<std::size_t>(at / in_bits)];
        const std::uint64_t part = load_bits(x.bits + l * in.bytes, in.bytes) >> (at % in_bits);
        all |= (part & (~std::uint64_t{0} >> (64 - step))) << b;
      }
      store_bits(to + l * o.bytes, o.bytes, all);
    }
    for (int b = 0; b < out_bits; b += step) {
      const Value& x = values_[0][static_cast<std::size_t>((v * out_bits + b) / in_bits)];
      r.undefined |= x.undefined;
      if (x.undefined != 0) r.cause = x.cause;
    }
  }
  put(w, f, lanes, results);
}

void Interpreter::thread_leaf(const Warp& w, const Leaf& f, Mask lanes) {
  for (std::size_t i = 0; i < f.in.size(); ++i) fetch(w, f, f.in[i], lanes, i);
  if (f.regroups) return regroup(w, f, lanes);
  const Operand& o = f.out.front();
  const bool update = o.access == atoms::Access::Update;
  if (update) fetch_old(w, f, lanes);
  Values& results = values_[kResult];
  const std::size_t stride = static_cast<std::size_t>(o.bytes) * kLanes;
  for (std::size_t v = 0; v < static_cast<std::size_t>(o.values); ++v) {
    const auto input = [&](std::size_t i) -> const Value& {
      return values_[i][static_cast<std::size_t>(f.takes[i][v])];
    };
    Value& r = results[v];
    if (f.kind == atoms::Kind::Move || f.kind == atoms::Kind::Init) {
      r = input(0);
      if (o.values > 1 && o.kind == Operand::Kind::Registers && f.in[0].kind == Operand::Kind::Registers) {
        char* copy = scratch_[kResult].data() + v * stride;  // the registers may permute among themselves
        std::memcpy(copy, r.bits, stride);
        r.bits = copy;
      }
      continue;
    }
    r = {scratch_[kResult].data() + v * stride, 0, 0};
    const char* x[3] = {nullptr, nullptr, nullptr};
    for (std::size_t i = 0; i < f.in.size(); ++i) {
      const Value& in = input(i);
      x[i] = in.bits;
      if (in.undefined != 0) r.cause = in.cause;
      r.undefined |= in.undefined;
    }
    if (update) {
      const Value& old = values_[kOld][v];
      x[2] = old.bits;
      if (old.undefined != 0) r.cause = old.cause;
      r.undefined |= old.undefined;
    }
    f.op(x[0], x[1], x[2], const_cast<char*>(r.bits));
    if (r.undefined != 0 && f.op.op == Op::Where) {  // of two values one is looked at
      Mask second = 0;
      for (int l = 0; l < kLanes; ++l) second |= static_cast<Mask>(x[0][l] == 0) << l;
      r.undefined = input(0).undefined | (input(1).undefined & ~second) | (input(2).undefined & second);
    }
  }
  put(w, f, lanes, results);
}

void Interpreter::move_together(const Warp& w, const Leaf& f, Mask lanes) {
  fetch(w, f, f.in.front(), lanes, 0);
  const Operand& o = f.out.front();
  Values& results = values_[kResult];
  const std::size_t stride = static_cast<std::size_t>(o.bytes) * kLanes;
  for (std::size_t v = 0; v < static_cast<std::size_t>(o.values); ++v) {
    char* to = scratch_[kResult].data() + v * stride;
    results[v] = {to, 0, 0};
    for (const auto& group : f.collective->groups[static_cast<std::size_t>(w.local)]) {
      for (std::size_t r = 0; r < group.size(); ++r) {
        const Holder h = f.from[v][r];
        const Value& x = values_[0][static_cast<std::size_t>(h.value)];
        const int source = group[static_cast<std::size_t>(h.rank)];
        copy_lane(o.bytes, to, group[r], x.bits, source);
        if ((x.undefined >> source & 1) != 0) {
          results[v].undefined |= 1U << group[r];
          results[v].cause = x.cause;
        }
      }
    }
  }
  put(w, f, lanes, results);
}

// The rank whose value the thread of rank `rank` gets.
std::int64_t Interpreter::exchange_source(const Leaf& f, std::int64_t rank, std::int64_t arg) {
  const std::int64_t width = f.collective->size;
  const std::int64_t source = f.mode == "bfly"   ? rank ^ arg
                              : f.mode == "up"   ? rank - arg
                              : f.mode == "down" ? rank + arg
                                                 : arg % width;
  return source < 0 || source >= width ? rank : source;
}

void Interpreter::shuffle(const Warp& w, const Leaf& f, Mask lanes) {
  fetch(w, f, f.in.front(), lanes, 0);
  Lanes arg;
  plans().lanes(f.arg, w.ints, lanes, arg);
  const Operand& o = f.out.front();
  Values& results = values_[kResult];
  const std::size_t stride = static_cast<std::size_t>(o.bytes) * kLanes;
  const std::int64_t width = f.collective->size;
  for (std::size_t v = 0; v < static_cast<std::size_t>(o.values); ++v) {
    char* to = scratch_[kResult].data() + v * stride;
    const Value& x = values_[0][v];
    results[v] = {to, 0, x.cause};
    for (const auto& group : f.collective->groups[static_cast<std::size_t>(w.local)]) {
      for (std::size_t r = 0; r < group.size(); ++r) {
        const auto own = static_cast<std::int64_t>(r);
        const std::int64_t n = arg[static_cast<std::size_t>(group[r])];
        if ((lanes >> group[r] & 1) != 0 && (n < 0 || n >= (f.mode == "idx" ? kLanes : width))) {
          fail(Code::SIM_OUT_OF_BOUNDS, "an exchange with a lane that the group does not have",
               {"block: " + block_text(w) + ", warp " + std::to_string(w.local) + ", lane " + std::to_string(group[r]),
                "want: 0 to " + std::to_string((f.mode == "idx" ? kLanes : width) - 1), "got: " + std::to_string(n)},
               {}, f.origin != nullptr ? f.origin->loc : SourceLoc{});
        }
        const int lane = group[static_cast<std::size_t>(exchange_source(f, own, n))];
        copy_lane(o.bytes, to, group[r], x.bits, lane);
        if ((x.undefined >> lane & 1) != 0 || (lanes >> lane & 1) == 0) results[v].undefined |= 1U << group[r];
      }
    }
  }
  put(w, f, lanes, results);
}

void Interpreter::multiply(const Warp& w, const Leaf& f, Mask lanes) {
  const Einsum& e = *f.einsum;
  const bool accumulates = e.accumulate && plans().nonzero(f.accumulate, w.ints, lanes) != 0;
  if (f.product) begin_product(w, f);
  fetch(w, f, f.in[0], lanes, 0);
  fetch(w, f, f.in[1], lanes, 1);
  const Operand& o = f.out.front();
  if (accumulates) fetch_old(w, f, lanes);
  Values& results = values_[kResult];
  const std::size_t stride = static_cast<std::size_t>(o.bytes) * kLanes;
  Mask undefined = 0;
  const auto seen = [&](const Operand& x, std::size_t slot) {
    for (int v = 0; v < x.values; ++v) undefined |= values_[slot][static_cast<std::size_t>(v)].undefined;
  };
  seen(f.in[0], 0);
  seen(f.in[1], 1);
  if (accumulates) seen(o, kOld);
  for (std::size_t v = 0; v < static_cast<std::size_t>(o.values); ++v) {
    results[v] = {scratch_[kResult].data() + v * stride, 0, 0};
  }
  const auto vectors = [](const Values& values, int n, std::vector<const char*>& out) {
    out.clear();
    for (int v = 0; v < n; ++v) out.push_back(values[static_cast<std::size_t>(v)].bits);
  };
  std::vector<const char*> a;
  std::vector<const char*> b;
  std::vector<const char*> c;
  vectors(values_[0], f.in[0].values, a);
  vectors(values_[1], f.in[1].values, b);
  if (accumulates) vectors(values_[kOld], o.values, c);
  std::vector<char*> d;
  for (int v = 0; v < o.values; ++v) d.push_back(const_cast<char*>(results[static_cast<std::size_t>(v)].bits));
  for (const auto& group : f.collective->groups[static_cast<std::size_t>(w.local)]) {
    multiply_tile(e, group, {f.in[0].dtype, a}, {f.in[1].dtype, b}, {o.dtype, c}, d, tiles_);
    if (undefined == 0) continue;
    // An undefined element of a row of a, a column of b or of c spoils what it meets.
    const auto is_undefined = [&](std::size_t slot, Holder h) {
      const Value& x = values_[slot][static_cast<std::size_t>(h.value)];
      return (x.undefined >> group[static_cast<std::size_t>(h.rank)] & 1) != 0 ? &x : nullptr;
    };
    for (int i = 0; i < e.batch; ++i) {
      for (int x = 0; x < e.m; ++x) {
        for (int y = 0; y < e.n; ++y) {
          const auto& to = e.d[static_cast<std::size_t>((i * e.m + x) * e.n + y)];
          const Value* bad = accumulates ? is_undefined(kOld, to.front()) : nullptr;
          for (int z = 0; z < e.k && bad == nullptr; ++z) {
            bad = is_undefined(0, e.a[static_cast<std::size_t>((i * e.m + x) * e.k + z)]);
            if (bad == nullptr) bad = is_undefined(1, e.b[static_cast<std::size_t>((i * e.k + z) * e.n + y)]);
          }
          if (bad == nullptr) continue;
          for (const Holder h : to) {
            results[static_cast<std::size_t>(h.value)].undefined |= 1U << group[static_cast<std::size_t>(h.rank)];
            results[static_cast<std::size_t>(h.value)].cause = bad->cause;
          }
        }
      }
    }
  }
  put(w, f, lanes, results);
}

// The lanes that execute together, by rank; each for itself where there is no collective.
const std::vector<std::vector<int>>& Interpreter::groups_of(const Warp& w, const Leaf& f) {
  static const std::vector<std::vector<int>> kEach = [] {
    std::vector<std::vector<int>> g;
    for (int l = 0; l < kLanes; ++l) g.push_back({l});
    return g;
  }();
  return f.collective != nullptr ? f.collective->groups[static_cast<std::size_t>(w.local)] : kEach;
}

// A bit for each lane of the warp: whether the value holds there, or is the same as here.
void Interpreter::vote(const Warp& w, const Leaf& f, Mask lanes) {
  const Value& x = values_[0].front();
  const auto n = static_cast<std::size_t>(f.in.front().bytes);
  Value& r = values_[kResult].front();
  r = {scratch_[kResult].data(), 0, x.cause};
  for (const auto& group : f.collective->groups[static_cast<std::size_t>(w.local)]) {
    const auto bits = [&](std::size_t rank) {
      return load_bits(x.bits + n * static_cast<std::size_t>(group[rank]), static_cast<int>(n));
    };
    for (std::size_t own = 0; own < group.size(); ++own) {
      std::uint32_t votes = 0;
      for (std::size_t other = 0; other < group.size(); ++other) {
        const bool holds = f.op.op == Op::Ballot ? bits(other) != 0 : bits(other) == bits(own);
        votes |= static_cast<std::uint32_t>(holds) << other;
        if ((x.undefined >> group[other] & 1) != 0) r.undefined |= 1U << group[own];
      }
      store_bits(scratch_[kResult].data() + sizeof votes * static_cast<std::size_t>(group[own]), sizeof votes, votes);
    }
  }
  put(w, f, lanes, values_[kResult]);
}

void Interpreter::reduce(const Warp& w, const Leaf& f, Mask lanes) {
  fetch(w, f, f.in.front(), lanes, 0);
  if (f.op.op == Op::Ballot || f.op.op == Op::Match) return vote(w, f, lanes);
  const Operand& o = f.out.front();
  const bool update = o.access == atoms::Access::Update;
  if (update) fetch_old(w, f, lanes);
  Values& results = values_[kResult];
  const std::size_t stride = static_cast<std::size_t>(o.bytes) * kLanes;
  for (std::size_t v = 0; v < static_cast<std::size_t>(o.values); ++v) {
    results[v] = {scratch_[kResult].data() + v * stride, 0, 0};
  }
  alignas(64) char one[2][kLanes * 8] = {};
  for (const auto& group : groups_of(w, f)) {
    for (std::size_t e = 0; e < f.reduced.size(); ++e) {
      if (f.holders[e].empty()) continue;
      bool first = !update;
      bool bad = false;
      std::uint32_t cause = 0;
      const auto take = [&](std::size_t slot, Holder h, char* to) {
        const Value& x = values_[slot][static_cast<std::size_t>(h.value)];
        const int lane = group[static_cast<std::size_t>(h.rank)];
        copy_lane(o.bytes, to, 0, x.bits, lane);
        if ((x.undefined >> lane & 1) != 0) {
          bad = true;
          cause = x.cause;
        }
      };
      if (update) take(kOld, f.holders[e].front(), one[0]);
      for (const Holder h : f.reduced[e]) {
        take(0, h, first ? one[0] : one[1]);
        if (!first) f.op(one[0], one[1], nullptr, one[0]);
        first = false;
      }
      for (const Holder h : f.holders[e]) {
        Value& r = results[static_cast<std::size_t>(h.value)];
        const int lane = group[static_cast<std::size_t>(h.rank)];
        copy_lane(o.bytes, const_cast<char*>(r.bits), lane, one[0], 0);
        if (bad) {
          r.undefined |= 1U << lane;
          r.cause = cause;
        }
      }
    }
  }
  put(w, f, lanes, results);
}

}  // namespace graphene::sim
