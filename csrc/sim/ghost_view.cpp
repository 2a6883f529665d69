#include "sim/ghost_view.h"

#include <algorithm>
#include <numeric>

namespace graphene::sim {

namespace {

// Offsets of every coordinate of every dimension; the innermost level is fastest.
std::vector<std::vector<std::int64_t>> dimension_offsets(const std::vector<Layout>& levels, const Bytecode& code) {
  std::size_t rank = levels.empty() ? 0 : static_cast<std::size_t>(levels.front().rank());
  bool equal = true;
  for (const Layout& l : levels) equal = equal && static_cast<std::size_t>(l.rank()) == rank;
  if (!equal) rank = 1;
  std::vector<std::vector<std::int64_t>> dims(rank, {0});
  for (auto level = levels.rbegin(); level != levels.rend(); ++level) {
    const FlatModes f = flat_modes(*level, code);
    for (std::size_t m = 0; m < f.shape.size(); ++m) {
      auto& d = dims[equal ? m : 0];
      for (std::size_t i = 0; i < f.shape[m].size(); ++i) {
        const std::size_t inner = d.size();
        for (std::int64_t c = 1; c < f.shape[m][i]; ++c) {
          for (std::size_t k = 0; k < inner; ++k) d.push_back(d[k] + c * f.stride[m][i]);
        }
        if (f.shape[m][i] == 0) d.clear();
      }
    }
  }
  return dims;
}

std::int64_t at_lane(const IntPlans& plans, const IntPlan& p, const Warp& w, int lane) {
  Lanes v;
  plans.lanes(p, w.ints, 1U << lane, v);
  return v[static_cast<std::size_t>(lane)];
}

// Threads of a group in the order of their ranks, relative to its first: the innermost level fastest.
std::vector<std::int64_t> ranked_members(const ir::ThreadTensor& group) {
  std::vector<std::int64_t> members = {0};
  for (auto level = group.levels.rbegin(); level != group.levels.rend(); ++level) {
    std::vector<std::int64_t> next;
    for (std::int64_t i = 0; i < level->size().value(); ++i) {
      const std::int64_t first = (*level)(Expr(i)).value();
      for (const std::int64_t m : members) next.push_back(m + first);
    }
    members = std::move(next);
  }
  return members;
}

void plan_fragment(const ir::Fragment& f, ViewPlan& p) {
  p.ranks = ranked_members(*f.group);
  p.holders.resize(static_cast<std::size_t>(f.covered_elems()));
  const Layout by_thread = f.tv.mode(0);
  const Layout by_value = f.tv.mode(1);
  std::vector<std::int64_t> values;
  for (std::int64_t x = 0; x < f.values(); ++x) values.push_back(by_value(Expr(x)).value());
  for (std::size_t r = 0; r < p.ranks.size(); ++r) {
    const std::int64_t first = by_thread(Expr(static_cast<std::int64_t>(r))).value();
    for (std::size_t x = 0; x < values.size(); ++x) {
      const auto e = static_cast<std::size_t>(first + values[x]);
      if (e < p.holders.size()) p.holders[e].push_back({r, static_cast<std::int64_t>(x)});
    }
  }
}

}  // namespace

CellMap make_cell_map(const Bytecode& code) {
  CellMap m;
  m.block_threads = code.program->block_threads;
  m.threads = m.block_threads * code.cluster();
  const auto place = [&](ir::Memory memory) {
    for (std::size_t i = 0; i < code.program->buffers.size(); ++i) {
      if (code.program->buffers[i].memory != memory) continue;
      m.buffer_first[i] = m.cells;
      m.cells += code.buffer_elems[i];
    }
  };
  m.buffer_first.resize(code.program->buffers.size());
  place(ir::Memory::GL);
  m.argument_end = {m.cells};
  m.shared_first = m.cells;
  place(ir::Memory::SH);
  m.shared_cells = m.cells - m.shared_first;
  m.cells += m.shared_cells * (code.cluster() - 1);
  m.register_first = m.cells;
  m.cells += static_cast<std::int64_t>(code.register_types.size()) * m.threads;
  return m;
}

std::optional<ViewPlan> plan_view(const ir::Tensor& t, const Bytecode& code) {
  try {
    ViewPlan p;
    p.tensor = &t;
    const auto& arrays = code.program->registers;
    const auto& buffers = code.program->buffers;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      if (arrays[i].buffer->id == t.buffer->id) p.array = static_cast<int>(i);
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i].buffer->id == t.buffer->id && buffers[i].list_index == 0) p.buffer = static_cast<int>(i);
    }
    if (p.array < 0 && p.buffer < 0) return std::nullopt;
    if (t.is_list()) return std::nullopt;
    p.member = code.plans->compile(t.member.value_or(Expr(0)));
    p.rank = code.plans->compile(t.rank.value_or(Expr(-1)));
    p.offset = code.plans->compile(t.offset);
    p.dims = dimension_offsets(t.levels, code);
    if (t.is_fragment()) plan_fragment(*t.buffer->fragment, p);
    for (const ir::DimBound& b : t.bounds) {
      p.bounds.push_back(
          {code.plans->compile(b.base), code.plans->compile(b.extent), dimension_offsets(b.levels, code)});
      if (p.bounds.back().dims.size() != p.dims.size()) return std::nullopt;
    }
    return p;
  } catch (const Error&) {
    return std::nullopt;  // sizes that only the run decides
  }
}

