#include "atoms/fragment.h"

#include <algorithm>

#include "atoms/parse.h"

namespace graphene::atoms {

namespace {

std::string list_str(const std::vector<std::int64_t>& v) {
  std::string s = "[";
  for (std::size_t i = 0; i < v.size(); ++i) s += (i > 0 ? "," : "") + std::to_string(v[i]);
  return s + "]";
}

bool same_function(const Layout& a, const Layout& b) {
  if (!a.is_static() || !b.is_static()) return false;
  const FlatLayout x = flatten(a);
  const FlatLayout y = flatten(b);
  const std::int64_t n = x.size();
  if (n != y.size() || n > 4096) return false;
  for (std::int64_t i = 0; i < n; ++i) {
    if (x(i) != y(i)) return false;
  }
  return true;
}

bool contiguous(const Layout& l) {
  const FlatLayout f = flatten(l);
  std::int64_t s = 1;
  for (std::size_t i = 0; i < f.shape.size(); ++i) {
    if (f.shape[i] != 1 && f.stride[i] != s) return false;
    s *= f.shape[i];
  }
  return true;
}

// Per dimension of the view the leaves of all levels, innermost level fastest; false: not static or of mixed ranks.
bool dimensions(const ir::Tensor& view, std::vector<FlatLayout>* out) {
  out->clear();
  for (std::size_t l = view.levels.size(); l-- > 0;) {
    const Layout& level = view.levels[l];
    if (!level.is_static()) return false;
    const auto rank = static_cast<std::size_t>(level.rank());
    if (out->empty()) out->resize(rank);
    if (out->size() != rank) return false;
    for (std::size_t d = 0; d < rank; ++d) {
      const FlatLayout f = flatten(level.shape().is_leaf() ? level : level.mode(static_cast<int>(d)));
      (*out)[d].shape.insert((*out)[d].shape.end(), f.shape.begin(), f.shape.end());
      (*out)[d].stride.insert((*out)[d].stride.end(), f.stride.begin(), f.stride.end());
    }
  }
  return true;
}

std::string loops_of(const Expr& e) {
  std::string names;
  for (const Expr& v : sym::free_vars(e)) {
    if (v.var().kind == sym::VarKind::Loop) names += (names.empty() ? "" : ", ") + v.var().name;
  }
  return names;
}

}  // namespace

std::optional<Expr> own_rank(const ir::ThreadTensor& exec, const ir::ThreadTensor& group) {
  const Layout& inner = group.levels.back();
  Expr rank = 0;
  if (group.levels.size() > 1) {
    const std::vector<std::vector<Expr>> own = group.indices();
    std::int64_t scale = inner.size().value();
    for (std::size_t l = group.levels.size() - 1; l-- > 0;) {
      for (std::size_t m = 0; m < own[l].size(); ++m) {
        rank = rank + own[l][m] * scale;
        const Layout& level = group.levels[l];
        scale *= (level.shape().is_leaf() ? level : level.mode(static_cast<int>(m))).size().value();
      }
    }
  }
  const Expr exec_base = own_group_base(exec);
  const Expr group_base = own_group_base(group);
  if (same_function(exec.levels.back(), inner)) {
    const std::optional<std::int64_t> d = constant_difference(exec_base, group_base);
    if (d && *d == 0) return rank;
  }
  if (inner.is_static() && contiguous(inner) && exec.levels.back().is_static() && contiguous(exec.levels.back())) {
    const Expr shift = exec_base - group_base;
    if (sym::prove(sym::le(0, shift)) && sym::prove(sym::lt(shift, inner.size()))) return rank + shift;
  }
  return std::nullopt;
}

Expr own_group_base(const ir::ThreadTensor& t) {
  Expr base = t.offset;
  if (t.levels.size() > 1) {
    const std::vector<std::vector<Expr>> own = t.indices();
    for (std::size_t l = 0; l + 1 < t.levels.size(); ++l) {
      for (std::size_t m = 0; m < own[l].size(); ++m) {
        const Layout& level = t.levels[l];
        base = base + (level.shape().is_leaf() ? level : level.mode(static_cast<int>(m)))(own[l][m]);
      }
    }
  }
  return sym::expand_coords(base);
}

std::optional<std::int64_t> constant_difference(const Expr& a, const Expr& b) {
  const Expr d = sym::expand_coords(a - b);
  if (d.is_const()) return d.value();
  // The simplifier may miss an identity of divisions: try every thread.
  const std::vector<Expr> vars = sym::free_vars(d);
  if (vars.size() != 1 || vars[0].var().kind != sym::VarKind::ThreadIdx || vars[0].var().max > 4096)
    return std::nullopt;
  std::optional<std::int64_t> value;
  for (std::int64_t tid = 0; tid <= vars[0].var().max; ++tid) {
    const std::int64_t x = sym::evaluate(d, [tid](const sym::VarInfo&) { return tid; });
    if (value && *value != x) return std::nullopt;
    value = x;
  }
  return value;
}

std::vector<int> view_axes(const Instance& atom, bool is_output, std::size_t index) {
  const OperandInstance& o = is_output ? atom.out[index] : atom.in[index];
  std::vector<int> order;
  if (atom.atom.kind != Kind::MatMul || is_output || atom.in.size() < 2) {
    for (std::size_t i = 0; i < o.axes.size(); ++i) order.push_back(static_cast<int>(i));
    return order;
  }
  const auto has = [](const OperandInstance& x, const std::string& axis) {
    return std::find(x.axes.begin(), x.axes.end(), axis) != x.axes.end();
  };
  const OperandInstance& other = atom.in[1 - index];
  // Batch axes first, then (m, k) or (k, n): k is what the output lacks.
  const auto collect = [&](auto&& wanted) {
    for (std::size_t i = 0; i < o.axes.size(); ++i) {
      if (wanted(o.axes[i])) order.push_back(static_cast<int>(i));
    }
  };
  const auto contracted = [&](const std::string& a) { return !has(atom.out[0], a); };
  const auto batch = [&](const std::string& a) { return has(atom.out[0], a) && has(other, a); };
  const auto own = [&](const std::string& a) { return has(atom.out[0], a) && !has(other, a); };
  collect(batch);
  if (index == 0) collect(own);
  collect(contracted);
  if (index != 0) collect(own);
  return order;
}

FragmentRegisters fragment_registers(const ir::Tensor& view, const OperandInstance& operand,
                                     const std::vector<int>& dims, const ir::ThreadTensor& exec, int threads) {
  FragmentRegisters out;
  const ir::Fragment& f = *view.buffer->fragment;
  std::vector<FlatLayout> layout;
  std::vector<std::int64_t> want;
  for (const int a : dims) want.push_back(operand.extents[static_cast<std::size_t>(a)]);
  std::vector<std::int64_t> got;
  const bool is_static = dimensions(view, &layout);
  for (const FlatLayout& d : layout) got.push_back(d.size());
  if (!is_static || got != want) {
    out.mismatch = "want one tile " + list_str(want) + " of the fragment, got " + view.type_str(false);
    return out;
  }

  // Offset in the view of each element of the tile: the sum of what its coordinate along each axis adds.
  std::vector<std::int64_t> delta(1, 0);
  delta.reserve(static_cast<std::size_t>(operand.tile_size));
  for (std::size_t x = 0; x < operand.extents.size(); ++x) {
    const auto d = static_cast<std::size_t>(std::find(dims.begin(), dims.end(), static_cast<int>(x)) - dims.begin());
    const std::size_t before = delta.size();
    for (std::int64_t i = 1; i < operand.extents[x]; ++i) {
      const std::int64_t step = layout[d](i);
      for (std::size_t e = 0; e < before; ++e) delta.push_back(delta[e] + step);
    }
  }

  const FlatLayout thread = flatten(f.tv.mode(0));
  const FlatLayout value = flatten(f.tv.mode(1));
  const std::int64_t group_threads = thread.size();
  std::vector<std::int64_t> of_thread(static_cast<std::size_t>(group_threads));
  for (std::int64_t t = 0; t < group_threads; ++t) of_thread[static_cast<std::size_t>(t)] = thread(t);
  if (group_threads % threads != 0) {
    out.mismatch =
        "want a fragment of a multiple of " + std::to_string(threads) + " threads, got " + f.group->type_str();
    return out;
  }
  // Every collective of the group holds its part alike: F(first + t, r) == F(first, 0) + F(t, r).
  for (std::int64_t first = threads; first < group_threads; first += threads) {
    for (std::int64_t t = 1; t < threads; ++t) {
      if (of_thread[static_cast<std::size_t>(first + t)] !=
          of_thread[static_cast<std::size_t>(first)] + of_thread[static_cast<std::size_t>(t)]) {
        out.mismatch = "want a fragment that every " + std::to_string(threads) + " threads hold alike, got TV layout " +
                       f.tv.str();
        return out;
      }
    }
  }

  // Where this collective's part starts.
  const std::optional<Expr> rank = own_rank(exec, *f.group);
  const std::int64_t elements = f.covered_elems();
  std::int64_t start = 0;
  if (!rank || (rank->is_const() ? rank->value() : sym::divisor(*rank)) % threads != 0) {
    out.error =
        "the fragment is held by " + f.group->type_str() + ", the leaf runs on other threads: " + exec.type_str();
    out.fix = "run it on the fragment's own group";
  } else {
    const Expr base = f.tv.mode(0)(*rank);
    const std::optional<std::int64_t> c = constant_difference(view.offset, base);
    if (c) {
      start = *c;
    } else {
      const Expr d = sym::expand_coords(view.offset - base);
      const std::string loops = loops_of(d);
      out.error = "the index into registers is not a constant of the executing group: " + d.str();
      out.fix = loops.empty() ? "index a fragment's outer level by its group's own coordinates, registers by constants"
                              : "unroll the loop over " + loops + " (a Python range, or unroll=0)";
    }
  }
  const std::int64_t stage = start >= 0 ? start / elements : -1;
  const std::int64_t stages = std::max(view.buffer->stages, 1);
  if (out.error.empty() && (stage < 0 || stage >= stages)) {
    out.error = "the view starts at element " + std::to_string(start) + ", outside the group's own part";
    out.fix = "index the fragment's outer level by its group's own coordinates";
  }
  start -= stage * elements;

  const std::int64_t n_values = value.size();
  std::vector<std::int64_t> of_value(static_cast<std::size_t>(n_values));
  for (std::int64_t r = 0; r < n_values; ++r) of_value[static_cast<std::size_t>(r)] = value(r);
  std::vector<std::int64_t> of_lane(static_cast<std::size_t>(threads));
  for (std::int64_t t = 0; t < threads; ++t) of_lane[static_cast<std::size_t>(t)] = operand.tv_thread(t);
  out.registers.resize(static_cast<std::size_t>(operand.values));
  for (int v = 0; v < operand.values; ++v) {
    const std::int64_t of_register = operand.tv_value(v);
    const std::int64_t wanted = start + delta[static_cast<std::size_t>(of_lane[0] + of_register)] - of_thread[0];
    for (std::int64_t t = 1; t < threads; ++t) {
      const std::int64_t at = of_lane[static_cast<std::size_t>(t)] + of_register;
      const std::int64_t element = start + delta[static_cast<std::size_t>(at)];
      if (element - of_thread[static_cast<std::size_t>(t)] != wanted) {
        out.mismatch = "want TV layout " + operand.tv.str() + " on the tile, got a fragment <" + f.label +
                       ">: thread " + std::to_string(t) + " does not hold element " +
                       std::to_string(operand.element(t, v)) + " of the tile where thread 0 holds " +
                       std::to_string(operand.element(0, v));
        return out;
      }
    }
    const std::int64_t r = std::find(of_value.begin(), of_value.end(), wanted) - of_value.begin();
    if (r == n_values) {
      if (!out.error.empty()) return out;  // its start is unknown
      out.mismatch = "want TV layout " + operand.tv.str() + " on the tile, got a fragment <" + f.label +
                     ">: thread 0 does not hold element " + std::to_string(operand.element(0, v)) + " of the tile";
      return out;
    }
    out.registers[static_cast<std::size_t>(v)] = static_cast<int>(stage * n_values + r);
  }
  return out;
}

}  // namespace graphene::atoms
