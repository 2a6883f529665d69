#include "runtime/cache.h"

#include <fcntl.h>
#include <sys/stat.h>
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

#include "runtime/sha256.h"

namespace graphene::runtime {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

constexpr const char* kMeta = "meta.json";

std::mutex warnings_mutex;
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

fs::path entries_dir(const fs::path& root) { return root / ("v" + std::to_string(kCacheSchema)); }
fs::path entry_dir(const fs::path& root, const std::string& key) { return entries_dir(root) / key.substr(0, 2) / key; }

// A name in <root>/tmp that no other writer has.
fs::path temporary(const fs::path& root) {
  static std::atomic<std::uint64_t> count{0};
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return root / "tmp" / (std::to_string(::getpid()) + "-" + std::to_string(now) + "-" + std::to_string(count++));
}

bool write_and_sync(const fs::path& path, std::string_view bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  bool ok = true;
  while (ok && !bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    ok = n > 0;
    if (ok) bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  ok = ok && ::fsync(fd) == 0;
  return ::close(fd) == 0 && ok;
}

void sync_directory(const fs::path& dir) {
  const int fd = ::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  static_cast<void>(::fsync(fd));
  ::close(fd);
}

// Takes a path out of sight at once, then deletes it: a reader never meets half an entry as if it were whole.
bool discard(const fs::path& root, const fs::path& path) {
  std::error_code e;
  fs::create_directories(root / "tmp", e);
  const fs::path grave = temporary(root);
  if (::rename(path.c_str(), grave.c_str()) != 0) return false;
  fs::remove_all(grave, e);
  return true;
}

struct Entry {
  fs::path path;
  std::uint64_t bytes = 0;
  fs::file_time_type used;
};

std::vector<Entry> list_entries(const fs::path& root) {
  std::vector<Entry> out;
  std::error_code e;
  for (fs::directory_iterator group(entries_dir(root), e), end; !e && group != end; group.increment(e)) {
    std::error_code e2;
    for (fs::directory_iterator it(group->path(), e2), stop; !e2 && it != stop; it.increment(e2)) {
      Entry entry{.path = it->path(), .bytes = 0, .used = fs::file_time_type::min()};
      std::error_code e3;
      for (fs::directory_iterator f(it->path(), e3), last; !e3 && f != last; f.increment(e3)) {
        const auto bytes = f->file_size(e3);
        if (!e3) entry.bytes += bytes;
      }
      const auto used = fs::last_write_time(it->path() / kMeta, e3);
      if (!e3) entry.used = used;
      out.push_back(std::move(entry));
    }
  }
  return out;
}

// Bytes in the cache as this process last counted them, plus what it added: the directory is walked only when that
// may have passed the limit.
std::atomic<std::uint64_t> believed_bytes{UINT64_MAX};

void shrink(const fs::path& root, std::uint64_t added_bytes) {
  const std::uint64_t limit = cache_limit_bytes();
  const std::uint64_t believed = believed_bytes.load();
  if (believed != UINT64_MAX && believed + added_bytes <= limit) {
    believed_bytes = believed + added_bytes;
    return;
  }
  auto entries = list_entries(root);
  std::uint64_t total = 0;
  for (const Entry& x : entries) total += x.bytes;
  if (total > limit) {
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.used < b.used; });
    const std::uint64_t target = limit - limit / 10;  // some room, so that the next store does not walk again
    for (const Entry& x : entries) {
      if (total <= target) break;
      if (discard(root, x.path)) total -= x.bytes;
    }
  }
  believed_bytes = total;
  std::error_code e;
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (fs::directory_iterator it(root / "tmp", e), end; !e && it != end; it.increment(e)) {
    std::error_code e2;
    if (fs::last_write_time(it->path(), e2) < old && !e2) fs::remove_all(it->path(), e2);
  }
}

}  // namespace

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
  return root.empty() ? root : entry_dir(root, key);
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

bool read_file(const fs::path& path, std::string& bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  struct stat s {};
  bool ok = ::fstat(fd, &s) == 0 && S_ISREG(s.st_mode);
  bytes.clear();
  if (ok) bytes.resize(static_cast<std::size_t>(s.st_size));
  for (std::size_t at = 0; ok && at < bytes.size();) {
    const ssize_t n = ::read(fd, bytes.data() + at, bytes.size() - at);
    if (n < 0 && errno == EINTR) continue;
    ok = n > 0;
    if (ok) at += static_cast<std::size_t>(n);
  }
  ::close(fd);
  return ok;
}

bool write_file_atomically(const fs::path& path, std::string_view bytes) {
  const fs::path root = cache_dir();
  if (root.empty()) return false;
  std::error_code e;
  fs::create_directories(root / "tmp", e);
  fs::create_directories(path.parent_path(), e);
  const fs::path file = temporary(root);
  if (write_and_sync(file, bytes) && ::rename(file.c_str(), path.c_str()) == 0) return true;
  fs::remove(file, e);
  return false;
}

