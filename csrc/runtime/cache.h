// The disk cache. An entry is a directory of files with a checksum each, written under a temporary name and renamed, so
// that another process sees all of it or nothing. All of it lies in one folder with a marker; nothing else is ever
// removed, no link is followed, and what another user may have written is not read. Nothing here throws: a cache that
// cannot be used is not a cache.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace graphene::runtime {

inline constexpr int kCacheSchema = 1;

// $GRAPHENE_CACHE_DIR, else $XDG_CACHE_HOME/graphene, else ~/.cache/graphene. Empty when there is no home directory or
// GRAPHENE_CACHE=0.
[[nodiscard]] std::filesystem::path cache_dir();

// $GRAPHENE_CACHE_LIMIT (bytes, or a number with K, M or G), 1 GiB by default.
[[nodiscard]] std::uint64_t cache_limit_bytes();

// What an entry of a compiled kernel holds.
inline constexpr std::array<std::string_view, 5> kEntryFiles = {"kernel.cubin", "kernel.ptx", "kernel.cu", "log.txt",
                                                                "info.json"};
// And one of a plan (runtime/plans.h).
inline constexpr std::string_view kPlanFile = "plan.json";

// 64 hexadecimal digits, a hyphen, 16 more.
[[nodiscard]] bool is_cache_key(const std::string& key);

// Where an entry is, or will be; empty when there is no cache.
[[nodiscard]] std::filesystem::path cache_entry(const std::string& key);

using CacheFiles = std::map<std::string, std::string>;  // file name -> bytes

// False when there is no entry. A damaged one is removed, and is not an entry. A hit makes the entry the youngest.
// `only`: files to read, empty: all of them; what is not read is not looked at.
[[nodiscard]] bool cache_load(const std::string& key, CacheFiles& files, const std::vector<std::string>& only = {});

// Removes an entry that its reader found wrong.
void cache_discard(const std::string& key);

// Keys of the entries that start with `prefix`, sorted.
[[nodiscard]] std::vector<std::string> cache_keys(const std::string& prefix = {});

// Stores, then removes the oldest entries while the cache is above its limit. False when it could not, which warns.
bool cache_store(const std::string& key, const CacheFiles& files);

struct CacheStats {
  std::filesystem::path dir;
  std::uint64_t entries = 0;
  std::uint64_t bytes = 0;
  std::uint64_t limit_bytes = 0;
  bool writable = false;
};
[[nodiscard]] CacheStats cache_stats();

// Removes every entry and what was remembered of libraries; returns how many entries. Safe while others use the cache:
// what they are writing stays.
std::uint64_t cache_clear();

// What went wrong since the last call, each complaint once a process: for Python's warnings.
[[nodiscard]] std::vector<std::string> take_cache_warnings();

// What was learnt of files, by a name, 32 hexadecimal digits and ".json"; forgotten by cache_clear.
[[nodiscard]] bool memo_load(const std::string& name, std::string& bytes);
bool memo_store(const std::string& name, std::string_view bytes);

}  // namespace graphene::runtime
