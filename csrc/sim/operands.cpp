#include "sim/operands.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>
#include <tuple>

#include "atoms/cache.h"
#include "sim/thread_groups.h"

namespace graphene::sim {

namespace {

using atoms::OperandInstance;

constexpr std::size_t kKnownCollectives = 1024;
constexpr std::size_t kKnownEntries = 256;
constexpr std::string_view kGroup = "group:";  // `done` of entries that complete by groups
constexpr std::string_view kProducts = "group:wgmma";
constexpr std::string_view kMBarrier = "mbarrier:";  // ... on a phase

[[noreturn]] void unsupported(const lower::AtomCall& call, const ir::Stmt* origin, const std::string& why) {
  fail(Code::SIM_UNSUPPORTED, "the simulator does not run " + call.atom->atom.name, {why},
       "name another instruction by atom=, or check this part of the kernel on a GPU",
       origin != nullptr ? origin->loc : SourceLoc{});
}

// ---- tiles with named axes

// Coordinates along named axes.
using Coordinates = std::map<std::string, std::int64_t>;

Coordinates coordinates(const OperandInstance& o, std::int64_t element) {
  Coordinates c;
  for (std::size_t i = 0; i < o.axes.size(); ++i) {
    c[o.axes[i]] = element % o.extents[i];
    element /= o.extents[i];
  }
  return c;
}

// The element at these coordinates; axes that they lack count as 0, axes that the operand lacks are ignored.
std::int64_t element_at(const OperandInstance& o, const Coordinates& c) {
  std::int64_t e = 0;
  std::int64_t stride = 1;
  for (std::size_t i = 0; i < o.axes.size(); ++i) {
    const auto it = c.find(o.axes[i]);
    if (it != c.end()) e += it->second * stride;
    stride *= o.extents[i];
  }
  return e;
}

std::int64_t tile_size(const OperandInstance& o) {
  return std::accumulate(o.extents.begin(), o.extents.end(), std::int64_t{1}, std::multiplies<>());
}

// A tile in shared memory that an agent finds by a descriptor.
bool is_whole(const OperandInstance& o) { return o.def.via == atoms::Via::Descriptor; }

// Every holder of every element, in the order of ranks.
std::vector<std::vector<Holder>> all_holders(const OperandInstance& o, int threads) {
  std::vector<std::vector<Holder>> h(static_cast<std::size_t>(tile_size(o)));
  const int span = std::max(1, threads / kLanes);
  if (is_whole(o)) {  // nobody's: an agent reads it, 32 elements to a value
    for (std::size_t e = 0; e < h.size(); ++e) {
      h[e].push_back({static_cast<std::int16_t>(e % kLanes), static_cast<std::int16_t>(e / kLanes)});
    }
    return h;
  }
  for (int t = 0; t < threads; ++t) {
    for (int v = 0; v < o.values; ++v) {
      h.at(static_cast<std::size_t>(o.element(t, v)))
          .push_back({static_cast<std::int16_t>(t % kLanes), static_cast<std::int16_t>(v * span + t / kLanes)});
    }
  }
  return h;
}

// ---- operands

Operand compile_operand(const lower::AtomCall& call, const lower::Operand& ref, const OperandInstance& instance,
                        Bytecode& code) {
  Operand o;
  o.access = instance.def.access;
  o.values = instance.values;
  if (const auto* r = std::get_if<lower::RegRef>(&ref)) {
    const lower::RegArray& array = code.program->registers[static_cast<std::size_t>(r->array)];
    o.kind = Operand::Kind::Registers;
    o.dtype = array.dtype;
    for (const int v : r->values) o.registers.push_back(code.array_first[static_cast<std::size_t>(r->array)] + v);
    o.values = static_cast<int>(o.registers.size());
  } else if (const auto* m = std::get_if<lower::MemRef>(&ref)) {
    if (m->rank) {
      o.remote = true;
      o.rank = code.plans->compile(*m->rank);
    }
    o.kind = Operand::Kind::Memory;
    o.buffer = m->buffer;
    o.dtype = code.program->buffers[static_cast<std::size_t>(m->buffer)].dtype;
    o.offset = code.plans->compile(m->offset);
    if (m->boxed) {
      const lower::TensorMap& map = code.program->maps[static_cast<std::size_t>(m->boxed->map)];
      o.values = 1;
      for (std::size_t i = 0; i < map.dims.size(); ++i) {
        o.box.push_back({.at = code.plans->compile(m->boxed->at[i]),
                         .extent = code.plans->compile(map.dims[i].extent),
                         .stride = code.plans->compile(i == 0 ? Expr(1) : map.dims[i].stride_elems),
                         .box = map.box[i]});
        o.values *= static_cast<int>(map.box[i]);
      }
    }
    for (const std::int64_t d : m->deltas) o.deltas.push_back(static_cast<std::int32_t>(d));
    if (!m->boxed) {
      o.values = static_cast<int>(o.deltas.size());
      const auto [lo, hi] = std::minmax_element(o.deltas.begin(), o.deltas.end());
      o.lowest = *lo;
      o.highest = *hi;
    }
    if (is_whole(instance)) {
      o.whole = true;
      for (int v = 0; v < instance.values; ++v) {
        o.deltas[static_cast<std::size_t>(instance.element(0, v))] =
            static_cast<std::int32_t>(m->deltas[static_cast<std::size_t>(v)]);
      }
      o.values = (instance.values + kLanes - 1) / kLanes;
    }
    o.inside = code.plans->compile(m->inside);
    for (const lower::Claim& c : m->claims) {
      o.claims.push_back({.where = code.plans->compile(c.where),
                          .at = code.plans->compile(c.at),
                          .size = code.plans->compile(c.size.value_or(Expr(0))),
                          .past = c.size.has_value(),
                          .origin = &c});
    }
    o.cut = m->valid_values.has_value();
    if (o.cut) o.valid = code.plans->compile(*m->valid_values);
    if (call.attrs.contains("fill")) o.fill = ir::constant_bits(ir::constant_attr(call.attrs, "fill"), o.dtype);
    o.align_elems = std::max(1, 8 * instance.align_bytes / ir::bits(o.dtype));
  } else if (const auto* i = std::get_if<lower::ImmRef>(&ref)) {
    o.kind = Operand::Kind::Constant;
    o.dtype = i->dtype;
    o.constant = ir::constant_bits(i->value, o.dtype);
  } else {
    o.kind = Operand::Kind::Integer;
    const auto& e = std::get<lower::ExprRef>(ref);
    o.dtype = e.dtype;
    o.integer = code.plans->compile(e.value);
  }
  o.bytes = bytes_of(o.dtype);
  return o;
}

// ---- which threads execute together

// All that decides which threads execute an atom together. Many statements of many kernels ask for the same.
struct CollectiveKey {
  Expr first;                               // of a tensor's threads, by thread
  std::vector<std::int64_t> starts, ranks;  // of the collectives, relative to the tensor's; of threads in one
  std::int64_t threads = 0;
  [[nodiscard]] auto tied() const { return std::tuple(first.node(), first.value(), starts, ranks, threads); }
  friend bool operator<(const CollectiveKey& a, const CollectiveKey& b) { return a.tied() < b.tied(); }
};

std::shared_ptr<const Collective> make_collective(const CollectiveKey& key, const lower::AtomCall& call,
                                                  const ir::Stmt* origin, const Bytecode& code) {
  auto out = std::make_shared<Collective>();
  out->size = call.atom->thread_count;
  // By first thread: the lanes of its collective.
  std::map<std::int64_t, std::vector<std::int64_t>> firsts;
  for (std::int64_t tid = 0; tid < key.threads; ++tid) {
    const std::int64_t base = code.plans->at_thread(key.first, tid);
    for (const std::int64_t start : key.starts) {
      const std::int64_t s = base + start;
      if (std::find(key.ranks.begin(), key.ranks.end(), tid - s) == key.ranks.end()) continue;
      auto& members = firsts[s];
      if (members.empty()) {
        for (const std::int64_t r : key.ranks) members.push_back(s + r);
      }
      break;
    }
  }
  out->groups.resize(static_cast<std::size_t>(code.warps()));
  out->span = std::max(1, out->size / kLanes);
  for (const auto& [first, members] : firsts) {
    std::vector<int> lanes;
    for (std::int64_t rank = 0; rank < std::ssize(members); ++rank) {
      const std::int64_t m = members[static_cast<std::size_t>(rank)];
      const bool fits = out->span > 1 ? first % kLanes == 0 && m == first + rank : m / kLanes == first / kLanes;
      if (!fits) unsupported(call, origin, "its threads are of several warps, but not all of theirs in order");
      if (rank < kLanes) lanes.push_back(static_cast<int>(m % kLanes));
    }
    out->groups[static_cast<std::size_t>(first / kLanes)].push_back(std::move(lanes));
  }
  return out;
}

std::shared_ptr<const Collective> compile_collective(const lower::AtomCall& call, const ir::Stmt* origin,
                                                     const Bytecode& code) {
  thread_local std::map<CollectiveKey, std::shared_ptr<const Collective>> known;
  CollectiveKey key{.first = call.threads != nullptr ? code.plans->resolve(call.threads->offset) : Expr(0),
                    .starts = {0},
                    .ranks = {},
                    .threads = code.program->block_threads};
  if (call.threads != nullptr && !call.threads->levels.empty()) {  // outer levels number the collectives
    key.starts = relative_members(std::span(call.threads->levels).first(call.threads->levels.size() - 1), code);
  }
  for (int r = 0; r < call.atom->thread_count; ++r) key.ranks.push_back(call.atom->threads(Expr(r)).value());
  if (const auto it = known.find(key); it != known.end()) return it->second;
  if (known.size() >= kKnownCollectives) known.clear();
  return known[key] = make_collective(key, call, origin, code);
}

// Whether the entry lists an attribute's value: it does what the value says, whether or not the spec says so too.
bool lists(const lower::AtomCall& call, const std::string& attr, std::string_view value) {
  const auto& attrs = call.atom->atom.attrs;
  return std::any_of(attrs.begin(), attrs.end(), [&](const atoms::AttrDef& a) {
    return a.name == attr && std::find(a.accepts.begin(), a.accepts.end(), value) != a.accepts.end();
  });
}

// ---- kinds

// What follows from an entry, and from what `more` says, made once for all statements that it executes.
template <class T, class Make>
const T* of_entry(const lower::AtomCall& call, const std::string& more, Make&& make) {
  thread_local std::map<std::pair<atoms::InstancePtr, std::string>, T> known;
  std::pair key(call.atom, more);
  if (const auto it = known.find(key); it != known.end()) return &it->second;
  if (known.size() >= kKnownEntries) known.clear();
  T made = make();
  return &(known[std::move(key)] = std::move(made));
}

struct Taken {
  std::vector<std::vector<int>> values;  // Leaf::takes
};

Taken elementwise(const lower::AtomCall& call, const ir::Stmt* origin) {
  const atoms::Instance& atom = *call.atom;
  const OperandInstance& out = atom.out.front();
  Taken all;
  for (const OperandInstance& in : atom.in) {
    const auto holders = all_holders(in, 1);
    std::vector<int> takes;
    for (int v = 0; v < out.values; ++v) {
      const std::int64_t e = element_at(in, coordinates(out, out.element(0, v)));
      const auto& h = holders.at(static_cast<std::size_t>(e));
      if (h.empty()) unsupported(call, origin, "its operands cover different elements");
      takes.push_back(h.front().value);
    }
    all.values.push_back(std::move(takes));
  }
  return all;
}

void elementwise(Leaf& leaf, const lower::AtomCall& call, const ir::Stmt* origin) {
  leaf.takes = of_entry<Taken>(call, {}, [&] { return elementwise(call, origin); })->values;
}

struct Exchange {
  std::vector<std::vector<Holder>> from;  // Leaf::from
  std::vector<Mask> in, out;              // Operand::lanes of operands in memory
};

Exchange exchange(const lower::AtomCall& call, const ir::Stmt* origin) {
  const atoms::Instance& atom = *call.atom;
  const OperandInstance& out = atom.out.front();
  const OperandInstance& in = atom.in.front();
  const auto holders = all_holders(in, atom.thread_count);
  Exchange all;
  all.from.resize(static_cast<std::size_t>(out.values));
  for (int v = 0; v < out.values; ++v) {
    for (int t = 0; t < atom.thread_count; ++t) {
      const auto& h = holders.at(static_cast<std::size_t>(element_at(in, coordinates(out, out.element(t, v)))));
      if (h.empty()) unsupported(call, origin, "its operands cover different elements");
      all.from[static_cast<std::size_t>(v)].push_back(h.front());
    }
  }
  // Of several holders of an element one alone touches memory.
  const auto only_first = [&](const OperandInstance& instance) {
    std::vector<Mask> lanes(static_cast<std::size_t>(instance.values * std::max(1, atom.thread_count / kLanes)), 0);
    for (const auto& h : all_holders(instance, atom.thread_count)) {
      if (!h.empty()) lanes[static_cast<std::size_t>(h.front().value)] |= 1U << h.front().rank;
    }
    return lanes;
  };
  all.in = only_first(in);
  all.out = only_first(out);
  return all;
}

void exchange(Leaf& leaf, const lower::AtomCall& call, const ir::Stmt* origin) {
  const Exchange& all = *of_entry<Exchange>(call, {}, [&] { return exchange(call, origin); });
  leaf.from = all.from;
  const auto set = [](Operand& o, const std::vector<Mask>& lanes) {
    if (o.kind != Operand::Kind::Memory) return;
    o.lanes = lanes;
    o.lanes.resize(static_cast<std::size_t>(o.values));
  };
  set(leaf.in.front(), all.in);
  set(leaf.out.front(), all.out);
}

bool arch_fits(const std::string& pattern, const std::string& arch) {
  if (pattern.empty() || pattern == arch) return true;
  if (pattern.back() != '+' || !pattern.starts_with("sm_") || !arch.starts_with("sm_")) return false;
  return std::stoi(arch.substr(3)) >= std::stoi(pattern.substr(3));
}

std::shared_ptr<const Einsum> einsum(const lower::AtomCall& call, const std::string& arch, bool saturate) {
  const atoms::Instance& atom = *call.atom;
  const OperandInstance& d = atom.out.front();
  const OperandInstance& a = atom.in[0];
  const OperandInstance& b = atom.in[1];
  auto e = std::make_shared<Einsum>();
  std::vector<std::pair<std::string, std::int64_t>> batch, m, n, k;
  const auto has = [](const OperandInstance& o, const std::string& axis) {
    return std::find(o.axes.begin(), o.axes.end(), axis) != o.axes.end();
  };
  for (std::size_t i = 0; i < d.axes.size(); ++i) {
    const bool in_a = has(a, d.axes[i]);
    const bool in_b = has(b, d.axes[i]);
    (in_a && in_b ? batch : in_a ? m : n).emplace_back(d.axes[i], d.extents[i]);
  }
  for (std::size_t i = 0; i < a.axes.size(); ++i) {
    if (!has(d, a.axes[i])) k.emplace_back(a.axes[i], a.extents[i]);
  }
  using Axes = std::vector<std::pair<std::string, std::int64_t>>;
  const auto size = [](const Axes& axes) {
    std::int64_t s = 1;
    for (const auto& x : axes) s *= x.second;
    return static_cast<int>(s);
  };
  const auto put = [](const Axes& axes, std::int64_t index, Coordinates& c) {
    for (const auto& [name, extent] : axes) {
      c[name] = index % extent;
      index /= extent;
    }
  };
  e->batch = size(batch);
  e->m = size(m);
  e->n = size(n);
  e->k = size(k);
  const auto holders_a = all_holders(a, atom.thread_count);
  const auto holders_b = all_holders(b, atom.thread_count);
  const auto holders_d = all_holders(d, atom.thread_count);
  for (int i = 0; i < e->batch; ++i) {
    Coordinates c;
    put(batch, i, c);
    for (int x = 0; x < e->m; ++x) {
      put(m, x, c);
      for (int z = 0; z < e->k; ++z) {
        put(k, z, c);
        e->a.push_back(holders_a.at(static_cast<std::size_t>(element_at(a, c))).front());
      }
    }
    for (int z = 0; z < e->k; ++z) {
      put(k, z, c);
      for (int y = 0; y < e->n; ++y) {
        put(n, y, c);
        e->b.push_back(holders_b.at(static_cast<std::size_t>(element_at(b, c))).front());
      }
    }
    for (int x = 0; x < e->m; ++x) {
      put(m, x, c);
      for (int y = 0; y < e->n; ++y) {
        put(n, y, c);
        e->d.push_back(holders_d.at(static_cast<std::size_t>(element_at(d, c))));
        e->first_d.push_back(e->d.back().front());
        e->copies = e->copies || e->d.back().size() > 1;
      }
    }
  }
  e->accumulate = d.def.access == atoms::Access::Update;
  e->saturate = saturate;
  for (const atoms::Numerics& x : atom.atom.numerics) {
    if (!arch_fits(x.arch, arch)) continue;
    e->group = x.group;
    e->guard_bits = x.guard_bits;
    e->truncate = x.round.starts_with("rz");
    if (x.round.size() > 2 && e->truncate) e->bits = std::stoi(x.round.substr(2));
    e->chain = x.round == "chain";
    break;
  }
  return e;
}

void einsum(Leaf& leaf, const lower::AtomCall& call, const std::string& arch) {
  const bool saturate = flag_attr(call, "saturate");
  leaf.einsum = *of_entry<std::shared_ptr<const Einsum>>(call, arch + (saturate ? " saturate" : ""),
                                                         [&] { return einsum(call, arch, saturate); });
}

void reduction(Leaf& leaf, const lower::AtomCall& call) {
  const atoms::Instance& atom = *call.atom;
  const OperandInstance& out = atom.out.front();
  const OperandInstance& in = atom.in.front();
  leaf.holders = all_holders(out, atom.thread_count);
  leaf.reduced.resize(leaf.holders.size());
  const auto sources = all_holders(in, atom.thread_count);
  for (std::size_t s = 0; s < sources.size(); ++s) {
    if (sources[s].empty()) continue;
    const std::int64_t e = element_at(out, coordinates(in, static_cast<std::int64_t>(s)));
    leaf.reduced.at(static_cast<std::size_t>(e)).push_back(sources[s].front());
  }
}

void pointwise(Leaf& leaf, const lower::AtomCall& call, const ir::Stmt* origin) {
  Pointwise& p = leaf.op;
  if (leaf.kind == atoms::Kind::MatMul) {
    p.op = leaf.out.front().access == atoms::Access::Update ? Op::Fma : Op::Mul;
  } else if (!op_from_name(text_attr(call, "op"), p.op)) {
    unsupported(call, origin, "unknown operation: " + text_attr(call, "op"));
  }
  p.out = leaf.out.front().dtype;
  p.a = leaf.in.empty() ? p.out : leaf.in[0].dtype;
  p.b = leaf.in.size() > 1 ? leaf.in[1].dtype : p.a;
  p.c = leaf.in.size() > 2 ? leaf.in[2].dtype : p.out;
  p.flush = lists(call, "ftz", "true");
  p.toward_zero = p.op == Op::Cast && text_attr(call, "round") == "rz";
  if (p.op == Op::Lop3) p.table = static_cast<std::uint8_t>(number_attr(call, "table"));
}

// An attribute that the spec says, or that follows from numbers; 1 where it says nothing.
IntPlan compile_flag(const lower::AtomCall& call, const char* name, Bytecode& code) {
  const auto it = call.attrs.find(name);
  if (it == call.attrs.end()) return code.plans->compile(Expr(1));
  if (const auto* e = std::get_if<Expr>(&it->second)) return code.plans->compile(*e);
  return code.plans->compile(Expr(flag_attr(call, name) ? 1 : 0));
}

// Of a Move that combines with what is there: by which operation, in which type.
void combine_atomically(Leaf& leaf) {
  leaf.op.a = leaf.op.b = leaf.op.out = leaf.out.front().dtype;
  // Exchanges and compare-and-swaps of one place are told apart by what they return: they are of one kind.
  const Op kind = leaf.op.op == Op::Exchange ? Op::Cas : leaf.op.op;
  leaf.atomic_kind.operation = static_cast<std::uint32_t>(kind) << 8 | static_cast<std::uint32_t>(leaf.op.out);
}

// A copy that an agent makes as a whole: on which mbarrier or in which domains it completes.
void bulk_copy(Leaf& leaf, const lower::AtomCall& call, const ir::Stmt* origin, Bytecode& code) {
  leaf.bulk = true;
  const std::string& done = call.atom->atom.done;
  if (done.starts_with(kMBarrier)) {
    if (call.aux.empty()) unsupported(call, origin, "it does not say on which mbarrier it completes");
    leaf.done = compile_mbarrier(call.aux.front(), code);
  } else {
    const std::string domain = done.substr(kGroup.size());
    leaf.domain = copy_domain(domain, code);
    leaf.reads = copy_domain(domain + kReads, code);
    code.async_domains |= 1U << leaf.domain | 1U << leaf.reads;
  }
  leaf.to = compile_ranks(call.to, code);
  if (leaf.out.size() != 1 || leaf.in.size() != 1 || leaf.out.front().values != leaf.in.front().values) {
    unsupported(call, origin, "a copy whose sides differ");
  }
  if (const std::string combine = text_attr(call, "combine"); !combine.empty() && combine != "none") {
    leaf.atomic = op_from_name(combine, leaf.op.op);
    if (!leaf.atomic) unsupported(call, origin, "it combines with what is there");
    combine_atomically(leaf);
  }
}

bool is_bulk(const atoms::Instance& atom) {
  const auto async = [](const OperandInstance& o) { return o.def.proxy == atoms::Proxy::Async; };
  return atom.atom.kind == atoms::Kind::Move && atom.thread_count == 1 &&
         (atom.atom.done.starts_with(kMBarrier) || std::any_of(atom.out.begin(), atom.out.end(), async) ||
          std::any_of(atom.in.begin(), atom.in.end(), async));
}

}  // namespace

Leaf compile_leaf(const lower::AtomCall& call, const ir::Stmt* origin, Bytecode& code) {
  const atoms::Instance& atom = *call.atom;
  Leaf leaf;
  leaf.call = &call;
  leaf.origin = origin;
  leaf.kind = atom.atom.kind;
  leaf.coherent = atoms::is_coherent(call.atom->atom);
  leaf.converge = std::max(atom.atom.converge, atom.thread_count);
  if (const std::string& done = atom.atom.done; done != "now" && !is_bulk(atom)) {
    leaf.product = done == kProducts && atom.atom.kind == atoms::Kind::MatMul;
    if (!leaf.product && (!done.starts_with(kGroup) || atom.thread_count > 1)) {
      unsupported(call, origin, "it completes later: " + done);
    }
    if (!leaf.product) leaf.domain = copy_domain(done.substr(kGroup.size()), code);
    code.products = code.products || leaf.product;
  }
  for (std::size_t i = 0; i < call.out.size(); ++i) {
    leaf.out.push_back(compile_operand(call, call.out[i], atom.out[i], code));
  }
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    leaf.in.push_back(compile_operand(call, call.in[i], atom.in[i], code));
  }
  leaf.predicate = code.plans->compile(call.predicate);
  leaf.always = leaf.predicate.is_const(1);
  for (const auto* list : {&leaf.out, &leaf.in}) {
    for (const Operand& o : *list) leaf.remote = leaf.remote || o.remote;
  }
  if (leaf.remote && (is_bulk(atom) || atom.thread_count > 1 || leaf.domain >= 0)) {
    unsupported(call, origin, "not one thread by itself accesses the shared memory of another block");
  }
  if (is_bulk(atom)) {
    bulk_copy(leaf, call, origin, code);
    return leaf;
  }
  const bool together = atom.thread_count > 1;
  if (together) leaf.collective = compile_collective(call, origin, code);
  if (together && leaf.collective->span > 1) {
    leaf.span = leaf.collective->span;
    for (auto* list : {&leaf.out, &leaf.in}) {
      for (Operand& o : *list) {
        if (o.whole) continue;
        if (leaf.kind != atoms::Kind::MatMul || o.kind != Operand::Kind::Registers) {
          unsupported(call, origin, "threads of several warps execute something other than a MatMul of registers");
        }
        o.values *= leaf.span;
      }
    }
  }
  const bool fetches = leaf.kind == atoms::Kind::Move && text_attr(call, "atomic") != "none" && leaf.out.size() == 2;
  if (leaf.out.size() != 1 && !fetches && leaf.kind != atoms::Kind::Spec)
    unsupported(call, origin, "it has " + std::to_string(leaf.out.size()) + " outputs");
  switch (leaf.kind) {
    case atoms::Kind::Move:
      together ? exchange(leaf, call, origin) : elementwise(leaf, call, origin);
      if (const std::string combine = text_attr(call, "combine"); combine != "none") {
        leaf.atomic = !together && text_attr(call, "atomic") != "none" && op_from_name(combine, leaf.op.op) &&
                      leaf.out.front().kind == Operand::Kind::Memory;
        if (!leaf.atomic) unsupported(call, origin, "it combines with what is there, but not atomically");
        combine_atomically(leaf);
        leaf.atomic_kind.of_block = text_attr(call, "atomic").ends_with(".cta");
      }
      break;
    case atoms::Kind::Shfl:
      leaf.mode = text_attr(call, "mode");
      if (const auto it = call.attrs.find("arg"); it != call.attrs.end()) {
        const auto* e = std::get_if<Expr>(&it->second);
        leaf.arg = code.plans->compile(e != nullptr ? *e : Expr(static_cast<std::int64_t>(number_attr(call, "arg"))));
      }
      break;
    case atoms::Kind::MatMul:
      leaf.accumulate = compile_flag(call, "accumulate", code);
      pointwise(leaf, call, origin);
      einsum(leaf, call, code.program->arch);
      if (!together && leaf.einsum->k == 1 && leaf.einsum->m == 1 && leaf.einsum->n == 1) {
        leaf.einsum = nullptr;
        elementwise(leaf, call, origin);
      } else if (!together) {
        leaf.collective = alone(code);
      }
      break;
    case atoms::Kind::Unary:
    case atoms::Kind::Binary:
    case atoms::Kind::Ternary:
      if (together) unsupported(call, origin, "a pointwise operation of several threads");
      pointwise(leaf, call, origin);
      if (leaf.op.op == Op::Bitcast && ir::bits(leaf.out.front().dtype) != ir::bits(leaf.in.front().dtype)) {
        leaf.regroups = true;
        break;
      }
      elementwise(leaf, call, origin);
      break;
    case atoms::Kind::Reduction:
      pointwise(leaf, call, origin);
      leaf.op.a = leaf.op.b = leaf.op.out;
      if (!together) leaf.collective = nullptr;
      reduction(leaf, call);
      break;
    case atoms::Kind::Init: {
      const auto it = call.attrs.find("value");
      Operand value;
      value.dtype = leaf.out.front().dtype;
      value.bytes = leaf.out.front().bytes;
      if (const auto* e = it != call.attrs.end() ? std::get_if<Expr>(&it->second) : nullptr) {
        value.kind = Operand::Kind::Integer;
        value.integer = code.plans->compile(*e);
      } else {
        value.kind = Operand::Kind::Constant;
        value.constant = ir::constant_bits(ir::constant_attr(call.attrs, "value"), value.dtype);
      }
      leaf.in.push_back(std::move(value));
      leaf.takes.emplace_back(static_cast<std::size_t>(leaf.out.front().values), 0);
      break;
    }
    case atoms::Kind::Spec:
      break;
    case atoms::Kind::Sync:
      unsupported(call, origin, "a synchronisation other than a barrier");
  }
  return leaf;
}

}  // namespace graphene::sim
