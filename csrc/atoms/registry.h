// All entries, in the order of registration.
#pragma once

#include <array>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "atoms/match.h"

namespace graphene::atoms {

class Registry {
 public:
  [[nodiscard]] static Registry& get();

  [[nodiscard]] const std::vector<InstancePtr>& all() const { return all_; }
  [[nodiscard]] const std::vector<InstancePtr>& of_kind(Kind k) const { return by_kind_[static_cast<std::size_t>(k)]; }
  [[nodiscard]] const std::unordered_map<std::string, InstancePtr>& by_name() const { return by_name_; }
  [[nodiscard]] const std::map<std::string, std::vector<InstancePtr>>& by_family() const { return by_family_; }

  void check_new(const Instance& i) const;  // ATOM_DEFINITION: the name is taken; ATOM_OVERLAP
  void add(InstancePtr i);

 private:
  Registry();

  std::vector<InstancePtr> all_;
  std::unordered_map<std::string, InstancePtr> by_name_;
  std::map<std::string, std::vector<InstancePtr>> by_family_;
  std::array<std::vector<InstancePtr>, 9> by_kind_;
};

}  // namespace graphene::atoms
