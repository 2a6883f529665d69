// The table of nodes, the order of expressions, the per-thread memo of results, and nodes that do not stay.
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>

#include "base/fork.h"
#include "sym/drafts.h"
#include "sym/internal.h"
#include "sym/kept.h"

namespace graphene::sym {

namespace nodes {

// Memory that is given back all at once, if at all.
class Arena {
 public:
  template <class T>
  std::span<const T> copy(std::span<const T> s) {
    if (s.empty()) return {};
    T* p = static_cast<T*>(allocate(s.size_bytes(), alignof(T)));
    std::copy(s.begin(), s.end(), p);
    return {p, s.size()};
  }
  void* allocate(std::size_t bytes, std::size_t align) {
    used_ = (used_ + align - 1) & ~(align - 1);
    if (blocks_.empty() || used_ + bytes > room_) {
      room_ = std::max(bytes, std::clamp(bytes_, kLeastBytes, kMostBytes));
      blocks_.push_back(std::make_unique_for_overwrite<std::byte[]>(room_));
      bytes_ += room_;
      used_ = 0;
    }
    void* p = blocks_.back().get() + used_;
    used_ += bytes;
    return p;
  }
  // Nothing is in it any more. A block that was enough stays, for what comes next.
  void clear() {
    used_ = 0;
    if (blocks_.size() <= 1) return;
    blocks_.clear();
    bytes_ = 0;
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kLeastBytes = std::size_t{1} << 14;
  static constexpr std::size_t kMostBytes = std::size_t{1} << 18;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  std::size_t room_ = 0;  // in the last block
  std::size_t used_ = 0;  // of it
  std::size_t bytes_ = 0;
};

// Nodes by their content: open addressing, at most half full.
class Slots {
 public:
  explicit Slots(std::size_t size) : slots_(size, nullptr) {}

  // The slot of the node, or the free one where it belongs.
  template <class Same>
  std::size_t find(std::uint64_t hash, Same&& same) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = hash & mask;
    while (slots_[i] != nullptr && !(slots_[i]->hash == hash && same(*slots_[i]))) i = (i + 1) & mask;
    return i;
  }
  const Node* operator[](std::size_t at) const { return slots_[at]; }

  void put(const Node* n, std::size_t at) {
    slots_[at] = n;
    ++count_;
    if (2 * count_ <= slots_.size()) return;
    std::vector<const Node*> old(2 * slots_.size(), nullptr);
    old.swap(slots_);
    for (const Node* o : old)
      if (o != nullptr) slots_[find(o->hash, [](const Node&) { return false; })] = o;
  }
  void clear(std::size_t size) {
    slots_.assign(size, nullptr);
    count_ = 0;
  }
  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] std::size_t size() const { return slots_.size(); }

 private:
  std::vector<const Node*> slots_;
  std::size_t count_ = 0;
};

struct MemoEntry {
  Op op = Op::Const;
  Expr a, b, result;
};

}  // namespace nodes

using nodes::Arena;
using nodes::MemoEntry;
using nodes::Slots;

namespace {

bool same_args(std::span<const Expr> a, std::span<const Expr> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Expr& x, const Expr& y) { return identical(x, y); });
}

bool same_optional(const std::optional<Expr>& a, const std::optional<Expr>& b) {
  return a.has_value() == b.has_value() && (!a || identical(*a, *b));
}

bool same_info(const VarInfo& a, const VarInfo& b) {
  return a.name == b.name && a.kind == b.kind && a.min == b.min && a.max == b.max && a.multiple_of == b.multiple_of &&
         same_optional(a.hi, b.hi) && same_optional(a.lo, b.lo) && same_optional(a.def, b.def);
}

// The highest byte is the operator, so variables come first; then the name, or the hash.
std::uint64_t key_of(Op op, std::uint64_t hash, const VarInfo* var) {
  std::uint64_t low = hash >> 8;
  if (var != nullptr) {
    low = 0;
    for (std::size_t i = 0; i < 7; ++i)
      low = low << 8 | (i < var->name.size() ? static_cast<unsigned char>(var->name[i]) : 0U);
  }
  return static_cast<std::uint64_t>(op) << 56 | low;
}

