// A list with room of its own for the usual number of elements, for what is made anew in every call.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>

namespace graphene::call {

// Nothing is initialised before it is used: clearing the room would cost more than the call. More than fit go to the
// heap.
template <class T, std::size_t kUsual>
class Room {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  Room() {}  // NOLINT(modernize-use-equals-default): `= default` with () would clear the room
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() { free(); }

  // Addresses of elements hold until the next push beyond what is reserved.
  void push(const T& x) {
    next() = x;
    ++size_;
  }
  // Where the next element will be, with what values nobody knows; it is pushed once it is written.
  [[nodiscard]] T& next() {
    if (size_ == capacity_) [[unlikely]]
      reserve(2 * capacity_);
    return at_[size_];
  }
  void push_next() { ++size_; }
  void reserve(std::size_t count) {
    if (count <= capacity_) return;
    T* const more = static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(alignof(T))));
    for (std::size_t i = 0; i < size_; ++i) new (more + i) T(at_[i]);
    free();
    at_ = more;
    capacity_ = count;
  }

  void clear() { size_ = 0; }

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] T* data() { return at_; }
  [[nodiscard]] const T* data() const { return at_; }
  [[nodiscard]] const T& operator[](std::size_t i) const { return at_[i]; }
  [[nodiscard]] const T* begin() const { return at_; }
  [[nodiscard]] const T* end() const { return at_ + size_; }

 private:
  void free() {
    if (capacity_ != kUsual) ::operator delete(at_, std::align_val_t(alignof(T)));
  }

  T* at_ = reinterpret_cast<T*>(own_);
  std::size_t size_ = 0, capacity_ = kUsual;
  alignas(T) std::byte own_[kUsual * sizeof(T)];
};

}  // namespace graphene::call
