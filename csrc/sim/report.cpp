#include "sim/report.h"

#include <algorithm>
#include <bit>

#include "layout/banks.h"
#include "sim/check.h"
#include "sim/machine.h"

namespace graphene::sim {

namespace {

constexpr std::int64_t kManyBlocks = 64;

struct Vector {  // contiguous values of an operand: one request
  std::size_t first = 0;
  int values = 1;
  std::size_t row = 0;
};

class Counter {
 public:
  Counter(const Bytecode& code, Report& out) : code_(code), out_(out) {
    vectors_.resize(code.leaves.size());
    for (std::size_t i = 0; i < code.leaves.size(); ++i) {
      const Leaf& f = code.leaves[i];
      for (std::size_t k = 0; k < f.in.size(); ++k) prepare(i, f, f.in[k], k, false, k < f.call->in.size());
      for (std::size_t k = 0; k < f.out.size(); ++k) {
        if (f.out[k].access == atoms::Access::Update) prepare(i, f, f.out[k], k, false, true, true);
        prepare(i, f, f.out[k], k, true, true, true);
      }
    }
    agents_.resize(code.leaves.size());
    for (std::size_t i = 0; i < code.leaves.size(); ++i) {
      if (code.leaves[i].bulk || code.leaves[i].product) agents_[i] = agent(code.leaves[i]);
    }
    for (const MBarrierCode& m : code.mbarriers) {
      if (m.buffer < 0) continue;
      const ir::Buffer& b = *code.program->buffers[static_cast<std::size_t>(m.buffer)].buffer;
      out.barriers.push_back({.name = b.name, .stages = m.count / m.step, .arrivals = m.wanted});
    }
    for (const NamedBarrierCode& n : code.named) {
      out.barriers.push_back(
          {.name = n.buffer->name, .named = true, .stages = n.count(), .arrivals = n.buffer->arrivals});
    }
  }

  void phases(const std::vector<PhaseCount>& counts) {
    for (std::size_t at = 0; at < counts.size(); ++at) {
      const std::string name = code_.barrier_name(static_cast<int>(at) % code_.mbarrier_count);
      for (BarrierReport& b : out_.barriers) {
        if (b.name == name.substr(0, name.find('['))) b.phases += static_cast<std::uint64_t>(counts[at].phases);
      }
    }
  }

  void leaf(const Warp& w, const Leaf& f, Mask lanes) {
    for (const Access& a : vectors_[f.site - 1]) count(w, f, a, lanes);
    if (f.bulk || f.product) count_agent(w, f, lanes);
  }

 private:
  struct Access {
    const Operand* operand;
    std::vector<Vector> vectors;
  };

  [[nodiscard]] std::string buffers(const std::vector<Operand>& operands) const {
    std::string text;
    for (const Operand& o : operands) {
      std::string name;
      if (o.kind == Operand::Kind::Memory) {
        name = code_.program->buffers[static_cast<std::size_t>(o.buffer)].buffer->name;
      } else if (o.kind == Operand::Kind::Registers && !o.registers.empty()) {
        const auto& first = code_.array_first;
        const auto array = std::upper_bound(first.begin(), first.end(), o.registers.front()) - first.begin() - 1;
        name = code_.program->registers[static_cast<std::size_t>(array)].buffer->name;
      }
      if (!name.empty()) text += (text.empty() ? "" : ", ") + name;
    }
    return text;
  }

  // The row of an agent's leaf: one for each statement.
  std::size_t agent(const Leaf& f) {
    AgentReport r;
    const auto shared = [&](const Operand& o) {
      return code_.program->buffers[static_cast<std::size_t>(o.buffer)].memory == ir::Memory::SH;
    };
    using What = AgentReport::What;
    r.what = f.product                                       ? What::Product
             : shared(f.in.front()) && shared(f.out.front()) ? What::Copy
             : shared(f.out.front())                         ? What::Load
                                                             : What::Store;
    r.origin = f.origin;
    r.atom = f.call->atom->family;
    r.source = buffers(f.in);
    r.target = buffers(f.out);
    r.blocks = static_cast<int>(std::max<std::size_t>(f.to.size(), 1));
    for (std::size_t i = 0; i < out_.agents.size(); ++i) {
      const AgentReport& o = out_.agents[i];
      if (o.origin == r.origin && o.atom == r.atom && o.source == r.source && o.target == r.target) return i;
    }
    out_.agents.push_back(std::move(r));
    return out_.agents.size() - 1;
  }

  // Bytes of a copy that lie inside of the tensor.
  [[nodiscard]] std::int64_t inside(const Warp& w, const Leaf& f, int lane) const {
    for (const Operand* o : {&f.in.front(), &f.out.front()}) {
      if (o->box.empty()) continue;
      std::int64_t bytes = o->bytes;
      for (const BoxDim& d : o->box) {
        const std::int64_t at = plans().at_lane(d.at, w.ints, lane);
        const std::int64_t end = std::min(at + d.box, plans().at_lane(d.extent, w.ints, lane));
        bytes *= std::max<std::int64_t>(end - std::max<std::int64_t>(at, 0), 0);
      }
      return bytes;
    }
    return std::int64_t{f.out.front().values} * f.out.front().bytes;
  }

