// A folder that is held open. What is done in it is done by name within it, so no link leads elsewhere, and what is
// read or removed belongs to this user or to the system's.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace graphene::runtime {

class Folder {
 public:
  Folder() = default;
  Folder(Folder&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Folder& operator=(Folder&& o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder();

  // The folder a path leads to, by links, too: the path is the user's word. With `create`, what is missing is made, and
  // nobody else may write to it whatever the process' mask. errno tells why none was opened.
  [[nodiscard]] static Folder open(const std::filesystem::path& path, bool create);

  // The folder `name` in this one, never by a link.
  [[nodiscard]] Folder inner(const std::string& name, bool create) const;

  explicit operator bool() const { return fd_ >= 0; }

  // Why what lies here may be somebody else's doing; empty where only this user and the system's may have written it.
  // In a `shared` folder (sticky, as /tmp is) others may write files of their own.
  [[nodiscard]] std::string why_not_trusted(bool shared) const;

  [[nodiscard]] std::vector<std::string> names() const;

  // What a name is, by lstat; false where nothing of that name belongs to this user or to the system's.
  [[nodiscard]] bool look(const std::string& name, struct stat& s) const;

  // The bytes of a regular file of at most `most_bytes`. Waits for nobody: a pipe is not a file.
  [[nodiscard]] bool read(const std::string& name, std::string& bytes, std::size_t most_bytes) const;

  // Writes a file that was not there, through to the disk; 0 or errno.
  [[nodiscard]] int write_new(const std::string& name, std::string_view bytes) const;

  // 0 or errno. A file in the place is replaced, a folder only if it is empty.
  [[nodiscard]] int move(const std::string& name, const Folder& to, const std::string& to_name) const;

  bool remove_file(const std::string& name) const;
  bool remove_empty_folder(const std::string& name) const;
  void touch(const std::string& name) const;
  void sync() const;

 private:
  explicit Folder(int fd) : fd_(fd) {}
  int fd_ = -1;
};

// The files of a program, as far as one can see without reading them.
struct FilesState {
  std::string digest;          // of names, sizes, times and places on the disk; empty where the system refuses one
  std::int64_t newest_ns = 0;  // the latest time at which one was written or renamed
};

// Of all files below `folder` whose names end in one of `endings`. Folders whose names have a dot, `__pycache__` and
// links to folders are left out.
[[nodiscard]] FilesState files_state(const std::filesystem::path& folder, const std::vector<std::string>& endings);

}  // namespace graphene::runtime
