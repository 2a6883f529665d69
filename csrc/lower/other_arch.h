// A kernel for another architecture is one mistake, however many of its statements show it.
#pragma once

#include <string>
#include <vector>

#include "atoms/match.h"

namespace graphene::lower {

class OtherArchs {
 public:
  explicit OtherArchs(std::string arch) : arch_(std::move(arch)) {}
  void add(const atoms::OtherArch& e, Diagnostic problem) {
    found_.push_back({e.atom() + ": want " + e.archs() + ", got " + arch_, std::move(problem)});
  }
  // Puts one problem in front of the others: the statement's own, or what several have in common.
  void report(std::vector<Diagnostic>& problems);

 private:
  struct Found {
    std::string want;
    Diagnostic problem;
  };
  std::string arch_;
  std::vector<Found> found_;
};

}  // namespace graphene::lower
