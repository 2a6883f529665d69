#include "ir/tensor.h"

#include <algorithm>

#include "ir/levels.h"

namespace graphene::ir {

namespace {

std::string tensor_line(const Tensor& t) { return "tensor: " + t.type_str(); }

std::vector<Layout> zeros_of(const std::vector<Layout>& levels, std::size_t from) {
  std::vector<Layout> out;
  for (std::size_t i = from; i < levels.size(); ++i) out.push_back(zeros(levels[i].shape()));
  return out;
}

Expr largest(const IntTuple& shape, const IntTuple& stride) {
  if (shape.is_leaf()) {
    const Expr& step = stride.leaf();  // the first element is the largest one where they go down
    return step.is_const() && step.value() <= 0 ? Expr(0) : (shape.leaf() - 1) * step;
  }
  Expr sum = 0;
  for (int i = 0; i < shape.rank(); ++i) sum = sum + largest(shape[i], stride[i]);
  return sum;
}

bool always(const DimBound& b) {
  Expr top = b.base;
  for (const Layout& l : b.levels) top = top + largest(l.shape(), l.stride());
  return sym::prove(sym::lt(top, b.extent));
}

}  // namespace

std::int64_t Fragment::values() const { return tv.mode(1).size().value(); }

std::int64_t Fragment::covered_elems() const {
  std::int64_t inner = 1;
  for (std::size_t d = 0; d + 1 < shape.size(); ++d) inner *= shape[d];
  const std::int64_t reach = tv.mode(0).cosize().value() + tv.mode(1).cosize().value() - 1;
  return inner * std::max(shape.back(), (reach + inner - 1) / inner);
}

Expr Buffer::size_elems() const {
  if (memory == Memory::RF) {
    const Expr one = fragment ? Expr(fragment->values()) : layout.cosize();
    return stages > 0 ? one * stages : one;
  }
  if (stages == 0) return layout.cosize();
  return stage_elems * (stages - 1) + layout.cosize();
}

std::vector<Expr> Tensor::logical_shape() const {
  std::vector<Expr> out;
  for (const Layout& l : levels) {
    const std::vector<Layout> modes = modes_of(l);
    if (out.empty()) out.assign(modes.size(), Expr(1));
    if (out.size() != modes.size())
      fail(Code::TENSOR_RANK, "levels of different ranks have no common shape", {tensor_line(*this)},
           "index the outer level first");
    for (std::size_t i = 0; i < modes.size(); ++i) out[i] = out[i] * modes[i].size();
  }
  return out;
}

Expr Tensor::size() const {
  Expr p = 1;
  for (const Layout& l : levels) p = p * l.size();
  return p;
}

std::string Tensor::type_str(bool strides) const {
  std::string s = levels_str(levels, strides) + "." + name(dtype) + "." + name(memory());
  if (is_fragment() && !buffer->fragment->label.empty()) s += "<" + buffer->fragment->label + ">";
  return s;
}

void prune_bounds(Tensor& t) {
  t.bounds.erase(std::remove_if(t.bounds.begin(), t.bounds.end(), always), t.bounds.end());
}

namespace {

std::function<void(const std::string&)> refuse_tile(const Tensor& t, std::size_t mode) {
  return [&t, mode](const std::string& why) {
    fail(Code::TENSOR_TILE, why, {tensor_line(t), "mode: " + std::to_string(mode)});
  };
}

void check_tiler(const Tensor& t, std::size_t want, const layout::Tiler& tiler) {
  if (t.levels.empty()) fail(Code::TENSOR_TILE, "a scalar has nothing to tile", {tensor_line(t)});
  if (tiler.size() != want)
    fail(Code::TENSOR_TILE, "one tile size per dimension is needed",
         {tensor_line(t), "want: " + std::to_string(want) + " sizes", "got: " + std::to_string(tiler.size())},
         "None keeps a dimension whole");
}

void check_not_list(const Tensor& t) {
  if (!t.is_list()) return;
  fail(Code::INPUTS_INDEX, "a list of tensors must be indexed before anything else", {tensor_line(t)},
       "choose one of them: " + t.buffer->name + "[i]");
}

// A fragment's dimension is the concatenation of its levels' modes, innermost fastest. The tile takes whole inner modes
// and a part of the next one; what is left of it and the outer modes number the tiles.
Tensor tile_fragment(const Tensor& t, const layout::Tiler& tiler) {
  const std::vector<Expr> shape = t.logical_shape();
  check_tiler(t, shape.size(), tiler);
  const std::size_t n = t.levels.size();
  std::vector<Layout> rest;
  std::vector<std::vector<Layout>> inner(n);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const auto refuse = refuse_tile(t, d);
    Expr size = tiler[d] ? tiler[d]->size() : shape[d];
    if (tiler[d] && (!tiler[d]->shape().is_leaf() || !(tiler[d]->stride().leaf().is_const(1) || size.is_const(1))))
      refuse("a fragment is tiled contiguously, got " + tiler[d]->str());
    if (!size.is_const() || !shape[d].is_const() || size.value() < 1 || shape[d].value() % size.value() != 0)
      refuse("a fragment's tile must divide it: " + shape[d].str() + " by " + size.str());
    std::int64_t left = size.value();
    std::vector<Layout> outer;
    for (std::size_t i = n; i-- > 0;) {
      const Layout mode = t.levels[i].shape().is_leaf() ? t.levels[i] : t.levels[i].mode(static_cast<int>(d));
      const std::int64_t extent = mode.size().value();
      const std::int64_t take = std::min(left, extent);
      if (extent % take != 0 || left % take != 0)
        refuse("the tile " + size.str() + " cuts across the fragment's levels");
      left /= take;
      const ModeTile cut = tile_mode(mode, Layout(take, 1), refuse);
      inner[i].push_back(cut.tile);
      if (!cut.rest.size().is_const(1)) outer.push_back(cut.rest);
    }
    rest.push_back(outer.empty() ? Layout(1, 0) : level_of(outer));
  }
  Tensor out = t;
  out.id = -1;
  out.levels = {level_of(rest)};
  bool started = false;  // levels above the tile's own are all 1
  for (std::size_t i = 0; i < n; ++i) {
    const Layout level = level_of(inner[i]);
    started = started || !level.size().is_const(1) || i + 1 == n;
    if (started) out.levels.push_back(level);
  }
  if (!out.bounds.empty())
    fail(Code::TENSOR_TILE, "a fragment with uncertain indices cannot be tiled", {tensor_line(t)});
  return out;
}

}  // namespace

