// Products that an agent makes for a warpgroup: their operands in shared memory are read as a whole, their registers
// are in use until their group has been waited for. They take effect where they are issued.
#include <algorithm>
#include <bit>
#include <cstring>

#include "sim/interp.h"

namespace graphene::sim {

void Interpreter::in_flight(const Warp& w, const Leaf& f, const Operand& o, std::size_t value, const Leaf* by,
                            const std::string& message, const std::string& fix) const {
  const auto& first = code_.array_first;
  const auto array = std::upper_bound(first.begin(), first.end(), o.registers[value]) - first.begin() - 1;
  const std::string name = code_.program->registers[static_cast<std::size_t>(array)].buffer->name;
  Diagnostic d;
  d.code = Code::SIM_IN_FLIGHT;
  d.where = f.origin != nullptr ? f.origin->loc : SourceLoc{};
  d.message = message + ": " + name + ", register " +
              std::to_string(o.registers[value] - first[static_cast<std::size_t>(array)]);
  d.ir = {statement_text(f.origin)};
  d.details = {"in: warp " + std::to_string(w.local) + " of block " + block_text(w) + ", " + location_text(f.origin)};
  if (by != nullptr) {
    if (by->origin != f.origin) d.ir.push_back(statement_text(by->origin));
    d.details.push_back((by->product ? "the product: " : "the access: ") + location_text(by->origin));
  }
  d.fix = fix;
  throw Error(std::move(d));
}

// Chained products of one shape add to the same registers in order; anything else waits for the group.
void Interpreter::begin_product(const Warp& w, const Leaf& f) {
  const int agent = agent_of(w);
  for (int i = 0; i < f.span; ++i) {
    const Warp& each = warps_[static_cast<std::size_t>(w.id + i)];
    WarpData& d = data(each);
    for (const auto* list : {&f.out, &f.in}) {
      for (const Operand& o : *list) {
        if (o.kind != Operand::Kind::Registers) continue;
        const bool writes = list == &f.out;
        for (std::size_t v = 0; v < o.registers.size(); ++v) {
          WarpData::Use& use = d.used[static_cast<std::size_t>(o.registers[v])];
          const bool busy = use.group > d.done;
          const bool chained = busy && use.written && writes && use.by->out.front().registers == o.registers;
          if (busy && !chained && (use.written || writes)) {
            in_flight(each, f, o, v, use.by, "a product on a register that another one is still using",
                      "wait for the group of that product first: gr.wait(...)");
          }
          if (use.accessed) {
            in_flight(each, f, o, v, use.accessed_by, "a product on a register that was accessed since the last fence",
                      "put gr.fence(...) of the product's atom between the two");
          }
          use = {.group = closed_[static_cast<std::size_t>(agent)] + 1, .written = writes, .accessed = false, .by = &f};
        }
      }
    }
  }
  for (int i = 0; i < f.span; ++i) {
    order_->issue(w.id + i, order_->lanes_of(w.id + i), agent, Passes::Events);
    warp_data_[static_cast<std::size_t>(w.id + i)].issuer.refresh();
  }
}

void Interpreter::use_registers(const Warp& w, const Leaf& f, const Operand& o) {
  WarpData& d = data(w);
  for (std::size_t v = 0; v < o.registers.size(); ++v) {
    WarpData::Use& use = d.used[static_cast<std::size_t>(o.registers[v])];
    if (use.group > d.done) {
      in_flight(w, f, o, v, use.by, "a register that a product in flight is still using",
                "wait for the group of that product first: gr.wait(...)");
    }
    use.accessed = true;
    use.accessed_by = &f;
  }
}

void Interpreter::fence_registers(const Warp& w) {
  for (WarpData::Use& use : data(w).used) use.accessed = false;
}

// The four warps commit alike: the first of them closes the group.
void Interpreter::group_products(Warp& w, const GroupSync& g) {
  WarpData& d = data(w);
  const auto agent = static_cast<std::size_t>(agent_of(w));
  if (w.active != w.lanes) {
    divergent(w, g.origin, w.lanes & ~w.active, "a part of a warp commits or waits for its warpgroup's products");
  }
  const bool closes = g.commits && ++d.groups > closed_[agent];
  if (closes) {
    order_->close_group(static_cast<int>(agent));
    ++closed_[agent];
  }
  if (traces()) trace->products(w, g, closes, d.groups > g.pending ? d.groups - g.pending : 0);
  if (!g.waits || d.groups <= g.pending) return;
  d.done = std::max(d.done, d.groups - g.pending);
  order_->wait_group(w.id, w.active, static_cast<int>(agent), d.done - 1);
  d.issuer.refresh();
}

// The operand's 16 rows that each warp multiplies must be known to that warp (A), all of it to all four (B).
void Interpreter::fetch_whole(const Warp& w, const Leaf& f, const Operand& o, std::size_t slot) {
  const Place& at = place_of(w, o);
  Arena& arena = arenas_[static_cast<std::size_t>(at.arena)];
  const int agent = agent_of(w);
  const std::int64_t offset = plans().at_lane(o.offset, w.ints, 0);
  const std::int64_t size = code_.buffer_elems[static_cast<std::size_t>(o.buffer)];
  if (offset + o.lowest < 0) out_of_bounds({w, f, o}, 0, offset + o.lowest);
  if (offset + o.highest >= size) out_of_bounds({w, f, o}, 0, offset + o.highest);
  Issuer by{.order = &*order_, .warp = w.id, .generic = false, .agent = true};
  by.stamps.fill(make_stamp(order_->group_epoch(agent), order_->agent(agent), 0));
  const bool by_rows = slot == 0;
  const std::size_t rows = static_cast<std::size_t>(f.einsum->m);
  const std::size_t each = rows / static_cast<std::size_t>(f.span);
  const auto read = [&](const Bulk& bulk, const std::vector<std::int32_t>& granules) {
    const Shadow::BulkVerdict v = arena.shadow.read_bulk(bulk, granules.data(), granules.size(), f.site, sets_);
    if (v.conflict) race({w, f, o}, v.first, (v.first.offset - at.first) / at.ratio, false);
  };
  for (int part = 0; part < (by_rows ? f.span : 1); ++part) {
    from_.granules.clear();
    for (std::size_t e = 0; e < o.deltas.size(); ++e) {
      if (by_rows && e % rows / each != static_cast<std::size_t>(part)) continue;
      for (int i = 0; i < at.ratio; ++i) {
        from_.granules.push_back(at.first + static_cast<std::int32_t>(offset + o.deltas[e]) * at.ratio + i);
      }
    }
    by.warp = by_rows ? w.id + part : w.id;
    read({.by = &by, .lane = 0, .lanes = ~Mask{0}, .warps = by_rows ? 1 : f.span}, from_.granules);
  }
  char* scratch = scratch_[slot].data();
  for (std::size_t e = 0; e < o.deltas.size(); ++e) {
    Value& x = values_[slot][e / kLanes];
    char* to = scratch + e / kLanes * static_cast<std::size_t>(o.bytes) * kLanes;
    if (e % kLanes == 0) x = {to, 0, f.site};
    std::memcpy(to + e % kLanes * static_cast<std::size_t>(o.bytes), at.data + (offset + o.deltas[e]) * o.bytes,
                static_cast<std::size_t>(o.bytes));
    const auto granule = at.first + static_cast<std::int32_t>(offset + o.deltas[e]) * at.ratio;
    if (arena.shadow.is_undefined(granule)) x.undefined |= 1U << (e % kLanes);
  }
  stats_.accesses += o.deltas.size();
}

void Interpreter::check_products() const {
  for (const Warp& w : warps_) {
    const WarpData& d = warp_data_[static_cast<std::size_t>(w.id)];
    for (const WarpData::Use& use : d.used) {
      if (use.group <= d.done) continue;
      Diagnostic e;
      e.code = Code::SIM_UNFINISHED_COPY;
      e.where = use.by->origin != nullptr ? use.by->origin->loc : SourceLoc{};
      e.message = "the block ends while a product still reads its shared memory";
      e.ir = {statement_text(use.by->origin)};
      e.details = {"in: warp " + std::to_string(w.local) + " of block " + block_text(w)};
      e.fix = "commit and wait for its group before the end";
      throw Error(std::move(e));
    }
  }
}

}  // namespace graphene::sim
