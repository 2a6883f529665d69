#include "ir/threads.h"

#include <algorithm>

#include "base/diag.h"
#include "ir/levels.h"

namespace graphene::ir {

namespace {

Expr product(const std::vector<Expr>& xs) {
  Expr p = 1;
  for (const Expr& x : xs) p = p * x;
  return p;
}

// The coordinates of a grid that is cut dimension by dimension, as into clusters: of each level, each is a part of one
// block index. A block that runs is one of a grid that is not empty, so nothing need be proven of the extents. Without
// a value: the grid is cut otherwise.
std::optional<std::vector<std::vector<Expr>>> along_dims(const ThreadTensor& t) {
  if (t.unit != ThreadUnit::Block || !t.offset.is_const(0) || t.levels.empty()) return std::nullopt;
  std::vector<std::vector<Expr>> out(t.levels.size());
  Expr below = 1;  // blocks of the dimensions before
  for (std::size_t d = 0; d < t.dims.size(); ++d) {
    Expr inner = 1;  // blocks of the levels inside
    for (std::size_t l = t.levels.size(); l-- > 0;) {
      const std::vector<Layout> modes = modes_of(t.levels[l]);
      if (modes.size() != t.dims.size() || !modes[d].shape().is_leaf()) return std::nullopt;
      const Expr& size = modes[d].shape().leaf();
      out[l].resize(t.dims.size(), Expr(0));
      if (size.is_const(1)) continue;
      if (!inner.is_const() || !identical(modes[d].stride().leaf(), below * inner)) return std::nullopt;
      const Expr part = sym::floor_div(bid_var(static_cast<int>(d), t.dims[d]), inner);
      const bool outermost = identical(inner * size, t.dims[d]);
      out[l][d] = outermost ? part : sym::mod(part, size);
      inner = inner * size;
    }
    if (!identical(inner, t.dims[d])) return std::nullopt;
    below = below * t.dims[d];
  }
  return out;
}

struct Leaf {
  Expr size, stride;
};

void collect(const IntTuple& shape, const IntTuple& stride, std::vector<Leaf>& out) {
  if (shape.is_leaf()) {
    if (!shape.leaf().is_const(1)) out.push_back({shape.leaf(), stride.leaf()});
    return;
  }
  for (int i = 0; i < shape.rank(); ++i) collect(shape[i], stride[i], out);
}

bool multiple(const Expr& e, const Expr& of) {
  if (of.is_const() && of.value() > 0) return sym::divisor(e) % of.value() == 0;
  return sym::prove(sym::eq(sym::mod(e, of), 0));
}

// Sorted by stride, each stride must be a multiple of what the previous mode spans: then (index / stride) % size is the
// mode's coordinate for every member.
void require_nested(const ThreadTensor& t) {
  std::vector<Leaf> leaves;
  for (const Layout& l : t.levels) collect(l.shape(), l.stride(), leaves);
  std::stable_sort(leaves.begin(), leaves.end(), [](const Leaf& a, const Leaf& b) {
    if (a.stride.is_const() && b.stride.is_const()) return a.stride.value() < b.stride.value();
    return !identical(a.stride, b.stride) && sym::prove(sym::le(a.stride, b.stride));
  });
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const bool positive = sym::prove(sym::le(1, leaves[i].stride));
    if (!positive || (i > 0 && !multiple(leaves[i].stride, leaves[i - 1].size * leaves[i - 1].stride)))
      fail(Code::THREAD_NOT_INJECTIVE, "coordinates cannot be derived from the linear index",
           {"threads: " + t.type_str(),
            positive ? "want: each stride a multiple of the span of the mode below it" : "want: positive strides",
            i == 0 || !positive ? "got: a mode " + leaves[i].size.str() + ":" + leaves[i].stride.str()
                                : "got: modes " + leaves[i - 1].size.str() + ":" + leaves[i - 1].stride.str() +
                                      " and " + leaves[i].size.str() + ":" + leaves[i].stride.str()},
           "tile or reshape the threads so that every member has one coordinate");
  }
}

Expr leaf_coord(const Expr& linear, const Expr& offset, const Expr& size, const Expr& stride) {
  if (size.is_const(1)) return 0;
  const Expr base = multiple(offset, size * stride) ? linear : linear - offset;
  return sym::mod(sym::floor_div(base, stride), size);
}

// Colexicographic coordinate of one (maybe hierarchical) mode.
Expr mode_coord(const Expr& linear, const Expr& offset, const IntTuple& shape, const IntTuple& stride) {
  if (shape.is_leaf()) return leaf_coord(linear, offset, shape.leaf(), stride.leaf());
  Expr sum = 0;
  Expr scale = 1;
  for (int i = 0; i < shape.rank(); ++i) {
    sum = sum + mode_coord(linear, offset, shape[i], stride[i]) * scale;
    scale = scale * shape[i].product();
  }
  return sum;
}

std::vector<Expr> level_coords(const ThreadTensor& t, std::size_t level) {
  std::vector<Expr> out;
  const Expr linear = t.linear_index();
  for (const Layout& m : modes_of(t.levels[level])) out.push_back(mode_coord(linear, t.offset, m.shape(), m.stride()));
  return out;
}

void check_dims(const std::vector<Expr>& dims, const char* what, const char* call) {
  if (dims.empty()) fail(Code::THREAD_SHAPE, std::string(call) + " needs at least one size");
  for (const Expr& d : dims)
    if (sym::upper_bound(d) < 1)
      fail(Code::THREAD_SHAPE, std::string("the number of ") + what + " must be positive", {"got: " + d.str()});
}

}  // namespace

