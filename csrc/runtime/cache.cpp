#include "runtime/cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "base/fork.h"
#include "runtime/folder.h"
#include "runtime/sha256.h"

namespace graphene::runtime {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

// What lies in $GRAPHENE_CACHE_DIR beside what others may keep there: one folder, known by a file that says whose it
// is.
constexpr const char* kOwn = "graphene-v1";
constexpr const char* kMarker = "GRAPHENE_CACHE";
constexpr const char* kMarkerText =
    "This folder is Graphene's cache of compiled kernels. `python -m graphene cache --clear` empties it.\n";
constexpr const char *kEntries = "entries", *kNvrtc = "nvrtc", *kTmp = "tmp";
constexpr const char* kMeta = "meta.json";
constexpr std::size_t kMostFileBytes = std::size_t{1} << 28, kMostMetaBytes = std::size_t{1} << 20;
constexpr std::time_t kAbandonedSeconds = 3600;  // what a writer left in tmp for longer, nobody writes any more

ForkMutex warnings_mutex(ForkMutex::kWarnings);
std::vector<std::string> warnings;
std::set<std::string> warned;

void warn(const std::string& text) {
  const std::lock_guard lock(warnings_mutex);
  if (warned.insert(text).second) warnings.push_back(text);
}

std::string env(const char* name) {
  const char* v = std::getenv(name);
  return v != nullptr ? v : "";
}

bool is_hex(std::string_view s) { return s.find_first_not_of("0123456789abcdef") == std::string_view::npos; }

void distrust(const fs::path& path, const std::string& why) {
  warn("compiled kernels are not cached: " + path.string() + " " + why +
       "; set GRAPHENE_CACHE_DIR to a folder of your own that only you can write to, or GRAPHENE_CACHE=0");
}

void complain(const fs::path& root, int error) {
  warn("compiled kernels are not cached: cannot write to " + root.string() + " (" + std::strerror(error) +
       "); set GRAPHENE_CACHE_DIR to a writable directory, or GRAPHENE_CACHE=0");
}

// The cache's own folder. None where there is none, where somebody else may have written it, which warns, or where it
// cannot be made; errno is then 0 unless trying again, or elsewhere, may help.
Folder open_own(const fs::path& root, bool create) {
  const Folder outer = Folder::open(root, create);
  if (!outer) return {};
  const auto refuse = [](const fs::path& path, const std::string& why) {
    distrust(path, why);
    errno = 0;
    return Folder();
  };
  if (const std::string why = outer.why_not_trusted(true); !why.empty()) return refuse(root, why);
  Folder own = outer.inner(kOwn, create);
  if (!own) {
    if (errno == ELOOP || errno == ENOTDIR) return refuse(root / kOwn, "is not a folder but a link or a file");
    return {};
  }
  if (const std::string why = own.why_not_trusted(false); !why.empty()) return refuse(root / kOwn, why);
  struct stat s {};
  if (own.look(kMarker, s) && S_ISREG(s.st_mode)) return own;
  const auto names = own.names();
  if (names.empty()) {
    if (!create) return {};
    const int error = own.write_new(kMarker, kMarkerText);
    errno = error;
    if (error == 0 || error == EEXIST) return own;
    return {};
  }
  if (own.look(kMarker, s) && S_ISREG(s.st_mode)) return own;  // another process has just made it
  return refuse(root / kOwn, std::string("holds files but no ") + kMarker + ": it is not Graphene's");
}

// A name in tmp that no other writer has.
std::string temporary() {
  static std::atomic<std::uint64_t> count{0};
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return std::to_string(::getpid()) + "-" + std::to_string(now) + "-" + std::to_string(count++);
}

bool is_temporary(const std::string& name) {
  return std::count(name.begin(), name.end(), '-') == 2 && name.find_first_not_of("0123456789-") == std::string::npos;
}

bool is_entry_file(const std::string& name) {
  return name == kMeta || name == kPlanFile ||
         std::find(kEntryFiles.begin(), kEntryFiles.end(), name) != kEntryFiles.end();
}

// Removes the folder of an entry with what an entry holds; anything else in it stays, and so does the folder then.
bool remove_entry(const Folder& where, const std::string& name) {
  {
    const Folder entry = where.inner(name, false);
    if (!entry) return false;
    for (const std::string& file : entry.names())
      if (is_entry_file(file)) entry.remove_file(file);
  }
  return where.remove_empty_folder(name);
}

// Takes an entry out of sight at once, then deletes it: a reader never meets half an entry as if it were whole.
bool discard(const Folder& own, const Folder& group, const std::string& key) {
  {
    const Folder entry = group.inner(key, false);
    if (!entry) return false;
    struct stat s {};
    for (const std::string& file : entry.names())
      if (!is_entry_file(file) || !entry.look(file, s) || S_ISDIR(s.st_mode)) return false;
  }
  const Folder tmp = own.inner(kTmp, true);
  if (!tmp) return false;
  const std::string grave = temporary();
  if (group.move(key, tmp, grave) != 0) return false;
  remove_entry(tmp, grave);
  return true;
}

Folder group_of(const Folder& own, const std::string& key, bool create) {
  const Folder entries = own.inner(kEntries, create);
  return entries ? entries.inner(key.substr(0, 2), create) : Folder();
}

struct Entry {
  std::string key;
  std::uint64_t bytes = 0;
  timespec used{};
};

// Calls `f(group, key)` for every entry whose key starts with `prefix`.
template <class F>
void each_entry(const Folder& own, const std::string& prefix, F&& f) {
  const Folder entries = own.inner(kEntries, false);
  if (!entries) return;
  for (const std::string& name : entries.names()) {
    if (name.size() != 2 || !is_hex(name) || !name.starts_with(prefix.substr(0, 2))) continue;
    const Folder group = entries.inner(name, false);
    if (!group) continue;
    struct stat s {};
    for (const std::string& key : group.names())
      if (is_cache_key(key) && key.starts_with(name) && key.starts_with(prefix) && group.look(key, s) &&
          S_ISDIR(s.st_mode))
        f(group, key);
  }
}

std::vector<Entry> list_entries(const Folder& own) {
  std::vector<Entry> out;
  each_entry(own, "", [&](const Folder& group, const std::string& key) {
    Entry entry{.key = key, .bytes = 0, .used = {}};
    const Folder folder = group.inner(key, false);
    if (!folder) return;
    struct stat s {};
    for (const std::string& file : folder.names()) {
      if (!is_entry_file(file) || !folder.look(file, s) || !S_ISREG(s.st_mode)) continue;
      entry.bytes += static_cast<std::uint64_t>(s.st_size);
      if (file == kMeta) entry.used = s.st_mtim;
    }
    out.push_back(std::move(entry));
  });
  return out;
}

// What writers that are gone left in tmp. Others may be writing there now.
void sweep(const Folder& own) {
  const Folder tmp = own.inner(kTmp, false);
  if (!tmp) return;
  const std::time_t now = std::time(nullptr);
  struct stat s {};
  for (const std::string& name : tmp.names()) {
    if (!is_temporary(name) || !tmp.look(name, s) || s.st_mtim.tv_sec > now - kAbandonedSeconds) continue;
    if (S_ISREG(s.st_mode)) tmp.remove_file(name);
    if (S_ISDIR(s.st_mode)) remove_entry(tmp, name);
  }
}

// Bytes in the cache as this process last counted them, plus what it added: the directory is walked only when that
// may have passed the limit.
std::atomic<std::uint64_t> believed_bytes{UINT64_MAX};

void shrink(const Folder& own, std::uint64_t added_bytes) {
  const std::uint64_t limit = cache_limit_bytes();
  const std::uint64_t believed = believed_bytes.load();
  if (believed != UINT64_MAX && believed + added_bytes <= limit) {
    believed_bytes = believed + added_bytes;
    return;
  }
  auto entries = list_entries(own);
  std::uint64_t total = 0;
  for (const Entry& x : entries) total += x.bytes;
  if (total > limit) {
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
    });
    const std::uint64_t target = limit - limit / 10;  // some room, so that the next store does not walk again
    for (const Entry& x : entries) {
      if (total <= target) break;
      const Folder group = group_of(own, x.key, false);
      if (group && discard(own, group, x.key)) total -= x.bytes;
    }
  }
  believed_bytes = total;
  sweep(own);
}

