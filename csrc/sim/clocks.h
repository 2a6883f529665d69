// Happens-before inside one cluster of thread blocks (mostly of one), at warp granularity. A stamp (owner, lanes,
// epoch) names a set of accesses; a Clock says which stamps are known, i.e. ordered before its holder. Law: two
// conflicting accesses race exactly when the later one's issuer does not know the earlier one's stamp, whatever order
// the simulator happened to run them in.
//
// Owners of epochs: the generic accesses of each warp (32 lanes); for every domain of asynchronous copies those of each
// warp (32 lanes, as every thread waits for its own); one per mbarrier (what completes on its current phase); further
// agents (groups of matrix instructions), each a single lane.
//
// Where agents work beside the threads, knowing is more than one thing, and a clock has a part for each:
//   visible   whose writes may be read;
//   happened  whose reads are over: what they read may be overwritten (equal to visible where there are no agents);
//   fenced    generic accesses that an agent may follow, in shared and in global memory, since a proxy fence stood
//   between; events    waits that have happened, and how many phases of each mbarrier are over.
// Not every act passes all of them on: Passes says which.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace graphene::sim {

inline constexpr int kLanes = 32;
using Mask = std::uint32_t;   // lanes of one warp
using Epoch = std::uint32_t;  // 0: never; else drawn from one counter, so epochs of an owner only grow

// What one act tells another. Happened: all but which writes are visible (an arrival at another block's barrier, a copy
// for its phase). Events: waits and phases alone (a warp that converges). Beyond: All, but only to those who acquire
// what other blocks have released, and Happened to others.
enum class Passes : std::uint8_t { All, Happened, Events, Beyond };
enum class Did : std::uint8_t { Wrote, Read };  // of an earlier access

class Clock {
 public:
  Clock() = default;
  explicit Clock(std::size_t owners) : base_(owners, 0) {}

  // Whether the accesses of all `lanes` of `owner` up to `epoch` are known.
  [[nodiscard]] bool knows(std::uint32_t owner, Mask lanes, Epoch epoch) const;
  [[nodiscard]] Epoch base(std::uint32_t owner) const { return base_[owner]; }
  // `full`: the existing lanes of every owner.
  void raise(const std::vector<Mask>& full, std::uint32_t owner, Mask lanes, Epoch epoch);
  // Of owners from `first` on.
  void join(const std::vector<Mask>& full, const Clock& other, std::size_t first = 0);
  // Owners to, to + 1, ... learn what is known of `count` owners from `from` on.
  void copy_part(const std::vector<Mask>& full, std::uint32_t from, std::uint32_t to, std::uint32_t count);

 private:
  struct Exception {  // these lanes are known further than base_[owner]
    std::uint32_t owner;
    Mask lanes;
    Epoch epoch;
  };
  using Exceptions = std::vector<Exception>;
  [[nodiscard]] Exceptions::const_iterator first_of(std::uint32_t owner) const;
  // What two lists of exceptions of one owner say together: appended to `out`, or raising the base.
  void merge(Mask full, Exceptions::const_iterator& a, Exceptions::const_iterator a_end, Exceptions::const_iterator& b,
             Exceptions::const_iterator b_end, std::uint32_t owner, Exceptions& out);

  std::vector<Epoch> base_;
  Exceptions exceptions_;  // by owner, of each the newest first; of disjoint lanes, and above the base
};

class HappensBefore {
 public:
  struct Participant {
    int warp;
    Mask lanes;
  };

  struct Counts {
    int copy_domains = 0;  // kinds of copies that complete by groups of the issuing thread
    int mbarriers = 0;
    int agents = 0;
    std::uint32_t async_domains = 0;  // bits: kinds of copies that agents make, which meet generic accesses by fences
  };
  // A wait at an mbarrier.
  struct Wait {
    int warp = 0;
    Mask lanes = 0;
    Epoch epoch = 0;
  };

  // One entry of `warp_lanes` per warp: its existing lanes. `last_epoch`: of the blocks before, 0 for the first.
  HappensBefore(std::vector<Mask> warp_lanes, Counts counts, Epoch last_epoch);

