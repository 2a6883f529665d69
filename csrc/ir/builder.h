// Records a kernel while Python runs: declarations, views, specs, control flow. At most one builder is active in a
// thread; a view made while one is active becomes a statement of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/declare.h"
#include "ir/stmt.h"

namespace graphene::ir {

class Builder;

// What the builder asks of layers that it must not include: who makes a builder brings them. Each may be empty.
struct BuilderHooks {
  // Where the Python that is running now stands.
  std::function<SourceLoc()> locate = {};
  CompleteSpec complete = {};
  // Decomposes a spec with `atom`, or an Init, by recording statements (they land in its body); false: it is a leaf as
  // it stands.
  std::function<bool(Builder&, const SpecStmt&)> expand = {};
};

struct AllocOptions {
  std::optional<int> stages;
  Swizzle swizzle;
  std::vector<TensorPtr> over;
  int align_bytes = 0;
  std::optional<std::int64_t> at_bytes;
};

class Builder {
 public:
  // Becomes this thread's active builder. KERNEL_NESTED when there is one.
  explicit Builder(std::string name, BuilderHooks hooks = {});
  ~Builder();
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;
  [[nodiscard]] static Builder* active();            // none, too, once another thread has closed or dropped it
  static Builder& require_active(const char* call);  // KERNEL_NONE when there is none

  // Declarations.
  // `count` > 0: a list of `count` tensors.
  TensorPtr arg(const std::string& name, Role role, const Layout& layout, ScalarType dtype, int align_bytes,
                int count = 0);
  const ScalarParam& param(const std::string& name, ScalarType dtype);
  // `cluster` > 1: in clusters of `cluster` blocks; the result is tiled into them.
  ThreadPtr blocks(std::vector<Expr> dims, std::int64_t cluster = 1);
  ThreadPtr threads(std::vector<Expr> dims);
  TensorPtr alloc(const std::string& name, const Layout& layout, ScalarType dtype, Memory memory,
                  const AllocOptions& options);
  // mbar: `arrivals` a phase; bar: `arrivals` threads a round.
  TensorPtr barriers(const std::string& name, ScalarType dtype, std::int64_t stages, std::int64_t arrivals);
  TensorPtr fragment(const std::string& name, const std::vector<std::int64_t>& shape, ScalarType dtype,
                     const FragmentSpec& spec, const ThreadPtr& group, std::optional<int> stages);

  // Views of this kernel's tensors and threads.
  [[nodiscard]] bool owns(const TensorPtr& t) const { return tensors_.count(t.get()) > 0; }
  [[nodiscard]] bool owns(const ThreadPtr& t) const { return threads_.count(t.get()) > 0; }
  [[nodiscard]] TensorPtr declared(int buffer) const;  // the tensor that declares a buffer of this kernel
  TensorPtr view(ViewStmt v);                          // `result` is computed here
  ThreadPtr thread_view(ThreadStmt t);
  // Coordinates of the executing thread, one variable per mode; `names` are taken in order where given.
  std::vector<std::vector<Expr>> indices(const ThreadPtr& group, const std::vector<std::string>& names);

  // Specs. Operands without `blocks`/`threads` get the defaults: each block for itself; the smallest group among
  // the fragments, else each thread for itself. The result may be entered while it is the last statement of its block.
  std::shared_ptr<Stmt> spec(SpecStmt s);
  void enter(const std::shared_ptr<Stmt>& spec);  // until leave(): its decomposition
  // Records a spec and, by `body`, its decomposition; when that throws, neither.
  void decompose(SpecStmt s, const std::function<void(const SpecStmt&)>& body);

  // Blocks of statements, closed by leave().
  Expr loop(const std::string& name, const Expr& start, const Expr& stop, const Expr& step, int unroll,
            const Expr& condition = 1);
  void if_(const Expr& condition);
  void else_();
  void only(const ThreadPtr& group, bool elect);
  void leave();
  // Blocks come in two steps, as Python's `with` and `for` do: one that was announced and that nobody enters is lost,
  // and close() says so. `what`: the call that made it.
  std::size_t announce(std::string what);
  void entered(std::size_t announced);
  [[nodiscard]] std::size_t depth() const { return frames_.size(); }
  [[nodiscard]] std::uint64_t serial() const { return serial_; }  // no two builders of a process have the same
  [[nodiscard]] bool in_loop() const;                             // what is recorded now may run several times
  // The block that is being recorded, and whether one of this kernel still is.
  [[nodiscard]] int scope() const { return frames_.empty() ? 0 : frames_.back().scope; }
  [[nodiscard]] bool open(int scope) const;

