// The simulator: values as the device computes them, in memory where every access is checked.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sim/machine.h"
#include "sim/matmul.h"
#include "sim/roundings.h"
#include "sim/trace.h"
#include "sim/watch.h"

namespace graphene::sim {

struct Stats {
  std::uint64_t lane_ops = 0;  // one thread executing one atom
  std::uint64_t accesses = 0;  // elements read or written in memory
};

// One kernel argument: element 0 and how many bytes from there on may be touched.
struct Argument {
  char* data = nullptr;
  std::int64_t bytes = 0;
};

// What a run reached of a kernel's text.
struct Coverage {
  enum class What : std::uint8_t {
    Executed,   // a statement, by some thread
    Left,       // a statement's predicate did not hold for some thread
    Repeated,   // a loop whose number of turns the text leaves open: its body, at least twice by some thread
    Again,      // a statement in such a body
    DidNotHold  // a condition of an `if`, for some thread; a loop was not entered
  };
  struct Event {
    const ir::Stmt* stmt = nullptr;
    What what = What::Executed;
    friend auto operator<=>(const Event&, const Event&) = default;
  };
  std::vector<Event> reached;
  // Statements that no thread executed, and loops whose number of turns the text leaves open that none repeated, in the
  // order of the code.
  std::vector<Event> missed;
};

class Interpreter final : public Machine {
 public:
  // `arguments`: per tensor argument of the program.
  Interpreter(const Bytecode& code, std::span<const Argument> arguments, std::uint64_t seed);

  void simulate();  // the whole grid; then every element of every output must have been written
  [[nodiscard]] const Stats& stats() const { return stats_; }
  std::function<void(const std::string&)> print;  // where wanted: called with each line that a thread prints
  Trace* trace = nullptr;                         // of the first block, where wanted
  [[nodiscard]] bool traces() const { return trace != nullptr && trace->records(); }
  // Of the elements of a buffer in memory: 1 where a plain write was the last access that changed it.
  [[nodiscard]] std::vector<char> written(std::size_t buffer) const;
  // Where wanted: called with what each warp is about to execute, and by which lanes.
  std::function<void(const Warp&, const Leaf&, Mask)> observe;
  Watch* watch = nullptr;  // where wanted: takes down what threads write
  void track_roundings();  // before it runs
  [[nodiscard]] std::vector<Rounding> roundings() const;
  [[nodiscard]] Coverage coverage() const;

 protected:
  void begin_block() override;
  void end_block() override;
  void leaf(Warp& w, const Leaf& f) override;
  void synchronise(const ThreadGroup& members) override;
  void read_index(Warp& w, const SetCode& set, Lanes& to, const ir::Stmt* origin) override;
  void group(Warp& w, const GroupSync& g) override;
  void judge_arrival(const Warp& w, int lane, int mbarrier, const PhaseSync& s) override;
  void judge_phase(int mbarrier) override;
  void judge_wait(Warp& w, Mask lanes, int mbarrier, const PhaseSync& s) override;
  void arrived(Warp& w, const PhaseSync& s, int mbarrier) override;
  void meet(const ThreadGroup& members) override;
  void fence(Warp& w, const ProxyFence& f) override;
  void converge(Warp& w) override;
  void check_facts(const Warp& w, const SetCode& set, const ir::Stmt* origin) const override;
  void tell(Warp& w, const TellCode& code, const ir::Stmt* origin) override;
  void past_bound(const Warp& w, Mask lanes, const ir::Stmt* origin) const override;

