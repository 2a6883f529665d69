// MatMul and Init over tiles: one leaf per tile of the atom, or per element.
#include <array>

#include "atoms/match.h"
#include "build/held.h"
#include "build/moves.h"
#include "build/nest.h"
#include "ir/levels.h"

namespace graphene::build {

namespace {

using ir::TensorPtr;

// A view as tiles of these sizes: its own two levels where they are that already, else a new tiling.
TensorPtr as_tiles(Nest& nest, const TensorPtr& t, const std::vector<std::int64_t>& sizes) {
  if (t->levels.size() == 2) {
    ir::Tensor inner = *t;
    inner.levels = {t->levels[1]};
    if (static_shape(inner) == sizes && t->levels[0].rank() == static_cast<int>(sizes.size())) return t;
  }
  return nest.tile(t, sizes);
}

// Extents of the tile's axes in the order of the view's dimensions: out [m,n], a [m,k], b [k,n].
struct Extents {
  std::int64_t m = 1, n = 1, k = 1;
};

std::optional<Extents> extents_of(const atoms::Instance& e) {
  Extents x;
  const auto extent = [](const atoms::OperandInstance& o, const std::string& axis) -> std::int64_t {
    for (std::size_t i = 0; i < o.axes.size(); ++i) {
      if (o.axes[i] == axis) return o.extents[i];
    }
    return 0;
  };
  if (e.out.size() != 1 || e.in.size() != 2) return std::nullopt;
  if (e.out[0].axes.empty()) return e.out[0].values == 1 ? std::optional<Extents>(x) : std::nullopt;
  x.m = extent(e.out[0], "m");
  x.n = extent(e.out[0], "n");
  x.k = extent(e.in[0], "k");
  if (x.m == 0 || x.n == 0 || x.k == 0 || e.out[0].axes.size() != 2) return std::nullopt;
  return x;
}

}  // namespace

void matmul(ir::Builder& b, const ir::SpecStmt& spec) {
  std::optional<Extents> extents;
  bool each = false;
  for (const atoms::InstancePtr& e : atoms::find_family(spec.atom)) {
    extents = e->atom.kind == atoms::Kind::MatMul ? extents_of(*e) : std::nullopt;
    each = e->thread_count == 1;
    if (extents) break;
  }
  std::array<TensorPtr, 3> t;  // out, a, b
  t[0] = spec.outs.empty() ? nullptr : spec.outs[0];
  for (std::size_t i = 0; i < 2 && i < spec.ins.size(); ++i) {
    if (const auto* x = std::get_if<TensorPtr>(&spec.ins[i])) t.at(i + 1) = *x;
  }
  if (!extents || !t[0] || !t[1] || !t[2]) {
    refuse(spec, Code::COLLECTIVE_ATOM, spec.atom + " does not implement a MatMul over matrices", {},
           "name a matrix instruction, or " + atoms::by_smaller_specs(spec.kind));
  }
  const std::array<std::vector<std::int64_t>, 3> tiles = {
      std::vector<std::int64_t>{extents->m, extents->n}, {extents->m, extents->k}, {extents->k, extents->n}};
  std::array<std::vector<std::int64_t>, 3> shape;
  for (std::size_t i = 0; i < 3; ++i) shape.at(i) = static_shape(*t.at(i));
  const auto bad_shape = [&](const std::string& why) {
    refuse(spec, Code::COLLECTIVE_SHAPE, why,
           {"want: out [M,N], a [M,K], b [K,N] in tiles of m" + std::to_string(extents->m) + " n" +
                std::to_string(extents->n) + " k" + std::to_string(extents->k),
            "got: out " + tile_text(shape[0]) + ", a " + tile_text(shape[1]) + ", b " + tile_text(shape[2])},
           "an operand stored the other way is passed as .T");
  };
  for (const auto& s : shape) {
    if (s.size() != 2) bad_shape("a MatMul over tiles needs matrices of constant shape");
  }
  if (shape[0][0] != shape[1][0] || shape[1][1] != shape[2][0] || shape[0][1] != shape[2][1]) {
    bad_shape("the shapes of a MatMul do not fit together");
  }
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t d = 0; d < 2; ++d) {
      if (shape.at(i)[d] % tiles.at(i)[d] != 0) bad_shape("the atom's tile does not divide the matrices");
    }
  }
  Nest nest(b, spec);
  const bool scalar = extents->m * extents->n * extents->k == 1;
  std::array<TensorPtr, 3> tiled = t;
  for (std::size_t i = 0; i < 3; ++i) {
    if (!scalar || t.at(i)->levels.size() != 1) tiled.at(i) = as_tiles(nest, t.at(i), tiles.at(i));
  }
  const auto pick = [&](const TensorPtr& x, const Expr& i, const Expr& j) {
    const TensorPtr tile = nest.at(x, {i, j});
    return scalar && !tile->levels.empty() ? nest.at(tile, {0, 0}) : tile;
  };
  const auto products = [&](const Expr& k) {
    const Expr m = nest.loop("m", shape[0][0] / extents->m);
    const TensorPtr a = pick(tiled[1], m, k);
    const Expr n = nest.loop("n", shape[0][1] / extents->n);
    const TensorPtr b_tile = pick(tiled[2], k, n);  // recorded one by one: arguments have no order
    const TensorPtr c_tile = pick(tiled[0], m, n);
    nest.leaf(ir::SpecKind::MatMul, c_tile, {a, b_tile}, spec.atom, each);
    nest.close();
  };
  // What is said of old values is for the first products along k: the others add to those.
  std::int64_t steps = shape[1][1] / extents->k;
  const auto& accumulate = spec.attrs.at("accumulate");
  Expr done = 0;
  if (steps > 1 && !(std::holds_alternative<bool>(accumulate) && std::get<bool>(accumulate))) {
    products(0);
    nest.say("accumulate", true);
    done = 1;
    --steps;
  }
  products(nest.loop("k", steps) + done);
}