Expr tid_var(std::int64_t threads) {
  sym::VarInfo v;
  v.name = "tid";
  v.kind = sym::VarKind::ThreadIdx;
  v.max = threads - 1;
  return sym::make_var(v);
}

Expr bid_var(int dim, const Expr& extent) {
  static constexpr const char* kNames[] = {"bid.x", "bid.y", "bid.z"};
  sym::VarInfo v;
  v.name = kNames[dim];
  v.kind = sym::VarKind::BlockIdx;
  const std::int64_t hi = sym::upper_bound(extent);
  v.max = hi == sym::kMaxInt ? hi : std::max<std::int64_t>(hi - 1, 0);
  if (!extent.is_const()) v.hi = extent - 1;
  return sym::make_var(v);
}

ThreadTensor make_blocks(std::vector<Expr> dims) {
  check_dims(dims, "blocks", "blocks()");
  ThreadTensor t;
  t.unit = ThreadUnit::Block;
  t.levels = {level_of(modes_of(Layout(IntTuple(std::vector<IntTuple>(dims.begin(), dims.end())))))};
  t.dims = dims.size() <= 3 ? std::move(dims) : std::vector<Expr>{product(dims)};
  return t;
}

ThreadTensor make_threads(std::vector<Expr> dims) {
  check_dims(dims, "threads", "threads()");
  for (const Expr& d : dims)
    if (!d.is_const())
      fail(Code::THREAD_SHAPE, "the number of threads of a block must be constant", {"got: " + d.str()},
           "give threads() integers; only blocks() may depend on symbols");
  const Expr n = product(dims);
  if (n.value() > 1024)
    fail(Code::THREAD_SHAPE, "a block has at most 1024 threads", {"got: " + n.str()}, "use more blocks");
  ThreadTensor t;
  t.unit = ThreadUnit::Thread;
  t.levels = {level_of(modes_of(Layout(IntTuple(std::vector<IntTuple>(dims.begin(), dims.end())))))};
  t.dims = {n};
  return t;
}

Expr ThreadTensor::linear_index() const {
  if (unit == ThreadUnit::Thread) return tid_var(launch_size().value());
  Expr sum = 0;
  Expr scale = 1;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (!dims[i].is_const(1)) sum = sum + bid_var(static_cast<int>(i), dims[i]) * scale;
    scale = scale * dims[i];
  }
  return sum;
}

Expr ThreadTensor::launch_size() const { return product(dims); }

Expr ThreadTensor::size() const {
  Expr p = 1;
  for (const Layout& l : levels) p = p * l.size();
  return p;
}

std::string ThreadTensor::type_str() const {
  return levels_str(levels) + (unit == ThreadUnit::Block ? ".block" : ".thread");
}

std::vector<std::vector<Expr>> ThreadTensor::indices() const {
  if (auto of_grid = along_dims(*this)) return *std::move(of_grid);
  require_nested(*this);
  std::vector<std::vector<Expr>> out;
  for (std::size_t l = 0; l < levels.size(); ++l) out.push_back(level_coords(*this, l));
  return out;
}

ThreadTensor tile(const ThreadTensor& t, const layout::Tiler& tiler) {
  if (t.levels.empty()) fail(Code::THREAD_TILE, "a scalar has nothing to tile", {"threads: " + t.type_str()});
  const std::vector<Layout> modes = modes_of(t.levels.back());
  if (tiler.size() != modes.size())
    fail(Code::THREAD_TILE, "one tile size per mode of the innermost level is needed",
         {"threads: " + t.type_str(), "want: " + std::to_string(modes.size()) + " sizes",
          "got: " + std::to_string(tiler.size())});
  std::vector<Layout> rest;
  std::vector<Layout> inner;
  for (std::size_t i = 0; i < modes.size(); ++i) {
    auto refuse = [&](const std::string& why) {
      fail(Code::THREAD_TILE, why, {"threads: " + t.type_str(), "mode: " + std::to_string(i)});
    };
    const Layout whole = Layout(modes[i].size(), 1);
    const ModeTile cut = tile_mode(modes[i], tiler[i] ? *tiler[i] : whole, refuse);
    if (cut.partial)
      fail(Code::THREAD_TILE, "threads must be tiled evenly",
           {"threads: " + t.type_str(),
            "mode " + std::to_string(i) + ": " + modes[i].size().str() + " by " + tiler[i]->shape().str()},
           "choose a tile size that divides the number of threads");
    rest.push_back(cut.rest);
    inner.push_back(cut.tile);
  }
  ThreadTensor out = t;
  out.id = -1;
  out.levels.pop_back();
  out.levels.push_back(level_of(rest));
  out.levels.push_back(level_of(inner));
  return out;
}

