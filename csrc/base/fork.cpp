#include "base/fork.h"

#include <pthread.h>

#include <array>
#include <cstddef>

namespace graphene {

namespace {

std::array<std::atomic<ForkMutex*>, ForkMutex::kRanks>& all_locks() {
  static std::array<std::atomic<ForkMutex*>, ForkMutex::kRanks> locks{};
  return locks;
}

std::array<ForkMutex*, ForkMutex::kRanks> taken{};  // by the thread that forks
std::atomic<unsigned> depth{0};

void before() {
  for (std::size_t i = 0; i < taken.size(); ++i) {
    ForkMutex* lock = all_locks()[i].load();
    if (lock != nullptr && lock->held_here()) lock = nullptr;
    if (lock != nullptr) lock->lock();
    taken[i] = lock;
  }
}

void after() {
  for (std::size_t i = taken.size(); i-- > 0;)
    if (taken[i] != nullptr) taken[i]->unlock();
}

void after_in_child() {
  ++depth;
  after();
}

}  // namespace

ForkMutex::ForkMutex(Rank rank) {
  static const int installed = ::pthread_atfork(before, after, after_in_child);
  static_cast<void>(installed);
  all_locks()[rank] = this;
}

unsigned fork_depth() { return depth.load(); }

}  // namespace graphene