// One attempt to store; 0, or errno.
int try_store(const Folder& own, const std::string& key, const CacheFiles& files, const std::string& meta) {
  const Folder tmp = own.inner(kTmp, true);
  if (!tmp) return errno;
  const std::string name = temporary();
  int error = 0;
  {
    const Folder work = tmp.inner(name, true);
    if (!work) return errno;
    for (const auto& [file, content] : files)
      if (error == 0) error = work.write_new(file, content);
    if (error == 0) error = work.write_new(kMeta, meta);
    if (error == 0) work.sync();
  }
  if (error == 0) {
    if (const Folder group = group_of(own, key, true); !group) {
      error = errno;
    } else {
      error = tmp.move(name, group, key);
      if (error == 0) {
        group.sync();
        return 0;
      }
      struct stat s {};  // another process was first, with the same content
      if ((error == ENOTEMPTY || error == EEXIST) && group.look(key, s)) error = 0;
    }
  }
  remove_entry(tmp, name);
  return error;
}

}  // namespace

bool is_cache_key(const std::string& key) {
  constexpr std::size_t kRequestDigits = 64, kBuildDigits = 16;
  return key.size() == kRequestDigits + 1 + kBuildDigits && key[kRequestDigits] == '-' &&
         is_hex(key.substr(0, kRequestDigits)) && is_hex(key.substr(kRequestDigits + 1));
}

