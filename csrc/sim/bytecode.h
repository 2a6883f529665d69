// A lowered program compiled for one launch: flat instructions over warps of 32 lanes. Control flow is structured, so a
// warp is a program counter, its integer variables and a stack of masks; it can stop at any instruction and resume.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "atoms/atom.h"
#include "lower/lowered.h"
#include "sim/ints.h"
#include "sim/means.h"
#include "sim/shadow.h"
#include "sim/values.h"

namespace graphene::sim {

// lower::Claim: where `where` is not 0, 0 <= at, or with `past` at < size.
struct Claim {
  IntPlan where, at, size;
  bool past = false;
  const lower::Claim* origin = nullptr;
};

// A dimension of a tensor map, of one copy: the box begins at `at`; what lies outside of the extent is not accessed.
struct BoxDim {
  IntPlan at, extent, stride;
  std::int64_t box = 1;
};

// An operand of an atom as 32-lane vectors, one per value; of an agent's copy, one list of elements.
struct Operand {
  enum class Kind : std::uint8_t { Registers, Memory, Constant, Integer } kind = Kind::Registers;
  ir::ScalarType dtype = ir::ScalarType::fp32;
  int bytes = 4;
  int values = 1;
  atoms::Access access = atoms::Access::Read;
  std::vector<int> registers;  // Registers: value v is register registers[v] of the warp

  // Memory: value v is element offset + deltas[v] of the buffer.
  int buffer = -1;
  IntPlan offset;
  std::vector<std::int32_t> deltas;
  IntPlan rank;             // of another block of the cluster: whose memory it is
  bool remote = false;      // `rank` counts
  bool whole = false;       // an agent's: a tile of deltas.size() elements, 32 to a value
  std::vector<BoxDim> box;  // of an agent's copy by a tensor map, fastest dimension first: instead of the deltas
  std::int32_t lowest = 0, highest = 0;  // of the deltas
  IntPlan inside;                        // 0: outside, an input reads as `fill`
  IntPlan valid;                         // where inside: only the first `valid` values are, the others read as `fill`
  bool cut = false;                      // `valid` counts
  std::vector<Claim> claims;
  std::uint64_t fill = 0;
  int align_elems = 1;             // of offset + deltas[0]
  int memo = -1;                   // first of the operand's memos (per value and part of a value)
  std::vector<LaneGroups> groups;  // per warp, all its lanes active; empty: known only when it runs
  std::vector<Mask> lanes;         // of a collective, per value: lanes (by rank) whose memory is accessed; empty: all

  std::uint64_t constant = 0;  // Constant: raw bits
  IntPlan integer;             // Integer
};

// The threads that execute an atom together. Those of several warps (`span` of them, all their lanes in order) count as
// 32 lanes of the first one with `span` times the values: value v of rank r is value v * span + r / 32 of lane r % 32.
struct Collective {
  int size = 1;
  int span = 1;
  // Per warp, per collective: its lanes by rank.
  std::vector<std::vector<std::vector<int>>> groups;
};

// Where an element of a tile lives: value `value` of the thread of rank `rank`.
struct Holder {
  std::int16_t rank = 0;
  std::int16_t value = 0;
};

// MatMul over named axes: d[b,m,n] (+)= sum over k of a[b,m,k] * b[b,k,n]; batch axes in all, and so on.
struct Einsum {
  int batch = 1, m = 1, n = 1, k = 1;
  std::vector<Holder> a, b;            // (batch, m, k) and (batch, k, n), last fastest
  std::vector<std::vector<Holder>> d;  // (batch, m, n): every holder
  std::vector<Holder> first_d;         // the first of each
  bool copies = false;                 // some element of d has several holders
  int group = 0;                       // products summed in one rounding step; 0: all
  int guard_bits = -1;                 // kept below the largest term's last bit (negative: less); -1: exact sum
  bool truncate = false;               // toward zero, else to nearest even
  int bits = 24;                       // of a sum that is cut
  bool chain = false;                  // a group's products one after the other in fp32, then their sum to the total
  bool accumulate = true;
  bool saturate = false;  // integers: else they wrap
};

// Blocks of the cluster, by rank; none: the own.
using Ranks = std::vector<IntPlan>;

// Which mbarrier of a block: the element of Bytecode::mbarriers[of].
struct MBarrierRef {
  int of = -1;
  IntPlan element;
};

struct Leaf {
  const lower::AtomCall* call = nullptr;
  const ir::Stmt* origin = nullptr;
  atoms::Kind kind = atoms::Kind::Move;
  std::vector<Operand> out, in;
  IntPlan predicate;
  bool always = true;
  bool claims = false;  // some operand has them
  bool remote = false;  // some operand is in another block's memory
  int converge = 1;
  int span = 1;     // warps of a collective: the first executes for all, between two meetings
  int domain = -1;  // of Bytecode::copy_domains: it completes when its thread waits for its group; -1: at once
  // An agent moves whole operands for the thread that issues it. It completes on an mbarrier, or with the thread's
  // group
  // (`domain`; its source is read when that of `reads` is over).
  bool bulk = false;
  int reads = -1;
  MBarrierRef done;
  Ranks to;  // blocks that receive it
  // An agent multiplies for a warpgroup: its registers are in use until a group of products is over.
  bool product = false;
  IntPlan accumulate;  // of a MatMul that accumulates: 0 where it starts anew
  std::uint32_t site = 0;
  std::shared_ptr<const Collective> collective;  // null: each thread for itself

