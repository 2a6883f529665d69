// A vector of trivially copyable values whose first N live inside it: the scratch space of the constructors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>

namespace graphene::sym {

template <class T, std::size_t N>
class SmallVec {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  SmallVec() = default;
  SmallVec(const SmallVec& o) { append(o.view()); }
  SmallVec& operator=(const SmallVec& o) {
    if (this != &o) {
      size_ = 0;
      append(o.view());
    }
    return *this;
  }
  ~SmallVec() = default;

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] T* data() { return heap_ ? heap_.get() : reinterpret_cast<T*>(inline_); }
  [[nodiscard]] const T* data() const { return heap_ ? heap_.get() : reinterpret_cast<const T*>(inline_); }
  [[nodiscard]] T& operator[](std::size_t i) { return data()[i]; }
  [[nodiscard]] const T& operator[](std::size_t i) const { return data()[i]; }
  [[nodiscard]] T* begin() { return data(); }
  [[nodiscard]] T* end() { return data() + size_; }
  [[nodiscard]] const T* begin() const { return data(); }
  [[nodiscard]] const T* end() const { return data() + size_; }
  [[nodiscard]] std::span<const T> view() const { return {data(), size_}; }
  operator std::span<const T>() const { return view(); }  // NOLINT(google-explicit-constructor)

  void push_back(T v) {  // by value: v may live in this vector
    if (size_ == capacity_) grow(size_ + 1);
    data()[size_++] = v;
  }
  void append(std::span<const T> s) {
    if (size_ + s.size() > capacity_) grow(size_ + s.size());
    std::copy(s.begin(), s.end(), end());
    size_ += s.size();
  }
  void erase(std::size_t i) {
    std::copy(begin() + i + 1, end(), begin() + i);
    --size_;
  }
  void insert(std::size_t i, T v) {
    push_back(v);
    std::rotate(begin() + i, end() - 1, end());
  }
  void resize_down(std::size_t n) { size_ = n; }
  void clear() { size_ = 0; }

 private:
  void grow(std::size_t need) {
    const std::size_t cap = std::max(need, 2 * capacity_);
    auto fresh = std::make_unique<T[]>(cap);
    std::copy(begin(), end(), fresh.get());
    heap_ = std::move(fresh);
    capacity_ = cap;
  }

  alignas(T) std::byte inline_[N * sizeof(T)];
  std::unique_ptr<T[]> heap_;
  std::size_t size_ = 0;
  std::size_t capacity_ = N;
};

}  // namespace graphene::sym