bool cache_load(const std::string& key, CacheFiles& files) {
  files.clear();
  const fs::path root = cache_dir();
  if (root.empty()) return false;
  const fs::path dir = entry_dir(root, key);
  std::error_code e;
  if (!fs::exists(dir, e) || e) return false;
  std::string text;
  bool ok = read_file(dir / kMeta, text);
  if (ok) {
    const Json meta = Json::parse(text, nullptr, false);
    ok = meta.is_object() && meta.value("schema", 0) == kCacheSchema && meta.value("key", "") == key &&
         meta.contains("files") && meta["files"].is_object();
    if (ok) {
      for (const auto& [name, sum] : meta["files"].items()) {
        std::string bytes;
        ok = sum.is_string() && name.find('/') == std::string::npos && read_file(dir / name, bytes) &&
             sha256_hex(bytes) == sum.get<std::string>();
        if (!ok) break;
        files[name] = std::move(bytes);
      }
    }
  }
  if (!ok) {
    files.clear();
    // Gone meanwhile is no damage: another process removed it.
    if (fs::exists(dir, e) && !discard(root, dir))
      warn("the damaged cache entry " + dir.string() + " cannot be removed");
    return false;
  }
  static_cast<void>(::utimensat(AT_FDCWD, (dir / kMeta).c_str(), nullptr, 0));
  return true;
}

std::vector<std::string> cache_keys(const std::string& prefix) {
  std::vector<std::string> out;
  const fs::path root = cache_dir();
  if (root.empty()) return out;
  const auto look = [&](const fs::path& group) {
    std::error_code e;
    for (fs::directory_iterator it(group, e), end; !e && it != end; it.increment(e))
      if (std::string name = it->path().filename().string(); name.starts_with(prefix)) out.push_back(std::move(name));
  };
  if (prefix.size() >= 2) {
    look(entries_dir(root) / prefix.substr(0, 2));
  } else {
    std::error_code e;
    for (fs::directory_iterator it(entries_dir(root), e), end; !e && it != end; it.increment(e)) look(it->path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

bool cache_store(const std::string& key, const CacheFiles& files) {
  const fs::path root = cache_dir();
  if (root.empty()) return false;
  Json sums = Json::object();
  std::uint64_t bytes = 0;
  for (const auto& [name, content] : files) {
    sums[name] = sha256_hex(content);
    bytes += content.size();
  }
  const std::string meta = Json{{"schema", kCacheSchema}, {"key", key}, {"files", sums}}.dump(1);
  std::error_code e;
  const fs::path work = temporary(root), dir = entry_dir(root, key);
  fs::create_directories(work, e);
  if (!e) fs::create_directories(dir.parent_path(), e);
  bool ok = !e;
  int error = e.value();
  for (const auto& [name, content] : files) {
    errno = 0;
    if (!ok) break;
    ok = write_and_sync(work / name, content);
    if (!ok) error = errno;
  }
  if (ok && !write_and_sync(work / kMeta, meta)) {
    ok = false;
    error = errno;
  }
  if (ok) {
    sync_directory(work);
    if (::rename(work.c_str(), dir.c_str()) == 0) {
      sync_directory(dir.parent_path());
      shrink(root, bytes + meta.size());
      return true;
    }
    error = errno;
    ok = error == ENOTEMPTY || error == EEXIST;  // another process was first, with the same content
  }
  fs::remove_all(work, e);
  if (!ok)
    warn("compiled kernels are not cached: cannot write to " + root.string() + " (" + std::strerror(error) +
         "); set GRAPHENE_CACHE_DIR to a writable directory, or GRAPHENE_CACHE=0");
  return ok;
}

CacheStats cache_stats() {
  CacheStats s;
  s.dir = cache_dir();
  s.limit_bytes = cache_limit_bytes();
  if (s.dir.empty()) return s;
  for (const Entry& x : list_entries(s.dir)) {
    ++s.entries;
    s.bytes += x.bytes;
  }
  fs::path probe = s.dir;
  std::error_code e;
  while (!fs::exists(probe, e) && probe.has_parent_path() && probe != probe.parent_path()) probe = probe.parent_path();
  s.writable = fs::is_directory(probe, e) && ::access(probe.c_str(), W_OK | X_OK) == 0;
  return s;
}

std::uint64_t cache_clear() {
  const fs::path root = cache_dir();
  if (root.empty()) return 0;
  std::uint64_t removed = 0;
  for (const Entry& x : list_entries(root)) removed += discard(root, x.path) ? 1U : 0U;
  std::error_code e;
  for (const char* name : {"nvrtc", "tmp"}) fs::remove_all(root / name, e);
  believed_bytes = UINT64_MAX;
  return removed;
}

std::vector<std::string> take_cache_warnings() {
  const std::lock_guard lock(warnings_mutex);
  return std::exchange(warnings, {});
}

}  // namespace graphene::runtime
