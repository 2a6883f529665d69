// Move between a fragment and memory. Registers r..r+n-1 of a thread play the atom's values 0..n-1: its register-side
// layout D says which element of its tile each is, the fragment says which logical element that is, so the tile is
// mapped to logical elements; the memory-side layout S then gives each thread's address.
#include <optional>

#include "atoms/fragment.h"
#include "atoms/match.h"
#include "atoms/parse.h"
#include "build/held.h"
#include "build/lanes.h"
#include "build/moves.h"
#include "build/nest.h"
#include "ir/levels.h"

namespace graphene::build {

namespace {

using atoms::InstancePtr;
using atoms::OperandInstance;

class FragmentMove {
 public:
  FragmentMove(ir::Builder& b, const ir::SpecStmt& spec, const ir::TensorPtr& fragment, const ir::TensorPtr& memory,
               bool load)
      : b_(b),
        spec_(spec),
        fragment_(fragment),
        memory_(memory),
        load_(load),
        entry_(entry_for(spec, spec.atom, memory->dtype, load ? ir::Memory::RF : memory->memory(),
                         load ? memory->memory() : ir::Memory::RF)),
        reg_(load ? entry_->out[0] : entry_->in[0]),
        mem_(load ? entry_->in[0] : entry_->out[0]) {}

  void run() {
    check();
    held_ = enumerate(spec_, *fragment_);
    solve();
    emit();
  }

 private:
  std::string name() const { return entry_->atom.name; }
  std::size_t rank() const { return shape_.size(); }
  std::size_t groups() const { return held_.registers.size() / static_cast<std::size_t>(reg_.values); }

  void check() {
    if (memory_->dtype != fragment_->dtype) {
      refuse(spec_, Code::COLLECTIVE_SHAPE, "a Move does not convert",
             {std::string("want: ") + ir::name(fragment_->dtype), std::string("got: ") + ir::name(memory_->dtype)},
             "convert in registers first");
    }
    shape_ = static_shape(*memory_);
    if (memory_->levels.size() != 1 || shape_ != static_shape(*fragment_)) {
      refuse(spec_, Code::COLLECTIVE_SHAPE, "fragment and memory tile differ in shape",
             {"fragment: " + tile_text(static_shape(*fragment_)), "memory: " + memory_->type_str(false)},
             "index the memory tensor down to one tile of the fragment's shape");
    }
    if (entry_->thread_count > 1) {
      const ir::ThreadTensor& group = *fragment_->buffer->fragment->group;
      const auto own = atoms::own_rank(group, group);
      const auto exec = spec_.threads->levels.empty() ? std::nullopt : atoms::own_rank(*spec_.threads, group);
      if (!own || !exec || !atoms::constant_difference(*own, *exec) || *atoms::constant_difference(*own, *exec) != 0) {
        refuse(spec_, Code::COLLECTIVE_FRAGMENT, "the fragment is held by other threads",
               {"fragment: " + group.type_str(), "on: " + spec_.threads->type_str()}, "leave out on=");
      }
    }
  }

  // Registers in runs of the atom's number of values; per run and thread the coordinates of its vector in memory.
  void solve() {
    const auto n = static_cast<std::size_t>(reg_.values);
    if (held_.registers.size() % n != 0) {
      refuse(spec_, Code::COLLECTIVE_SHAPE, name() + " moves " + std::to_string(n) + " values of a thread at once",
             {"the view gives each thread " + std::to_string(held_.registers.size())}, "choose a narrower atom");
    }
    for (std::size_t g = 0; g < groups(); ++g) {
      const std::int64_t first = held_.registers[g * n];
      for (std::size_t v = 0; v < n; ++v) {
        if (held_.registers[g * n + v] == first + static_cast<std::int64_t>(v) && first % reg_.values == 0) continue;
        refuse(spec_, Code::COLLECTIVE_FRAGMENT,
               "the view's registers are not neighbours in runs of " + std::to_string(n),
               {"run " + std::to_string(g) + " starts at register " + std::to_string(first)}, "choose a narrower atom");
      }
    }
    const std::int64_t atom_threads = entry_->thread_count;
    const std::int64_t members = std::max<std::int64_t>(held_.threads / atom_threads, 1);
    address_.assign(groups() * static_cast<std::size_t>(held_.threads), {});
    std::vector<const std::int64_t*> logical(static_cast<std::size_t>(reg_.tile_size));
    for (std::size_t g = 0; g < groups(); ++g) {
      for (std::int64_t w = 0; w < members; ++w) {
        for (std::int64_t t = 0; t < atom_threads; ++t) {
          for (std::size_t v = 0; v < n; ++v) {
            logical[static_cast<std::size_t>(reg_.element(t, static_cast<std::int64_t>(v)))] =
                held_.coord(w * atom_threads + t, g * n + v);
          }
        }
        for (std::int64_t t = 0; t < atom_threads; ++t) place(g, w * atom_threads + t, t, logical);
      }
    }
  }

