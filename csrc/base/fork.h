// Locks that a fork finds free. The child of a fork has one thread: a lock that another one held would never be given
// back, and what it guards may be half changed. So every lock of the core is taken before a fork and given back after
// it, on both sides.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

namespace graphene {

class ForkMutex {
 public:
  // In which order several are taken: who holds one may only take those after it.
  enum Rank { kLaunch, kMaps, kDevice, kDriver, kSearch, kLibraries, kLoaded, kWarnings, kExpressions, kTimes, kRanks };

  // One lock a rank, a static of a file: all of them are there once the core is loaded.
  explicit ForkMutex(Rank rank);
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

  void lock() {
    mutex_.lock();
    owner_ = std::this_thread::get_id();
  }
  void unlock() {
    owner_ = std::thread::id();
    mutex_.unlock();
  }
  // What a lock guards may itself fork: the CUDA driver starts a program when it finds no device.
  [[nodiscard]] bool held_here() const { return owner_.load() == std::this_thread::get_id(); }

 private:
  std::mutex mutex_;
  std::atomic<std::thread::id> owner_{};
};

// How often this process' ancestors forked since the core was loaded: what a library counts on may be gone.
[[nodiscard]] unsigned fork_depth();

}  // namespace graphene