ThreadTensor reshape(const ThreadTensor& t, int level, const Layout& shape) {
  if (level < 0 || level >= static_cast<int>(t.levels.size()))
    fail(Code::THREAD_RESHAPE, "no such level",
         {"threads: " + t.type_str(), "want: 0 to " + std::to_string(static_cast<int>(t.levels.size()) - 1),
          "got: " + std::to_string(level)});
  const Layout& old = t.levels[static_cast<std::size_t>(level)];
  if (lacks_modes(shape))
    fail(Code::THREAD_RESHAPE, "a shape without sizes", {"threads: " + t.type_str(), "got: " + level_str(shape)},
         "keep a mode of size 1");
  if (!sym::prove(sym::eq(shape.size(), old.size())))
    fail(Code::THREAD_RESHAPE, "a reshape keeps the number of members",
         {"threads: " + t.type_str(), "level " + std::to_string(level) + ": " + old.size().str(),
          "got: " + level_str(shape) + " of " + shape.size().str()},
         "choose sizes whose product is " + old.size().str());
  ThreadTensor out = t;
  out.id = -1;
  out.levels[static_cast<std::size_t>(level)] = reshaped(old, shape);
  return out;
}

ThreadTensor scalar(const ThreadTensor& t) {
  ThreadTensor out = t;
  out.id = -1;
  out.levels.clear();
  out.offset = t.linear_index();
  out.subset = false;
  return out;
}

namespace {

bool uniform(const ThreadTensor& t, const Expr& e) {
  const auto own = t.unit == ThreadUnit::Thread ? sym::VarKind::ThreadIdx : sym::VarKind::BlockIdx;
  return !sym::depends_on(e, [&](const sym::VarInfo& v) { return v.kind == own; });
}

[[noreturn]] void outside(const ThreadTensor& t, std::size_t mode, const Expr& size, const std::string& got) {
  fail(Code::THREAD_INDEX, "a thread index out of range",
       {"threads: " + t.type_str(), "mode " + std::to_string(mode) + ": want 0 to " + (size - 1).str(), "got: " + got});
}

}  // namespace

ThreadTensor index(const ThreadTensor& t, const std::vector<IndexArg>& args) {
  if (t.levels.empty()) fail(Code::THREAD_INDEX, "a scalar has no index", {"threads: " + t.type_str()});
  const std::vector<Layout> modes = modes_of(t.levels[0]);
  if (args.size() != modes.size())
    fail(Code::THREAD_INDEX, "one index per mode of the outermost level is needed",
         {"threads: " + t.type_str(), "want: " + std::to_string(modes.size()), "got: " + std::to_string(args.size())});
  std::vector<Expr> own;
  ThreadTensor out = t;
  out.id = -1;
  std::vector<Layout> kept;
  for (std::size_t i = 0; i < modes.size(); ++i) {
    const Layout& m = modes[i];
    const Expr size = m.size();
    switch (args[i].kind) {
      case IndexArg::Kind::All:
        kept.push_back(m);
        break;
      case IndexArg::Kind::Slice: {
        const Expr& a = args[i].at;
        const Expr& b = args[i].stop;
        if (!sym::prove(sym::le(0, a)) || !sym::prove(sym::lt(a, b)) || !sym::prove(sym::le(b, size)))
          outside(t, i, size, a.str() + ":" + b.str());
        if (!m.shape().is_leaf())
          fail(Code::THREAD_INDEX, "a hierarchical mode cannot be sliced",
               {"threads: " + t.type_str(), "mode: " + std::to_string(i)}, "reshape the level first");
        kept.emplace_back(b - a, m.stride());
        out.offset = out.offset + a * m.stride().leaf();
        out.subset = out.subset || !identical(b - a, size);
        break;
      }
      case IndexArg::Kind::At: {
        const Expr at = args[i].at;
        if (uniform(t, at)) {
          if (!sym::prove(sym::le(0, at)) || !sym::prove(sym::lt(at, size))) outside(t, i, size, at.str());
          out.subset = out.subset || !size.is_const(1);
        } else {
          if (own.empty()) own = t.indices()[0];
          if (!identical(sym::expand_coords(at), sym::expand_coords(own[i])))
            fail(Code::THREAD_INDEX, "threads are indexed by their own coordinates or by uniform values",
                 {"threads: " + t.type_str(), "mode " + std::to_string(i) + ": want " + own[i].str(),
                  "got: " + at.str() + (at.is_var() && at.var().def ? " = " + sym::expand_coords(at).str() : "")},
                 "index by what .indices() of this very tensor returned");
        }
        out.offset = out.offset + m(at);
        break;
      }
    }
  }
  out.levels.erase(out.levels.begin());
  if (!kept.empty()) out.levels.insert(out.levels.begin(), level_of(kept));
  return out;
}

}  // namespace graphene::ir