  // The vector that thread `who` (thread t of the atom) accesses for run g.
  void place(std::size_t g, std::int64_t who, std::int64_t t, const std::vector<const std::int64_t*>& logical) {
    const std::int64_t* first = logical[static_cast<std::size_t>(mem_.element(t, 0))];
    for (std::int64_t j = 1; j < mem_.values; ++j) {
      const std::int64_t* at = logical[static_cast<std::size_t>(mem_.element(t, j))];
      if (vector_dim_ < 0) {
        for (std::size_t d = 0; d < rank(); ++d) {
          if (at[d] != first[d]) vector_dim_ = static_cast<int>(d);
        }
      }
      for (std::size_t d = 0; d < rank(); ++d) {
        const std::int64_t want = first[d] + (static_cast<int>(d) == vector_dim_ ? j : 0);
        if (at[d] != want || vector_dim_ < 0) not_contiguous(who, j, first, at);
      }
    }
    if (vector_dim_ >= 0 && first[vector_dim_] % mem_.values != 0) {
      refuse(spec_, Code::COLLECTIVE_VECTOR,
             name() + " accesses vectors of " + std::to_string(mem_.values) + " aligned elements",
             {"thread " + std::to_string(who) + " starts at element " + coordinate(first)}, "choose a narrower atom");
    }
    Row& row = address_[g * static_cast<std::size_t>(held_.threads) + static_cast<std::size_t>(who)];
    row.assign(first, first + rank());
    if (vector_dim_ >= 0) row[static_cast<std::size_t>(vector_dim_)] /= mem_.values;
  }

  std::string coordinate(const std::int64_t* c) const {
    return "(" + [&] {
      std::string s;
      for (std::size_t d = 0; d < rank(); ++d) s += (d > 0 ? "," : "") + std::to_string(c[d]);
      return s;
    }() + ")";
  }

  [[noreturn]] void not_contiguous(std::int64_t who, std::int64_t j, const std::int64_t* first,
                                   const std::int64_t* at) {
    refuse(spec_, Code::COLLECTIVE_VECTOR, "what " + name() + " accesses as one vector is not contiguous",
           {"vector: " + std::to_string(mem_.values) + " elements from " + coordinate(first) + " of thread " +
                std::to_string(who),
            "element " + std::to_string(j) + ": " + coordinate(at)},
           "choose a narrower atom, its transposing form, or pass the memory tile as .T");
  }

  void emit() {
    if (vector_dim_ >= 0) check_stride();
    const auto threads = static_cast<std::size_t>(held_.threads);
    // Runs and threads must move the address independently: address[g][t] == address[g][0] + address[0][t] -
    // address[0][0].
    for (std::size_t g = 0; g < groups(); ++g) {
      for (std::size_t t = 0; t < threads; ++t) {
        for (std::size_t d = 0; d < rank(); ++d) {
          if (address_[g * threads + t][d] - address_[g * threads][d] == address_[t][d] - address_[0][d]) continue;
          irregular();
        }
      }
    }
    std::vector<Row> runs;
    for (std::size_t g = 0; g < groups(); ++g) {
      runs.push_back(address_[g * threads]);
      runs.back().push_back(held_.registers[g * static_cast<std::size_t>(reg_.values)] / reg_.values);
    }
    const std::optional<Digits> loops = find_digits(runs);
    if (!loops) irregular();

    Nest nest(b_, spec_);
    if (entry_->thread_count > 1) nest.by(collectives());
    const std::vector<Expr> lane = lane_address(nest);
    std::vector<std::int64_t> sizes(rank(), 1);
    if (vector_dim_ >= 0) sizes[static_cast<std::size_t>(vector_dim_)] = mem_.values;
    const ir::TensorPtr registers = nest.tile(own_values(nest), {reg_.values});
    const ir::TensorPtr tiles = nest.tile(memory_, sizes);
    std::vector<Expr> index = lane;
    for (std::size_t d = 0; d < rank(); ++d) index[d] = index[d] + runs[0][d];
    Expr run = runs[0][rank()];
    const Expr writer = load_ ? Expr(1) : first_holder(nest);
    if (!writer.is_const(1)) b_.if_(writer);
    for (std::size_t k = loops->extent.size(); k-- > 0;) {
      const Expr i = nest.loop("i", loops->extent[k]);
      for (std::size_t d = 0; d < rank(); ++d) index[d] = index[d] + i * loops->step[k][d];
      run = run + i * loops->step[k][rank()];
    }
    const ir::TensorPtr r = nest.at(registers, {run});
    const ir::TensorPtr m = nest.at(tiles, index);
    nest.leaf(ir::SpecKind::Move, load_ ? r : m, {load_ ? m : r}, spec_.atom, entry_->thread_count == 1);
    nest.close();
    if (!writer.is_const(1)) b_.leave();
  }