Tensor tile(const Tensor& t, const layout::Tiler& tiler) {
  check_not_list(t);
  if (t.is_fragment()) return tile_fragment(t, tiler);
  check_tiler(t, t.levels.empty() ? 0 : static_cast<std::size_t>(t.levels[0].rank()), tiler);
  const std::vector<Layout> modes = modes_of(t.levels[0]);
  std::vector<std::vector<Layout>> bound_modes;  // per bound, the modes of its outermost level
  for (const DimBound& b : t.bounds) bound_modes.push_back(modes_of(b.levels[0]));
  std::vector<std::vector<Layout>> bound_rest(t.bounds.size());
  std::vector<std::vector<Layout>> bound_tile(t.bounds.size());
  std::vector<Layout> rest;
  std::vector<Layout> inner;
  std::vector<ModeTile> cuts;
  for (std::size_t i = 0; i < modes.size(); ++i) {
    const Layout& mode = modes[i];
    if (!tiler[i]) {
      rest.emplace_back(1, 0);
      inner.push_back(mode);
      for (std::size_t b = 0; b < bound_modes.size(); ++b) {
        bound_rest[b].emplace_back(1, 0);
        bound_tile[b].push_back(bound_modes[b][i]);
      }
      cuts.emplace_back();
      continue;
    }
    const auto refuse = refuse_tile(t, i);
    cuts.push_back(tile_mode(mode, *tiler[i], refuse));
    rest.push_back(cuts.back().rest);
    inner.push_back(cuts.back().tile);
    for (std::size_t b = 0; b < bound_modes.size(); ++b) {
      const ModeTile cut = tile_mode(bound_modes[b][i], *tiler[i], refuse);
      bound_rest[b].push_back(cut.rest);
      bound_tile[b].push_back(cut.tile);
    }
  }
  Tensor out = t;
  out.id = -1;
  out.levels.erase(out.levels.begin());
  out.levels.insert(out.levels.begin(), {level_of(rest), level_of(inner)});
  for (std::size_t b = 0; b < out.bounds.size(); ++b) {
    auto& levels = out.bounds[b].levels;
    levels.erase(levels.begin());
    levels.insert(levels.begin(), {level_of(bound_rest[b]), level_of(bound_tile[b])});
  }
  for (std::size_t i = 0; i < modes.size(); ++i) {
    if (!cuts[i].partial) continue;
    std::vector<Layout> r;
    std::vector<Layout> e;
    for (std::size_t j = 0; j < modes.size(); ++j) {
      r.push_back(j == i ? cuts[i].rest_coord : zeros(rest[j].shape()));
      e.push_back(j == i ? cuts[i].tile_coord : zeros(inner[j].shape()));
    }
    DimBound bound{0, {level_of(r), level_of(e)}, modes[i].size()};
    for (Layout& l : zeros_of(t.levels, 1)) bound.levels.push_back(std::move(l));
    out.bounds.push_back(std::move(bound));
  }
  return out;
}

