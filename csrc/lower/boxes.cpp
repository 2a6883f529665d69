#include "lower/boxes.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>

#include "atoms/parse.h"
#include "ir/levels.h"
#include "lower/operands.h"

namespace graphene::lower {

namespace {

using atoms::FlatLayout;

constexpr std::int64_t kMostDims = 5;
constexpr std::int64_t kLongestBox = 256;   // elements along a dimension
constexpr std::int64_t kUnitBytes = 16;     // of strides and of the innermost run
constexpr std::int64_t kSharedBytes = 128;  // where an unswizzled box may start

[[noreturn]] void refuse(const ir::Tensor& t, std::string why, std::vector<std::string> details, std::string fix) {
  details.insert(details.begin(), "tile: " + t.type_str() + " of " + t.buffer->name);
  fail(Code::LOWER_BOX, std::move(why), std::move(details), std::move(fix));
}

// Strides of a layout congruent with `shape`: 1 at its leaf number `which`, else 0. `at` counts leaves.
IntTuple unit_stride(const IntTuple& shape, int which, int& at) {
  if (shape.is_leaf()) return IntTuple(at++ == which ? 1 : 0);
  std::vector<IntTuple> modes;
  for (int i = 0; i < shape.rank(); ++i) modes.push_back(unit_stride(shape[i], which, at));
  return IntTuple(std::move(modes));
}

ir::Tensor viewed(const ir::Tensor& t, const ir::ViewStmt& v) {
  switch (v.op) {
    case ir::ViewOp::Tile:
      return ir::tile(t, v.tiler);
    case ir::ViewOp::Index:
      return ir::index(t, v.index);
    case ir::ViewOp::Transpose:
      return ir::transpose(t);
    case ir::ViewOp::Permute:
      return ir::permute(t, v.order);
    case ir::ViewOp::Reshape:
      return ir::reshape(t, v.level, v.shape);
    case ir::ViewOp::Window:
      return ir::window(t, v.index.front().at, v.index.front().stop);
    case ir::ViewOp::Values:
    case ir::ViewOp::Of:
      break;
  }
  GR_ASSERT(false, "an argument has neither registers nor other blocks");
}

// The leaves of all levels, outermost level first.
std::optional<FlatLayout> flat(const std::vector<Layout>& levels) {
  FlatLayout f;
  for (const Layout& l : levels) {
    const std::vector<Expr> shape = l.shape().leaves();
    const std::vector<Expr> stride = l.stride().leaves();
    for (std::size_t i = 0; i < shape.size(); ++i) {
      if (!shape[i].is_const() || (shape[i].value() > 1 && !stride[i].is_const())) return std::nullopt;
      f.shape.push_back(shape[i].value());
      f.stride.push_back(shape[i].value() > 1 ? stride[i].value() : 0);
    }
  }
  return f;
}

bool constant(const std::vector<Layout>& levels) {
  return std::ranges::all_of(levels, [](const Layout& l) {
    return std::ranges::all_of(l.stride().leaves(), [](const Expr& s) { return s.is_const(0); });
  });
}

bool same(const std::vector<Layout>& a, const std::vector<Layout>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const std::vector<Expr> as = a[i].shape().leaves(), bs = b[i].shape().leaves();
    const std::vector<Expr> ad = a[i].stride().leaves(), bd = b[i].stride().leaves();
    if (as.size() != bs.size()) return false;
    for (std::size_t j = 0; j < as.size(); ++j) {
      if (!identical(as[j], bs[j]) || (!as[j].is_const(1) && !identical(ad[j], bd[j]))) return false;
    }
  }
  return true;
}

// Whether the map's own end says what a bound of the view says: nothing is outside of the one that the other has.
bool hardware_clips(const ir::DimBound& bound, const std::vector<Position>& at, const std::vector<Expr>& extents,
                    const std::vector<std::int64_t>& box) {
  for (std::size_t d = 0; d < at.size(); ++d) {
    if (same(bound.levels, at[d].levels) && identical(bound.base, at[d].base)) {
      if (identical(bound.extent, extents[d]) || sym::prove(sym::le(extents[d], bound.extent))) return true;
    }
    // A window that ends with the tensor: its elements and its end are counted from the same place.
    if (same(bound.levels, at[d].levels) && identical(at[d].base - bound.base, extents[d] - bound.extent)) return true;
    if (!constant(bound.levels)) continue;
    // An index past the last tile: its tile starts behind the end.
    std::vector<std::int64_t> steps{box[d]};
    const std::int64_t divisor = at[d].base.is_const() ? 0 : sym::divisor(at[d].base);
    if (divisor > 1) steps.push_back(divisor);
    for (const std::int64_t step : steps) {
      if (sym::prove(sym::le(bound.base * step, at[d].base)) && sym::prove(sym::le(extents[d], bound.extent * step)))
        return true;
    }
  }
  return false;
}

// A multiple of `step` elements plus a constant `rest`; 0: nothing but the constant.
struct Start {
  std::int64_t step = 0, rest = 0;
};
Start start_of(const Expr& offset) {
  if (offset.is_const()) return {0, offset.value()};
  const std::int64_t rest = offset.op() == sym::Op::Add ? offset.node()->constant : 0;
  const Expr multiple = offset - Expr(rest);
  return {std::max(sym::divisor(multiple), sym::divisor(sym::expand_coords(multiple))), rest};
}

}  // namespace

