// Moves between memories by a group of threads, and between a thread's own registers and memory.
#include <optional>

#include "atoms/parse.h"
#include "build/lanes.h"
#include "build/moves.h"
#include "build/nest.h"
#include "ir/levels.h"

namespace graphene::build {

namespace {

using ir::TensorPtr;

std::vector<std::int64_t> same_shape(const ir::SpecStmt& spec, const ir::Tensor& dst, const ir::Tensor& src) {
  const std::vector<std::int64_t> shape = static_shape(dst);
  if (shape.empty() || dst.levels.size() != 1 || src.levels.size() != 1 || shape != static_shape(src)) {
    refuse(spec, Code::COLLECTIVE_SHAPE, "source and destination differ in shape",
           {"destination: " + dst.type_str(false), "source: " + src.type_str(false)},
           "index both down to one tile of the same constant shape");
  }
  if (dst.dtype != src.dtype) {
    refuse(spec, Code::COLLECTIVE_SHAPE, "a Move does not convert",
           {std::string("destination: ") + ir::name(dst.dtype), std::string("source: ") + ir::name(src.dtype)},
           "convert in registers");
  }
  return shape;
}

[[noreturn]] void no_vector(const ir::SpecStmt& spec, const std::string& atom, std::int64_t values,
                            const ir::Tensor& t) {
  if (t.size().is_const() && t.size().value() < values) {
    refuse(spec, Code::COLLECTIVE_VECTOR, "a tile smaller than what " + atom + " copies at once",
           {"want: " + std::to_string(values) + " elements, " + std::to_string(ir::bytes_of_elems(t.dtype, values)) +
                " bytes",
            "got: " + t.type_str() + ", " + std::to_string(ir::bytes_of_elems(t.dtype, t.size().value())) + " bytes"},
           "cut tiles of " + std::to_string(values) + " elements, or name an atom that copies " +
               std::to_string(ir::bytes_of_elems(t.dtype, t.size().value())) + " bytes");
  }
  refuse(spec, Code::COLLECTIVE_VECTOR, "what " + atom + " accesses as one vector is not contiguous",
         {"vector: " + std::to_string(values) + " elements", "in: " + t.type_str()}, "choose a narrower atom");
}

// Vector i of a thread is at base + a part of the thread + a part of i, in vectors per dimension.
struct ThreadValueMap {
  std::int64_t rounds = 0;
  std::vector<Expr> lane;
  Row base;
  Digits digits;

