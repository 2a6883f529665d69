// What is known about every element of memory: its last write, whether that value is defined, and the reads since.
// Each access of a 32-lane instruction is checked against it and recorded in it (clocks.h has the law).
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/budget.h"
#include "sim/clocks.h"

namespace graphene::sim {

// Who accessed an element, in 64 bits: epoch 32 | undefined 1 | site 16 | owner 10 | lane 5. The site is the statement.
// Epoch 0: nobody, the element still holds what it held when the kernel began.
using Stamp = std::uint64_t;
inline constexpr Stamp kUndefinedBit = Stamp{1} << 31;
inline constexpr int kSiteShift = 15;
inline constexpr std::uint32_t kMaxSite = 0xffff;
inline constexpr std::uint32_t kMaxOwner = 0x3ff;
inline constexpr Stamp kWhoMask = 0x7fff;  // owner and lane
inline constexpr Stamp kNeverWritten = kUndefinedBit;
inline constexpr Stamp kInitial = 0;

constexpr Stamp make_stamp(Epoch epoch, std::uint32_t owner, int lane) {
  return (Stamp{epoch} << 32) | (Stamp{owner} << 5) | static_cast<Stamp>(lane);
}
constexpr Epoch epoch_of(Stamp s) { return static_cast<Epoch>(s >> 32); }
constexpr std::uint32_t owner_of(Stamp s) { return static_cast<std::uint32_t>(s >> 5) & kMaxOwner; }
constexpr int lane_of(Stamp s) { return static_cast<int>(s & 31); }
constexpr std::uint32_t site_of(Stamp s) { return static_cast<std::uint32_t>(s >> kSiteShift) & kMaxSite; }

// The issuer of an instruction. Its accesses are checked with the knowledge of `warp`'s lanes and recorded as `stamps`
// (which name an asynchronous agent where one performs them).
struct Issuer {
  const HappensBefore* order = nullptr;
  int warp = 0;
  bool generic = true;                             // accesses of the lanes themselves, hence in program order
  bool agent = false;                              // that meets accesses of threads by proxy fences
  bool global = false;                             // an agent's: of memory that all blocks share
  alignas(64) std::array<Stamp, kLanes> stamps{};  // site 0
  alignas(64) std::array<Stamp, kLanes> self{};    // owner and lane of the issuing lanes

  // Copies of one domain by lanes whose groups are open: checked as the lanes' own accesses, recorded as their agents'.
  void act_as_copies(int domain) {
    generic = false;
    for (int l = 0; l < kLanes; ++l) {
      const auto lane = static_cast<std::size_t>(l);
      self[lane] = make_stamp(0, static_cast<std::uint32_t>(warp), l);
      stamps[lane] = make_stamp(order->copy_epoch(warp, l, domain), order->copies_of(warp, domain), l);
    }
  }
  void refresh() {  // generic accesses of the warp, after its epoch changed
    generic = true;
    for (int l = 0; l < kLanes; ++l) {
      const auto lane = static_cast<std::size_t>(l);
      self[lane] = make_stamp(0, static_cast<std::uint32_t>(warp), l);
      stamps[lane] = make_stamp(order->epoch(warp), static_cast<std::uint32_t>(warp), l);
    }
  }
};

// Lanes that access the same element, leader first. Built once per address pattern and warp where it is static.
struct LaneGroups {
  bool distinct = true;  // every lane its own element
  int run = 1;           // of all 32 lanes: each group of `run` consecutive ones shares an element
  int period = kLanes;   // of all 32 lanes: lane l has the element of lane l % period
  std::vector<int> leaders;
  std::vector<Mask> masks;

  void build(Mask lanes, const std::int32_t* offsets);
};

// Per instruction and warp: transitions of read sets and verdicts that hold while the warp's version does.
struct AccessMemo {
  std::uint64_t version = 0;
  bool grouped = false;                                  // read: transitions are of `lanes`, else of each lane alone
  alignas(64) std::array<std::uint32_t, kLanes> from{};  // read: this set ...
  alignas(64) std::array<std::uint32_t, kLanes> to{};    // ... became this one. write: this set is ordered before
  alignas(64) std::array<Mask, kLanes> lanes{};
};

// How an atomic update combines: those of one operation and type need no order among themselves.
struct AtomicKind {
  std::uint32_t operation = 0;
  bool of_block = false;  // atomic for the threads of its block alone
};

// The first access found in conflict by an instruction.
struct Conflict {
  enum class Why : std::uint8_t {
    Unordered,
    Kinds,       // unordered atomic updates that combine differently
    Scope,       // atomic updates of several blocks, some of them atomic for their block alone
    Incoherent,  // a read through a cache that never learns of the write
    Unfenced     // ordered, but no proxy fence stands between the thread's access and the agent's
  };
  Why why = Why::Unordered;
  int lane = 0;
  std::int32_t offset = 0;
  Stamp earlier = 0;  // a representative where several lanes read
  bool earlier_wrote = false;
  bool other_block = false;  // blocks are unordered with each other
};

// Sets of reads, interned: elements that saw the same reads share one number, so that recording a read is one compare
// in the common case. 0 is the empty set.
class ReadSets {
 public:
  using Id = std::uint32_t;