[[noreturn]] void fail_size() {
  fail(Code::SYM_SIZE, "an integer expression grew too large",
       {"limits: " + std::to_string(kMaxSize) + " operations, " + std::to_string(kMaxDepth) + " levels, " +
        std::to_string(kMaxTerms) + " terms of a sum, " + std::to_string(kMaxArgs) + " operands otherwise"},
       "compute the value in steps, through gr.scalar");
}

ForkMutex table_mutex(ForkMutex::kExpressions);

std::uint64_t hash_of_spec(const NodeSpec& s) {
  std::uint64_t h = mix(0x5bd1e995, static_cast<std::uint64_t>(s.op));
  for (const Expr& a : s.args) h = mix(h, hash_of(a));
  for (const std::int64_t c : s.coef) h = mix(h, static_cast<std::uint64_t>(c));
  return mix(h, static_cast<std::uint64_t>(s.constant));
}

// A new node of this content, in the memory of `arena`. Throws SYM_SIZE.
Node* node_of(const NodeSpec& s, std::uint64_t hash, Arena& arena) {
  int depth = 1;
  std::uint64_t size = 1;
  for (const Expr& a : s.args) {
    if (a.is_const()) continue;
    depth = std::max(depth, 1 + a.node()->depth);
    size += a.node()->size;
  }
  const std::size_t most = s.op == Op::Add ? kMaxTerms : kMaxArgs;
  if (depth > kMaxDepth || size > kMaxSize || s.args.size() > most) fail_size();

  Node* n = new (arena.allocate(sizeof(Node), alignof(Node))) Node{.op = s.op};
  n->depth = static_cast<std::uint16_t>(depth);
  n->size = static_cast<std::uint32_t>(size);
  n->args = arena.copy(s.args);
  n->coef = arena.copy(s.coef);
  n->constant = s.constant;
  const std::uint8_t inherited = s.op == Op::Mul ? kHasDiv | kHasMod | kSymbolic : kSymbolic;
  for (const Expr& a : s.args)
    if (!a.is_const()) n->flags |= a.node()->flags & inherited;
  if (s.op == Op::FloorDiv) n->flags |= kHasDiv;
  if (s.op == Op::Mod) n->flags |= kHasMod | (s.args[1].is_const() ? 0 : kSymbolic);
  compute_facts(*n);
  n->hash = hash;
  n->key = key_of(n->op, hash, n->var);
  return n;
}

}  // namespace

// Nodes that go together. A thread that uses one makes no others.
class DraftTable {
 public:
  static DraftTable*& used() {
    thread_local DraftTable* table = nullptr;
    return table;
  }
  static DraftTable& of_proofs() {
    thread_local DraftTable table;
    return table;
  }

  template <class Same>
  [[nodiscard]] const Node* find(std::uint64_t hash, Same&& same) const {
    return slots_[slots_.find(hash, same)];
  }
  const Node* add(const NodeSpec& s, std::uint64_t hash) {
    Node* n = node_of(s, hash, arena_);
    n->flags |= kDraft;
    slots_.put(n, slots_.find(hash, [](const Node&) { return false; }));
    return n;
  }
  void named_by(MemoEntry& e) { memos_.push_back(&e); }
  void leave_memos() {
    for (MemoEntry* e : memos_) *e = {};
    memos_.clear();
  }
  void clear() {
    leave_memos();
    if (slots_.count() != 0) slots_.clear(kSlots);
    arena_.clear();
  }
  [[nodiscard]] std::size_t bytes() const { return arena_.bytes() + slots_.size() * sizeof(const Node*); }

 private:
  static constexpr std::size_t kSlots = 1U << 8;
  Slots slots_{kSlots};
  Arena arena_;
  std::vector<MemoEntry*> memos_;  // of this thread, that name drafts
};

namespace {

bool is_draft(const Expr& e) { return !e.is_const() && (e.node()->flags & kDraft) != 0; }

class Table {
 public:
  static Table& instance() {
    static Table* table = new Table;  // never destroyed: expressions may outlive static objects
    return *table;
  }

