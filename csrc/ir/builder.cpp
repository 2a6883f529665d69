#include "ir/builder.h"

#include <algorithm>
#include <atomic>
#include <cctype>

#include "ir/barriers.h"
#include "ir/builder_impl.h"
#include "ir/lexer.h"

namespace graphene::ir {

namespace {

thread_local Builder* active_builder = nullptr;
thread_local std::weak_ptr<const bool> active_alive;  // a kernel may be dropped by another thread than records it

std::atomic<std::uint64_t> builders{0};

// Words of the text form and of generated code.
const std::unordered_set<std::string>& reserved() {
  static const std::unordered_set<std::string> words = {"min", "max", "and",  "or",    "not",  "tid", "bid",
                                                        "inf", "nan", "true", "false", "expr", "_"};
  return words;
}

const char* kind_word(sym::VarKind k) {
  switch (k) {
    case sym::VarKind::Loop:
      return "the counter";
    case sym::VarKind::Coord:
      return "the coordinate";
    case sym::VarKind::Scalar:
      return "the scalar";
    case sym::VarKind::Param:
      return "the parameter";
    default:
      return "the value";
  }
}

// Removes the statements of scalars.
void drop(Block& block, const std::unordered_set<const sym::Node*>& scalars) {
  std::erase_if(block, [&](const StmtPtr& s) {
    const auto* scalar = s->as<ScalarStmt>();
    return scalar != nullptr && scalars.contains(scalar->var.node());
  });
  for (const StmtPtr& p : block) {
    auto& s = const_cast<Stmt&>(*p);  // NOLINT(cppcoreguidelines-pro-type-const-cast): not closed yet
    if (auto* spec = std::get_if<SpecStmt>(&s.node)) drop(spec->body, scalars);
    if (auto* loop = std::get_if<LoopStmt>(&s.node)) drop(loop->body, scalars);
    if (auto* only = std::get_if<OnlyStmt>(&s.node)) drop(only->body, scalars);
    if (auto* branch = std::get_if<IfStmt>(&s.node)) {
      drop(branch->then_body, scalars);
      drop(branch->else_body, scalars);
    }
  }
}

void renumber(const Block& block, int& next) {
  for (const StmtPtr& p : block) {
    // Statements are this builder's own until the kernel is closed.
    auto& s = const_cast<Stmt&>(*p);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    s.id = ++next;
    if (const auto* spec = s.as<SpecStmt>()) renumber(spec->body, next);
    if (const auto* loop = s.as<LoopStmt>()) renumber(loop->body, next);
    if (const auto* only = s.as<OnlyStmt>()) renumber(only->body, next);
    if (const auto* branch = s.as<IfStmt>()) {
      renumber(branch->then_body, next);
      renumber(branch->else_body, next);
    }
  }
}

}  // namespace

bool is_identifier(const std::string& s) {
  if (s.empty() || std::isdigit(static_cast<unsigned char>(s[0])) != 0) return false;
  return std::all_of(s.begin(), s.end(),
                     [](char c) { return c == '_' || (static_cast<unsigned char>(c) < 128 && std::isalnum(c) != 0); });
}

Builder* Builder::active() {
  if (active_builder != nullptr && (active_alive.expired() || active_builder->closed_)) active_builder = nullptr;
  return active_builder;
}

Builder& Builder::require_active(const char* call) {
  if (active() == nullptr)
    fail(Code::KERNEL_NONE, std::string(call) + " needs an open kernel", {},
         "call it inside `with gr.Kernel(name) as kernel:`");
  return *active_builder;
}

SourceLoc Builder::here() const { return hooks_.locate ? hooks_.locate() : SourceLoc{}; }

void Builder::refuse(Code code, std::string message, std::vector<std::string> details, std::string fix) const {
  fail(code, std::move(message), std::move(details), std::move(fix), here());
}

Builder::Builder(std::string name, BuilderHooks hooks) : hooks_(std::move(hooks)), serial_(++builders) {
  if (active() != nullptr)
    refuse(Code::KERNEL_NESTED, "a kernel inside a kernel", {"open: " + active_builder->kernel_.name, "got: " + name},
           "build one kernel after the other");
  if (name.size() > kMostNameChars)
    refuse(Code::KERNEL_NAME, "a kernel's name has at most " + std::to_string(kMostNameChars) + " characters",
           {"got: " + std::to_string(name.size()) + " characters"});
  if (!is_identifier(name)) refuse(Code::KERNEL_NAME, "a kernel's name must be an identifier", {"got: " + name});
  kernel_.name = std::move(name);
  scope_open_.push_back(true);
  frames_.push_back({nullptr, &kernel_.body, 0});
  active_builder = this;
  active_alive = alive_;
}

Builder::~Builder() { abandon(); }

void Builder::abandon() {
  closed_ = true;
  if (active_builder == this) active_builder = nullptr;
}

bool Builder::in_loop() const {
  return std::any_of(frames_.begin(), frames_.end(),
                     [](const Frame& f) { return f.owner && f.owner->as<LoopStmt>() != nullptr; });
}

void Builder::note_break(std::size_t depth) {
  if (noted_ || closed_ || depth >= frames_.size() || !frames_[depth].owner) return;
  const Stmt& s = *frames_[depth].owner;
  const auto* l = s.as<LoopStmt>();
  noted_ = Diagnostic{
      .code = Code::LOOP_BREAK,
      .where = s.loc,
      .message = "the loop " + (l != nullptr ? l->var.str() : "") + " was left before its end",
      .ir = {},
      .details = {"a recorded loop runs its body once, to record it; break and return have no meaning there"},
      .fix = "use gr.if_() inside the loop, or a bound of the loop"};
}

std::size_t Builder::announce(std::string what) {
  announced_.push_back({std::move(what), here()});
  return announced_.size() - 1;
}

void Builder::entered(std::size_t announced) {
  if (announced < announced_.size()) announced_[announced].entered = true;
}

void Builder::check_entered() const {
  std::vector<Diagnostic> lost;
  for (const Announced& a : announced_) {
    if (a.entered) continue;
    lost.push_back({.code = Code::BLOCK_NOT_ENTERED,
                    .where = a.where,
                    .message = a.what + " is never entered",
                    .ir = {},
                    .details = {"kernel: " + kernel_.name, "it records nothing until it is entered"},
                    .fix = a.what.starts_with("gr.loop")
                               ? "write `for k in " + a.what + ":` or `with " + a.what + " as k:`"
                               : "write `with " + a.what + ":`"});
  }
  if (!lost.empty()) throw Error(std::move(lost));
}

void Builder::ready() const {
  if (closed_) refuse(Code::KERNEL_CLOSED, "the kernel is closed", {"kernel: " + kernel_.name});
  if (noted_) throw Error(*noted_);
}

void Builder::check_name(const std::string& name, const char* what) const {
  if (!is_identifier(name) || reserved().count(name) > 0)
    refuse(Code::KERNEL_NAME, std::string("the name of ") + what + " must be an identifier and no word of the IR",
           {"got: " + name});
}

void Builder::take_name(const std::string& name, const char* what) {
  check_name(name, what);
  if (!names_.insert(name).second)
    refuse(Code::KERNEL_NAME, std::string("the name of ") + what + " is taken", {"got: " + name});
}

std::string Builder::unique_name(const std::string& wanted) {
  if (reserved().count(wanted) == 0 && names_.insert(wanted).second) return wanted;
  for (int i = 1;; ++i) {
    std::string s = wanted + "_" + std::to_string(i);
    if (names_.insert(s).second) return s;
  }
}

bool Builder::open(int scope) const { return scope_open_[static_cast<std::size_t>(scope)]; }

void Builder::use(const TensorPtr& t, const char* as) const {
  const auto it = tensors_.find(t.get());
  const std::string who = std::string(as) + ": " + (t->id >= 0 ? "%" + std::to_string(t->id) + ":" : "") +
                          t->type_str() + (t->buffer->name.empty() ? "" : " of " + t->buffer->name);
  if (it == tensors_.end())
    refuse(Code::KERNEL_FOREIGN, "a tensor that is not of this kernel", {who},
           "declare it with gr.input, gr.output, gr.inout, gr.alloc or gr.fragment inside this kernel");
  if (!open(it->second))
    refuse(Code::KERNEL_SCOPE, "a tensor used outside of the block that made it", {who},
           "make it before the block is entered");
}

void Builder::use(const ThreadPtr& t, const char* as) const {
  const auto it = threads_.find(t.get());
  const std::string who =
      std::string(as) + ": " + (t->id >= 0 ? "#" + std::to_string(t->id) + ":" : "") + t->type_str();
  if (it == threads_.end())
    refuse(Code::KERNEL_FOREIGN, "threads that are not of this kernel", {who},
           "start from gr.blocks() and gr.threads() of this kernel");
  if (!open(it->second))
    refuse(Code::KERNEL_SCOPE, "threads used outside of the block that made them", {who},
           "make them before the block is entered");
}

void Builder::use(const Expr& e) {
  if (e.is_const()) return;
  for (const Expr& v : sym::free_vars(e)) {
    unused_.erase(v.node());
    const auto it = vars_.find(v.node());
    if (it != vars_.end()) {
      if (open(it->second)) continue;
      refuse(Code::KERNEL_SCOPE,
             std::string(kind_word(v.var().kind)) + " " + v.var().name + " is used outside of the block that made it",
             {"in: " + e.str()});
    }
    switch (v.var().kind) {
      case sym::VarKind::Size:
        take_name(v.var().name, "a symbol");
        vars_.emplace(v.node(), 0);
        kernel_.symbols.push_back(v);
        break;
      case sym::VarKind::ThreadIdx:
      case sym::VarKind::BlockIdx:
        break;
      default:
        refuse(Code::KERNEL_FOREIGN,
               std::string(kind_word(v.var().kind)) + " " + v.var().name + " is not of this kernel",
               {"in: " + e.str()});
    }
  }
}

void Builder::use(const Layout& l) {
  for (const Expr& e : l.shape().leaves()) use(e);
  for (const Expr& e : l.stride().leaves()) use(e);
}

void Builder::use(const layout::Tiler& t) {
  for (const auto& l : t)
    if (l) use(*l);
}

void Builder::use(const std::vector<IndexArg>& args) {
  for (const IndexArg& a : args) {
    use(a.at);
    use(a.stop);
  }
}

void Builder::own(const TensorPtr& t) {
  tensors_.emplace(t.get(), frames_.back().scope);
  keep_tensors_.push_back(t);
}

void Builder::own(const ThreadPtr& t) {
  threads_.emplace(t.get(), frames_.back().scope);
  keep_threads_.push_back(t);
}

Expr Builder::declare_var(sym::VarInfo info) {
  const Expr v = located([&] { return sym::make_var(info); });
  vars_.emplace(v.node(), frames_.back().scope);
  return v;
}

std::shared_ptr<Stmt> Builder::append(Stmt s) {
  auto p = std::make_shared<Stmt>(std::move(s));
  frames_.back().block->push_back(p);
  return p;
}

// The kernel's body is not a block inside another one.
void Builder::check_depth(int opened) const {
  if (static_cast<int>(frames_.size()) - 1 + opened <= kMaxBlockDepth) return;
  refuse(Code::IR_DEPTH, "blocks nested deeper than " + std::to_string(kMaxBlockDepth), {},
         "a Python loop that opens blocks nests them: leave each before the next");
}

void Builder::push(std::shared_ptr<Stmt> owner, Block* block) {
  const int scope = static_cast<int>(scope_open_.size());
  scope_open_.push_back(true);
  frames_.push_back({std::move(owner), block, scope});
}

void Builder::leave() {
  GR_ASSERT(frames_.size() > 1, "leave() without an open block");
  scope_open_[static_cast<std::size_t>(frames_.back().scope)] = false;
  frames_.pop_back();
}

ThreadPtr Builder::each(ThreadUnit unit) {
  if (!kernel_.grid) launch(make_blocks({1}), kernel_.grid, "blocks()");
  if (!kernel_.block) launch(make_threads({1}), kernel_.block, "threads()");
  ThreadPtr& slot = unit == ThreadUnit::Block ? each_block_ : each_thread_;
  if (!slot) {
    slot = std::make_shared<const ThreadTensor>(ir::scalar(unit == ThreadUnit::Block ? *kernel_.grid : *kernel_.block));
    threads_.emplace(slot.get(), 0);
  }
  return slot;
}

// Blocks: the grid if it is one block, else each block for itself. Threads: the smallest group among the fragments,
// else each thread for itself.
void Builder::default_groups(SpecStmt& s) {
  if (!s.blocks) {
    const ThreadPtr one = each(ThreadUnit::Block);
    s.blocks = kernel_.grid->launch_size().is_const(1) ? kernel_.grid : one;
  }
  if (s.threads) return;
  auto consider = [&](const TensorPtr& t) {
    if (!t->is_fragment()) return;
    const ThreadPtr& g = t->buffer->fragment->group;
    if (!s.threads || g->size().value() < s.threads->size().value()) s.threads = g;
  };
  for (const TensorPtr& t : s.outs) consider(t);
  for (const Operand& o : s.ins)
    if (const auto* t = std::get_if<TensorPtr>(&o)) consider(*t);
  if (!s.threads) s.threads = each(ThreadUnit::Thread);
}

std::shared_ptr<Stmt> Builder::spec(SpecStmt s) {
  ready();
  for (const TensorPtr& t : s.outs) use(t, "output");
  for (const Operand& o : s.ins) {
    if (const auto* t = std::get_if<TensorPtr>(&o)) use(*t, "input");
    if (const auto* e = std::get_if<Expr>(&o)) use(*e);
  }
  for (const auto& [key, value] : s.attrs)
    if (const auto* e = std::get_if<Expr>(&value)) use(*e);
  if (s.blocks) use(s.blocks, "blocks");
  if (s.threads) use(s.threads, "threads");
  if (s.done) use(s.done, "done");
  if (s.to) use(s.to, "to");
  located([&] { check_barrier_use(s); });
  default_groups(s);
  if ((s.blocks->unit != ThreadUnit::Block) || (s.threads->unit != ThreadUnit::Thread))
    refuse(Code::SPEC_GROUP, "on= takes threads, or a pair (blocks, threads)",
           {"blocks: " + s.blocks->type_str(), "threads: " + s.threads->type_str()});
  for (const auto& [key, value] : default_attrs(s.kind)) s.attrs.emplace(key, value);
  if (hooks_.complete) located([&] { hooks_.complete(s); });
  const auto stmt = append({0, here(), std::move(s)});
  auto& node = std::get<SpecStmt>(stmt->node);
  if (!hooks_.expand) return stmt;
  bool expanded = false;
  fill(stmt, &node.body, [&] {
    expanded = located([&] { return hooks_.expand(*this, node); });
    if (expanded) check_depth(0);
  });
  GR_ASSERT(expanded || node.body.empty(), "statements of a leaf that is not decomposed");
  node.collective = node.decomposed = expanded;
  return stmt;
}

// What throws leaves no trace: blocks it opened are closed, the statement is gone.
void Builder::fill(const std::shared_ptr<Stmt>& owner, Block* block, const std::function<void()>& body) {
  push(owner, block);
  try {
    body();
  } catch (...) {
    while (frames_.back().owner != owner) leave();
    leave();
    frames_.back().block->pop_back();
    throw;
  }
  GR_ASSERT(frames_.back().owner == owner, "a decomposition left a block open");
  leave();
}

void Builder::decompose(SpecStmt s, const std::function<void(const SpecStmt&)>& body) {
  check_depth(1);
  const auto stmt = spec(std::move(s));
  auto& node = std::get<SpecStmt>(stmt->node);
  node.decomposed = true;
  fill(stmt, &node.body, [&] { body(node); });
}

void Builder::enter(const std::shared_ptr<Stmt>& stmt) {
  ready();
  auto& s = std::get<SpecStmt>(stmt->node);
  if (s.collective && s.atom.empty()) {  // the decomposition nobody asked for gives way to the one by hand
    s.body.clear();
    s.collective = s.decomposed = false;
  }
  if (s.decomposed)
    refuse(Code::SPEC_ENTER,
           s.collective ? "a spec with atom= is decomposed already" : "the spec is decomposed already", {},
           s.collective ? "leave out atom= to decompose it by hand" : "");
  if (!s.atom.empty())
    refuse(Code::SPEC_ENTER, "a spec with atom= is a leaf", {"atom: " + s.atom},
           "leave out atom= to decompose it by hand");
  const Block& block = *frames_.back().block;
  if (block.empty() || block.back() != stmt)
    refuse(Code::SPEC_ENTER, "a spec is entered where it is made", {},
           "write `with gr.move(...):`, with nothing between the call and the `with`");
  check_depth(1);
  s.decomposed = true;
  push(stmt, &s.body);
}

Expr Builder::loop(const std::string& name, const Expr& start, const Expr& stop, const Expr& step, int unroll,
                   const Expr& condition) {
  ready();
  if (!is_identifier(name)) refuse(Code::KERNEL_NAME, "the name of a counter must be an identifier", {"got: " + name});
  use(start);
  use(stop);
  use(step);
  use(condition);
  if (!steps_forward(step, kernel_.grid, kernel_.cluster))
    refuse(Code::LOOP_STEP, "the step of a loop must be known to be positive", {"got: " + step.str()},
           "count upwards, and give a symbol the fact min=1");
  if (unroll < 0)
    refuse(Code::LOOP_STEP, "unroll must be 0 (fully), 1 (not) or the number of copies",
           {"got: " + std::to_string(unroll)});
  check_depth(1);
  const auto stmt = append({0, here(), LoopStmt{}});
  auto& l = std::get<LoopStmt>(stmt->node);
  push(stmt, &l.body);
  try {
    l.var = declare_var(loop_info(unique_name(name), start, stop, step));
  } catch (...) {
    leave();
    frames_.back().block->pop_back();
    throw;
  }
  l.start = start;
  l.stop = stop;
  l.step = step;
  l.unroll = unroll;
  l.condition = condition;
  return l.var;
}

void Builder::if_(const Expr& condition) {
  ready();
  use(condition);
  check_depth(1);
  const auto stmt = append({0, here(), IfStmt{condition, {}, {}}});
  push(stmt, &std::get<IfStmt>(stmt->node).then_body);
}

void Builder::else_() {
  ready();
  const Block& block = *frames_.back().block;
  const bool fits =
      !block.empty() && block.back()->as<IfStmt>() != nullptr && with_else_.count(block.back().get()) == 0;
  if (!fits)
    refuse(Code::ELSE_WITHOUT_IF, "else_() must follow an if_() block", {}, "put nothing between the two blocks");
  check_depth(1);
  with_else_.insert(block.back().get());
  const auto stmt = std::const_pointer_cast<Stmt>(block.back());
  push(stmt, &std::get<IfStmt>(stmt->node).else_body);
}

void Builder::only(const ThreadPtr& group, bool elect) {
  ready();
  use(group, "only");
  if (group->unit != ThreadUnit::Thread)
    refuse(Code::SPEC_GROUP, "only() takes threads of the block", {"got: " + group->type_str()});
  check_depth(1);
  const auto stmt = append({0, here(), OnlyStmt{group, elect, {}}});
  push(stmt, &std::get<OnlyStmt>(stmt->node).body);
}

void Builder::exit_if(const Expr& condition) {
  ready();
  use(condition);
  append({0, here(), ExitIfStmt{condition}});
}

// A scalar's facts are promises that simplifications rely on. What cannot keep them is refused.
void Builder::check_scalar(const sym::VarInfo& facts, const Expr& value) const {
  const bool outside = sym::upper_bound(value) < facts.min || sym::lower_bound(value) > facts.max;
  if (!outside && !(value.is_const() && value.value() % facts.multiple_of != 0)) return;
  std::string want = std::to_string(facts.min) + " <= " + facts.name;
  if (facts.max != sym::kMaxInt) want += " <= " + std::to_string(facts.max);
  if (facts.multiple_of != 1) want += ", a multiple of " + std::to_string(facts.multiple_of);
  refuse(Code::SCALAR_FACTS, "a value that breaks the facts of the scalar", {"want: " + want, "got: " + value.str()},
         "declare the scalar with the facts it has: gr.scalar(name, value, min=..., max=...)");
}

Expr Builder::scalar(const std::string& name, const Expr& value, std::optional<std::int64_t> min,
                     std::optional<std::int64_t> max, std::int64_t multiple_of, bool droppable) {
  ready();
  if (!is_identifier(name)) refuse(Code::KERNEL_NAME, "the name of a scalar must be an identifier", {"got: " + name});
  use(value);
  sym::VarInfo v;
  v.name = unique_name(name);
  v.kind = sym::VarKind::Scalar;
  v.min = min.value_or(0);
  v.max = max.value_or(sym::kMaxInt);
  v.multiple_of = multiple_of;
  const Expr var = declare_var(v);
  check_scalar(v, value);
  append({0, here(), ScalarStmt{var, value, true, nullptr}});
  if (droppable) unused_.insert(var.node());
  return var;
}

void Builder::assign(const Expr& scalar, const Expr& value) {
  ready();
  const bool unused = unused_.contains(scalar.node());
  use(scalar);
  use(value);
  if (unused) unused_.insert(scalar.node());
  GR_ASSERT(scalar.is_var() && scalar.var().kind == sym::VarKind::Scalar,
            "an assignment to something else than a scalar");
  check_scalar(scalar.var(), value);
  append({0, here(), ScalarStmt{scalar, value, false, nullptr}});
}

Expr Builder::index(const TensorPtr& element, std::int64_t min, std::int64_t max, std::int64_t multiple_of) {
  ready();
  use(element, "index of");
  const auto cls = info(element->dtype).cls;
  const bool integer = cls == ScalarInfo::Class::Signed || cls == ScalarInfo::Class::Unsigned;
  if (!element->levels.empty() || !integer || element->is_fragment())
    refuse(Code::TENSOR_TYPE, "an index is read from one integer",
           {"got: " + element->type_str() + " of " + element->buffer->name}, "index the tensor down to one element");
  sym::VarInfo v;
  v.name = unique_name("index");
  v.kind = sym::VarKind::Data;
  v.min = min;
  v.max = max;
  v.multiple_of = multiple_of;
  TensorPtr held = element;
  if (element->memory() != Memory::RF) {
    held = alloc(v.name, Layout(IntTuple(std::vector<IntTuple>{})), element->dtype, Memory::RF, {});
    SpecStmt move;
    move.kind = SpecKind::Move;
    move.outs = {held};
    move.ins = {element};
    move.threads = each(ThreadUnit::Thread);
    spec(std::move(move));
  }
  const Expr var = declare_var(v);
  append({0, here(), ScalarStmt{var, 0, true, held}});
  return var;
}

void Builder::sync(SyncStmt s) {
  ready();
  if (s.group) use(s.group, "barrier of");
  if (s.barrier) use(s.barrier, "barrier");
  for (const TensorPtr& t : s.expect) use(t, "expect");
  if (s.to) use(s.to, "at");
  if (s.phase) use(*s.phase);
  use(s.expect_bytes);
  for (const Operand& v : s.values) {
    if (const auto* t = std::get_if<TensorPtr>(&v)) use(*t, "shown");
    if (const auto* e = std::get_if<Expr>(&v)) use(*e);
  }
  located([&] { check_sync(s, kernel_.cluster); });
  for (const auto& [key, value] : s.attrs)
    if (const auto* e = std::get_if<Expr>(&value)) use(*e);
  append({0, here(), std::move(s)});
}

KernelPtr Builder::close() {
  ready();
  if (frames_.size() > 1)
    refuse(Code::KERNEL_OPEN, "a block of the kernel is still open", {"kernel: " + kernel_.name},
           "leave loops and specs before the kernel ends");
  check_entered();
  each(ThreadUnit::Block);  // declares the launch if nobody did
  if (!unused_.empty()) drop(kernel_.body, unused_);
  int next = 0;
  renumber(kernel_.body, next);
  abandon();
  return std::make_shared<const Kernel>(std::move(kernel_));
}

}  // namespace graphene::ir