 private:
  // Bytes that one or several buffers (arguments that overlap, `over`) share. A granule is the smallest element.
  struct Arena {
    char* data = nullptr;
    std::vector<char> own;
    std::int64_t granules = 0;
    int granule_bits = 8;
    bool tracked = false;     // some access may race or read something undefined
    bool overlapped = false;  // a granule belongs to several shared buffers
    bool shared = false;
    Shadow shadow;
  };
  struct Place {
    int arena = 0;
    std::int32_t first = 0;  // granule of element 0
    int ratio = 1;           // granules per element
    char* data = nullptr;    // of element 0
  };
  struct WarpData {
    std::vector<char> registers;
    std::vector<Mask> undefined;       // per register
    std::vector<std::uint32_t> cause;  // per register: the leaf that made it undefined, 0: never written
    CountedVector<AccessMemo> memos;
    Issuer issuer;                                        // of the lanes' own accesses
    Issuer copier;                                        // of the copies that the leaf at hand issues
    const Issuer* by = nullptr;                           // the one of both that accesses now
    std::vector<std::array<Epoch, kLanes>> reads_shared;  // per domain: the last group that reads shared memory
    // Where agents multiply: of each register the group of products that uses it, counted from 1 (0: none), and whether
    // it was accessed since the last fence.
    struct Use {
      std::size_t group = 0;
      bool written = false;
      bool accessed = true;
      const Leaf* by = nullptr;
      const Leaf* accessed_by = nullptr;
    };
    std::vector<Use> used;
    std::size_t groups = 0, done = 0;  // that the warp has committed, and waited for
  };
  struct Value {
    const char* bits = nullptr;
    Mask undefined = 0;
    std::uint32_t cause = 0;
  };
  struct Address {
    Mask lanes = 0;  // that access memory
    const LaneGroups* groups = nullptr;
    alignas(64) std::int32_t offset[kLanes];
    LaneGroups built, part;
    std::vector<Mask> inside;     // of a vector that is cut, per value: lanes whose value is inside
    std::vector<char> unchanged;  // per value, of an update: nothing to record
  };
  using Values = std::vector<Value>;
  struct At {
    const Warp& warp;
    const Leaf& leaf;
    const Operand& operand;
  };
  struct TagState {
    struct LeafTags {
      bool selects = false;        // gives an operand's value, else a new one
      Tag result = 0;              // of values that the leaf makes or narrows
      std::vector<Tag> converted;  // by tag of an operand: the result's; kUnknown: not asked yet
    };
    static constexpr Tag kUnknown = 0xffff;
    Roundings roundings;
    std::vector<LeafTags> leaves;
    std::vector<std::vector<LaneTags>> registers;  // per warp
    std::vector<CountedVector<Tag>> memory;        // per arena and granule; empty: as the kernel found it
    std::vector<char> read;                        // per arena: some leaf reads it
    std::array<std::vector<LaneTags>, 5> values;   // as values_
    Address address;
  };

  void place_arguments(std::span<const Argument> arguments);
  void place_shared(int rank);
  void check_outputs() const;

  [[nodiscard]] Place& place(int buffer, int rank) {
    return places_[static_cast<std::size_t>(rank) * code_.program->buffers.size() + static_cast<std::size_t>(buffer)];
  }
  [[nodiscard]] const Place& place_of(const Warp& w, const Operand& o) {
    return place(o.buffer, o.remote ? remote_rank_ : w.rank);
  }
  [[nodiscard]] WarpData& data(const Warp& w) { return warp_data_[static_cast<std::size_t>(w.id)]; }
  [[nodiscard]] char* reg(WarpData& d, int r) const {
    return d.registers.data() + register_at_[static_cast<std::size_t>(r)];
  }

  // ---- interp_memory.cpp
  void address(const Warp& w, const Leaf& f, const Operand& o, Mask lanes, Address& a);
  void load(const Warp& w, const Leaf& f, const Operand& o, Mask lanes, Address& a, bool update, Values& out,
            char* scratch);
  void store(const Warp& w, const Leaf& f, const Operand& o, Address& a, bool update, const Values& in);
  void store_value(const Warp& w, const Leaf& f, const Operand& o, Address& a, int v, const Value& x, bool update);
  void check_claims(const Warp& w, const Leaf& f, Mask lanes) const;
  void check_frozen(const At& at, const Arena& arena, const Place& place, Mask lanes,
                    const std::int32_t* granules) const;
  void check_alignment(const Warp& w, const Leaf& f, const Operand& o, const Address& a) const;
  void check_equal_writes(const Warp& w, const Leaf& f, const Operand& o, const Address& a, const LaneGroups& groups,
                          int v, const Value& x) const;