  const Node* intern(const NodeSpec& s) {
    const std::uint64_t h = hash_of_spec(s);
    const auto same = [&](const Node& n) {
      return n.op == s.op && n.constant == s.constant && same_args(n.args, s.args) &&
             std::equal(n.coef.begin(), n.coef.end(), s.coef.begin(), s.coef.end());
    };
    DraftTable* drafts = DraftTable::used();
    if (drafts != nullptr) {  // they come first: another thread may have made the same node for good since
      if (const Node* known = drafts->find(h, same)) return known;
    }
    const std::lock_guard lock(table_mutex);
    const std::size_t at = slots_.find(h, same);
    if (slots_[at] != nullptr) return slots_[at];
    if (drafts != nullptr) return drafts->add(s, h);
    for (const Expr& a : s.args) GR_ASSERT(!is_draft(a), "an expression that stays names one that goes");
    Node* n = node_of(s, h, arena_);
    slots_.put(n, at);
    return n;
  }

  const Node* intern(const VarInfo& v) {
    std::uint64_t h = mix(0x27d4eb2f, static_cast<std::uint64_t>(v.kind));
    for (const char c : v.name) h = mix(h, static_cast<unsigned char>(c));
    for (const std::int64_t x : {v.min, v.max, v.multiple_of}) h = mix(h, static_cast<std::uint64_t>(x));
    for (const auto* e : {&v.hi, &v.lo, &v.def}) h = mix(h, *e ? hash_of(**e) : 1);
    for (const auto* e : {&v.hi, &v.lo, &v.def}) GR_ASSERT(!*e || !is_draft(**e), "a variable names a draft");
    const std::lock_guard lock(table_mutex);
    const std::size_t at = slots_.find(h, [&](const Node& n) { return n.var != nullptr && same_info(*n.var, v); });
    if (slots_[at] != nullptr) return slots_[at];
    int depth = 1;
    for (const auto* e : {&v.hi, &v.lo, &v.def})
      if (*e && !(*e)->is_const()) depth = std::max(depth, 1 + (*e)->node()->depth);
    if (depth > kMaxDepth) fail_size();
    Node* n = new (arena_.allocate(sizeof(Node), alignof(Node))) Node{.op = Op::Var};
    n->depth = static_cast<std::uint16_t>(depth);
    infos_.push_back(v);
    n->var = &infos_.back();
    if (v.hi || v.lo || v.def) n->flags = kSymbolic;
    compute_var_facts(*n);
    n->hash = h;
    n->key = key_of(n->op, h, n->var);
    slots_.put(n, at);
    return n;
  }

  [[nodiscard]] Kept kept() const {
    const std::lock_guard lock(table_mutex);
    return {.nodes = slots_.count(), .bytes = arena_.bytes() + slots_.size() * sizeof(const Node*)};
  }

 private:
  Table() : slots_(std::size_t{1} << 14) {}

  Slots slots_;
  Arena arena_;
  std::deque<VarInfo> infos_;
};

std::strong_ordering order_optional(const std::optional<Expr>& a, const std::optional<Expr>& b) {
  if (!a || !b) return a.has_value() <=> b.has_value();
  return order(*a, *b);
}

std::strong_ordering order_vars(const VarInfo& a, const VarInfo& b) {
  if (const int c = a.name.compare(b.name); c != 0) return c <=> 0;
  if (const auto c = a.kind <=> b.kind; c != 0) return c;
  if (const auto c = a.min <=> b.min; c != 0) return c;
  if (const auto c = a.max <=> b.max; c != 0) return c;
  if (const auto c = a.multiple_of <=> b.multiple_of; c != 0) return c;
  if (const auto c = order_optional(a.hi, b.hi); c != 0) return c;
  if (const auto c = order_optional(a.lo, b.lo); c != 0) return c;
  return order_optional(a.def, b.def);
}

constexpr std::size_t kMemoSlots = std::size_t{1} << 13;

MemoEntry& memo_slot(Op op, const Expr& a, const Expr& b) {
  thread_local const std::unique_ptr<MemoEntry[]> entries = std::make_unique<MemoEntry[]>(kMemoSlots);
  return entries[mix(mix(hash_of(a), hash_of(b)), static_cast<std::uint64_t>(op)) & (kMemoSlots - 1)];
}

}  // namespace

std::uint64_t hash_of(const Expr& e) {
  return e.is_const() ? mix(0x9747b28c, static_cast<std::uint64_t>(e.value())) : e.node()->hash;
}