Boxes::Boxes(const ir::Kernel& kernel) {
  for (const ir::TensorPtr& t : kernel.args) arguments_[t->id] = t;
}

std::vector<Position> Boxes::positions(const ir::Tensor& t, const Substitution& unrolled) const {
  std::vector<Position> out;
  auto it = known_.find(t.id);
  if (it == known_.end() || t.id < 0) {
    std::vector<const ir::ViewStmt*> chain;
    int id = t.id;
    for (auto v = made_by_.find(id); v != made_by_.end(); v = made_by_.find(id)) {
      chain.push_back(v->second);
      id = v->second->source->id;
    }
    const auto argument = arguments_.find(id);
    if (t.is_list() || t.member || argument == arguments_.end()) {
      refuse(t, "a tensor map describes one argument", {}, "copy a tile of one tensor in global memory");
    }
    const ir::Tensor& whole = *argument->second;
    const IntTuple& shape = whole.buffer->layout.shape();
    const auto dims = static_cast<int>(shape.leaves().size());
    std::vector<Position> made;
    for (int d = 0; d < dims; ++d) {
      ir::Tensor coordinates = whole;
      int at = 0;
      coordinates.offset = 0;
      coordinates.levels = {Layout(shape, unit_stride(shape, d, at))};
      coordinates.bounds.clear();
      for (std::size_t i = chain.size(); i-- > 0;) {
        coordinates = viewed(coordinates, *chain[i]);
        coordinates.bounds.clear();
      }
      made.push_back({coordinates.offset, coordinates.levels});
    }
    it = known_.insert_or_assign(t.id, std::move(made)).first;
  }
  for (const Position& p : it->second) {
    Position q{unrolled.empty() ? p.base : sym::substitute(p.base, unrolled), {}};
    for (const Layout& l : p.levels) q.levels.push_back(unrolled.empty() ? l : substitute(l, unrolled));
    out.push_back(std::move(q));
  }
  return out;
}

int Boxes::number(TensorMap map) {
  const auto equal = [&](const TensorMap& m) {
    return m.argument == map.argument && m.box == map.box && m.swizzle_bytes == map.swizzle_bytes &&
           std::ranges::equal(m.dims, map.dims, [](const TensorMap::Dim& a, const TensorMap::Dim& b) {
             return identical(a.extent, b.extent) && identical(a.stride_elems, b.stride_elems);
           });
  };
  const auto it = std::ranges::find_if(maps_, equal);
  const auto index = static_cast<int>(it - maps_.begin());
  if (it == maps_.end()) maps_.push_back(std::move(map));
  return index;
}

