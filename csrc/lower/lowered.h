// The lowered tree: every leaf is one instance of one atom with its operands resolved to registers and addresses.
// The printer (emit) and the simulator (sim) read this same tree; it decides nothing further.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "atoms/match.h"
#include "ir/stmt.h"

namespace graphene::lower {

struct Node;
using NodePtr = std::shared_ptr<const Node>;
using Block = std::vector<NodePtr>;

// Registers of one RF buffer (private tensor or fragment), per thread.
struct RegArray {
  ir::BufferPtr buffer;
  std::string c_name;
  ir::ScalarType dtype;
  int regs = 0;    // values per thread, all stages
  int param = -1;  // a scalar argument: its number among the kernel's; set when a thread starts
};

// A buffer in memory: a kernel argument (GL) or an allocation in shared memory.
struct MemBuffer {
  ir::BufferPtr buffer;
  std::string c_name;
  ir::ScalarType dtype;
  ir::Memory memory;
  Expr size_elems;                       // legal offsets are [0, size_elems)
  std::int64_t shared_offset_bytes = 0;  // SH: where it starts in the block's shared memory
  int argument = -1;                     // GL: position among the tensors of the kernel's arguments
  int list_index = 0;                    // of a list of tensors: which one; they stand one after the other
};

struct RegRef {  // value v of the atom's operand is register values[v] of the array
  int array = 0;
  std::vector<int> values;
};
// 0 <= at, or with a size at < size: what an index says of itself. The code makes no access where that is not true, and
// the simulator reports it. `where`: 0 where another operand is the part of a tile that its tensor does not have, so
// that nothing is done anyway.
struct Claim {
  Expr at;
  std::optional<Expr> size;
  Expr where = 1;
};
// How a tensor map addresses an operand in global memory: the box of Program::maps[map] that starts at the coordinates
// `at`, fastest dimension first. Element e of the box (colexicographic) is value e of the operand. What lies outside of
// the map's extents reads as zero, and is not written.
struct Boxed {
  int map = 0;
  std::vector<Expr> at;  // may be negative or past the end
};
// How a matrix descriptor addresses an operand in shared memory: `bits` but for bits 0 to 13, which are bits 4 to 17 of
// the operand's address (PTX ISA, wgmma: matrix descriptor format).
struct Descriptor {
  std::uint64_t bits = 0;
  bool mn_major = false;
};
struct MemRef {  // value v lives at element offset + deltas[v]; swizzles are already applied
  int buffer = 0;
  Expr member = 0;  // of a list of tensors: `buffer` is its first one, the access goes to `buffer` + member
  Expr offset;      // elements; may depend on tid, blocks, loops, scalars
  std::vector<std::int64_t> deltas;
  // All values are inside the tensor (1) or, where this is 0, all are outside: an input then reads as the attribute
  // `fill` (0 by default) and nothing is accessed. Of an output it is also part of AtomCall::predicate.
  Expr inside = 1;
  Expr tiles = 1;  // of `inside`, what tiles say; the rest is claimed by indices
  std::vector<Claim> claims;
  // Of an input of Guard::Bytes that the end of the tensor may cut: where `inside` holds, values 0 to valid_values - 1
  // are inside (at least one) and the others read as the fill. Absent: all are.
  std::optional<Expr> valid_values = std::nullopt;
  std::optional<Boxed> boxed = std::nullopt;            // Via::TensorMap
  std::optional<Descriptor> descriptor = std::nullopt;  // Via::Descriptor
  std::optional<Expr> rank = std::nullopt;              // shared memory of that block of the cluster; absent: the own
  // Of an input of Guard::Redirect that may be outside: a lane outside reads this row of Program::fill_rows. -1: none.
  int fill_row = -1;
};
struct ImmRef {  // `dtype` has the value
  ir::Constant value;
  ir::ScalarType dtype = ir::ScalarType::fp32;
};
struct ExprRef {
  Expr value;
  ir::ScalarType dtype = ir::ScalarType::i32;
};
using Operand = std::variant<RegRef, MemRef, ImmRef, ExprRef>;

// One instruction. `predicate` 1: always; where it is 0 the thread does nothing (an output is outside, or a MatMul's
// input is: it would add zero). Inputs outside are MemRef::inside: they read as the fill, so that a Move out of a
// partial tile still writes its destination.
struct AtomCall {
  atoms::InstancePtr atom;
  ir::ScalarType dtype;  // what the instance's dtype variable is bound to (of the first operand that has one)
  std::vector<Operand> out, in, aux;
  ir::Attrs attrs;
  Expr predicate = 1;
  ir::ThreadPtr threads;  // the collective that executes it; [].thread: each thread for itself
  ir::ThreadPtr to;       // blocks of the cluster that it acts on (a multicast, a remote arrival); null: the own block
  std::vector<RegRef> completes;  // of a wait: the registers that no operation uses any more once it is over
};

struct Loop {
  Expr var, start, stop, step;
  int unroll = 1;
  Expr condition = 1;  // asked before each turn
  Block body;
};
// What a thread shows: a text and values, which are registers and integers. With a condition only where that does not
// hold, and then the thread goes no further.
struct Tell {
  std::string text;
  std::vector<Operand> values;
  std::optional<Expr> condition;
};
struct If {  // also gr.only: `uniform_for` is then the group for which the branch is uniform
  Expr condition;
  Block then_body, else_body;
  ir::ThreadPtr uniform_for;
};
struct ExitIf {
  Expr condition;
};
struct ScalarSet {
  Expr var, value;
  bool declare = false;
  std::optional<RegRef> from;  // an integer read from a register; its facts are the data's to keep
};

// A decomposed spec: its promise is due when every thread of the group has left the body. Views are those of the IR
// with unrolled counters substituted.
struct SpecScope {
  ir::SpecKind kind;
  ir::Attrs attrs;
  std::vector<ir::Tensor> outs;
  std::vector<std::variant<ir::Tensor, double, Expr>> ins;
  ir::ThreadPtr blocks, threads;
  std::string means;
  Block body;
};

struct Node {
  const ir::Stmt* origin = nullptr;  // the IR statement it implements; outlives the tree (Program::kernel)
  std::variant<AtomCall, Loop, If, ExitIf, ScalarSet, SpecScope, Tell> node;