  [[nodiscard]] int warps() const { return static_cast<int>(warps_.size()); }
  [[nodiscard]] Mask lanes_of(int warp) const { return full_[static_cast<std::size_t>(warp)]; }
  [[nodiscard]] std::uint32_t copies_of(int warp, int domain) const {
    return static_cast<std::uint32_t>((1 + domain) * warps() + warp);
  }
  [[nodiscard]] std::uint32_t phase_of(int mbarrier) const {
    return static_cast<std::uint32_t>((1 + domains_) * warps() + mbarrier);
  }
  [[nodiscard]] std::uint32_t agent(int i) const {
    return phase_of(static_cast<int>(mbarriers_.size())) + static_cast<std::uint32_t>(i);
  }
  // Of an owner that is a warp's own accesses (domain -1) or its copies.
  [[nodiscard]] bool is_thread(std::uint32_t owner) const { return owner < phase_of(0); }
  [[nodiscard]] int warp_of(std::uint32_t owner) const { return static_cast<int>(owner) % warps(); }
  [[nodiscard]] int domain_of(std::uint32_t owner) const { return static_cast<int>(owner) / warps() - 1; }
  [[nodiscard]] Epoch first_epoch() const { return first_; }  // stamps below are of other blocks
  [[nodiscard]] Epoch last_epoch() const { return counter_; }

  // Whether the accesses (owner, lanes, epoch) are ordered before what lane `lane` of `warp` does now.
  [[nodiscard]] bool before(int warp, int lane, std::uint32_t owner, Mask lanes, Epoch epoch,
                            Did did = Did::Wrote) const;
  // ... before what an agent does for the lane: whether a proxy fence is known to stand behind them, if they need one.
  [[nodiscard]] bool fenced(int warp, int lane, std::uint32_t owner, Mask lanes, Epoch epoch, bool global) const;
  [[nodiscard]] bool is_agent(std::uint32_t owner) const {
    return !is_thread(owner) || (domain_of(owner) >= 0 && (async_domains_ >> domain_of(owner) & 1) != 0);
  }
  [[nodiscard]] Epoch epoch(int warp) const { return at(warp).epoch; }
  // Whether the lane knows that another warp has begun: of anything that one has told of.
  [[nodiscard]] bool knows_begun(int warp, int lane, int other) const;
  // Every stamp of this block with an epoch up to it is known to every lane of the warp.
  [[nodiscard]] Epoch floor(int warp) const { return at(warp).floor; }
  // Whether every lane of the warp knows all accesses of an owner up to an epoch: true only where it is plain.
  [[nodiscard]] bool all_know(int warp, std::uint32_t owner, Epoch epoch) const {
    return epoch <= at(warp).shared.base(owner);
  }
  // Whether no lane of the warp knows more than the others.
  [[nodiscard]] bool alike(int warp) const { return at(warp).alike; }
  // Changes whenever the warp's epoch or knowledge does: verdicts about a stamp hold while it stays.
  [[nodiscard]] std::uint64_t version(int warp) const { return at(warp).version; }

  // How often every access so far of the threads themselves became known to every thread of the block.
  [[nodiscard]] std::uint64_t settled() const { return settled_; }

  // Generic synchronisation.
  void sync_warp(int warp, Mask lanes);
  void barrier(const std::vector<Participant>& members);  // each lane of each member knows all members' past afterwards
  // These lanes' past and knowledge, then a new epoch.
  void release(int warp, Mask lanes, Clock& into, Passes passes = Passes::All);
  void acquire(int warp, Mask lanes, const Clock& from);
  [[nodiscard]] Clock make_clock() const { return Clock(full_.size()); }

  // Asynchronous copies that complete by groups of the issuing thread. Their accesses are checked with the issuer's
  // knowledge and stamped (copies_of(warp, domain), lane, copy_epoch). A wait makes own copies known to their thread
  // alone: those of all groups but the newest `pending`.
  void open_copies(int warp, Mask lanes, int domain);  // before copy_epoch: lanes without an open group share an epoch
  [[nodiscard]] Epoch copy_epoch(int warp, int lane, int domain) const {
    return copies(warp, domain).open[static_cast<std::size_t>(lane)];
  }
  [[nodiscard]] Epoch copies_done(int warp, int lane, int domain) const {
    return copies(warp, domain).done[static_cast<std::size_t>(lane)];
  }
  void commit_copies(int warp, Mask lanes, int domain);
  void wait_copies(int warp, Mask lanes, int domain, std::size_t pending);

  // What the lanes of a warp know of waits and phases, each of them knows: they have come together.
  void converge(int warp, Mask lanes);
  // What the lanes have done and know becomes what their agents may follow.
  void fence_proxy(int warp, Mask lanes, bool global);