Boxes::Copy Boxes::copy(const ir::Tensor& global, const ir::Tensor& shared, const Buffers& buffers,
                        const Substitution& unrolled, std::vector<atoms::LaunchFact>& facts) {
  const ir::Buffer& argument = *global.buffer;
  const std::int64_t element = ir::bits(argument.dtype) / 8;
  const std::vector<Position> at = positions(global, unrolled);
  const std::vector<Expr> extents = argument.layout.shape().leaves();
  const std::vector<Expr> strides = argument.layout.stride().leaves();
  const std::size_t dims = at.size();
  const auto dim_name = [&](std::size_t d) { return "dimension " + std::to_string(d) + " of " + argument.name; };

  // The box: how far positions reach along each dimension, and where each lies in shared memory.
  const std::optional<FlatLayout> places = flat(shared.levels);
  if (!places) refuse(shared, "a tile whose strides are not constant", {}, "copy into a tile of an allocation");
  std::vector<FlatLayout> along;
  for (std::size_t d = 0; d < dims; ++d) {
    std::optional<FlatLayout> f = flat(at[d].levels);
    if (!f) refuse(global, "a tile of no constant size along " + dim_name(d), {}, "cut tiles of constant sizes");
    along.push_back(std::move(*f));
  }
  const std::int64_t n = places->size();
  std::vector<std::int64_t> box(dims, 1), step(dims, 0);
  std::vector<std::int64_t> position(dims);
  for (std::int64_t v = 0; v < n; ++v) {
    std::size_t moved = dims;
    std::int64_t sum = 0;
    for (std::size_t d = 0; d < dims; ++d) {
      const std::int64_t p = along[d](v);
      box[d] = std::max(box[d], p + 1);
      sum += p;
      if (p != 0) moved = d;
    }
    if (sum == 1) step[moved] = (*places)(v);
  }
  for (std::size_t d = 0; d < dims; ++d) {
    if (box[d] > 1 && step[d] == 0)
      refuse(global, dim_name(d) + " is not a run of the box", {"its elements are not at consecutive positions"},
             "cut it contiguously");
  }
  std::vector<std::size_t> order;
  for (std::size_t d = 0; d < dims; ++d) {
    if (box[d] > 1) order.push_back(d);
  }
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return step[a] < step[b]; });
  std::int64_t covered = 1;
  for (const std::size_t d : order) {
    if (step[d] != covered) {
      refuse(shared, "shared memory does not hold the box in order",
             {dim_name(d) + ": want neighbours " + std::to_string(covered) + " elements apart, got " +
              std::to_string(step[d])},
             "a box is stored without gaps: cut longer lines into panels, one copy each");
    }
    covered *= box[d];
  }
  if (covered != n) refuse(global, "a tile that is not a box", {}, "cut tiles as products of runs, one a dimension");
  for (std::int64_t v = 0; v < n; ++v) {
    std::int64_t want = 0;
    for (std::size_t d = 0; d < dims; ++d) want += along[d](v) * step[d];
    if (want != (*places)(v))
      refuse(shared, "both sides of a copy by a tensor map have their elements in one order",
             {"element " + std::to_string(v) + ": want it at " + std::to_string(want) + ", got " +
              std::to_string((*places)(v))},
             "transpose one of the views, or copy through registers");
  }

  // The map: the fastest dimension first, then those of the box as shared memory has them, then the others.
  std::optional<std::size_t> fastest;
  for (std::size_t d = dims; d-- > 0 && !fastest;) {
    if (strides[d].is_const(1)) fastest = d;
  }
  if (!fastest) {
    refuse(global, "no dimension of " + argument.name + " has neighbours side by side", {},
           "declare a layout with a stride of 1");
  }
  std::vector<std::size_t> map_order{*fastest};
  for (const std::size_t d : order) {
    if (d != *fastest) map_order.push_back(d);
  }
  for (std::size_t d = dims; d-- > 0;) {
    if (box[d] == 1 && d != *fastest && !extents[d].is_const(1)) map_order.push_back(d);
  }
  const std::int64_t line_bytes = box[*fastest] * element;
  if (!order.empty() && order.front() != *fastest && box[*fastest] > 1) {
    refuse(shared, "the fastest dimension of the box is another one in shared memory",
           {"in global memory: " + dim_name(*fastest), "in shared memory: " + dim_name(order.front())},
           "transpose the tile in shared memory");
  }
  if (line_bytes % kUnitBytes != 0) {
    refuse(global, "lines of a box are multiples of 16 bytes",
           {dim_name(*fastest) + ": want a multiple of " + std::to_string(kUnitBytes / element) + " elements, got " +
            std::to_string(box[*fastest])},
           "cut wider tiles");
  }
  if (static_cast<std::int64_t>(map_order.size()) > kMostDims) {
    refuse(global, "a tensor map has at most 5 dimensions", {"got: " + std::to_string(map_order.size())},
           "merge dimensions that lie behind each other");
  }
  TensorMap map;
  map.argument = buffers.memory_of.at(argument.id);
  Boxed boxed;
  for (const std::size_t d : map_order) {
    if (box[d] > kLongestBox) {
      refuse(global, "a box has at most 256 elements along a dimension",
             {dim_name(d) + ": got " + std::to_string(box[d])}, "cut smaller tiles, one copy each");
    }
    map.dims.push_back({extents[d], strides[d]});
    map.box.push_back(box[d]);
    boxed.at.push_back(at[d].base);
  }

  // The swizzle, and where the box starts.
  const Swizzle& swizzle = shared.buffer->swizzle;
  const int log2_element = std::countr_zero(static_cast<unsigned>(element));
  if (!swizzle.trivial()) {
    map.swizzle_bytes = 16 << swizzle.bits;
    if (swizzle.base != 4 - log2_element || swizzle.shift != 3 || swizzle.bits > 3) {
      refuse(shared, "a swizzle that no tensor map has",
             {"want: Sw<b," + std::to_string(4 - log2_element) + ",3> with b from 1 to 3", "got: " + swizzle.str()},
             "swizzle lines of 128, 64 or 32 bytes: gr.swizzle(elements of a line, dtype)");
    }
    if (line_bytes != map.swizzle_bytes) {
      refuse(shared, "a line of the box is as long as the swizzle's",
             {"want: " + std::to_string(map.swizzle_bytes) + " bytes", "got: " + std::to_string(line_bytes)},
             "cut longer lines into panels, one copy each");
    }
  }
  const Start start = start_of(shared.offset);
  const std::int64_t unit = swizzle.trivial() ? kSharedBytes : std::int64_t{8} * map.swizzle_bytes;
  if (start.step * element % unit != 0 || start.rest * element % unit != 0) {
    refuse(shared, "a box that starts in the middle of a pattern",
           {"want: a multiple of " + std::to_string(unit) + " bytes", "got: element " + shared.offset.str()},
           "cut shared memory at multiples of 8 lines");
  }

  for (const ir::DimBound& bound : global.bounds) {
    if (bound.outside != ir::Outside::Fill || hardware_clips(bound, at, extents, box)) continue;
    refuse(global, "a tile that ends inside of the tensor", {"want: " + bound.base.str() + " < " + bound.extent.str()},
           "a tensor map clips at the tensor's own end only: cut tiles that end with it");
  }
  for (const ir::DimBound& bound : shared.bounds) {
    if (bound.outside == ir::Outside::Fill)
      refuse(shared, "a partial tile of shared memory", {}, "cut tiles that divide the allocation");
  }

  // What only the arguments decide.
  const std::string of = " of the tensor map of " + argument.name;
  facts.push_back({.buffer = argument.id,
                   .align_bytes = static_cast<int>(kUnitBytes),
                   .text = "align(" + argument.name + ") % 16 == 0" + of});
  for (std::size_t i = 1; i < map.dims.size(); ++i) {
    const Expr bytes = map.dims[i].stride_elems * element;
    const Expr whole = sym::eq(sym::mod(bytes, kUnitBytes), 0);
    if (sym::prove(whole)) continue;
    if (whole.is_const(0)) {
      refuse(global, "lines of " + argument.name + " are not multiples of 16 bytes apart",
             {dim_name(map_order[i]) + ": got " + bytes.str() + " bytes"}, "pad its lines");
    }
    const Expr one = sym::lt(map.dims[i].extent, 2);  // its stride says nothing
    facts.push_back({.condition = sym::logical_or(one, whole),
                     .text = "stride " + std::to_string(map_order[i]) + " is a multiple of 16 bytes" + of});
  }

  Copy out;
  out.align_bytes = unit;
  boxed.map = number(std::move(map));
  if (maps_.size() > kMostMaps) {
    refuse(global, "a kernel has at most " + std::to_string(kMostMaps) + " tensor maps", {},
           "copy fewer arguments by boxes, or with boxes of one form");
  }
  out.global.buffer = buffers.memory_of.at(argument.id);
  out.global.offset = 0;
  out.global.boxed = std::move(boxed);
  out.shared.buffer = buffers.memory_of.at(shared.buffer->id);
  std::vector<std::int64_t> elements(static_cast<std::size_t>(n));
  std::iota(elements.begin(), elements.end(), 0);
  Swizzled in_order = apply_swizzle(swizzle, shared.offset, elements);
  out.shared.offset = in_order.offset;
  out.shared.deltas = std::move(in_order.deltas);
  for (const ir::Tensor* t : {&global, &shared}) {
    MemRef& ref = t == &global ? out.global : out.shared;
    for (const ir::DimBound& bound : t->bounds) {
      if (bound.outside == ir::Outside::Past) ref.claims.push_back({bound.base, bound.extent});
      if (bound.outside == ir::Outside::Before) ref.claims.push_back({-bound.base, std::nullopt});
    }
  }
  return out;
}

}  // namespace graphene::lower