  // ---- interp_leaf.cpp
  void run_leaf(Warp& w, const Leaf& f, Mask lanes);
  void execute_remote(const Warp& w, const Leaf& f, Mask lanes);
  void execute(const Warp& w, const Leaf& f, Mask lanes);
  void fetch(const Warp& w, const Leaf& f, const Operand& o, Mask lanes, std::size_t slot);
  void fetch_old(const Warp& w, const Leaf& f, Mask lanes);  // of an update: the output's value before
  void put(const Warp& w, const Leaf& f, Mask lanes, const Values& values);
  void put_registers(const Warp& w, const Leaf& f, const Operand& o, Mask lanes, const Values& values);
  void thread_leaf(const Warp& w, const Leaf& f, Mask lanes);
  void regroup(const Warp& w, const Leaf& f, Mask lanes);
  void apply_own(const Warp& w, const Leaf& f, Mask lanes);
  void move_together(const Warp& w, const Leaf& f, Mask lanes);
  void shuffle(const Warp& w, const Leaf& f, Mask lanes);
  void multiply(const Warp& w, const Leaf& f, Mask lanes);
  void reduce(const Warp& w, const Leaf& f, Mask lanes);
  void vote(const Warp& w, const Leaf& f, Mask lanes);
  void check_converged(const Warp& w, const Leaf& f, Mask lanes) const;
  [[nodiscard]] static std::int64_t exchange_source(const Leaf& f, std::int64_t rank, std::int64_t arg);
  [[nodiscard]] static const std::vector<std::vector<int>>& groups_of(const Warp& w, const Leaf& f);
  [[nodiscard]] Mask lanes_of_ranks(const Warp& w, const Leaf& f, Mask ranks) const;

  // ---- interp_bulk.cpp
  struct Side {  // of an agent's copy: its elements in order
    int rank = 0;
    std::vector<std::int64_t> elements;   // of the buffer, or kOutside
    std::vector<std::int32_t> granules;   // of those inside
    std::vector<std::uint32_t> position;  // of each granule: its element's in `elements`
  };
  void copy_bulk(const Warp& w, const Leaf& f, int lane);
  void trace_copy(const Warp& w, const Leaf& f, int lane, const std::vector<int>& targets);
  struct Ends {  // of an agent's copy: the operands, where they lie, and who writes
    const Operand &in, &out;
    const Place &source, &at;
    const Arena& read;
    Arena& arena;
    Issuer writer;
  };
  [[nodiscard]] Ends ends(const Leaf& f, const Issuer& by, const Side& from, const Side& to);
  void locate(const Warp& w, const Leaf& f, const Operand& o, int lane, int rank, Side& side);
  void read_side(const Warp& w, const Leaf& f, const Issuer& by, int lane, const Side& side);
  void write_side(const Warp& w, const Leaf& f, const Issuer& by, int lane, const Side& from, const Side& to);
  void combine_side(const Warp& w, const Leaf& f, const Issuer& by, int lane, const Side& from, const Side& to);
  void tag_side(const Warp& w, const Leaf& f, const Side& from, const Side& to);

  // ---- interp_products.cpp
  void begin_product(const Warp& w, const Leaf& f);
  void use_registers(const Warp& w, const Leaf& f, const Operand& o);  // of one warp, by its threads
  void fetch_whole(const Warp& w, const Leaf& f, const Operand& o, std::size_t slot);
  void fence_registers(const Warp& w);
  void group_products(Warp& w, const GroupSync& g);
  void check_products() const;  // at the end of a block
  [[nodiscard]] static int agent_of(const Warp& w) { return w.id / kWarpgroup; }
  [[noreturn]] void in_flight(const Warp& w, const Leaf& f, const Operand& o, std::size_t value, const Leaf* by,
                              const std::string& message, const std::string& fix) const;

  // ---- interp_phases.cpp
  void know_initialised(const ThreadGroup& members);
  void know_named();
  // The thread that acts at an mbarrier.
  struct Actor {
    const Warp* warp = nullptr;
    int lane = 0;
    const ir::Stmt* origin = nullptr;
  };
  [[noreturn]] void phase_error(PhaseFault fault, const Actor& by, int mbarrier, const char* what) const;
  [[noreturn]] void copy_error(PhaseFault fault, const Warp& w, const Leaf& f, int lane, int mbarrier) const;
  void check_landed() const;    // at the end of a block
  void check_arrivals() const;  // at the end of a cluster
  // A block must run when another one accesses its shared memory: from a moment that the one accessing knows of, to
  // one that knows of the access.
  void check_begun(const Warp& w, const Leaf& f, Mask lanes, int rank) const;
  void check_reached() const;  // at the end of a cluster

  // ---- interp_watch.cpp
  void note(const Wrote& wrote);
  void note_registers(const Warp& w, const Leaf& f, const Operand& o, Mask lanes);
  void note_memory(const Warp& w, const Leaf& f, const Operand& o, Mask lanes);
  void note_written(const Warp& w, const Leaf& f, Mask lanes);

  // ---- interp_tell.cpp
  [[nodiscard]] std::string shown(const Warp& w, const TellCode& code, int lane);

  // ---- interp_atomic.cpp
  void accumulate(const Warp& w, const Leaf& f, Mask lanes);
  void give_old(const Warp& w, const Leaf& f, std::size_t value, Mask lanes, const char* old, Mask undefined);