fs::path cache_dir() {
  if (env("GRAPHENE_CACHE") == "0") return {};
  if (const std::string dir = env("GRAPHENE_CACHE_DIR"); !dir.empty()) {
    std::error_code e;
    const fs::path path = fs::absolute(dir, e);
    return e ? fs::path(dir) : path;
  }
  if (const std::string dir = env("XDG_CACHE_HOME"); dir.starts_with('/')) return fs::path(dir) / "graphene";
  if (const std::string home = env("HOME"); home.starts_with('/')) return fs::path(home) / ".cache" / "graphene";
  return {};
}

fs::path cache_entry(const std::string& key) {
  const fs::path root = cache_dir();
  return root.empty() ? root : root / kOwn / kEntries / key.substr(0, 2) / key;
}

std::uint64_t cache_limit_bytes() {
  constexpr std::uint64_t kDefault = std::uint64_t{1} << 30;
  const std::string text = env("GRAPHENE_CACHE_LIMIT");
  if (text.empty()) return kDefault;
  char* end = nullptr;
  errno = 0;
  const auto n = std::strtoull(text.c_str(), &end, 10);
  std::string unit = end;
  if (unit.size() > 1 && (unit.substr(1) == "iB" || unit.substr(1) == "B")) unit.resize(1);
  const int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
  if (end == text.c_str() || text[0] == '-' || errno != 0 || shift < 0 || n > (UINT64_MAX >> shift)) {
    warn("GRAPHENE_CACHE_LIMIT='" + text + "' is not a size such as 500M; using 1G");
    return kDefault;
  }
  return n << shift;
}

bool memo_load(const std::string& name, std::string& bytes) {
  const fs::path root = cache_dir();
  const Folder own = root.empty() ? Folder() : open_own(root, false);
  const Folder memos = own ? own.inner(kNvrtc, false) : Folder();
  return memos && memos.read(name, bytes, kMostMetaBytes);
}

bool memo_store(const std::string& name, std::string_view bytes) {
  const fs::path root = cache_dir();
  const Folder own = root.empty() ? Folder() : open_own(root, true);
  const Folder memos = own ? own.inner(kNvrtc, true) : Folder();
  const Folder tmp = memos ? own.inner(kTmp, true) : Folder();
  if (!tmp) return false;
  const std::string work = temporary();
  if (tmp.write_new(work, bytes) == 0 && tmp.move(work, memos, name) == 0) return true;
  tmp.remove_file(work);
  return false;
}

void cache_discard(const std::string& key) {
  const fs::path root = cache_dir();
  if (root.empty() || !is_cache_key(key)) return;
  const Folder own = open_own(root, false);
  const Folder group = own ? group_of(own, key, false) : Folder();
  if (group) static_cast<void>(discard(own, group, key));
}