  // mbarrier phases: arrivals and issued transactions release into the current phase, completion publishes it.
  [[nodiscard]] Epoch phase_epoch(int mbarrier);
  void arrive(int warp, Mask lanes, int mbarrier, Passes passes = Passes::All);
  // ... once the lanes' copies of a domain have landed, those of no group included.
  void arrive_after_copies(int warp, Mask lanes, int mbarrier, int domain);
  void complete_phase(int mbarrier);
  void wait_phase(int warp, Mask lanes, int mbarrier, bool beyond = false);
  // How many phases the lane knows to be over; -1: not even that the barrier has been initialised.
  [[nodiscard]] std::int64_t known_phases(int warp, int lane, int mbarrier) const;
  void know_initialised(int warp, int mbarrier);
  // Whether the lane knows what `lanes` of another warp waited for and arrived at up to an epoch.
  [[nodiscard]] bool saw(int warp, int lane, int other, Mask lanes, Epoch epoch) const {
    return view(warp, lane).knows(waits_of(other), lanes, epoch);
  }
  // A wait for the phase before the current one of which the current one does not know; none: warp -1.
  [[nodiscard]] Wait unseen_wait(int mbarrier) const;

  // Agents that complete by groups, in order. Issuing releases the issuer's past into the open group (happens-before is
  // transitive through the agent); waiting for a group makes it and all before it known.
  [[nodiscard]] Epoch group_epoch(int agent_index);  // stamps the agent's accesses
  void issue(int warp, Mask lanes, int agent_index, Passes passes = Passes::All) {
    release(warp, lanes, agent_at(agent_index).current, passes);
  }
  std::size_t close_group(int agent_index);  // its number
  void wait_group(int warp, Mask lanes, int agent_index, std::size_t group) {
    acquire(warp, lanes, agent_at(agent_index).closed[group]);
  }

 private:
  struct Copies {                                   // per lane
    std::array<Epoch, kLanes> done{};               // own copies up to this epoch have landed
    std::array<Epoch, kLanes> open{};               // epoch of the uncommitted group; 0: none
    std::array<std::vector<Epoch>, kLanes> groups;  // committed ones in order
  };
  struct Warp {
    Clock shared;                             // known to every lane
    std::vector<std::unique_ptr<Clock>> own;  // lanes that know more; null: as shared. own >= shared always
    Epoch epoch = 0;
    Epoch first = 0;  // of its epochs
    Epoch floor = 0;
    bool alike = true;
    std::uint64_t version = 0;
    std::vector<Copies> copies;  // per domain
  };
  struct MBarrier {
    Clock current, done;
    Epoch epoch = 0;
    Epoch phases = 0;         // that are over
    std::vector<Wait> waits;  // that meant the last of them
    // What Passes::Beyond adds to `current` and `done`; made when it first does.
    std::unique_ptr<Clock> beyond, beyond_done;
  };
  struct Agent {
    Clock current;
    Epoch epoch = 0;
    std::vector<Clock> closed;
  };

  [[nodiscard]] const Warp& at(int warp) const { return warps_[static_cast<std::size_t>(warp)]; }
  [[nodiscard]] Warp& at(int warp) { return warps_[static_cast<std::size_t>(warp)]; }
  [[nodiscard]] const Copies& copies(int warp, int domain) const {
    return at(warp).copies[static_cast<std::size_t>(domain)];
  }
  [[nodiscard]] Copies& copies(int warp, int domain) { return at(warp).copies[static_cast<std::size_t>(domain)]; }
  [[nodiscard]] MBarrier& mbarrier_at(int i) { return mbarriers_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] Agent& agent_at(int i) { return agents_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] const Clock& view(int warp, int lane) const;
  void activate(std::uint32_t owner);
  void refresh(int warp);  // after its knowledge changed
  void new_epoch(int warp);
  void add_past(int warp, Mask lanes, Clock& into, Passes passes) const;
  // Knowledge of an owner's accesses, of writes and of reads.
  void raise(Clock& into, std::uint32_t owner, Mask lanes, Epoch epoch, Passes passes = Passes::All) const;
  [[nodiscard]] std::uint32_t waits_of(int warp) const { return events_ + static_cast<std::uint32_t>(warp); }
  [[nodiscard]] std::uint32_t over_of(int mbarrier) const {
    return events_ + static_cast<std::uint32_t>(warps() + mbarrier);
  }
  [[nodiscard]] std::size_t first_of(Passes passes) const {
    return passes == Passes::All ? 0 : passes == Passes::Happened ? happened_ : events_;
  }

  std::vector<Mask> full_;  // per owner, and per owner of each further part of a clock
  // Where the further parts begin; 0: there are none, and the first is all of them.
  std::uint32_t happened_ = 0, fenced_ = 0, events_ = 0;
  std::uint32_t owners_ = 0;
  std::uint32_t async_domains_ = 0;
  std::vector<char> active_;  // per owner: may have stamped something
  std::vector<Warp> warps_;
  std::vector<MBarrier> mbarriers_;
  std::vector<Agent> agents_;
  int domains_ = 0;
  Epoch first_;
  Epoch counter_;
  std::uint64_t versions_ = 0;
  std::uint64_t settled_ = 0;
};

}  // namespace graphene::sim