  // A later block begins: reads recorded so far belong to other blocks.
  void begin_block();
  // Every read by threads themselves that was recorded in this block is ordered before everything still to come in it.
  // Sets are forgotten, unless an agent has read: what it read is not settled by a barrier.
  void settle();

  // `did`: Wrote where the sets are of atomic updates. `each`: of one lane, and each other one of the warp reads an
  // element of its own, too: their sets are made together.
  [[nodiscard]] Id add(Id old, const Issuer& by, Mask lanes, std::uint32_t site, Did did = Did::Read,
                       bool each = false);
  // Whether lane `lane` may write an element with these reads; of an agent, whether fences stand between, too.
  [[nodiscard]] bool ordered(Id id, const Issuer& by, int lane, Did did = Did::Read) const;
  [[nodiscard]] Conflict conflict(Id id, const Issuer& by, int lane, Did did = Did::Read) const;
  [[nodiscard]] bool foreign(Id id) const { return (id & kForeignFlag) != 0 || (id != 0 && id < block_first_); }
  [[nodiscard]] Stamp representative(Id id) const;

 private:
  static constexpr Id kForeignFlag = 0x80000000U;  // a thread of another block has read it too
  struct Read {
    std::uint32_t owner;
    Mask lanes;
    Epoch epoch;
    std::uint32_t site;
    friend bool operator==(const Read&, const Read&) = default;
  };
  static constexpr std::uint64_t kNoHash = 0;  // of sets that `index_` leaves out
  struct Set {                                 // of `reads_`
    std::size_t first = 0, count = 0;
    std::uint64_t hash = kNoHash;
  };

  [[nodiscard]] std::span<const Read> find(Id id) const;  // empty, too, where it is settled
  // The sets of one read of a statement by one lane each of a warp: of lane l the set first + l.
  struct Single {
    Id first = 0;
    std::uint32_t owner = 0;
    Epoch epoch = 0;
  };

  void forget();
  Id only(const Issuer& by, Mask lanes, std::uint32_t site, bool foreign, bool each);
  void remember(Id id, const Read& r);
  Id intern(std::span<const Read> set, bool foreign);
  [[nodiscard]] std::size_t slot(std::uint64_t hash, std::span<const Read> set) const;  // of `index_`

  bool agents_ = false;  // some read of this block is an agent's
  Id next_ = 1;
  Id first_ = 1;             // sets below are settled
  Id block_first_ = 1;       // sets below are of other blocks
  CountedVector<Set> sets_;  // of ids from first_ on
  CountedVector<Read> reads_;
  CountedVector<Id> index_;         // open addresses, a power of two; an id below first_ is none
  std::vector<Read> made_, fresh_;  // by add()
  static constexpr std::size_t kKept = std::size_t{1} << 16;
  std::size_t hashed_ = 0;      // sets in `index_`
  std::vector<Single> single_;  // by statement: of the warp and epoch that read last
  std::vector<Stamp> recent_;  // one reader of each of the latest sets, by id modulo kKept: names other blocks' readers
};

// Many elements that one agent accesses for those who issued it.
struct Bulk {
  const Issuer* by = nullptr;  // an agent; every stamp is its own
  int lane = 0;                // of by->warp
  Mask lanes = 0;              // that must know: of by->warp and `warps` - 1 more
  int warps = 1;
};

class Shadow {
 public:
  Shadow() = default;
  Shadow(std::size_t elements, Stamp initial) : writes_(elements, initial), reads_(elements, 0) {}
  [[nodiscard]] std::size_t size() const { return writes_.size(); }
  void reset(Stamp initial);