namespace {

// Whether some bound of the tensor already says that an index into mode i of the outermost level stays below its size:
// the bound's first element past the last tile is outside.
bool implied(const Tensor& t, std::size_t i, const Expr& size) {
  for (const DimBound& b : t.bounds) {
    const Layout& level = b.levels[0];
    const IntTuple& stride = level.shape().is_leaf() ? level.stride() : level.stride()[static_cast<int>(i)];
    if (!stride.is_leaf() || stride.leaf().is_const(0)) continue;
    if (!sym::prove(sym::le(1, stride.leaf()))) continue;
    if (identical(size, sym::ceil_div(b.extent - b.base, stride.leaf())) ||
        sym::prove(sym::le(b.extent, b.base + stride.leaf() * size)))
      return true;
  }
  return false;
}

void check_index(const Tensor& t, std::size_t i, const Expr& at, const Expr& size, std::vector<DimBound>& extra) {
  auto wrong = [&](const char* message, std::string fix) {
    fail(Code::TENSOR_INDEX, message,
         {tensor_line(t), "mode " + std::to_string(i) + ": want 0 to " + (size - 1).str(), "got: " + at.str()},
         std::move(fix));
  };
  if (sym::prove(sym::lt(at, 0))) wrong("a negative index", "indices count from 0; they do not wrap around");
  const bool may_be_empty = t.levels.size() > 1 && t.memory() == Memory::GL && !t.is_list();
  if (!sym::prove(sym::le(0, at))) extra.push_back({-at, {}, 1, Outside::Before});
  if (sym::prove(sym::lt(at, size))) return;
  if (may_be_empty) {
    if (!implied(t, i, size)) extra.push_back({at, {}, size});
    return;
  }
  if (sym::prove(sym::le(size, at)))
    wrong("an index past the end", "index one that there is, or leave out the threads that have none: gr.if_(...)");
  extra.push_back({at, {}, size, Outside::Past});
}

}  // namespace

