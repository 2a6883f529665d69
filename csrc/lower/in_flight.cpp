#include "lower/in_flight.h"

#include <algorithm>
#include <map>
#include <set>

namespace graphene::lower {

namespace {

using Registers = std::map<int, std::set<int>>;  // array -> values

void unite(Registers& into, const Registers& from) {
  for (const auto& [array, values] : from) into[array].insert(values.begin(), values.end());
}

// What one domain's operations use, wherever control may have come from.
struct Flight {
  Registers open;                 // started since the last commit
  std::vector<Registers> groups;  // the youngest first

  // Groups beyond this number count as one: a wait leaves few unfinished.
  static constexpr std::size_t kMostGroups = 8;

  void commit() {
    groups.insert(groups.begin(), std::move(open));
    open.clear();
    if (groups.size() <= kMostGroups) return;
    unite(groups[kMostGroups - 1], groups.back());
    groups.pop_back();
  }
  void join(const Flight& other) {
    unite(open, other.open);
    if (groups.size() < other.groups.size()) groups.resize(other.groups.size());
    for (std::size_t i = 0; i < other.groups.size(); ++i) unite(groups[i], other.groups[i]);
  }
  Registers wait(std::size_t pending) {
    Registers done;
    for (std::size_t i = pending; i < groups.size(); ++i) unite(done, groups[i]);
    groups.resize(std::min(groups.size(), pending));
    Registers busy = open;
    for (const Registers& g : groups) unite(busy, g);
    for (auto& [array, values] : done) {
      if (const auto it = busy.find(array); it != busy.end()) {
        std::erase_if(values, [&](int v) { return it->second.contains(v); });
      }
    }
    std::erase_if(done, [](const auto& entry) { return entry.second.empty(); });
    return done;
  }
  friend bool operator==(const Flight&, const Flight&) = default;
};
using Flights = std::map<std::string, Flight>;  // by domain

void join(Flights& into, const Flights& from) {
  for (const auto& [domain, flight] : from) into[domain].join(flight);
}

std::string text_attr(const AtomCall& call, const char* name) {
  const auto it = call.attrs.find(name);
  const auto* s = it == call.attrs.end() ? nullptr : std::get_if<std::string>(&it->second);
  return s == nullptr ? "" : *s;
}

std::size_t pending_of(const AtomCall& call) {
  const auto it = call.attrs.find("pending");
  if (it == call.attrs.end()) return 0;
  if (const auto* n = std::get_if<std::int64_t>(&it->second)) return static_cast<std::size_t>(*n);
  const auto* e = std::get_if<Expr>(&it->second);
  return e != nullptr && e->is_const() ? static_cast<std::size_t>(e->value()) : 0;
}

constexpr std::string_view kGroup = "group:";

// Whether anything that completes later uses registers: most kernels' copies do not.
bool uses_registers(const Block& nodes) {
  return std::ranges::any_of(nodes, [](const NodePtr& n) {
    if (const auto* loop = n->as<Loop>()) return uses_registers(loop->body);
    if (const auto* branch = n->as<If>()) return uses_registers(branch->then_body) || uses_registers(branch->else_body);
    if (const auto* scope = n->as<SpecScope>()) return uses_registers(scope->body);
    const auto* call = n->as<AtomCall>();
    if (call == nullptr || !call->atom->atom.done.starts_with(kGroup)) return false;
    const auto held = [](const Operand& o) { return std::holds_alternative<RegRef>(o); };
    return std::ranges::any_of(call->out, held) || std::ranges::any_of(call->in, held);
  });
}

class Walk {
 public:
  // `write`: note what each wait completes; a loop's first rounds only find what may be in flight at its head.
  void block(const Block& nodes, Flights& state, bool write) {
    for (const NodePtr& n : nodes) node(*n, state, write);
  }

  [[nodiscard]] Block rebuilt(const Block& nodes) const {
    Block out;
    for (const NodePtr& n : nodes) out.push_back(rebuilt(n));
    return out;
  }
  [[nodiscard]] bool empty() const { return completes_.empty(); }

 private:
  void node(const Node& n, Flights& state, bool write) {
    if (const auto* call = n.as<AtomCall>()) {
      this->call(n, *call, state, write);
    } else if (const auto* loop = n.as<Loop>()) {
      for (;;) {
        Flights round = state;
        block(loop->body, round, false);
        Flights next = state;
        join(next, round);
        if (next == state) break;
        state = std::move(next);
      }
      Flights round = state;
      block(loop->body, round, write);
      join(state, round);
    } else if (const auto* branch = n.as<If>()) {
      Flights other = state;
      block(branch->then_body, state, write);
      block(branch->else_body, other, write);
      join(state, other);
    } else if (const auto* scope = n.as<SpecScope>()) {
      block(scope->body, state, write);
    }
  }

