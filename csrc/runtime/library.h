// Loading a library that a variable names.
#pragma once

#include <dlfcn.h>
#include <sys/stat.h>

#include <string>

namespace graphene::runtime {

// What is not a file is not opened, since a pipe would keep the process waiting.
inline bool may_be_library(const std::string& path, std::string& why_not) {
  struct stat s {};
  if (path.find('/') == std::string::npos || ::stat(path.c_str(), &s) != 0 || S_ISREG(s.st_mode)) return true;
  why_not = path + " is not a file";
  return false;
}

// The handle, or null and the reason.
inline void* open_library(const std::string& path, std::string& why_not) {
  if (!may_be_library(path, why_not)) return nullptr;
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* e = ::dlerror();
  why_not = e != nullptr ? e : "cannot be loaded";
  return nullptr;
}

}  // namespace graphene::runtime
