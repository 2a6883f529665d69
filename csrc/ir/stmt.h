// Statements and kernels. Nodes are immutable once their kernel is closed; passes share them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/diag.h"
#include "ir/tensor.h"
#include "ir/threads.h"

namespace graphene::ir {

struct Stmt;
using StmtPtr = std::shared_ptr<const Stmt>;
using Block = std::vector<StmtPtr>;

// An attribute of a spec, part of the text and matched as data: op, axis, mode, round, cache, accumulate, fill,
// value...
using AttrValue = std::variant<std::string, std::int64_t, double, bool, Expr>;
using Attrs = std::map<std::string, AttrValue>;

// An operand of a spec: a tensor, an immediate number, or an integer expression.
using Operand = std::variant<TensorPtr, double, Expr>;

// %8:... = %7.tile([8,8])   and others. `args` per op: Tile: `tiler`. Index: `index`. Permute: `order`.
// Reshape: `level`, `shape`. Window: `index[0]` = start, `index[0].stop` = size. Transpose, Values: none.
// Of: `index[0]` = rank.
enum class ViewOp : std::uint8_t { Tile, Index, Transpose, Permute, Reshape, Window, Values, Of };
struct ViewStmt {
  TensorPtr result, source;
  ViewOp op;
  layout::Tiler tiler;
  std::vector<IndexArg> index;
  std::vector<int> order;
  int level = 0;
  Layout shape;
};

// #5:... = #4.tile([8]);  ops Tile, Index, Reshape, Scalar. Launch: #4:[8,8].block declared by the kernel.
enum class ThreadOp : std::uint8_t { Tile, Index, Reshape, Scalar };
struct ThreadStmt {
  ThreadPtr result, source;
  ThreadOp op;
  layout::Tiler tiler;
  std::vector<IndexArg> index;
  int level = 0;
  Layout shape;
};

// (@bm, @bn) = #4.indices(): names the coordinates; each is a Coord variable whose `def` is its expression.
struct IndicesStmt {
  ThreadPtr group;
  std::vector<std::vector<Expr>> vars;  // per level, per mode
};

// %9:[16,16:16,1].fp16.SH <- Allocate<<<...>>>(): the buffer's fields are the attributes.
struct AllocStmt {
  TensorPtr tensor;
};

struct SpecStmt {
  SpecKind kind = SpecKind::Spec;
  Attrs attrs;  // defaults of the kind are filled in
  std::vector<TensorPtr> outs;
  std::vector<Operand> ins;
  ThreadPtr blocks, threads;  // execution configuration; threads: [].thread = each thread for itself
  std::string atom;           // requested by name; "" = whatever matches
  std::optional<Layout> tv;   // of a Move by a group: which elements of the tile each thread moves
  std::string means;          // of a generic Spec: text of its meaning, "" = none
  TensorPtr done;             // of a copy: the element of an mbarrier on whose phase it completes; null: none
  ThreadPtr to;               // of a copy: the blocks of the cluster that receive it (multicast); null: this block
  bool decomposed = false;    // has a body (maybe empty)
  bool collective = false;    // the body was made by the builder from `atom` (a collective leaf)
  Block body;
};

// for(k=0; k < stop; k += step). unroll 0: fully, when lowering (registers may then be indexed by the counter);
// 1: not at all; n: by n, printed as a pragma. With a condition, which is asked before each turn, the loop ends as soon
// as that does not hold, and `stop` is a bound that the condition must not reach.
struct LoopStmt {
  Expr var, start, stop, step;
  int unroll = 1;
  Expr condition = 1;
  Block body;
};

struct IfStmt {
  Expr condition;
  Block then_body, else_body;
};

struct OnlyStmt {  // with gr.only(group): a branch uniform for that group
  ThreadPtr group;
  bool elect = false;  // one thread of it
  Block body;
};

struct ExitIfStmt {  // block-uniform
  Expr condition;
};

struct ScalarStmt {  // declares (first) or assigns a mutable integer; or declares one that is read from data
  Expr var, value;
  bool declare = false;
  TensorPtr from;  // read from data: the register that holds it; `value` is 0
};

// The kernels of a stream: one waits for those before it, or lets those behind it start.
inline constexpr const char* kWaitKernels = "wait_kernels";
inline constexpr const char* kStartKernels = "start_kernels";

// barrier(group), commit(atom), wait(atom, pending), fence(...), wait_kernels(), start_kernels(),
// setmaxnreg(registers), print(text, values), assert(condition, text, values): named `op`, matched with Sync entries as
// data. Of an mbarrier: arrive(barrier, expect, to, atom) and wait_phase(barrier, phase). Of a named barrier:
// arrive(barrier) and sync(barrier).
struct SyncStmt {
  std::string op;
  ThreadPtr group;   // barrier: null = the whole block; members are threads, or the blocks of a cluster
  std::string atom;  // commit, wait, fence: of which atom's domain; arrive: when this thread's copies by it have landed
  Attrs attrs;       // pending, registers, ...
  TensorPtr barrier;              // arrive, wait_phase, sync: one element of type mbar or bar; null: another op
  std::optional<Expr> phase;      // wait_phase: the parity of the phase
  std::vector<TensorPtr> expect;  // arrive: tensors whose bytes the phase waits for, as a whole each
  Expr expect_bytes = 0;          // arrive: ... or a number of bytes, besides
  ThreadPtr to;                   // arrive: at this barrier of each of these blocks; null: of the own block
  std::vector<Operand> values;    // print, assert: registers and integers that are shown
};

// What a thread tells about itself while it runs, for whoever looks for a mistake.
inline constexpr const char* kPrint = "print";
inline constexpr const char* kAssert = "assert";  // attribute `condition`

struct Stmt {
  int id = 0;  // unique in the kernel, in order of creation: names syncs, errors, reports
  SourceLoc loc;
  std::variant<ViewStmt, ThreadStmt, IndicesStmt, AllocStmt, SpecStmt, LoopStmt, IfStmt, OnlyStmt, ExitIfStmt,
               ScalarStmt, SyncStmt>
      node;