  template <class T>
  [[nodiscard]] const T* as() const {
    return std::get_if<T>(&node);
  }
};

// What the arguments of a launch must satisfy, and which statement needs it.
struct Fact {
  atoms::LaunchFact fact;
  const ir::Stmt* origin = nullptr;
};

// Bytes of shared memory that hold copies of a fill, written when the kernel starts: what lanes outside read where all
// of them must execute an instruction together.
struct FillRow {
  std::int64_t shared_offset_bytes = 0;
  std::int64_t bytes = 16;
  ir::ScalarType dtype;
  ir::Constant value;
};

inline constexpr std::size_t kMostMaps = 28;  // of a kernel: its parameters are 4 KiB at most

// What cuTensorMapEncodeTiled is told of an argument: its dimensions, fastest first, and the box that a copy moves.
struct TensorMap {
  struct Dim {
    Expr extent, stride_elems;  // the fastest dimension's stride is 1
  };
  int argument = 0;  // its MemBuffer
  std::vector<Dim> dims;
  std::vector<std::int64_t> box;
  int swizzle_bytes = 0;  // 0, 32, 64, 128: the span of the swizzle on the shared side
};

struct Program {
  ir::KernelPtr kernel;
  std::string arch;  // "sm_90a"
  std::vector<RegArray> registers;
  std::vector<MemBuffer> buffers;  // arguments first, in order; then shared allocations
  std::vector<Expr> grid;          // up to three extents, over the kernel's symbols
  std::int64_t block_threads = 1;
  std::int64_t shared_bytes = 0;         // fill rows included
  std::int64_t shared_align_bytes = 16;  // of where they start, beyond what buffers say: what agents need
  std::vector<FillRow> fill_rows;
  std::vector<TensorMap> maps;  // passed behind the symbols, equal ones once
  std::int64_t cluster = 1;     // blocks of a cluster
  std::vector<Fact> facts;
  Block prologue;  // initialises mbarriers: one thread of the block executes it before anything else
  Block body;
};
using ProgramPtr = std::shared_ptr<const Program>;

// Width of a symbol as a kernel parameter: 32 when its facts fit a signed 32-bit integer, else 64.
[[nodiscard]] int symbol_bits(const Expr& symbol);

// Called now and then while something long runs; may throw, to end it.
using Poll = std::function<void()>;

// Verifies, matches and lowers. Throws every problem found at once (VerifyError, SelectError).
[[nodiscard]] ProgramPtr lower(const ir::KernelPtr& kernel, const std::string& arch, const Poll& poll = {});

// The same without the rules of `verify`: for tests of what the simulator finds where a rule fails to.
[[nodiscard]] ProgramPtr lower_unverified(const ir::KernelPtr& kernel, const std::string& arch, const Poll& poll = {});

}  // namespace graphene::lower
