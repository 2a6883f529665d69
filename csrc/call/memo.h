// What was worked out for calls, found again by their form.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "call/arguments.h"

namespace graphene::call {

template <class T>
class Memo {
 public:
  // What is remembered stays where it is while one of these lives: a call may run Python, which may call again.
  class Hold {
   public:
    explicit Hold(Memo& memo) : memo_(memo) { ++memo_.held_; }
    ~Hold() { --memo_.held_; }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Memo& memo_;
  };

  // Null: no call of this form was remembered.
  T* find(const Arguments& call) {
    for (std::size_t i = 0; i < recent_.size() && recent_[i] != nullptr; ++i) {
      if (!recent_[i]->is_of(call)) continue;
      if (i != 0) std::swap(recent_[i], recent_[i - 1]);
      return recent_[i == 0 ? 0 : i - 1]->value.get();
    }
    const auto it = entries_.find(hash(call));
    if (it == entries_.end()) return nullptr;
    for (const auto& e : it->second)
      if (e->is_of(call)) return put_first(e.get())->value.get();
    return nullptr;
  }

  // Forgets all others where they have become too many.
  T* keep(const Arguments& call, std::unique_ptr<T> value) {
    if (count_ >= kMost && held_ <= 1) {
      entries_.clear();
      recent_ = {};
      count_ = 0;
    }
    auto entry = std::make_unique<Entry>();
    entry->form.reserve(call.form_size());
    call.each_word([&](std::int64_t w) {
      entry->form.push_back(w);
      return true;
    });
    entry->value = std::move(value);
    Entry* const kept = put_first(entry.get());
    entries_[hash(call)].push_back(std::move(entry));
    ++count_;
    return kept->value.get();
  }

  [[nodiscard]] std::size_t size() const { return count_; }

 private:
  static constexpr std::size_t kMost = 4096;

  struct Entry {
    std::vector<std::int64_t> form;
    std::unique_ptr<T> value;

    [[nodiscard]] bool is_of(const Arguments& call) const {
      if (form.size() != call.form_size()) return false;
      // Of the same size, ranks and lengths of lists are compared before what they are ranks and lengths of.
      const std::int64_t* at = form.data();
      return call.each_word([&](std::int64_t w) { return *at++ == w; });
    }
  };

  Entry* put_first(Entry* e) {
    std::copy_backward(recent_.begin(), recent_.end() - 1, recent_.end());
    return recent_.front() = e;
  }

  static std::uint64_t hash(const Arguments& call) {
    std::uint64_t h = call.form_size();
    call.each_word([&](std::int64_t w) {
      h = (h ^ static_cast<std::uint64_t>(w)) * 0x9E3779B97F4A7C15U;
      h ^= h >> 29;
      return true;
    });
    return h;
  }

  std::unordered_map<std::uint64_t, std::vector<std::unique_ptr<Entry>>> entries_;
  std::array<Entry*, 8> recent_{};  // asked before the table: those that calls come back to lie in front
  std::size_t count_ = 0;
  int held_ = 0;
};

}  // namespace graphene::call