  bool coherent = true;   // false: reads memory as if nobody wrote it while the kernel runs
  bool regroups = false;  // the input's values are the output's bits, in the order of registers
  bool atomic = false;    // Move: combines with what is there by `op`, lane after lane
  AtomicKind atomic_kind;
  // One thread: value v of the output takes values of the inputs.
  Pointwise op;
  std::vector<std::vector<int>> takes;  // per input, per output value
  // Collective Move, Shfl: output value and rank -> the holder it comes from.
  std::vector<std::vector<Holder>> from;
  std::shared_ptr<const Einsum> einsum;
  std::vector<std::vector<Holder>> reduced;  // Reduction: per output element, what is combined
  std::vector<std::vector<Holder>> holders;  // Reduction: per output element, who gets it
  std::string mode;                          // Shfl
  IntPlan arg;
};

// A barrier over all threads of a block, or over the group that each thread belongs to.
struct Barrier {
  const ir::Stmt* origin = nullptr;
  bool block = true;
  bool cluster = false;  // all threads of all blocks of the cluster
  bool within_warp = false;
  bool orders = true;         // false: warps only meet, nobody's accesses become known to others
  std::vector<int> group_of;  // not of the block: per thread, which of Bytecode::groups it is in; -1: none
};
// Each thread closes its open group of copies, then waits until at most `pending` of its newest groups are in flight;
// or does one of both.
struct GroupSync {
  const ir::Stmt* origin = nullptr;
  int domain = -1;  // -1: none
  int reads = -1;   // the domain of the same copies' reads; -1: none
  bool commits = false;
  bool waits = false;     // for the domains that are not -1
  bool products = false;  // of the warpgroup's products, not of copies
  std::size_t pending = 0;
};
// The mbarriers of an allocation.
struct MBarrierCode {
  int buffer = 0;
  int first = 0, count = 1;  // among those of a block
  int step = 1;              // elements of a stage
  int wanted = 1;            // arrivals of a phase
};
// At an mbarrier each executing thread arrives, or waits until the phase of a parity is over.
struct PhaseSync {
  const ir::Stmt* origin = nullptr;
  MBarrierRef barrier;
  IntPlan parity;  // of a wait
  IntPlan expect;  // bytes, of an arrival
  Ranks to;
  int copies = -1;       // an arrival once the thread's copies of this domain have landed
  bool cluster = false;  // releases to threads of other blocks, or acquires from them
  // A named barrier, of which whole warps are told when a round is over: `threads` arrive or wait in one.
  int threads = 0;
};
// What the threads did is what their agents may follow.
struct ProxyFence {
  const ir::Stmt* origin = nullptr;
  bool shared = false, global = false;
  bool registers = false;  // of products
};
using ThreadGroup = std::vector<HappensBefore::Participant>;  // its lanes in each warp

struct LoopCode {
  bool uniform = true;
  int slot = 0;
  IntPlan start, stop, step;
  IntPlan condition;  // asked before each turn
};

struct TellCode {  // what a thread shows
  const lower::Tell* tell = nullptr;
  std::vector<Operand> values;
  std::optional<IntPlan> condition;
};

struct Scope {  // a decomposed spec
  const lower::SpecScope* spec = nullptr;
  const ir::Stmt* origin = nullptr;
  Meaning means;  // its own kind and attributes, or what a generic one means
  // Whether it accumulates, where a condition says so when it is entered.
  std::optional<IntPlan> accumulate = std::nullopt;
  bool own = false;  // floats inside of it are functions of no known algebra: the reals decide
};

struct Instruction {
  enum class Op : std::uint8_t {
    Leaf,
    Barrier,
    Group,
    Arrive,
    WaitPhase,
    Fence,
    Converge,
    LoopBegin,
    LoopEnd,
    If,
    Else,
    EndIf,
    ExitIf,
    Set,
    Enter,
    Leave,
    Tell,
    End
  };
  Op op = Op::End;
  int index = 0;   // of the leaf, barrier, group or phase synchronisation, fence, loop, condition, set or scope
  int target = 0;  // LoopBegin: past the loop; LoopEnd: its body; If: the else part; Else: past the if
  const ir::Stmt* origin = nullptr;
};

struct SetCode {
  bool uniform = true;
  int slot = 0;
  IntPlan value;
  int from = -1;  // a register that holds the value
  Expr var;       // its variable, whose facts the value must keep
};

// The hardware barriers of a gr.named_barrier.
struct NamedBarrierCode {
  const ir::Buffer* buffer = nullptr;
  int first = 0;
  [[nodiscard]] int count() const { return static_cast<int>(buffer->size_elems().value()); }
};

struct Bytecode {
  lower::ProgramPtr program;
  std::vector<lower::NodePtr> copies;  // of its nodes, where one access became several
  std::unique_ptr<IntPlans> plans;
  sym::Substitution sizes;  // values of the kernel's sizes and integer parameters
  std::vector<Instruction> instructions;
  std::vector<Leaf> leaves;
  std::vector<Barrier> barriers;
  std::vector<GroupSync> group_syncs;
  std::vector<PhaseSync> phase_syncs;
  std::vector<ProxyFence> fences;
  std::vector<MBarrierCode> mbarriers;
  std::vector<NamedBarrierCode> named;                   // in `mbarriers` all of them are one
  int mbarrier_count = 0;                                // of a block
  [[nodiscard]] std::string barrier_name(int at) const;  // of an mbarrier or a named barrier: "full[2]"
  std::vector<std::string> copy_domains;                 // of entries whose `done` is "group:<domain>", one thread each
  bool products = false;                                 // some leaf is a product of a warpgroup's agent
  std::uint32_t async_domains = 0;                       // bits: those whose copies agents make
  std::vector<ThreadGroup> groups;                       // of barriers: statements with equal members share one
  std::vector<LoopCode> loops;
  std::vector<IntPlan> conditions;
  std::vector<SetCode> sets;
  std::vector<Scope> scopes;
  std::vector<TellCode> tells;
  std::vector<int> array_first;                        // per RegArray: its first register
  std::vector<ir::ScalarType> register_types;          // per register of a warp
  std::vector<std::pair<int, std::uint64_t>> initial;  // registers that scalar arguments set, and their bits
  std::vector<std::int64_t> buffer_elems;              // per MemBuffer
  std::vector<char> written;                           // per MemBuffer: some leaf writes it
  int memos = 0;
  std::array<std::int64_t, 3> grid{1, 1, 1};
  std::array<int, 3> block_slots{-1, -1, -1};  // uniform slots of the block indices; -1: unused
  [[nodiscard]] int cluster() const { return static_cast<int>(program->cluster); }  // blocks
  [[nodiscard]] int warps() const { return static_cast<int>((program->block_threads + kLanes - 1) / kLanes); }
  [[nodiscard]] Mask lanes_of(int warp) const {
    const std::int64_t n = program->block_threads - std::int64_t{warp} * kLanes;
    return n >= kLanes ? ~Mask{0} : (Mask{1} << n) - 1;
  }
};

// Of the device that the simulator stands for: enough for two clusters of two blocks.
inline constexpr std::int64_t kMultiprocessors = 4;

struct CompileOptions {
  sym::Substitution sizes;             // values of the kernel's sizes and integer parameters
  std::vector<std::uint64_t> scalars;  // bits of the scalar arguments, in order; missing ones are 0
  std::vector<int> skip;               // ids of synchronisation statements left out
  // Ids of waits that leave one more group in flight, or wait for the other phase; of arrivals that expect half the
  // bytes.
  std::vector<int> relax;
  bool scopes = false;     // mark decomposed specs
  bool unguarded = false;  // access what lies outside of partial tiles, too: without their predicates
};

// Throws SimulationError SIM_UNSUPPORTED for what the simulator does not run.
[[nodiscard]] Bytecode compile(const lower::ProgramPtr& program, CompileOptions options);

}  // namespace graphene::sim