void init(ir::Builder& b, const ir::SpecStmt& spec) {
  if (spec.outs.size() != 1) refuse(spec, Code::COLLECTIVE_ATOM, "an Init has one output");
  const TensorPtr& t = spec.outs[0];
  Nest nest(b, spec);
  if (t->is_fragment()) {
    const Held held = enumerate(spec, *t);
    std::vector<Row> rows;
    for (const std::int64_t r : held.registers) rows.push_back({r});
    const std::optional<Digits> loops = find_digits(rows);
    if (!loops) refuse(spec, Code::COLLECTIVE_FRAGMENT, "the view's registers follow no regular order");
    TensorPtr whole = b.declared(t->buffer->id);
    if (t->buffer->stages > 0) whole = nest.at(whole, {Expr(held.stage)});
    const TensorPtr values = nest.values(whole);
    Expr index = rows[0][0];
    for (std::size_t k = loops->extent.size(); k-- > 0;)
      index = index + nest.loop("v", loops->extent[k]) * loops->step[k][0];
    nest.leaf(ir::SpecKind::Init, nest.at(values, {index}), {}, spec.atom, true);
    nest.close();
    return;
  }
  if (t->memory() != ir::Memory::RF && !(spec.threads == nullptr || spec.threads->levels.empty())) {
    refuse(spec, Code::COLLECTIVE_ATOM, "an Init of memory by a group of threads must say which thread sets what", {},
           "tile it over the threads' coordinates");
  }
  TensorPtr x = t;
  while (!x->levels.empty()) {
    std::vector<Expr> index;
    for (const Layout& mode : ir::modes_of(x->levels[0])) {
      const Expr n = mode.size();
      if (!n.is_const())
        refuse(spec, Code::COLLECTIVE_SHAPE, "an Init of more than one element needs a constant shape");
      index.push_back(nest.loop("i", n.value()));
    }
    x = nest.at(x, index);
  }
  nest.leaf(ir::SpecKind::Init, x, {}, spec.atom, true);
  nest.close();
}

}  // namespace graphene::build
