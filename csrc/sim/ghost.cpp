#include "sim/ghost.h"

#include <algorithm>
#include <bit>

#include "sim/ghost_expected.h"
#include "sim/ghost_field.h"
#include "sim/thread_groups.h"

namespace graphene::sim {

std::size_t Ghost::Hash::operator()(const Key& k) const {
  const auto place = static_cast<std::uint64_t>(k.scope) << 32 | static_cast<std::uint32_t>(k.group);
  return field::hashed(reinterpret_cast<std::uintptr_t>(k.parent) + static_cast<std::uint64_t>(k.block), place,
                       static_cast<std::uint64_t>(k.ordinal));
}

Ghost::Ghost(const Bytecode& code, std::uint64_t seed, const Integers& integers, bool real, Reference reference)
    : Machine(code, seed), map_(make_cell_map(code)), reference_(std::move(reference)), random_(seed + 1) {
  numbers_.real = real;
  cells_.resize(static_cast<std::size_t>(map_.cells));
  for (Cell& c : cells_) c.value = numbers_.draw(random_());
  // Integer arguments hold small numbers: they may be compared or counted with.
  for (std::size_t i = 0; i < code.program->buffers.size(); ++i) {
    const lower::MemBuffer& b = code.program->buffers[i];
    if (is_float(b.dtype)) continue;
    for (std::int64_t e = 0; e < code.buffer_elems[i]; ++e) {
      Cell& cell = cells_[static_cast<std::size_t>(map_.buffer_first[i] + e)];
      const auto at = static_cast<std::size_t>(e);
      const bool given = i < integers.size() && at < integers[i].size();
      cell.value = given ? static_cast<std::uint64_t>(integers[i][at]) : random_() & 1;
    }
  }
  stacks_.resize(static_cast<std::size_t>(map_.threads));
  plan_scopes();
}

void Ghost::plan_scopes() {
  for (const Scope& s : code_.scopes) {
    ScopePlan p;
    const lower::SpecScope& spec = *s.spec;
    for (const ir::Tensor& t : spec.outs) p.outs.push_back(plan_view(t, code_));
    for (const auto& in : spec.ins) {
      const auto* t = std::get_if<ir::Tensor>(&in);
      p.ins.push_back(t != nullptr ? plan_view(*t, code_) : std::nullopt);
    }
    p.whole_grid = spec.blocks != nullptr && !spec.blocks->levels.empty() && !spec.blocks->size().is_const(1);
    std::shared_ptr<const GroupsOfThreads> groups;
    if (spec.threads != nullptr && !spec.threads->levels.empty()) {
      groups = thread_groups(*spec.threads, code_);
      p.group_of = groups->of;
      p.members = groups->members;
    }
    p.group_of.resize(static_cast<std::size_t>(map_.block_threads), -1);
    for (std::size_t tid = 0; tid < p.group_of.size(); ++tid) {  // each for itself
      if (p.group_of[tid] >= 0) continue;
      p.group_of[tid] = static_cast<int>(p.members.size());
      p.members.push_back({static_cast<std::int64_t>(tid)});
    }
    scopes_.push_back(std::move(p));
  }
  nest_scopes();
}

// A run over the reals looks at what the field does not decide: the others have kept their promise and their frame.
void Ghost::nest_scopes() {
  std::vector<int> around;
  for (const Instruction& i : code_.instructions) {
    if (i.op == Instruction::Op::Leave) around.pop_back();
    if (i.op != Instruction::Op::Enter) continue;
    const Scope& scope = code_.scopes[static_cast<std::size_t>(i.index)];
    ScopePlan& p = scopes_[static_cast<std::size_t>(i.index)];
    const bool means_something = !scope.means.reference.empty() || scope.means.kind != ir::SpecKind::Spec;
    p.followed = !numbers_.real || (means_something && !field_decides(scope));
    p.around = around.empty() ? -1 : around.back();
    int outer = p.around;
    while (outer >= 0 && !scopes_[static_cast<std::size_t>(outer)].followed)
      outer = scopes_[static_cast<std::size_t>(outer)].around;
    if (p.followed && outer >= 0) scopes_[static_cast<std::size_t>(outer)].inner.push_back(i.index);
    around.push_back(i.index);
  }
}

std::vector<Diagnostic> Ghost::check(const std::vector<std::int64_t>& blocks) {
  std::unordered_set<std::int64_t> clusters;
  for (const std::int64_t b : blocks) clusters.insert(b / code_.cluster());
  blocks_run_ = static_cast<std::int64_t>(clusters.size()) * code_.cluster();
  every_block_ = blocks_run_ == code_.grid[0] * code_.grid[1] * code_.grid[2];
  run_blocks(blocks);
  finish_all();
  // Failure of a child spoils its ancestors, so only the innermost are blamed.
  for (Instance& i : instances_) {
    if (!i.failed) continue;
    for (Instance* p = i.parent; p != nullptr; p = p->parent) p->child_failed = true;
  }
  std::vector<Diagnostic> out;
  std::unordered_set<int> told;  // a statement fails in many instances: its first one is shown
  for (Instance& i : instances_) {
    if (!i.failed || i.child_failed || told.contains(i.scope)) continue;
    const bool spoiled = std::any_of(i.sources.begin(), i.sources.end(), [&](const Instance* s) { return s->failed; });
    if (spoiled) continue;
    told.insert(i.scope);
    out.push_back(*i.problem);
  }
  if (out.empty()) {  // failures that blame each other in a circle: say the first
    for (Instance& i : instances_) {
      if (i.failed) return {*i.problem};
    }
  }
  return out;
}

void Ghost::begin_block() {
  // Shared memory and registers of a new block hold nothing that was written.
  for (std::int64_t c = map_.argument_end.front(); c < map_.cells; ++c) {
    Cell& cell = cells_[static_cast<std::size_t>(c)];
    cell.value = numbers_.nothing(random_());
    cell.writer = cell.reader = nullptr;
  }
  for (auto& s : stacks_) s.clear();
  entries_.assign(static_cast<std::size_t>(map_.threads) * scopes_.size(), 0);
  // A scalar argument is the same for every thread of every block.
  for (const auto& [r, bits] : code_.initial) {
    const ir::ScalarType type = code_.register_types[static_cast<std::size_t>(r)];
    const std::uint64_t value = numbers_.real
                                    ? Numbers::as_bits(decode(type, bits))
                                    : field::reduce(field::hashed(0x5ca1a4, static_cast<std::uint64_t>(r), bits));
    for (std::int64_t t = 0; t < map_.threads; ++t) cells_[static_cast<std::size_t>(map_.reg(r, t))].value = value;
  }
}

void Ghost::end_block() {
  // Threads may end inside a scope.
  std::vector<Instance*> open;
  for (const auto& [key, instance] : by_key_) {
    if (key.block >= 0 && instance->left < instance->expected) open.push_back(instance);
  }
  std::sort(open.begin(), open.end(), [](const Instance* a, const Instance* b) { return a->id > b->id; });
  for (Instance* i : open) close(*i);
  std::erase_if(by_key_, [](const auto& e) { return e.first.block >= 0; });
}

void Ghost::finish_all() {
  std::vector<Instance*> open;
  for (const auto& [key, instance] : by_key_) {
    if (instance->left < instance->expected) open.push_back(instance);
  }
  std::sort(open.begin(), open.end(), [](const Instance* a, const Instance* b) { return a->id > b->id; });
  for (Instance* i : open) close(*i);
  by_key_.clear();
}

Instance* Ghost::open(const Key& key, const Warp& w, int lane, const std::vector<std::int64_t>& members) {
  const ScopePlan& p = scopes_[static_cast<std::size_t>(key.scope)];
  const lower::SpecScope& spec = *code_.scopes[static_cast<std::size_t>(key.scope)].spec;
  instances_.emplace_back();
  Instance& i = instances_.back();
  i.id = static_cast<int>(instances_.size());
  i.scope = key.scope;
  i.parent = key.parent;
  if (i.parent != nullptr) {
    i.parent->children = true;
    i.depth = i.parent->depth + 1;
  }
  i.block = block_of(w);
  i.group = key.group;
  if (const auto& plan = code_.scopes[static_cast<std::size_t>(key.scope)].accumulate) {
    i.accumulates = plans().at_lane(*plan, w.ints, lane) != 0;
  }
  i.expected = static_cast<std::int64_t>(members.size()) * (p.whole_grid ? blocks_run_ : 1);
  by_key_.emplace(key, &i);
  for (std::size_t k = 0; k < p.outs.size(); ++k) {
    View v;
    if (p.outs[k]) {
      v = view_cells(*p.outs[k], code_, map_, w, lane, members);
    } else {
      i.readable = false;
    }
    if (k == 0) {
      i.out = std::move(v);
    } else {
      i.more_outs.push_back(std::move(v));
    }
  }
  if (p.outs.empty()) i.readable = false;
  for (std::size_t k = 0; k < spec.ins.size(); ++k) {
    i.ins.emplace_back();
    if (!std::holds_alternative<ir::Tensor>(spec.ins[k])) continue;
    if (p.ins[k]) {
      i.ins.back() = view_cells(*p.ins[k], code_, map_, w, lane, members);
    } else {
      i.readable = false;
    }
  }
  std::vector<const View*> operands = {&i.out};
  for (const auto* views : {&i.more_outs, &i.ins}) {
    for (const View& v : *views) operands.push_back(&v);
  }
  i.seen.cover(operands);
  const auto mark = [&](const View& v, bool Seen::*as) {
    for (const auto& cells : v.cells) {
      breathe();
      for (const std::int64_t c : cells) i.seen[c].*as = true;
    }
  };
  for (const View& v : i.ins) mark(v, &Seen::input);
  mark(i.out, &Seen::output);
  for (const View& v : i.more_outs) mark(v, &Seen::output);
  return &i;
}

void Ghost::enter(Warp& w, int scope) {
  const ScopePlan& p = scopes_[static_cast<std::size_t>(scope)];
  Key last{};
  Instance* entered = nullptr;  // by the lane before
  for (Mask m = w.active; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const std::int64_t thread = map_.thread(w, lane);
    auto& stack = stacks_[static_cast<std::size_t>(thread)];
    Instance* parent = stack.empty() ? nullptr : stack.back();
    if (!p.followed) {
      if (parent != nullptr) parent->children = true;
      continue;
    }
    std::int64_t* entries = &entries_[static_cast<std::size_t>(thread) * scopes_.size()];
    const std::int64_t ordinal = entries[scope]++;
    for (const int inner : p.inner) entries[inner] = 0;
    const int group = p.group_of[static_cast<std::size_t>(thread % map_.block_threads)];
    const Key key{parent, scope, group, p.whole_grid ? -1 : block_of(w), ordinal};
    if (entered == nullptr || !(key == last)) {
      const auto it = by_key_.find(key);
      entered = it != by_key_.end() ? it->second : open(key, w, lane, p.members[static_cast<std::size_t>(group)]);
      last = key;
    }
    stack.push_back(entered);
  }
}

void Ghost::leave(Warp& w, int scope) {
  if (!scopes_[static_cast<std::size_t>(scope)].followed) return;
  for (Mask m = w.active; m != 0; m &= m - 1) {
    const std::int64_t thread = map_.thread(w, std::countr_zero(m));
    auto& stack = stacks_[static_cast<std::size_t>(thread)];
    Instance* i = stack.back();
    stack.pop_back();
    if (++i->left == i->expected) close(*i);
  }
}

void Ghost::close(Instance& i) {
  i.left = i.expected;
  if (!i.problem) i.problem = promise(i);
  i.failed = i.problem.has_value();
  // The promise is settled: what it was made of is not needed any more.
  i.seen = {};
  i.out = {};
  i.more_outs.clear();
  i.ins.clear();
}

void Ghost::touch(Instance& i, std::int64_t cell, const Cell& before, bool writes, std::uint64_t value) {
  Seen* const found = i.seen.find(cell);
  if (found == nullptr || (writes && !found->output)) {
    const bool argument = cell < map_.argument_end.front();
    if (writes && (argument || found != nullptr) && !i.problem) {
      i.problem =
          problem(i, Code::CHECK_FRAME, "a spec writes what is not among its outputs", {"written: " + cell_text(cell)});
    }
    if (found == nullptr) return;
  }
  Seen& s = *found;
  if (!s.accessed) {
    s.accessed = true;
    s.before = before.value;
    s.version = before.version;
  } else if (!writes && s.input && !s.output && s.version != before.version && !i.problem) {
    i.problem = problem(i, Code::CHECK_OPERAND_CHANGED, "an operand changed while the spec ran",
                        {"element: " + cell_text(cell)});
  }
  if (writes) {
    s.written = true;
    s.after = value;
  } else if (before.writer != nullptr && before.writer != &i && before.writer != i.last_source) {
    i.sources.insert(before.writer);
    i.last_source = before.writer;
  }
}

std::uint64_t Ghost::read(std::int64_t thread, std::int64_t cell) {
  Cell& c = cells_[static_cast<std::size_t>(cell)];
  const auto& stack = stacks_[static_cast<std::size_t>(thread)];
  if (stack.empty()) return c.value;
  const Instance* around = c.reader;  // and this thread, in the end
  while (around != nullptr && (around->depth >= stack.size() || stack[around->depth] != around))
    around = around->parent;
  for (std::size_t k = around != nullptr ? around->depth + 1 : 0; k < stack.size(); ++k)
    touch(*stack[k], cell, c, false, 0);
  c.reader = stack.back();
  return c.value;
}

void Ghost::write(std::int64_t thread, std::int64_t cell, std::uint64_t value) {
  Cell& c = cells_[static_cast<std::size_t>(cell)];
  const auto& stack = stacks_[static_cast<std::size_t>(thread)];
  for (Instance* i : stack) touch(*i, cell, c, true, value);
  c.value = value;
  ++c.version;
  c.writer = stack.empty() ? nullptr : stack.back();
  c.reader = nullptr;
}

}  // namespace graphene::sim
