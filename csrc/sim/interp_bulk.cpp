// Copies that agents make as a whole for the thread that issues them: they take effect where they are issued, since
// nobody may look before their mbarrier's phase, or the thread's group, is over.
#include <algorithm>
#include <cstring>

#include "sim/bulk.h"
#include "sim/interp.h"

namespace graphene::sim {

namespace {

// What a copy by a tensor map of tf32 writes: the nearest number, of two the even one; each NaN becomes the same one.
// Subnormal numbers count, and what is too large becomes infinite, as an H200 has it.
void round_to_tf32(char* at) {
  auto bits = static_cast<std::uint32_t>(load_bits(at, 4));
  const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
  bits = nan ? 0x7fffe000U : (bits + 0xfffU + (bits >> 13 & 1U)) & ~0x1fffU;
  store_bits(at, 4, bits);
}

}  // namespace

void Interpreter::locate(const Warp& w, const Leaf& f, const Operand& o, int lane, int rank, Side& side) {
  side.rank = rank;
  side.granules.clear();
  side.position.clear();
  bulk_elements(plans(), w, o, lane, side.elements);
  const std::int64_t size = code_.buffer_elems[static_cast<std::size_t>(o.buffer)];
  if (o.box.empty() && side.elements.front() != kOutside && side.elements.front() % o.align_elems != 0) {
    misaligned({w, f, o}, lane, side.elements.front());
  }
  const Place& at_place = place(o.buffer, rank);
  for (std::size_t v = 0; v < side.elements.size(); ++v) {
    const std::int64_t e = side.elements[v];
    if (e == kOutside) continue;
    if (e < 0 || e >= size) out_of_bounds({w, f, o}, lane, e);
    for (int i = 0; i < at_place.ratio; ++i) {
      side.granules.push_back(at_place.first + static_cast<std::int32_t>(e) * at_place.ratio + i);
      side.position.push_back(static_cast<std::uint32_t>(v));
    }
  }
  stats_.accesses += side.granules.size() / static_cast<std::size_t>(at_place.ratio);
}

void Interpreter::read_side(const Warp& w, const Leaf& f, const Issuer& by, int lane, const Side& side) {
  const Operand& o = f.in.front();
  const Place& at = place(o.buffer, side.rank);
  Arena& arena = arenas_[static_cast<std::size_t>(at.arena)];
  if (!arena.tracked) return;
  Issuer reader = by;
  reader.global = !arena.shared;
  const Shadow::BulkVerdict v = arena.shadow.read_bulk({.by = &reader, .lane = lane, .lanes = 1U << lane},
                                                       side.granules.data(), side.granules.size(), f.site, sets_);
  if (v.conflict) race({w, f, o}, v.first, (v.first.offset - at.first) / at.ratio, false);
}

Interpreter::Ends Interpreter::ends(const Leaf& f, const Issuer& by, const Side& from, const Side& to) {
  const Operand& in = f.in.front();
  const Operand& out = f.out.front();
  const Place& source = place(in.buffer, from.rank);
  const Place& at = place(out.buffer, to.rank);
  Arena& arena = arenas_[static_cast<std::size_t>(at.arena)];
  Issuer writer = by;
  writer.global = !arena.shared;
  return {in, out, source, at, arenas_[static_cast<std::size_t>(source.arena)], arena, writer};
}

void Interpreter::write_side(const Warp& w, const Leaf& f, const Issuer& by, int lane, const Side& from,
                             const Side& to) {
  const auto [in, out, source, at, read, arena, writer] = ends(f, by, from, to);
  Conflict frozen;
  for (const std::int32_t g : to.granules) {
    if (!arena.shadow.frozen(writer, 1U << lane, std::vector<std::int32_t>(kLanes, g).data(), frozen)) break;
    race({w, f, out}, frozen, (frozen.offset - at.first) / at.ratio, true);
  }
  const Shadow::BulkVerdict v = arena.shadow.write_bulk({.by = &writer, .lane = lane, .lanes = 1U << lane},
                                                        to.granules.data(), to.granules.size(), f.site, sets_);
  if (v.conflict) race({w, f, out}, v.first, (v.first.offset - at.first) / at.ratio, true);
  const auto bytes = static_cast<std::size_t>(out.bytes);
  for (std::size_t i = 0; i < to.elements.size(); ++i) {
    if (to.elements[i] == kOutside) continue;
    char* target = at.data + to.elements[i] * out.bytes;
    if (from.elements[i] == kOutside) {
      std::memset(target, 0, bytes);
      continue;
    }
    std::memcpy(target, source.data + from.elements[i] * in.bytes, bytes);
    if (in.dtype == ir::ScalarType::tf32 && !in.box.empty()) round_to_tf32(target);
    if (!read.tracked) continue;
    const auto granule = source.first + static_cast<std::int32_t>(from.elements[i]) * source.ratio;
    bool undefined = false;
    for (int part = 0; part < source.ratio; ++part) undefined = undefined || read.shadow.is_undefined(granule + part);
    if (read.overlapped) {  // bytes last written under another name
      const std::uint32_t site = site_of(read.shadow.last_write(granule));
      undefined =
          undefined || (site != 0 && site != kMaxSite && code_.leaves[site - 1].out.front().buffer != in.buffer);
    }
    if (!undefined) continue;
    if (!arena.shared) undefined_store({w, f, out}, lane, to.elements[i], f.site);
    const auto written = at.first + static_cast<std::int32_t>(to.elements[i]) * at.ratio;
    for (int part = 0; part < at.ratio; ++part) arena.shadow.set_undefined(written + part, true);
  }
}

// Each element by itself, in one step for all threads and agents.
void Interpreter::combine_side(const Warp& w, const Leaf& f, const Issuer& by, int lane, const Side& from,
                               const Side& to) {
  const auto [in, out, source, at, read, arena, writer] = ends(f, by, from, to);
  alignas(64) char old[kLanes * 8] = {};
  alignas(64) char with[kLanes * 8] = {};
  alignas(64) char sum[kLanes * 8] = {};
  std::int32_t granule[kLanes] = {};
  for (std::size_t i = 0; i < to.elements.size(); ++i) {
    if (to.elements[i] == kOutside) continue;
    const bool given = from.elements[i] != kOutside;
    bool undefined = false;
    for (int part = 0; part < at.ratio; ++part) {
      granule[lane] = at.first + static_cast<std::int32_t>(to.elements[i]) * at.ratio + part;
      const Shadow::Verdict v =
          arena.shadow.update_atomically(writer, 1U << lane, granule, f.site, f.atomic_kind, sets_);
      check_frozen({w, f, out}, arena, at, 1U << lane, granule);
      if (v.conflict != 0) race({w, f, out}, v.first, to.elements[i], true);
      undefined = undefined || v.undefined != 0;
    }
    for (int part = 0; part < source.ratio && given && read.tracked; ++part) {
      const auto there = source.first + static_cast<std::int32_t>(from.elements[i]) * source.ratio + part;
      undefined = undefined || read.shadow.is_undefined(there);
    }
    if (undefined) undefined_store({w, f, out}, lane, to.elements[i], f.site);
    char* target = at.data + to.elements[i] * out.bytes;
    store_bits(old, out.bytes, load_bits(target, out.bytes));
    store_bits(with, in.bytes, given ? load_bits(source.data + from.elements[i] * in.bytes, in.bytes) : 0);
    f.op(old, with, nullptr, sum);
    store_bits(target, out.bytes, load_bits(sum, out.bytes));
  }
}

void Interpreter::tag_side(const Warp&, const Leaf& f, const Side& from, const Side& to) {
  TagState& t = *tags_;
  const Place& source = place(f.in.front().buffer, from.rank);
  const Place& at = place(f.out.front().buffer, to.rank);
  const auto arena = static_cast<std::size_t>(at.arena);
  if (t.read[arena] == 0) return;
  const CountedVector<Tag>& tags = t.memory[static_cast<std::size_t>(source.arena)];
  CountedVector<Tag>& memory = t.memory[arena];
  if (memory.empty()) memory.assign(static_cast<std::size_t>(arenas_[arena].granules), TagState::kUnknown);
  for (std::size_t i = 0; i < to.elements.size(); ++i) {
    if (to.elements[i] == kOutside) continue;
    const bool known = from.elements[i] != kOutside && !tags.empty() && !f.atomic;
    const Tag tag =
        known ? tags[static_cast<std::size_t>(source.first + from.elements[i] * source.ratio)] : TagState::kUnknown;
    std::fill_n(memory.begin() + at.first + to.elements[i] * at.ratio, at.ratio, tag);
  }
}

void Interpreter::trace_copy(const Warp& w, const Leaf& f, int lane, const std::vector<int>& targets) {
  const Operand& o = f.out.front();
  std::vector<int> mbarriers;
  for (const int rank : f.done.of >= 0 ? targets : std::vector<int>{}) {
    mbarriers.push_back(mbarrier(w, f.done, rank, lane));
  }
  trace->copy(w, f, std::int64_t{o.values} * o.bytes, mbarriers,
              mbarriers.empty() ? 0 : count(mbarriers.front()).phases, shared_uses(code_, w, f, 1U << lane));
}

void Interpreter::copy_bulk(const Warp& w, const Leaf& f, int lane) {
  WarpData& d = data(w);
  PhaseRules rules(*order_);
  const bool to_phase = f.done.of >= 0;
  const std::vector<int> targets = ranks(w, f.to);
  Issuer reader{.order = &*order_, .warp = w.id, .generic = false, .agent = true};
  Issuer writer = reader;
  const auto stamp = [](Issuer& by, Epoch epoch, std::uint32_t owner, int who) {
    by.stamps.fill(make_stamp(epoch, owner, who));
  };
  if (!to_phase) {
    for (const int domain : {f.domain, f.reads}) order_->open_copies(w.id, 1U << lane, domain);
    stamp(reader, order_->copy_epoch(w.id, lane, f.reads), order_->copies_of(w.id, f.reads), lane);
    stamp(writer, order_->copy_epoch(w.id, lane, f.domain), order_->copies_of(w.id, f.domain), lane);
  }
  for (const int rank : targets) {
    const int at = to_phase ? mbarrier(w, f.done, rank, lane) : -1;
    if (to_phase) {
      if (const PhaseFault fault = rules.copy(w.id, lane, at, count(at)); fault != PhaseFault::None) {
        copy_error(fault, w, f, lane, at);
      }
      d.issuer.refresh();
      stamp(writer, order_->phase_epoch(at), order_->phase_of(at), 0);
      copied_[static_cast<std::size_t>(at)] = {count(at).phases, &f, w.id, lane};
    }
    if (rank == targets.front()) {
      if (to_phase) reader.stamps = writer.stamps;
      locate(w, f, f.in.front(), lane, w.rank, from_);
      read_side(w, f, reader, lane, from_);
    }
    locate(w, f, f.out.front(), lane, rank, to_);
    f.atomic ? combine_side(w, f, writer, lane, from_, to_) : write_side(w, f, writer, lane, from_, to_);
    if (tags_ != nullptr) tag_side(w, f, from_, to_);
  }
  acts_ = {&w, lane, f.origin};
  if (traces()) trace_copy(w, f, lane, targets);
  land(w, f, 1U << lane);
  const auto shared = [&](const Operand& o) { return arenas_[static_cast<std::size_t>(place_of(w, o).arena)].shared; };
  if (!to_phase && shared(f.in.front())) {
    d.reads_shared[static_cast<std::size_t>(f.reads)][static_cast<std::size_t>(lane)] =
        order_->copy_epoch(w.id, lane, f.reads);
  }
}

}  // namespace graphene::sim