  void exit_if(const Expr& condition);
  // `droppable`: forgotten when the kernel closes unless something besides its own assignments uses it.
  Expr scalar(const std::string& name, const Expr& value, std::optional<std::int64_t> min,
              std::optional<std::int64_t> max, std::int64_t multiple_of, bool droppable = false);
  void assign(const Expr& scalar, const Expr& value);
  // An integer that an element holds when this statement runs; memory is read through a register.
  Expr index(const TensorPtr& element, std::int64_t min, std::int64_t max, std::int64_t multiple_of);
  void sync(SyncStmt s);

  // "[].block" and "[].thread", each member for itself: the groups of specs that name none. Without an id: the text
  // spells them out.
  ThreadPtr each(ThreadUnit unit);

  // A kernel from what was recorded; the builder is then inactive. A failure noted earlier is raised here.
  KernelPtr close();
  // Ends recording without a kernel: an exception is on its way.
  void abandon();
  // The loop whose block is at `depth` was left by break, found where nothing can be thrown: the next call raises it.
  void note_break(std::size_t depth);

  [[nodiscard]] std::string unique_name(const std::string& wanted);

 private:
  struct Frame {
    std::shared_ptr<Stmt> owner;  // null: the kernel's body
    Block* block = nullptr;
    int scope = 0;
  };

  SourceLoc here() const;
  [[noreturn]] void refuse(Code code, std::string message, std::vector<std::string> details = {},
                           std::string fix = {}) const;
  template <class F>
  auto located(F&& f) const;  // adds the location to errors that have none
  void ready() const;         // raises what note() was told; KERNEL_CLOSED after close()
  std::shared_ptr<Stmt> append(Stmt s);
  void push(std::shared_ptr<Stmt> owner, Block* block);
  void check_entered() const;          // BLOCK_NOT_ENTERED
  void check_depth(int opened) const;  // IR_DEPTH where `opened` more blocks are too many
  void fill(const std::shared_ptr<Stmt>& owner, Block* block, const std::function<void()>& body);
  void use(const TensorPtr& t, const char* as) const;
  void use(const ThreadPtr& t, const char* as) const;
  void use(const Expr& e);
  void use(const Layout& l);
  void use(const layout::Tiler& t);
  void use(const std::vector<IndexArg>& args);
  void own(const TensorPtr& t);
  void own(const ThreadPtr& t);
  Expr declare_var(sym::VarInfo info);
  TensorPtr record_alloc(Tensor t);
  void check_name(const std::string& name, const char* what) const;  // an identifier
  void take_name(const std::string& name, const char* what);         // ... that nothing else has
  ThreadPtr launch(ThreadTensor t, ThreadPtr& slot, const char* call);
  void default_groups(SpecStmt& s);
  void check_scalar(const sym::VarInfo& facts, const Expr& value) const;

  Kernel kernel_;
  std::vector<Frame> frames_;
  std::vector<bool> scope_open_;
  int next_tensor_id_ = 1;                          // shared by "%7" and "#7", as in the paper
  std::unordered_map<const Tensor*, int> tensors_;  // scope that made it
  std::unordered_map<const ThreadTensor*, int> threads_;
  std::unordered_map<const sym::Node*, int> vars_;
  std::unordered_set<const sym::Node*> unused_;  // droppable scalars that nothing uses so far
  std::unordered_set<const Stmt*> with_else_;    // branches that else_() has been given to
  std::unordered_set<std::string> names_;        // of variables, symbols, parameters and arguments
  std::vector<TensorPtr> keep_tensors_;          // keeps addresses unique while recording
  std::vector<ThreadPtr> keep_threads_;
  ThreadPtr each_block_, each_thread_;
  struct Announced {
    std::string what;
    SourceLoc where;
    bool entered = false;
  };
  std::vector<Announced> announced_;
  std::optional<Diagnostic> noted_;
  bool closed_ = false;
  BuilderHooks hooks_;
  std::uint64_t serial_;
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace graphene::ir