Expr make_node(const NodeSpec& spec) {
  const Node* n = Table::instance().intern(spec);
  // A product stays a node: it is the monomial of a term.
  if (n->op != Op::Mul && n->lo == n->hi && n->lo != kMinInt && n->hi != kMaxInt) return n->lo;
  return Expr(n);
}

Expr make_var(const VarInfo& info) {
  const auto refuse = [&](const std::string& why) {
    fail(Code::SYM_FACTS, "the facts of " + info.name + " contradict each other", {why});
  };
  if (info.multiple_of < 1) refuse("multiple_of: want at least 1, got " + std::to_string(info.multiple_of));
  if (info.min > info.max)
    refuse("bounds: min " + std::to_string(info.min) + " is above max " + std::to_string(info.max));
  const std::int64_t last = floor_div_int(info.max, info.multiple_of) * info.multiple_of;
  if (last < info.min)
    refuse("bounds: no multiple of " + std::to_string(info.multiple_of) + " from " + std::to_string(info.min) + " to " +
           std::to_string(info.max));
  return Expr(Table::instance().intern(info));
}

const VarInfo& Expr::var() const {
  GR_ASSERT(is_var(), "var() of an expression that is not a variable");
  return *node_->var;
}

std::strong_ordering order(const Expr& a, const Expr& b) {
  if (identical(a, b)) return std::strong_ordering::equal;
  if (a.is_const() || b.is_const()) {
    if (a.is_const() && b.is_const()) return a.value() <=> b.value();
    return b.is_const() <=> a.is_const();
  }
  const Node& x = *a.node();
  const Node& y = *b.node();
  if (x.key != y.key) return x.key <=> y.key;
  if (x.op == Op::Var) return order_vars(*x.var, *y.var);
  if (const auto c = x.args.size() <=> y.args.size(); c != 0) return c;
  for (std::size_t i = 0; i < x.args.size(); ++i)
    if (const auto c = order(x.args[i], y.args[i]); c != 0) return c;
  for (std::size_t i = 0; i < x.coef.size(); ++i)
    if (const auto c = x.coef[i] <=> y.coef[i]; c != 0) return c;
  return x.constant <=> y.constant;
}

const Expr* ResultMemo::find(Op op, const Expr& a, const Expr& b) {
  const MemoEntry& e = memo_slot(op, a, b);
  return e.op == op && identical(e.a, a) && identical(e.b, b) ? &e.result : nullptr;
}

void ResultMemo::store(Op op, const Expr& a, const Expr& b, const Expr& result) {
  MemoEntry& e = memo_slot(op, a, b);
  e = {.op = op, .a = a, .b = b, .result = result};
  DraftTable* drafts = DraftTable::used();
  if (drafts != nullptr && (is_draft(a) || is_draft(b) || is_draft(result))) drafts->named_by(e);
}

Proof::Proof() : outermost_(DraftTable::used() == nullptr) {
  if (outermost_) DraftTable::used() = &DraftTable::of_proofs();
}

Proof::~Proof() {
  if (!outermost_) return;
  DraftTable::used()->clear();
  DraftTable::used() = nullptr;
}

Drafts::Drafts() : table_(std::make_unique<DraftTable>()) {}
Drafts::~Drafts() = default;
std::size_t Drafts::bytes() const { return table_->bytes(); }

Drafts::Use::Use(Drafts& drafts) : outer_(DraftTable::used()) {
  GR_ASSERT(outer_ == nullptr || outer_ == drafts.table_.get(), "other drafts are in use");
  DraftTable::used() = drafts.table_.get();
}

Drafts::Use::~Use() {
  if (outer_ == nullptr) DraftTable::used()->leave_memos();
  DraftTable::used() = outer_;
}

Kept kept() { return Table::instance().kept(); }

int& Nesting::depth() {
  thread_local int depth = 0;
  return depth;
}

std::string brief(const Expr& e) {
  std::string s = e.str();
  if (s.size() > 80) s = s.substr(0, 77) + "...";
  return s;
}

void fail_overflow(const std::string& what) { fail(Code::SYM_OVERFLOW, what + " leaves the 64-bit range"); }

}  // namespace graphene::sym