  void count_agent(const Warp& w, const Leaf& f, Mask lanes) {
    AgentReport& r = out_.agents[agents_[f.site - 1]];
    if (f.product) {
      if (f.collective->groups[static_cast<std::size_t>(w.local)].empty()) return;  // the first warp does it
      const Einsum& x = *f.einsum;
      ++r.count;
      r.flops += 2 * static_cast<std::uint64_t>(x.batch) * static_cast<std::uint64_t>(x.m) *
                 static_cast<std::uint64_t>(x.n) * static_cast<std::uint64_t>(x.k);
      for (const Operand& o : f.in) {
        if (o.whole) r.bytes += o.deltas.size() * static_cast<std::size_t>(o.bytes);
      }
      return;
    }
    for (Mask m = lanes; m != 0; m &= m - 1) {
      ++r.count;
      r.bytes += static_cast<std::uint64_t>(inside(w, f, std::countr_zero(m)));
    }
  }

  // Runs of values that lie next to each other; each has a row of the report, shared by equal ones.
  void prepare(std::size_t leaf, const Leaf& f, const Operand& o, std::size_t index, bool writes, bool lowered,
               bool output = false) {
    if (o.kind != Operand::Kind::Memory || f.bulk || o.whole) return;
    Access a{&o, {}};
    for (std::size_t v = 0; v < o.deltas.size();) {
      std::size_t end = v + 1;
      while (end < o.deltas.size() && o.deltas[end] == o.deltas[end - 1] + 1 &&
             static_cast<int>(end + 1 - v) * ir::bits(o.dtype) <= 128 &&
             (o.lanes.empty() || o.lanes[end] == o.lanes[v])) {
        ++end;
      }
      a.vectors.push_back(
          {v, static_cast<int>(end - v),
           row(f, o, index, writes, lowered, output, static_cast<int>(end - v) * ir::bits(o.dtype) / 8)});
      v = end;
    }
    vectors_[leaf].push_back(std::move(a));
  }

  std::size_t row(const Leaf& f, const Operand& o, std::size_t index, bool writes, bool lowered, bool output,
                  int bytes) {
    const lower::MemBuffer& b = code_.program->buffers[static_cast<std::size_t>(o.buffer)];
    const std::string& atom = f.call->atom->family;
    for (std::size_t i = 0; i < out_.rows.size(); ++i) {
      const AccessReport& r = out_.rows[i];
      if (r.origin == f.origin && r.writes == writes && r.buffer == b.buffer->name && r.vector_bytes == bytes &&
          r.atom == atom) {
        return i;
      }
    }
    AccessReport r;
    r.origin = f.origin;
    r.atom = atom;
    r.buffer = b.buffer->name;
    r.memory = b.memory;
    r.writes = writes;
    r.later = f.domain >= 0;
    r.vector_bytes = bytes;
    const auto* spec = f.origin != nullptr ? f.origin->as<ir::SpecStmt>() : nullptr;
    const auto& refs = output ? f.call->out : f.call->in;
    if (bytes < 16 && lowered && spec != nullptr && index < refs.size()) {
      const ir::Tensor* view = nullptr;
      if (output && index < spec->outs.size()) view = spec->outs[index].get();
      if (!output && index < spec->ins.size()) {
        if (const auto* t = std::get_if<ir::TensorPtr>(&spec->ins[index])) view = t->get();
      }
      if (const auto* m = std::get_if<lower::MemRef>(&refs[index]); m != nullptr && view != nullptr) {
        r.limits = width_limits(*f.call, *m, *view, b, !spec->atom.empty());
      }
    }
    out_.rows.push_back(std::move(r));
    return out_.rows.size() - 1;
  }

  void count(const Warp& w, const Leaf& f, const Access& a, Mask lanes) {
    const Operand& o = *a.operand;
    if (!o.inside.is_const(1)) lanes = plans().nonzero(o.inside, w.ints, lanes);
    if (lanes == 0) return;
    Lanes offsets;
    plans().lanes(o.offset, w.ints, lanes, offsets);
    Lanes valid;
    if (o.cut) plans().lanes(o.valid, w.ints, lanes, valid);
    const lower::MemBuffer& b = code_.program->buffers[static_cast<std::size_t>(o.buffer)];
    const std::int64_t base = b.memory == ir::Memory::SH ? b.shared_offset_bytes : 0;
    const int bits = ir::bits(b.dtype);
    for (const Vector& v : a.vectors) {
      Mask active = lanes;
      if (!o.lanes.empty()) {
        Mask holders = 0;
        for (const auto& group : f.collective->groups[static_cast<std::size_t>(w.local)]) {
          for (std::size_t r = 0; r < group.size(); ++r) {
            if ((o.lanes[v.first] >> r & 1) != 0) holders |= 1U << group[r];
          }
        }
        active &= holders;
      }
      pieces_.clear();
      for (Mask m = active; m != 0; m &= m - 1) {
        const int l = std::countr_zero(m);
        std::int64_t n = v.values;
        if (o.cut)
          n = std::clamp<std::int64_t>(valid[static_cast<std::size_t>(l)] - static_cast<std::int64_t>(v.first), 0, n);
        if (n == 0) continue;
        const std::int64_t element = offsets[static_cast<std::size_t>(l)] + o.deltas[v.first];
        pieces_.push_back({l, base + element * bits / 8, static_cast<int>(n * bits / 8)});
      }
      if (pieces_.empty()) continue;
      AccessReport& r = out_.rows[v.row];
      ++r.requests;
      r.lanes += pieces_.size();
      for (const layout::LanePiece& p : pieces_) r.bytes += static_cast<std::uint64_t>(p.bytes);
      b.memory == ir::Memory::SH ? shared(r) : global(r);
    }
  }