  struct Verdict {
    Mask conflict = 0;
    Mask undefined = 0;      // lanes that read an undefined value
    bool unchanged = false;  // of an update: the last access of every element is this very one
    Conflict first;          // of the lowest lane in conflict
  };
  // offsets[l] of every lane in `lanes`; the caller has checked the bounds. `groups` describes exactly these lanes.
  // `hint`: of another value of the same vector, whose transitions are likely the same.
  Verdict read(const Issuer& by, Mask lanes, const std::int32_t* offsets, const LaneGroups& groups, std::uint32_t site,
               ReadSets& sets, AccessMemo& memo, const AccessMemo* hint = nullptr);
  // `undefined`: lanes that write an undefined value. Lanes of a group write equal bits.
  Verdict write(const Issuer& by, Mask lanes, const std::int32_t* offsets, const LaneGroups& groups, std::uint32_t site,
                Mask undefined, ReadSets& sets, AccessMemo& memo);
  // One instruction reads an element and then writes it: the read needs no record. `distinct` lanes only. Checks both;
  // the caller computes, then commits the write.
  Verdict check_update(const Issuer& by, Mask lanes, const std::int32_t* offsets, std::uint32_t site, ReadSets& sets,
                       AccessMemo& memo);
  void commit_update(const Issuer& by, Mask lanes, const std::int32_t* offsets, std::uint32_t site, Mask undefined);
  // One instruction combines each lane's value with an element, in one step: lanes may share elements, and accesses of
  // this kind need no order among themselves.
  Verdict update_atomically(const Issuer& by, Mask lanes, const std::int32_t* offsets, std::uint32_t site,
                            const AtomicKind& kind, ReadSets& sets);
  // An agent reads or writes n elements. Where they are in conflict, `first` says the first; `undefined` (of a read)
  // counts those that were never written, `undefined_at` is the first of them.
  struct BulkVerdict {
    bool conflict = false;
    Conflict first;
    std::size_t undefined = 0, undefined_at = 0;
  };
  BulkVerdict read_bulk(const Bulk& bulk, const std::int32_t* offsets, std::size_t n, std::uint32_t site,
                        ReadSets& sets);
  BulkVerdict write_bulk(const Bulk& bulk, const std::int32_t* offsets, std::size_t n, std::uint32_t site,
                         const ReadSets& sets);

  // A read that never learns of writes: from now on the elements must keep what they held when the kernel began.
  // False: some element has been written.
  bool freeze(const Issuer& by, Mask lanes, const std::int32_t* offsets, std::uint32_t site, const ReadSets& sets,
              Conflict& conflict);
  // Whether some element that these lanes write has been frozen.
  [[nodiscard]] bool frozen(const Issuer& by, Mask lanes, const std::int32_t* offsets, Conflict& conflict) const;
  // Marks the element undefined or defined without an access.
  void set_undefined(std::int32_t offset, bool undefined);
  [[nodiscard]] bool is_undefined(std::int32_t offset) const {
    return (writes_[static_cast<std::size_t>(offset)] & kUndefinedBit) != 0;
  }
  [[nodiscard]] Stamp last_write(std::int32_t offset) const { return writes_[static_cast<std::size_t>(offset)]; }
  [[nodiscard]] bool updated_atomically(std::int32_t offset) const;

 private:
  // The last writes and the reads since of the elements, checked against what the issuer knows. `whole`:
  // all lanes, each an element of its own. True: the last access of every element is this very one.
  bool scan(const Issuer& by, Mask lanes, const std::int32_t* offsets, std::uint32_t site, bool whole, ReadSets& sets,
            AccessMemo& memo, Verdict& v, std::uint32_t& had_reads) const;
  void explain_writes(const Issuer& by, Mask lanes, const std::int32_t* offsets, const Stamp* seen, Verdict& v) const;
  void check_reads(const Issuer& by, Mask lanes, const std::int32_t* offsets, const std::uint32_t* seen, ReadSets& sets,
                   AccessMemo& memo, Verdict& v) const;

  [[nodiscard]] bool judge_write(const Bulk& bulk, Stamp written, bool reads, Conflict& c) const;
  [[nodiscard]] bool judge_atomics(const Bulk& bulk, std::int32_t offset, const ReadSets& sets, Conflict& c) const;

  void check_atomics(const Issuer& by, Mask lanes, const std::int32_t* offsets, const ReadSets& sets, Verdict& v) const;
  void forget_atomics(Mask lanes, const std::int32_t* offsets);

  CountedVector<Stamp> writes_;
  CountedVector<ReadSets::Id> reads_;
  struct Atomics {
    AtomicKind kind;
    CountedVector<ReadSets::Id> sets;  // atomic updates since the last write
  };
  std::vector<Atomics> atomics_;  // one for every kind; empty: none anywhere
  CountedVector<Stamp> frozen_;   // who read it first as never written; 0: nobody; empty: nobody anywhere
  bool any_reads_ = false;        // since the last reset: else `reads_` is all zeros
};

}  // namespace graphene::sim
