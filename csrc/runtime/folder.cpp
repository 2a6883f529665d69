#include "runtime/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "runtime/sha256.h"

namespace graphene::runtime {

namespace fs = std::filesystem;

namespace {

constexpr mode_t kFolderMode = 0755;

bool is_known(uid_t owner) { return owner == ::geteuid() || owner == 0; }

std::int64_t nanoseconds(const timespec& t) { return t.tv_sec * 1'000'000'000 + t.tv_nsec; }

// Adds the files below the folder `at` of `root` to `rows`, a text each. False where the system refuses one.
bool look_below(int root, const std::string& at, const std::vector<std::string>& endings,
                std::vector<std::string>& rows, std::int64_t& newest_ns) {
  const int fd = ::openat(root, at.empty() ? "." : at.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return false;
  DIR* dir = ::fdopendir(fd);
  if (dir == nullptr) {
    ::close(fd);
    return false;
  }
  bool good = true;
  std::vector<std::string> inner;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string name = entry->d_name;
    struct stat s {};
    if (std::any_of(endings.begin(), endings.end(), [&](const std::string& e) { return name.ends_with(e); })) {
      good = good && ::fstatat(fd, name.c_str(), &s, 0) == 0;
      const std::array<std::int64_t, 4> numbers = {s.st_size, nanoseconds(s.st_mtim), nanoseconds(s.st_ctim),
                                                   static_cast<std::int64_t>(s.st_ino)};
      newest_ns = std::max({newest_ns, numbers[1], numbers[2]});
      std::string row = at + name;
      for (const std::int64_t n : numbers) row += ' ' + std::to_string(n);
      rows.push_back(std::move(row));
    } else if (name.find('.') == std::string::npos && name != "__pycache__") {
      const bool known = entry->d_type != DT_UNKNOWN;
      if (known ? entry->d_type == DT_DIR
                : ::fstatat(fd, name.c_str(), &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(s.st_mode))
        inner.push_back(at + name + '/');
    }
  }
  ::closedir(dir);
  return good && std::all_of(inner.begin(), inner.end(),
                             [&](const std::string& i) { return look_below(root, i, endings, rows, newest_ns); });
}

// Makes a folder; 0 if it is there now, else why it could not be made.
int make_folder(int at, const char* path) {
  return ::mkdirat(at, path, kFolderMode) == 0 || errno == EEXIST ? 0 : errno;
}

// Makes a folder and those above it that are missing; 0 if they are there now, else why one could not be made.
int make_folders(const fs::path& path) {
  const int error = make_folder(AT_FDCWD, path.c_str());
  const fs::path parent = path.parent_path();
  if (error != ENOENT || parent.empty() || parent == path) return error;
  const int above = make_folders(parent);
  return above != 0 ? above : make_folder(AT_FDCWD, path.c_str());
}

// An open folder; where it is missing since it could not be made, errno says why.
int opened(int found, int not_made) {
  if (found < 0 && errno == ENOENT && not_made != 0) errno = not_made;
  return found;
}

}  // namespace

Folder::~Folder() {
  if (fd_ < 0) return;
  const int kept = errno;
  ::close(fd_);
  errno = kept;
}

Folder Folder::open(const fs::path& path, bool create) {
  const int error = create ? make_folders(path) : 0;
  return Folder(opened(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), error));
}

Folder Folder::inner(const std::string& name, bool create) const {
  const int error = create ? make_folder(fd_, name.c_str()) : 0;
  return Folder(opened(::openat(fd_, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), error));
}

std::string Folder::why_not_trusted(bool shared) const {
  struct stat s {};
  if (::fstat(fd_, &s) != 0) return "cannot be looked at";
  if (!is_known(s.st_uid)) return "belongs to another user (" + std::to_string(s.st_uid) + ")";
  if ((s.st_mode & S_IWOTH) != 0 && !(shared && (s.st_mode & S_ISVTX) != 0)) return "can be written to by everybody";
  return {};
}

std::vector<std::string> Folder::names() const {
  std::vector<std::string> out;
  const int fd = ::openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return out;
  DIR* dir = ::fdopendir(fd);
  if (dir == nullptr) {
    ::close(fd);
    return out;
  }
  while (const dirent* entry = ::readdir(dir)) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") out.push_back(std::move(name));
  }
  ::closedir(dir);
  std::sort(out.begin(), out.end());
  return out;
}

bool Folder::look(const std::string& name, struct stat& s) const {
  return ::fstatat(fd_, name.c_str(), &s, AT_SYMLINK_NOFOLLOW) == 0 && is_known(s.st_uid);
}

bool Folder::read(const std::string& name, std::string& bytes, std::size_t most_bytes) const {
  const int fd = ::openat(fd_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return false;
  struct stat s {};
  bool ok = ::fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && is_known(s.st_uid) &&
            static_cast<std::uintmax_t>(s.st_size) <= most_bytes;
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

int Folder::write_new(const std::string& name, std::string_view bytes) const {
  const int fd = ::openat(fd_, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0) return errno;
  int error = 0;
  while (error == 0 && !bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      error = n < 0 ? errno : EIO;
    else
      bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  if (error == 0 && ::fsync(fd) != 0) error = errno;
  if (::close(fd) != 0 && error == 0) error = errno;
  return error;
}

int Folder::move(const std::string& name, const Folder& to, const std::string& to_name) const {
  return ::renameat(fd_, name.c_str(), to.fd_, to_name.c_str()) == 0 ? 0 : errno;
}

bool Folder::remove_file(const std::string& name) const { return ::unlinkat(fd_, name.c_str(), 0) == 0; }

bool Folder::remove_empty_folder(const std::string& name) const {
  return ::unlinkat(fd_, name.c_str(), AT_REMOVEDIR) == 0;
}

void Folder::touch(const std::string& name) const {
  static_cast<void>(::utimensat(fd_, name.c_str(), nullptr, AT_SYMLINK_NOFOLLOW));
}

void Folder::sync() const { static_cast<void>(::fsync(fd_)); }

FilesState files_state(const fs::path& folder, const std::vector<std::string>& endings) {
  FilesState out;
  const int root = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (root < 0) return out;
  std::vector<std::string> rows;
  if (look_below(root, {}, endings, rows, out.newest_ns)) {
    std::sort(rows.begin(), rows.end());
    Sha256 h;
    for (const std::string& row : rows) h.field(row);
    out.digest = h.hex();
  }
  ::close(root);
  return out;
}

}  // namespace graphene::runtime