  // The threads cut into the atom's collectives, [128] into [4].[32], where they are not already.
  ir::ThreadPtr collectives() {
    const ir::ThreadPtr& threads = spec_.threads;
    const Expr inner = threads->levels.empty() ? Expr(1) : threads->levels.back().size();
    const int n = entry_->thread_count;
    if (!inner.is_const() || inner.value() <= n || inner.value() % n != 0) return threads;
    return b_.thread_view({.result = nullptr,
                           .source = threads,
                           .op = ir::ThreadOp::Tile,
                           .tiler = {Layout(n, 1)},
                           .index = {},
                           .level = 0,
                           .shape = {}});
  }

  // Of the threads that hold the same elements the first one stores them.
  Expr first_holder(Nest& nest) {
    if (entry_->thread_count > 1) return 1;
    Expr first = 1;
    const atoms::FlatLayout thread = atoms::flatten(fragment_->buffer->fragment->tv.mode(0));
    std::int64_t place = 1;
    for (std::size_t i = 0; i < thread.shape.size(); ++i) {
      if (thread.shape[i] > 1 && thread.stride[i] == 0 && place < held_.threads) {
        std::vector<Row> digit;
        for (std::int64_t t = 0; t < held_.threads; ++t) digit.push_back({t / place % thread.shape[i]});
        const auto sums = lane_sums(nest, fragment_->buffer->fragment->group, held_.whole_group, digit);
        if (!sums) irregular();
        first = sym::logical_and(first, sym::eq((*sums)[0], 0));
      }
      place *= thread.shape[i];
    }
    return first;
  }

  [[noreturn]] void irregular() {
    refuse(spec_, Code::COLLECTIVE_FRAGMENT,
           "the addresses of " + name() + " do not depend regularly on thread and register",
           {"fragment: " + fragment_->type_str(false)}, atoms::by_smaller_specs(spec_.kind));
  }

  void check_stride() {
    const Layout mode = ir::modes_of(memory_->levels[0])[static_cast<std::size_t>(vector_dim_)];
    const IntTuple& shape = mode.shape();
    const IntTuple& stride = mode.stride();
    const bool plain = shape.is_leaf() ? stride.leaf().is_const(1)
                                       : stride.leaves()[0].is_const(1) && shape.leaves()[0].is_const() &&
                                             shape.leaves()[0].value() % mem_.values == 0;
    if (plain) return;
    refuse(spec_, Code::COLLECTIVE_VECTOR, "what " + name() + " accesses as one vector is not contiguous",
           {"vector: " + std::to_string(mem_.values) + " elements along dimension " + std::to_string(vector_dim_),
            "element 1: " + stride.leaves()[0].str() + " elements after element 0, in " + memory_->type_str()},
           "choose a narrower atom, its transposing form, or pass the memory tile as .T");
  }

  // The whole stage's registers of the executing thread.
  ir::TensorPtr own_values(Nest& nest) {
    ir::TensorPtr whole = b_.declared(fragment_->buffer->id);
    if (fragment_->buffer->stages > 0) {
      std::vector<Expr> index = {Expr(held_.stage)};
      whole = nest.at(whole, index);
    }
    return nest.values(whole);
  }

  // Per dimension the part of the address that depends on the thread.
  std::vector<Expr> lane_address(Nest& nest) {
    const std::vector<Row> first(address_.begin(), address_.begin() + held_.threads);
    auto sums = lane_sums(nest, fragment_->buffer->fragment->group, held_.whole_group, first);
    if (!sums) irregular();
    return *std::move(sums);
  }

  ir::Builder& b_;
  const ir::SpecStmt& spec_;
  const ir::TensorPtr fragment_, memory_;
  const bool load_;
  const InstancePtr entry_;
  const OperandInstance& reg_;
  const OperandInstance& mem_;
  std::vector<std::int64_t> shape_;
  Held held_;
  std::vector<Row> address_;  // [run][thread]: coordinates of the vector, in vectors along vector_dim_
  int vector_dim_ = -1;
};

}  // namespace

void move_fragment(ir::Builder& b, const ir::SpecStmt& spec, const ir::TensorPtr& fragment, const ir::TensorPtr& memory,
                   bool load) {
  FragmentMove(b, spec, fragment, memory, load).run();
}

}  // namespace graphene::build