  [[nodiscard]] std::vector<Expr> index(const Expr& i) const {
    std::vector<Expr> out;
    for (std::size_t d = 0; d < lane.size(); ++d) out.push_back(lane[d] + Expr(base[d]) + digit_sum(digits, i, d));
    return out;
  }
};

// tv=: (thread, value) -> colexicographic element of the tile; runs of `n` values are one vector along `fast`.
ThreadValueMap solve(Nest& nest, const ir::SpecStmt& spec, const std::vector<std::int64_t>& shape, std::size_t fast,
                     std::int64_t n) {
  const Layout& tv = *spec.tv;
  const auto wrong = [&](const std::string& why) {
    refuse(spec, Code::COLLECTIVE_VECTOR, why, {"tv: " + tv.str(), "tile: " + tile_text(shape)},
           "tv= maps (thread, value) to the elements of the tile, the values of one vector side by side");
  };
  if (!tv.is_static() || tv.rank() != 2) wrong("a TV layout has constant sizes and two modes, threads and values");
  const atoms::FlatLayout thread = atoms::flatten(tv.mode(0));
  const atoms::FlatLayout value = atoms::flatten(tv.mode(1));
  if (spec.threads == nullptr || spec.threads->levels.empty() || !spec.threads->size().is_const(thread.size()))
    wrong("the TV layout is for another number of threads");
  std::int64_t elements = 1;
  for (const std::int64_t s : shape) elements *= s;
  if (value.size() % n != 0) wrong("a thread's values are not whole vectors of " + std::to_string(n));
  ThreadValueMap map;
  map.rounds = value.size() / n;
  const auto place = [&](std::int64_t t, std::int64_t v) {
    std::int64_t e = thread(t) + value(v);
    if (e >= elements) wrong("the TV layout reaches past the tile's last element");
    Row at;
    for (const std::int64_t s : shape) {
      at.push_back(e % s);
      e /= s;
    }
    return at;
  };
  std::vector<Row> first;
  std::vector<Row> of_round;
  for (std::int64_t t = 0; t < thread.size(); ++t) {
    for (std::int64_t g = 0; g < map.rounds; ++g) {
      Row at = place(t, g * n);
      for (std::int64_t j = 1; j < n; ++j) {
        Row next = place(t, g * n + j);
        next[fast] -= j;
        if (next != at) wrong("what the atom accesses as one vector is not contiguous");
      }
      if (at[fast] % n != 0) wrong("a vector does not start at a multiple of its size");
      at[fast] /= n;
      if (g == 0) first.push_back(at);
      if (t == 0) of_round.push_back(at);
      for (std::size_t d = 0; d < at.size(); ++d) {
        if (at[d] - first.back()[d] != of_round[static_cast<std::size_t>(g)][d] - of_round[0][d])
          wrong("the addresses are not a sum of a thread's and a value's part");
      }
    }
  }
  map.base = first[0];
  const auto lane = lane_sums(nest, spec.threads, true, first);
  const auto digits = find_digits(of_round);
  if (!lane || !digits) wrong("the addresses do not depend regularly on thread and value");
  map.lane = *lane;
  map.digits = *digits;
  return map;
}

}  // namespace

void copy(ir::Builder& b, const ir::SpecStmt& spec, const TensorPtr& dst, const TensorPtr& src,
          const std::vector<std::string>& names) {
  const std::vector<std::int64_t> shape = same_shape(spec, *dst, *src);
  if (names.size() > 2) refuse(spec, Code::COLLECTIVE_ATOM, "a Move takes one atom, or two through registers");
  const bool staged = names.size() == 2;
  const auto first = entry_for(spec, names[0], src->dtype, staged ? ir::Memory::RF : dst->memory(), src->memory());
  const auto second = staged ? entry_for(spec, names[1], src->dtype, dst->memory(), ir::Memory::RF) : first;
  const std::int64_t n = first->in[0].values;
  if (first->thread_count != 1 || second->thread_count != 1 || second->out[0].values != n) {
    refuse(spec, Code::COLLECTIVE_ATOM, "the atoms of a copy must move equally many elements of one thread",
           {first->atom.name + ": " + std::to_string(n),
            second->atom.name + ": " + std::to_string(second->out[0].values)});
  }
  const int dim = contiguous_dim(*src, n);
  if (n > 1 && (dim < 0 || dim != contiguous_dim(*dst, n))) no_vector(spec, spec.atom, n, dim < 0 ? *src : *dst);
  const auto fast = static_cast<std::size_t>(dim < 0 ? 0 : dim);

  // Vectors are numbered along the contiguous dimension first; vector i belongs to thread i mod T.
  std::vector<std::size_t> order = {fast};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (d != fast) order.push_back(d);
  }
  std::int64_t vectors = 1;
  for (const std::int64_t s : shape) vectors *= s;
  vectors /= n;
  Nest nest(b, spec);
  Expr me = 0;
  std::int64_t threads = 1;
  if (spec.threads != nullptr && !spec.threads->levels.empty()) {
    const auto own = nest.indices(spec.threads);
    for (std::size_t l = spec.threads->levels.size(); l-- > 0;) {
      const std::vector<Layout> modes = ir::modes_of(spec.threads->levels[l]);
      for (std::size_t m = 0; m < modes.size(); ++m) {
        me = me + own[l][m] * threads;
        threads *= modes[m].size().value();
      }
    }
  }
  std::vector<std::int64_t> sizes(shape.size(), 1);
  sizes[fast] = n;
  const TensorPtr from = nest.tile(src, sizes);
  const TensorPtr to = nest.tile(dst, sizes);
  ThreadValueMap map;
  if (spec.tv) map = solve(nest, spec, shape, fast, n);
  const std::int64_t rounds = spec.tv ? map.rounds : (vectors + threads - 1) / threads;
  const bool ragged = vectors % threads != 0;
  TensorPtr registers;
  if (staged) {
    const TensorPtr all = b.alloc(b.unique_name("staged"), Layout(IntTuple({IntTuple(n), IntTuple(rounds)})),
                                  src->dtype, ir::Memory::RF, {});
    registers = nest.tile(all, {n, 1});
  }
  const auto pass = [&](const std::function<void(const std::vector<Expr>&, const Expr&)>& body) {
    if (spec.tv) {
      const Expr i = nest.loop("i", map.rounds);
      body(map.index(i), i);
      nest.close();
      return;
    }
    const Expr i = nest.loop("i", rounds);
    const Expr vector = me + i * threads;
    if (ragged) b.if_(sym::lt(vector, vectors));
    std::vector<Expr> index(shape.size());
    std::int64_t place = 1;
    for (std::size_t k = 0; k < order.size(); ++k) {
      const std::size_t d = order[k];
      const std::int64_t extent = shape[d] / sizes[d];
      index[d] = sym::floor_div(vector, place);
      if (k + 1 < order.size()) index[d] = sym::mod(index[d], extent);
      place *= extent;
    }
    body(index, i);
    if (ragged) b.leave();
    nest.close();
  };
  if (!staged) {
    pass([&](const std::vector<Expr>& at, const Expr&) {
      const TensorPtr s = nest.at(from, at);
      nest.leaf(ir::SpecKind::Move, nest.at(to, at), {s}, names[0], true);
    });
    return;
  }
  // All loads first: they wait for memory together.
  pass([&](const std::vector<Expr>& at, const Expr& i) {
    const TensorPtr s = nest.at(from, at);
    nest.leaf(ir::SpecKind::Move, nest.at(registers, {0, i}), {s}, names[0], true);
  });
  pass([&](const std::vector<Expr>& at, const Expr& i) {
    const TensorPtr r = nest.at(registers, {0, i});
    nest.leaf(ir::SpecKind::Move, nest.at(to, at), {r}, names[1], true);
  });
}