  void shared(AccessReport& r) {
    const layout::BankCount n = layout::count_banks(pieces_, r.vector_bytes, words_);
    r.wavefronts += n.wavefronts;
    r.conflicts += n.conflicts;
    r.ways = std::max(r.ways, n.ways);
  }

  void global(AccessReport& r) {
    const layout::SectorCount n = layout::count_sectors(pieces_, words_);
    r.sectors += n.sectors;
    r.ideal_sectors += n.ideal;
  }

  [[nodiscard]] const IntPlans& plans() const { return *code_.plans; }

  const Bytecode& code_;
  Report& out_;
  std::vector<std::vector<Access>> vectors_;  // per leaf
  std::vector<std::size_t> agents_;           // per leaf: its row
  std::vector<layout::LanePiece> pieces_;
  std::vector<std::int64_t> words_;
};

// Runs without values.
class Addresses final : public Machine {
 public:
  Addresses(const Bytecode& code, Counter& counter) : Machine(code, 0), counter_(counter) {}

 protected:
  void leaf(Warp& w, const Leaf& f) override {
    Mask lanes = w.active;
    if (!f.always) lanes = plans().nonzero(f.predicate, w.ints, lanes);
    if (lanes != 0) counter_.leaf(w, f, lanes);
    if (f.bulk) land(w, f, lanes);
  }

 private:
  Counter& counter_;
};

void run(Machine& machine, const Bytecode& code, bool all_blocks, Report& out) {
  if (all_blocks) {
    machine.run();
    out.blocks = out.grid_blocks;
    return;
  }
  const std::vector<std::int64_t> blocks = chosen_blocks(code, kManyBlocks);
  machine.run_blocks(blocks);
  out.blocks = static_cast<std::int64_t>(blocks.size());
}

}  // namespace

Report report(const lower::ProgramPtr& program, const std::map<std::string, std::int64_t>& sizes, bool all_blocks,
              const std::function<void()>& poll, const ReportedCall* call) {
  Report out;
  CompileOptions options;
  for (const auto& [symbol, size] : problem_sizes(*program, sizes)) {
    options.sizes[symbol.node()] = Expr(size);
    out.sizes.emplace_back(symbol.var().name, size);
  }
  for (const ir::ScalarParam& p : program->kernel->params) {
    if (!p.var.is_var()) continue;
    const auto given = call != nullptr ? call->values.find(p.var.node()) : sym::Substitution::const_iterator{};
    const bool is_given = call != nullptr && given != call->values.end();
    options.sizes[p.var.node()] = is_given ? given->second : Expr(std::max<std::int64_t>(p.var.var().min, 1));
  }
  if (call != nullptr) options.scalars = call->scalars;
  const Budget budget(kSimulateMemoryBytes);
  const Bytecode code = compile(program, options);
  Counter counter(code, out);
  out.grid_blocks = code.grid[0] * code.grid[1] * code.grid[2];
  const bool by_data = std::ranges::any_of(code.sets, [](const SetCode& s) { return s.from >= 0; });
  if (call == nullptr || !by_data) {
    Addresses machine(code, counter);
    machine.poll = poll;
    machine.ended = [&](const std::vector<PhaseCount>& counts) { counter.phases(counts); };
    run(machine, code, all_blocks, out);
    return out;
  }
  std::vector<CountedVector<char>> copies;
  std::vector<Argument> tensors;
  for (const Argument& t : call->tensors) {
    copies.emplace_back(t.data, t.data + t.bytes);
    tensors.push_back({copies.back().data(), t.bytes});
  }
  Interpreter machine(code, tensors, 0);
  machine.poll = poll;
  machine.ended = [&](const std::vector<PhaseCount>& counts) { counter.phases(counts); };
  machine.observe = [&](const Warp& w, const Leaf& f, Mask lanes) { counter.leaf(w, f, lanes); };
  run(machine, code, all_blocks, out);
  return out;
}

}  // namespace graphene::sim