bool cache_load(const std::string& key, CacheFiles& files, const std::vector<std::string>& only) {
  files.clear();
  const fs::path root = cache_dir();
  if (root.empty() || !is_cache_key(key)) return false;
  const Folder own = open_own(root, false);
  const Folder group = own ? group_of(own, key, false) : Folder();
  const Folder entry = group ? group.inner(key, false) : Folder();
  if (!entry) return false;
  std::string text;
  bool ok = entry.why_not_trusted(false).empty() && entry.read(kMeta, text, kMostMetaBytes);
  if (ok) {
    const Json meta = Json::parse(text, nullptr, false);
    ok = meta.is_object() && meta.contains("schema") && meta["schema"] == kCacheSchema && meta.contains("key") &&
         meta["key"] == key && meta.contains("files") && meta["files"].is_object();
    if (ok) {
      for (const auto& [name, sum] : meta["files"].items()) {
        if (!only.empty() && std::find(only.begin(), only.end(), name) == only.end()) continue;
        std::string bytes;
        ok = sum.is_string() && is_entry_file(name) && entry.read(name, bytes, kMostFileBytes) &&
             sha256_hex(bytes) == sum.get<std::string>();
        if (!ok) break;
        files[name] = std::move(bytes);
      }
    }
  }
  if (!ok) {
    files.clear();
    // Gone meanwhile is not damage: another process removed it.
    struct stat s {};
    if (group.look(key, s) && !discard(own, group, key))
      warn("the damaged cache entry " + cache_entry(key).string() + " cannot be removed");
    return false;
  }
  entry.touch(kMeta);
  return true;
}

std::vector<std::string> cache_keys(const std::string& prefix) {
  std::vector<std::string> out;
  const fs::path root = cache_dir();
  const Folder own = root.empty() ? Folder() : open_own(root, false);
  if (own) each_entry(own, prefix, [&](const Folder&, const std::string& key) { out.push_back(key); });
  return out;
}

bool cache_store(const std::string& key, const CacheFiles& files) {
  const fs::path root = cache_dir();
  if (root.empty() || !is_cache_key(key)) return false;
  Json sums = Json::object();
  std::uint64_t bytes = 0;
  for (const auto& [name, content] : files) {
    if (!is_entry_file(name) || content.size() > kMostFileBytes) return false;
    sums[name] = sha256_hex(content);
    bytes += content.size();
  }
  const std::string meta = Json{{"schema", kCacheSchema}, {"key", key}, {"files", sums}}.dump(1);
  int error = ENOENT;
  // Somebody may remove the whole folder meanwhile.
  for (int attempt = 0; attempt < 3 && error == ENOENT; ++attempt) {
    errno = 0;
    const Folder own = open_own(root, true);
    if (!own && errno == 0) return false;  // said
    error = own ? try_store(own, key, files, meta) : errno;
    if (error == 0) shrink(own, bytes + meta.size());
  }
  if (error != 0) complain(root, error);
  return error == 0;
}

CacheStats cache_stats() {
  CacheStats s;
  s.dir = cache_dir();
  s.limit_bytes = cache_limit_bytes();
  if (s.dir.empty()) return s;
  errno = 0;
  const Folder own = open_own(s.dir, false);
  const bool refused = !own && errno == 0 && Folder::open(s.dir / kOwn, false);
  if (own) {
    for (const Entry& x : list_entries(own)) {
      ++s.entries;
      s.bytes += x.bytes;
    }
  }
  fs::path probe = s.dir;
  std::error_code e;
  while (!fs::exists(probe, e) && probe.has_parent_path() && probe != probe.parent_path()) probe = probe.parent_path();
  s.writable = !refused && fs::is_directory(probe, e) && ::access(probe.c_str(), W_OK | X_OK) == 0;
  return s;
}

std::uint64_t cache_clear() {
  const fs::path root = cache_dir();
  const Folder own = root.empty() ? Folder() : open_own(root, false);
  if (!own) return 0;
  std::uint64_t removed = 0;
  each_entry(own, "", [&](const Folder& group, const std::string& key) {
    if (discard(own, group, key)) ++removed;
  });
  struct stat s {};
  if (const Folder memos = own.inner(kNvrtc, false))
    for (const std::string& name : memos.names())
      if (name.ends_with(".json") && is_hex(name.substr(0, name.size() - 5)) && memos.look(name, s) &&
          S_ISREG(s.st_mode))
        memos.remove_file(name);
  sweep(own);
  believed_bytes = UINT64_MAX;
  return removed;
}

std::vector<std::string> take_cache_warnings() {
  const std::lock_guard lock(warnings_mutex);
  return std::exchange(warnings, {});
}

}  // namespace graphene::runtime
