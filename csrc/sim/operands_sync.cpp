// Synchronisation of the lowered tree: barriers, groups of copies, phases of mbarriers, fences.
#include <algorithm>

#include "sim/operands.h"
#include "sim/thread_groups.h"

namespace graphene::sim {

std::string text_attr(const lower::AtomCall& call, const char* name) {
  const auto it = call.attrs.find(name);
  if (it == call.attrs.end()) return {};
  const auto* s = std::get_if<std::string>(&it->second);
  return s != nullptr ? *s : std::string{};
}

bool flag_attr(const lower::AtomCall& call, const char* name) {
  const auto it = call.attrs.find(name);
  if (it == call.attrs.end()) return false;
  if (const auto* b = std::get_if<bool>(&it->second)) return *b;
  if (const auto* s = std::get_if<std::string>(&it->second)) return *s == "true";
  return false;
}

double number_attr(const lower::AtomCall& call, const char* name) {
  const auto it = call.attrs.find(name);
  if (it == call.attrs.end()) return 0;
  if (const auto* d = std::get_if<double>(&it->second)) return *d;
  if (const auto* i = std::get_if<std::int64_t>(&it->second)) return static_cast<double>(*i);
  if (const auto* b = std::get_if<bool>(&it->second)) return static_cast<double>(*b);
  return 0;
}

int copy_domain(const std::string& name, Bytecode& code) {
  auto& domains = code.copy_domains;
  const auto it = std::find(domains.begin(), domains.end(), name);
  if (it == domains.end()) domains.push_back(name);
  return static_cast<int>(std::find(domains.begin(), domains.end(), name) - domains.begin());
}

MBarrierRef compile_mbarrier(const lower::Operand& operand, Bytecode& code) {
  const auto* m = std::get_if<lower::MemRef>(&operand);
  GR_ASSERT(m != nullptr, "an mbarrier lies in shared memory");
  for (std::size_t i = 0; i < code.mbarriers.size(); ++i) {
    if (code.mbarriers[i].buffer == m->buffer) return {static_cast<int>(i), code.plans->compile(m->offset)};
  }
  GR_ASSERT(false, "what completes an operation is an mbarrier");
}

Ranks compile_ranks(const ir::ThreadPtr& blocks, Bytecode& code) {
  Ranks out;
  if (blocks == nullptr) return out;
  std::vector<Expr> all = {blocks->offset};
  for (const Layout& level : blocks->levels) {
    std::vector<Expr> next;
    for (const Expr& b : all) {
      for (std::int64_t i = 0; i < level.size().value(); ++i) next.push_back(b + level(Expr(i)));
    }
    all = std::move(next);
  }
  for (const Expr& b : all) out.push_back(code.plans->compile(b));
  return out;
}

PhaseSync compile_phase_sync(const lower::AtomCall& call, const ir::Stmt* origin, bool relaxed, Bytecode& code) {
  const auto number = [&](const char* name) {
    const auto it = call.attrs.find(name);
    if (it == call.attrs.end()) return Expr(0);
    const auto* e = std::get_if<Expr>(&it->second);
    return e != nullptr ? *e : Expr(static_cast<std::int64_t>(number_attr(call, name)));
  };
  PhaseSync s;
  s.origin = origin;
  s.barrier = compile_mbarrier(call.aux.front(), code);
  s.parity = code.plans->compile(relaxed ? Expr(1) - number("phase") : number("phase"));
  s.expect = code.plans->compile(relaxed ? sym::floor_div(number("expect_bytes"), Expr(2)) : number("expect_bytes"));
  s.to = compile_ranks(call.to, code);
  s.cluster = !relaxed && (call.attrs.contains("release") || call.attrs.contains("acquire"));
  if (const std::string after = text_attr(call, "after"); !after.empty()) s.copies = copy_domain(after, code);
  return s;
}

Barrier compile_barrier(const lower::AtomCall& call, const ir::Stmt* origin, Bytecode& code) {
  Barrier b;
  b.origin = origin;
  b.cluster = text_attr(call, "scope") == "cluster";
  if (b.cluster || call.threads == nullptr) return b;
  const std::int64_t threads = code.program->block_threads;
  b.group_of.assign(static_cast<std::size_t>(threads), -1);
  b.within_warp = true;
  b.block = false;
  const auto groups = thread_groups(*call.threads, code);
  std::vector<int> numbers;  // in `code.groups`
  for (const auto& members : groups->members) {
    b.block = b.block || std::ssize(members) == threads;
    ThreadGroup group;
    for (const std::int64_t m : members) {  // sorted
      const std::int64_t w = m / kLanes;
      if (m < 0 || w >= code.warps()) continue;
      if (group.empty() || group.back().warp != w) group.push_back({static_cast<int>(w), 0});
      group.back().lanes |= Mask{1} << (m % kLanes);
    }
    if (group.size() > 1) b.within_warp = false;
    const auto same = [&](const ThreadGroup& g) {
      return std::equal(g.begin(), g.end(), group.begin(), group.end(),
                        [](const auto& x, const auto& y) { return x.warp == y.warp && x.lanes == y.lanes; });
    };
    const auto it = std::find_if(code.groups.begin(), code.groups.end(), same);
    numbers.push_back(static_cast<int>(it - code.groups.begin()));
    if (it == code.groups.end()) code.groups.push_back(std::move(group));
  }
  for (std::size_t tid = 0; tid < b.group_of.size(); ++tid) {
    if (const int g = groups->of[tid]; g >= 0) b.group_of[tid] = numbers[static_cast<std::size_t>(g)];
  }
  return b;
}

Barrier compile_meeting(const Leaf& leaf, Bytecode& code) {
  Barrier b;
  b.origin = leaf.origin;
  b.block = false;
  b.orders = false;
  b.group_of.assign(static_cast<std::size_t>(code.program->block_threads), -1);
  for (int w = 0; w < code.warps(); ++w) {
    if (leaf.collective->groups[static_cast<std::size_t>(w)].empty()) continue;
    ThreadGroup members;
    for (int i = w; i < w + leaf.span; ++i) {
      members.push_back({i, code.lanes_of(i)});
      std::fill_n(b.group_of.begin() + std::ptrdiff_t{i} * kLanes, kLanes, static_cast<int>(code.groups.size()));
    }
    code.groups.push_back(std::move(members));
  }
  return b;
}

GroupSync compile_group_sync(const lower::AtomCall& call, const ir::Stmt* origin, Bytecode& code) {
  GroupSync g;
  g.origin = origin;
  const std::string scope = text_attr(call, "scope");
  const auto it = call.attrs.find("pending");
  g.waits = text_attr(call, "op") == "wait";
  g.commits = !g.waits || (it == call.attrs.end() && scope == "cp_async");  // covers copies of no group, too
  g.products = scope == "wgmma";
  code.products = code.products || g.products;  // a wait for no product is one, too
  if (!g.products) g.domain = copy_domain(scope, code);
  if (scope == "bulk") {  // a wait for results is one for reads, too
    code.async_domains |= 1U << g.domain;
    g.reads = copy_domain(scope + kReads, code);
    code.async_domains |= 1U << g.reads;
    if (g.waits && !flag_attr(call, "written")) g.domain = -1;
  }
  if (g.waits && !g.commits && it != call.attrs.end()) {
    const auto* e = std::get_if<Expr>(&it->second);
    const std::int64_t pending =
        e != nullptr ? code.plans->at_thread(*e, 0) : static_cast<std::int64_t>(number_attr(call, "pending"));
    g.pending = static_cast<std::size_t>(std::max<std::int64_t>(pending, 0));
  }
  return g;
}

PhaseSync compile_named_sync(const lower::AtomCall& call, const ir::Stmt* origin, Bytecode& code) {
  PhaseSync s;
  s.origin = origin;
  const auto id = call.attrs.find("id");
  const auto* e = id == call.attrs.end() ? nullptr : std::get_if<Expr>(&id->second);
  s.barrier = {static_cast<int>(code.mbarriers.size()) - 1,
               code.plans->compile(e != nullptr ? *e : Expr(static_cast<std::int64_t>(number_attr(call, "id"))))};
  s.threads = static_cast<int>(number_attr(call, "threads"));
  const auto* sync = origin != nullptr ? origin->as<ir::SyncStmt>() : nullptr;
  if (e == nullptr || sync == nullptr || sync->barrier == nullptr) return s;
  const ir::Buffer* buffer = sync->barrier->buffer.get();
  const auto known = [&](const NamedBarrierCode& n) { return n.buffer == buffer; };
  const Expr first = *e - sync->barrier->offset;
  if (first.is_const() && std::none_of(code.named.begin(), code.named.end(), known)) {
    code.named.push_back({buffer, static_cast<int>(first.value())});
  }
  return s;
}

std::string Bytecode::barrier_name(int at) const {
  for (const MBarrierCode& m : mbarriers) {
    if (at < m.first || at >= m.first + m.count) continue;
    if (m.buffer >= 0) {
      const ir::Buffer& b = *program->buffers[static_cast<std::size_t>(m.buffer)].buffer;
      return b.name + (b.stages > 0 || m.count > m.step ? "[" + std::to_string((at - m.first) / m.step) + "]" : "");
    }
    const int id = at - m.first;
    for (const NamedBarrierCode& n : named) {
      const int stage = id - n.first;
      if (stage < 0 || stage >= n.count()) continue;
      return n.buffer->name + (n.count() > 1 ? "[" + std::to_string(stage) + "]" : "");
    }
    return "named barrier " + std::to_string(id);
  }
  return "barrier " + std::to_string(at);
}

ProxyFence compile_fence(const lower::AtomCall& call, const ir::Stmt* origin) {
  const std::string scope = text_attr(call, "scope");
  const auto names = [&](const char* memory) { return scope.find(memory) != std::string::npos; };
  const bool both = !names("shared") && !names("global") && names("async");
  return {origin, both || names("shared"), both || names("global"), scope == "wgmma"};
}

TellCode compile_tell(const lower::Tell& tell, Bytecode& code) {
  TellCode out{.tell = &tell, .values = {}, .condition = std::nullopt};
  if (tell.condition) out.condition = code.plans->compile(*tell.condition);
  for (const lower::Operand& v : tell.values) {
    Operand o;
    if (const auto* r = std::get_if<lower::RegRef>(&v)) {
      o.dtype = code.program->registers[static_cast<std::size_t>(r->array)].dtype;
      o.registers = {code.array_first[static_cast<std::size_t>(r->array)] + r->values.front()};
    } else if (const auto* i = std::get_if<lower::ImmRef>(&v)) {
      o.kind = Operand::Kind::Constant;
      o.dtype = i->dtype;
      o.constant = ir::constant_bits(i->value, o.dtype);
    } else {
      o.kind = Operand::Kind::Integer;
      o.dtype = ir::ScalarType::i64;
      o.integer = code.plans->compile(std::get<lower::ExprRef>(v).value);
    }
    o.bytes = bytes_of(o.dtype);
    out.values.push_back(std::move(o));
  }
  return out;
}

}  // namespace graphene::sim