Tensor index(const Tensor& t, const std::vector<IndexArg>& args) {
  if (t.levels.empty()) fail(Code::TENSOR_INDEX, "a scalar has no index", {tensor_line(t)});
  const std::vector<Layout> modes = modes_of(t.levels[0]);
  if (args.size() != modes.size())
    fail(Code::TENSOR_INDEX, "one index per mode of the outermost level is needed",
         {tensor_line(t), "want: " + std::to_string(modes.size()), "got: " + std::to_string(args.size())},
         "':' keeps a mode");
  if (t.is_list() && args[0].kind != IndexArg::Kind::At) check_not_list(t);
  Tensor out = t;
  out.id = -1;
  if (t.is_list()) out.member = args[0].at;
  std::vector<DimBound> extra;
  std::vector<Layout> kept;
  std::vector<std::vector<Layout>> bound_kept(t.bounds.size());
  for (std::size_t i = 0; i < modes.size(); ++i) {
    const Layout& m = modes[i];
    const Expr size = m.size();
    auto bound_mode = [&](std::size_t b) { return modes_of(t.bounds[b].levels[0])[i]; };
    switch (args[i].kind) {
      case IndexArg::Kind::All:
        kept.push_back(m);
        for (std::size_t b = 0; b < t.bounds.size(); ++b) bound_kept[b].push_back(bound_mode(b));
        break;
      case IndexArg::Kind::At: {
        check_index(t, i, args[i].at, size, extra);
        out.offset = out.offset + m(args[i].at);
        for (std::size_t b = 0; b < t.bounds.size(); ++b)
          out.bounds[b].base = out.bounds[b].base + bound_mode(b)(args[i].at);
        break;
      }
      case IndexArg::Kind::Slice: {
        const Expr& from = args[i].at;
        const Expr& to = args[i].stop;
        if (!m.shape().is_leaf())
          fail(Code::TENSOR_INDEX, "a hierarchical mode cannot be sliced",
               {tensor_line(t), "mode: " + std::to_string(i)}, "reshape the level first");
        if (!sym::prove(sym::le(0, from)) || !sym::prove(sym::lt(from, to)) || !sym::prove(sym::le(to, size)))
          fail(Code::TENSOR_INDEX, "a slice that is not proven inside",
               {tensor_line(t), "mode " + std::to_string(i) + ": want 0 <= start < stop <= " + size.str(),
                "got: " + from.str() + ":" + to.str()},
               "use .window(start, size) for a part whose bounds are known at run time");
        kept.emplace_back(to - from, m.stride());
        out.offset = out.offset + from * m.stride().leaf();
        for (std::size_t b = 0; b < t.bounds.size(); ++b) {
          const Layout bm = bound_mode(b);
          bound_kept[b].emplace_back(to - from, bm.stride());
          out.bounds[b].base = out.bounds[b].base + from * bm.stride().leaf();
        }
        break;
      }
    }
  }
  auto replace = [](std::vector<Layout>& levels, const std::vector<Layout>& with) {
    levels.erase(levels.begin());
    if (!with.empty()) levels.insert(levels.begin(), level_of(with));
  };
  replace(out.levels, kept);
  for (std::size_t b = 0; b < out.bounds.size(); ++b) replace(out.bounds[b].levels, bound_kept[b]);
  for (DimBound& b : extra) {
    b.levels = zeros_of(out.levels, 0);
    out.bounds.push_back(std::move(b));
  }
  prune_bounds(out);
  return out;
}

Tensor permute(const Tensor& t, const std::vector<int>& order) {
  check_not_list(t);
  std::vector<int> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i)
    if (sorted[i] != static_cast<int>(i))
      fail(Code::TENSOR_RANK, "an order names every mode once", {tensor_line(t)}, "permute(1, 0) swaps two modes");
  auto apply = [&](std::vector<Layout>& levels) {
    for (Layout& l : levels) {
      const std::vector<Layout> modes = modes_of(l);
      if (modes.size() != order.size())
        fail(Code::TENSOR_RANK, "every level must have as many modes as the order names",
             {tensor_line(t), "want: " + std::to_string(order.size()), "got: " + std::to_string(modes.size())},
             "index the other levels first");
      std::vector<Layout> moved;
      for (int o : order) moved.push_back(modes[static_cast<std::size_t>(o)]);
      l = level_of(moved);
    }
  };
  Tensor out = t;
  out.id = -1;
  apply(out.levels);
  for (DimBound& b : out.bounds) apply(b.levels);
  return out;
}

Tensor transpose(const Tensor& t) {
  check_not_list(t);
  for (const Layout& l : t.levels)
    if (l.rank() != 2)
      fail(Code::TENSOR_RANK, ".T swaps the two modes of every level",
           {tensor_line(t), "want: levels of rank 2", "got: " + level_str(l, false)}, "use .permute() for other ranks");
  return permute(t, {1, 0});
}

Tensor reshape(const Tensor& t, int level, const Layout& shape) {
  check_not_list(t);
  if (level < 0 || level >= static_cast<int>(t.levels.size()))
    fail(Code::TENSOR_RESHAPE, "no such level",
         {tensor_line(t), "want: 0 to " + std::to_string(static_cast<int>(t.levels.size()) - 1),
          "got: " + std::to_string(level)});
  const auto l = static_cast<std::size_t>(level);
  if (lacks_modes(shape))
    fail(Code::TENSOR_RESHAPE, "a shape without sizes", {tensor_line(t), "got: " + level_str(shape)},
         "keep a mode of size 1, or index it away");
  if (!sym::prove(sym::eq(shape.size(), t.levels[l].size())))
    fail(Code::TENSOR_RESHAPE, "a reshape keeps the number of elements",
         {tensor_line(t), "level " + std::to_string(level) + ": " + t.levels[l].size().str(),
          "got: " + level_str(shape) + " of " + shape.size().str()},
         "choose sizes whose product is " + t.levels[l].size().str());
  Tensor out = t;
  out.id = -1;
  auto apply = [&](Layout& old) { old = reshaped(old, shape); };
  apply(out.levels[l]);
  for (DimBound& b : out.bounds) apply(b.levels[l]);
  return out;
}