  // ---- interp_roundings.cpp
  void tag_leaf(const Warp& w, const Leaf& f, Mask lanes);
  void fetch_tags(const Warp& w, const Leaf& f, const Operand& o, Mask lanes, std::size_t slot);
  void put_tags(const Warp& w, const Leaf& f, const Operand& o, Mask lanes);
  void tag_exchange(const Warp& w, const Leaf& f, Mask lanes);
  void tag_selection(const Warp& w, const Leaf& f);
  [[nodiscard]] Tag converted(Tag tag, std::size_t leaf, ir::ScalarType to);

  // ---- interp_report.cpp
  void check_unfinished() const;  // at the end of a block
  [[noreturn]] void race(const At& at, const Conflict& c, std::int64_t element, bool writes) const;
  [[noreturn]] void out_of_bounds(const At& at, int lane, std::int64_t element) const;
  [[noreturn]] void claim_broken(const At& at, const Claim& claim, int lane, std::int64_t index,
                                 std::int64_t size) const;
  [[noreturn]] void misaligned(const At& at, int lane, std::int64_t element) const;
  void undefined_store(const At& at, int lane, std::int64_t element, std::uint32_t cause);
  [[noreturn]] void write_conflict(const At& at, int lane, int other, std::int64_t element, std::uint64_t bits,
                                   std::uint64_t other_bits) const;
  [[nodiscard]] std::string thread_text(std::int64_t block, int thread) const;
  [[nodiscard]] std::string thread_text(const Warp& w, int lane) const {
    return thread_text(block_of(w), w.local * kLanes + lane);
  }
  [[nodiscard]] std::string domain_text(std::size_t domain) const;
  [[nodiscard]] std::string earlier_text(const Conflict& c) const;  // who it was
  [[nodiscard]] std::string element_text(int buffer, std::int64_t element) const;
  using Machine::block_of;
  [[nodiscard]] std::int64_t block_of(Epoch e) const;  // the first of its cluster

  std::vector<Arena> arenas_;
  std::vector<Place> places_;  // per buffer; those of rank 1 of the cluster behind those of rank 0, and so on
  std::vector<std::size_t> register_at_;
  std::size_t register_bytes_ = 0;
  std::vector<WarpData> warp_data_;
  std::optional<HappensBefore> order_;
  struct Copied {  // the last copy that completes on an mbarrier
    std::int64_t phase = -1;
    const Leaf* leaf = nullptr;
    int warp = 0, lane = 0;  // that issued it
  };
  struct Arrived {  // a lane's last arrival at another block
    Epoch epoch = 0;
    int mbarrier = 0;
    const ir::Stmt* origin = nullptr;
  };
  std::vector<std::map<std::pair<int, int>, Arrived>> arrived_;  // per block of the cluster, by warp and lane
  std::vector<Copied> copied_;                                   // per mbarrier
  struct Reached {  // a lane's last access to the shared memory of another block
    Epoch epoch = 0;
    const Leaf* leaf = nullptr;
  };
  std::vector<std::map<std::pair<int, int>, Reached>> reached_;  // per block of the cluster, by warp and lane
  int remote_rank_ = 0;                                          // of remote operands of the leaf at hand
  static constexpr int kWarpgroup = 4;                           // warps
  std::vector<std::size_t> closed_;                              // per warpgroup: groups of products
  Actor acts_;                                                   // at an mbarrier
  Side from_, to_;
  ReadSets sets_;
  enum Ran : char { kExecuted = 1, kLeft = 2 };
  std::vector<char> ran_;  // per leaf, ORed
  std::uint64_t settled_ = 0;
  std::vector<std::pair<Epoch, std::int64_t>> block_epochs_;  // first epoch of each block that ran
  Stats stats_;
  // The first undefined value that reached global memory in this block. It may have come from a race, which says more
  // and may be found later: it is thrown when the block ends.
  std::optional<Diagnostic> undefined_;

  // Scratch of one leaf: inputs, the output's old value, results.
  static constexpr std::size_t kSlots = 5;
  static constexpr std::size_t kOld = 3;
  static constexpr std::size_t kResult = 4;
  std::array<Values, kSlots> values_;
  std::array<std::vector<char>, kSlots> scratch_;
  Address in_address_, out_address_;
  TileScratch tiles_;
  std::unique_ptr<TagState> tags_;  // null: roundings are not wanted
};

}  // namespace graphene::sim