  template <class T>
  [[nodiscard]] const T* as() const {
    return std::get_if<T>(&node);
  }
};

// A scalar argument (gr.param).
struct ScalarParam {
  std::string name;
  ScalarType dtype = ScalarType::fp32;
  Expr var;          // integer types: its Param variable
  TensorPtr tensor;  // other types: a private scalar that every thread finds set
  int position = 0;  // arguments of either kind that are declared before it
};

struct Kernel {
  std::string name;
  std::vector<TensorPtr> args;  // in declaration order; roles Input, Output, InOut
  std::vector<ScalarParam> params;
  std::vector<Expr> symbols;  // Size variables that occur, in order of first use
  ThreadPtr grid, block;      // launch tensors; null until the first is declared
  std::int64_t cluster = 1;   // blocks of a cluster, whose linear indices follow each other
  Block body;                 // Allocs, views and specs; the root spec, if any, is among them

  // Structural equality, source locations apart.
  friend bool operator==(const Kernel& a, const Kernel& b);
};
using KernelPtr = std::shared_ptr<const Kernel>;

// The arguments of both kinds in the order in which they were declared, which is the order of a call.
struct ArgumentRef {
  const TensorPtr* tensor = nullptr;
  const ScalarParam* scalar = nullptr;  // one of the two
};
[[nodiscard]] std::vector<ArgumentRef> arguments(const Kernel& k);

// Checks a spec's attributes and fills in the defaults that its kind declares; throws ATOM_ATTR. Layers above know
// both: whoever records or reads a kernel brings this.
using CompleteSpec = std::function<void(SpecStmt&)>;

}  // namespace graphene::ir