Tensor window(const Tensor& t, const Expr& start, const Expr& size) {
  check_not_list(t);
  auto first = [&](const Layout& level) { return level.shape().is_leaf() ? level : level.mode(0); };
  if (t.levels.empty() || !first(t.levels[0]).shape().is_leaf() || t.is_fragment())
    fail(Code::TENSOR_WINDOW, "a window needs a plain outermost mode in memory or private registers", {tensor_line(t)});
  const bool before = !sym::prove(sym::le(0, start));
  if (!sym::prove(sym::le(0, size)))
    fail(Code::TENSOR_WINDOW, "the size must be known to be non-negative",
         {tensor_line(t), "start: " + start.str(), "size: " + size.str()}, "give the symbols their facts (min=0)");
  if (before && t.memory() != Memory::GL)
    fail(Code::TENSOR_WINDOW, "the start must be known to be non-negative, except in global memory",
         {tensor_line(t), "start: " + start.str(), "size: " + size.str()}, "give the symbols their facts (min=0)");
  const Expr extent = first(t.levels[0]).size();
  Tensor out = t;
  out.id = -1;
  auto cut = [&](std::vector<Layout>& levels) {
    std::vector<Layout> modes = modes_of(levels[0]);
    const Expr stride = modes[0].stride().leaf();
    modes[0] = Layout(size, stride);
    levels[0] = level_of(modes);
    return stride;
  };
  out.offset = out.offset + start * cut(out.levels);
  for (DimBound& b : out.bounds) b.base = b.base + start * cut(b.levels);
  DimBound bound{start, zeros_of(out.levels, 0), extent};
  std::vector<Layout> modes = modes_of(bound.levels[0]);
  modes[0] = Layout(size, 1);
  bound.levels[0] = level_of(modes);
  out.bounds.push_back(bound);
  if (before) {  // elements before the first one are outside, too: counted downwards they are past a first one
    bound.base = -start;
    modes[0] = Layout(size, -1);
    bound.levels[0] = level_of(modes);
    bound.extent = 1;
    out.bounds.push_back(std::move(bound));
  }
  prune_bounds(out);
  return out;
}

Tensor values(const Tensor& t) {
  if (!t.is_fragment()) fail(Code::TENSOR_VALUES, "only a fragment has values of its own", {tensor_line(t)});
  const Fragment& f = *t.buffer->fragment;
  Expr elems = 1;
  for (std::int64_t s : f.shape) elems = elems * s;
  const Expr stage_elems = f.covered_elems();
  Expr stage = 0;
  if (t.buffer->stages > 0) stage = sym::floor_div(t.offset, stage_elems);
  const bool whole = identical(t.size(), elems) && identical(t.offset, stage * stage_elems);
  if (!whole)
    fail(Code::TENSOR_VALUES, "values() takes a whole fragment, or one whole stage of it",
         {tensor_line(t), "want: " + elems.str() + " elements from the start of a stage",
          "got: " + t.size().str() + " from " + t.offset.str()},
         "take the values first, then index them");
  Tensor out = t;
  out.id = -1;
  out.own_values = true;
  out.bounds.clear();
  out.levels = {Layout(f.values(), 1)};
  out.offset = stage * f.values();
  return out;
}

Expr bytes_of_elems(const Expr& elems, ScalarType t) {
  return is_packed(t) ? sym::ceil_div(elems * bits(t), 8) : elems * (bits(t) / 8);
}

Tensor of(const Tensor& t, const Expr& rank) {
  const bool barrier = info(t.dtype).cls == ScalarInfo::Class::Barrier;
  if (t.memory() != Memory::SH || barrier)
    fail(Code::TENSOR_TYPE, "only shared memory is reached in other blocks of the cluster", {tensor_line(t)},
         barrier  ? "arrive at another block's barrier: full[i].arrive(at=cluster)"
         : t.rank ? "it is another block's already: take .of(rank) of the block's own tensor"
                  : "allocate it in gr.SH");
  Tensor out = t;
  out.id = -1;
  out.rank = rank;
  return out;
}

}  // namespace graphene::ir