View view_cells(const ViewPlan& plan, const Bytecode& code, const CellMap& map, const Warp& w, int lane,
                const std::vector<std::int64_t>& members) {
  View v;
  IntPlans& plans = *code.plans;
  const ir::Tensor& t = *plan.tensor;
  const std::int64_t tid = std::int64_t{w.local} * kLanes + lane;
  const std::int64_t block = w.rank * map.block_threads;  // its first thread
  const std::int64_t base = at_lane(plans, plan.offset, w, lane);
  const std::int64_t member = at_lane(plans, plan.member, w, lane);
  const std::int64_t asked = at_lane(plans, plan.rank, w, lane);
  const int rank = asked >= 0 && asked < code.cluster() ? static_cast<int>(asked) : w.rank;
  const bool listed = member >= 0 && member < std::max(t.buffer->count, 1);
  const auto buffer = static_cast<std::size_t>(std::max(plan.buffer, 0) + (listed ? member : 0));
  for (const auto& d : plan.dims) v.extents.push_back(static_cast<std::int64_t>(d.size()));
  const std::int64_t size = std::accumulate(v.extents.begin(), v.extents.end(), std::int64_t{1}, std::multiplies<>());
  struct Limit {
    std::int64_t base, extent;
  };
  std::vector<Limit> limits;
  for (const auto& b : plan.bounds)
    limits.push_back({at_lane(plans, b.base, w, lane), at_lane(plans, b.extent, w, lane)});
  std::vector<std::int64_t> starts;  // of a row, per limit

  std::int64_t first_thread = 0;
  std::int64_t per_stage = 1;
  std::int64_t values = 1;
  if (t.is_fragment()) {
    const ir::Fragment& f = *t.buffer->fragment;
    first_thread = plans.at_thread(f.group->offset, tid);
    per_stage = f.covered_elems();
    values = f.values();
  }
  v.scattered = plan.array >= 0 && !t.is_fragment() && members.size() > 1;
  const std::int64_t first_register = plan.array >= 0 ? code.array_first[static_cast<std::size_t>(plan.array)] : 0;

  if (!v.scattered) v.cells.reserve(static_cast<std::size_t>(size));
  const auto& s = t.buffer->swizzle;
  const std::int64_t moved = (std::int64_t{1} << s.bits) - 1;
  const auto add = [&](std::int64_t offset) {
    if (plan.buffer >= 0) {
      std::int64_t element = offset;
      if (!s.trivial()) {
        const std::int64_t mask = moved << (s.base + std::max(s.shift, 0));
        element ^= s.shift >= 0 ? (offset & mask) >> s.shift : (offset & moved << s.base) << -s.shift;
      }
      if (listed && element >= 0 && element < code.buffer_elems[buffer]) {
        v.cells.add(map.first(static_cast<int>(buffer), rank) + element);
      }
    } else if (t.is_fragment()) {
      const std::int64_t stage = offset / per_stage;
      for (const ViewPlan::RankedValue& h : plan.holders[static_cast<std::size_t>(offset % per_stage)]) {
        v.cells.add(map.reg(first_register + stage * values + h.value, block + first_thread + plan.ranks[h.rank]));
      }
    } else if (v.scattered) {
      for (const std::int64_t m : members) {
        v.cells.add(map.reg(first_register + offset, block + m));
        v.cells.end_element();
      }
    } else {
      v.cells.add(map.reg(first_register + offset, block + tid));
    }
  };
  // Rows along the first dimension; a view without dimensions is one element.
  static const std::vector<std::int64_t> kOne = {0};
  const std::vector<std::int64_t>& row = plan.dims.empty() ? kOne : plan.dims.front();
  std::vector<std::size_t> at(plan.dims.size(), 0);
  for (std::int64_t done = 0; done < size; done += static_cast<std::int64_t>(row.size())) {
    std::int64_t start = base;
    for (std::size_t d = 1; d < at.size(); ++d) start += plan.dims[d][at[d]];
    starts.clear();
    for (std::size_t b = 0; b < limits.size(); ++b) {
      std::int64_t x = limits[b].base;
      for (std::size_t d = 1; d < at.size(); ++d) x += plan.bounds[b].dims[d][at[d]];
      starts.push_back(x);
    }
    for (std::size_t e = 0; e < row.size(); ++e) {
      bool inside = true;
      for (std::size_t b = 0; b < limits.size(); ++b) {
        const std::int64_t along = plan.dims.empty() ? 0 : plan.bounds[b].dims.front()[e];
        inside = inside && starts[b] + along < limits[b].extent;
      }
      if (inside) add(start + row[e]);
      if (!v.scattered) v.cells.end_element();
    }
    for (std::size_t d = 1; d < at.size(); ++d) {
      if (++at[d] < plan.dims[d].size()) break;
      at[d] = 0;
    }
  }
  return v;
}

std::string coordinate_text(const std::vector<std::int64_t>& extents, std::int64_t element) {
  std::string s;
  for (const std::int64_t n : extents) {
    s += (s.empty() ? "" : ", ") + std::to_string(element % std::max<std::int64_t>(n, 1));
    element /= std::max<std::int64_t>(n, 1);
  }
  return "[" + s + "]";
}

}  // namespace graphene::sim
