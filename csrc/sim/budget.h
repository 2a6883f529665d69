// What a run may hold in memory. Structures that grow with the sizes of a call allocate by CountedAllocator, which asks
// the budget of its thread: SIM_MEMORY is thrown before more is held than may be.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace graphene::sim {

inline constexpr std::int64_t kCheckMemoryBytes = std::int64_t{1} << 30;
inline constexpr std::int64_t kSimulateMemoryBytes = std::int64_t{8} << 30;

class Budget {
 public:
  explicit Budget(std::int64_t limit_bytes);  // the thread's, until it is destroyed
  ~Budget();
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  // Of the thread's budget, if it has one.
  static void take(std::size_t bytes);
  static void give(std::size_t bytes) noexcept;

 private:
  std::int64_t limit_bytes_, held_bytes_ = 0;
  Budget* outer_;
};

template <class T>
struct CountedAllocator {
  using value_type = T;
  CountedAllocator() = default;
  template <class U>
  CountedAllocator(const CountedAllocator<U>&) {}  // NOLINT(google-explicit-constructor): as allocators convert
  T* allocate(std::size_t n) {
    if (n > SIZE_MAX / sizeof(T)) throw std::bad_array_new_length();
    Budget::take(n * sizeof(T));
    try {
      return std::allocator<T>().allocate(n);
    } catch (...) {
      Budget::give(n * sizeof(T));
      throw;
    }
  }
  void deallocate(T* p, std::size_t n) noexcept {
    std::allocator<T>().deallocate(p, n);
    Budget::give(n * sizeof(T));
  }
  friend bool operator==(const CountedAllocator&, const CountedAllocator&) { return true; }
};

template <class T>
using CountedVector = std::vector<T, CountedAllocator<T>>;
template <class T>
using CountedDeque = std::deque<T, CountedAllocator<T>>;
template <class K, class V, class Hash = std::hash<K>>
using CountedMap = std::unordered_map<K, V, Hash, std::equal_to<K>, CountedAllocator<std::pair<const K, V>>>;
template <class K>
using CountedSet = std::unordered_set<K, std::hash<K>, std::equal_to<K>, CountedAllocator<K>>;

}  // namespace graphene::sim