void move_private(ir::Builder& b, const ir::SpecStmt& spec, const TensorPtr& registers, const TensorPtr& memory,
                  bool load) {
  const std::vector<std::int64_t> shape = same_shape(spec, load ? *registers : *memory, load ? *memory : *registers);
  const auto entry = entry_for(spec, spec.atom, memory->dtype, load ? ir::Memory::RF : memory->memory(),
                               load ? memory->memory() : ir::Memory::RF);
  const std::int64_t n = (load ? entry->in[0] : entry->out[0]).values;
  if (entry->thread_count != 1) {
    refuse(spec, Code::COLLECTIVE_ATOM,
           spec.atom + " needs a fragment that its threads hold together, got private registers",
           {"registers: " + registers->type_str(false)}, "declare them with gr.fragment");
  }
  const int dim = contiguous_dim(*memory, n);
  if (n > 1 && dim < 0) no_vector(spec, spec.atom, n, *memory);
  if (n > 1 && dim != contiguous_dim(*registers, n)) no_vector(spec, spec.atom, n, *registers);
  std::vector<std::int64_t> sizes(shape.size(), 1);
  if (dim >= 0) sizes[static_cast<std::size_t>(dim)] = n;
  Nest nest(b, spec);
  const TensorPtr r = nest.tile(registers, sizes);
  const TensorPtr m = nest.tile(memory, sizes);
  std::vector<Expr> index;
  for (std::size_t d = 0; d < shape.size(); ++d) index.push_back(nest.loop("i", shape[d] / sizes[d]));
  const TensorPtr rv = nest.at(r, index);
  const TensorPtr mv = nest.at(m, index);
  nest.leaf(ir::SpecKind::Move, load ? rv : mv, {load ? mv : rv}, spec.atom, true);
  nest.close();
}

}  // namespace graphene::build