  void call(const Node& n, const AtomCall& call, Flights& state, bool write) {
    const atoms::Atom& atom = call.atom->atom;
    if (atom.done.starts_with(kGroup)) {
      Flight& flight = state[atom.done.substr(kGroup.size())];
      for (const auto* list : {&call.out, &call.in}) {
        for (const Operand& o : *list) {
          if (const auto* r = std::get_if<RegRef>(&o)) flight.open[r->array].insert(r->values.begin(), r->values.end());
        }
      }
      return;
    }
    if (atom.kind != atoms::Kind::Sync) return;
    const auto it = state.find(text_attr(call, "scope"));
    if (it == state.end()) return;
    const std::string op = text_attr(call, "op");
    if (op == "commit") it->second.commit();
    if (op != "wait") return;
    Registers done = it->second.wait(pending_of(call));
    if (write && !done.empty()) unite(completes_[&n], done);
  }

  [[nodiscard]] NodePtr rebuilt(const NodePtr& n) const {
    auto copy = std::make_shared<Node>(*n);
    if (auto* call = std::get_if<AtomCall>(&copy->node)) {
      const auto it = completes_.find(n.get());
      if (it == completes_.end()) return n;
      for (const auto& [array, values] : it->second)
        call->completes.push_back({array, std::vector<int>(values.begin(), values.end())});
    } else if (auto* loop = std::get_if<Loop>(&copy->node)) {
      loop->body = rebuilt(loop->body);
    } else if (auto* branch = std::get_if<If>(&copy->node)) {
      branch->then_body = rebuilt(branch->then_body);
      branch->else_body = rebuilt(branch->else_body);
    } else if (auto* scope = std::get_if<SpecScope>(&copy->node)) {
      scope->body = rebuilt(scope->body);
    }
    return copy;
  }

  std::map<const Node*, Registers> completes_;
};

// Which elements something else than a product may have written last, at each point.
class Sums {
 public:
  explicit Sums(const Program& program) : program_(program), candidate_(program.registers.size()) {}

  std::vector<bool> found() {
    Registers others;
    block(program_.prologue, others);
    block(program_.body, others);
    for (const int array : refused_) candidate_[static_cast<std::size_t>(array)] = false;
    return candidate_;
  }

 private:
  void block(const Block& nodes, Registers& others) {
    for (const NodePtr& n : nodes) node(*n, others);
  }

  void node(const Node& n, Registers& others) {
    if (const auto* call = n.as<AtomCall>()) {
      call->atom->atom.done.starts_with(kGroup) ? product(*call, others) : other(*call, others);
    } else if (const auto* loop = n.as<Loop>()) {
      for (;;) {
        Registers round = others;
        block(loop->body, round);
        Registers next = others;
        unite(next, round);
        if (next == others) break;
        others = std::move(next);
      }
    } else if (const auto* branch = n.as<If>()) {
      Registers otherwise = others;
      block(branch->then_body, others);
      block(branch->else_body, otherwise);
      unite(others, otherwise);
    } else if (const auto* scope = n.as<SpecScope>()) {
      block(scope->body, others);
    }
  }

  // Whether the product begins its sums whatever was there, in every thread.
  static bool begins(const AtomCall& call) {
    const auto it = call.attrs.find("accumulate");
    if (it == call.attrs.end() || !call.predicate.is_const(1)) return false;
    const auto* plain = std::get_if<bool>(&it->second);
    const auto* e = std::get_if<Expr>(&it->second);
    return plain != nullptr ? !*plain : e != nullptr && e->is_const(0);
  }

  void product(const AtomCall& call, Registers& others) {
    for (const Operand& o : call.in) {
      if (const auto* r = std::get_if<RegRef>(&o)) refused_.insert(r->array);
    }
    for (const Operand& o : call.out) {
      const auto* r = std::get_if<RegRef>(&o);
      if (r == nullptr) continue;
      const RegArray& array = program_.registers[static_cast<std::size_t>(r->array)];
      candidate_[static_cast<std::size_t>(r->array)] = true;
      if (ir::bits(array.dtype) != 32 || array.param >= 0) refused_.insert(r->array);
      if (begins(call)) {
        const auto it = others.find(r->array);
        if (it != others.end()) std::erase_if(it->second, [&](int v) { return std::ranges::count(r->values, v) != 0; });
      } else {
        refuse_if_any(*r, others);
      }
    }
  }

  void other(const AtomCall& call, Registers& others) {
    for (const RegRef& r : call.completes) refuse_if_any(r, others);
    for (const auto* list : {&call.out, &call.aux}) {
      for (const Operand& o : *list) {
        if (const auto* r = std::get_if<RegRef>(&o)) others[r->array].insert(r->values.begin(), r->values.end());
      }
    }
  }

  void refuse_if_any(const RegRef& r, const Registers& others) {
    const auto it = others.find(r.array);
    if (it == others.end()) return;
    if (std::ranges::any_of(r.values, [&](int v) { return it->second.contains(v); })) refused_.insert(r.array);
  }

  const Program& program_;
  std::vector<bool> candidate_;
  std::set<int> refused_;
};

}  // namespace

std::vector<bool> sums_in_flight(const Program& program) {
  if (!uses_registers(program.body)) return std::vector<bool>(program.registers.size());
  return Sums(program).found();
}

Block complete_registers(Block body) {
  if (!uses_registers(body)) return body;
  Walk walk;
  Flights state;
  walk.block(body, state, true);
  return walk.empty() ? std::move(body) : walk.rebuilt(body);
}

}  // namespace graphene::lower
