// All entries, in the order of registration. The built-in ones are templates until somebody asks for their kind or
// name: a process pays for those it uses. Callers hold the interpreter's lock.
#pragma once

#include <array>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "atoms/match.h"

namespace graphene::atoms {

class Registry {
 public:
  [[nodiscard]] static Registry& get();

  [[nodiscard]] const std::vector<InstancePtr>& all();
  [[nodiscard]] const std::vector<InstancePtr>& of_kind(Kind k);
  // Those that match without being named; the kind's others stay templates, which are most of its members.
  [[nodiscard]] const std::vector<InstancePtr>& defaults(Kind k);
  [[nodiscard]] InstancePtr find(const std::string& name);                 // null: none
  [[nodiscard]] std::vector<InstancePtr> family(const std::string& name);  // empty: none
  // The member of that name whose free parameter is `elems`; made on demand and kept.
  [[nodiscard]] InstancePtr sized(const InstancePtr& member, std::int64_t elems);
  [[nodiscard]] const std::vector<std::string>& names();
  [[nodiscard]] std::vector<std::string> family_names();

  // ATOM_DEFINITION: the name is taken; ATOM_OVERLAP, which of the built-in entries a test asks with check_overlaps.
  void check_new(const Instance& i);
  void check_overlaps();
  void add(InstancePtr i);

 private:
  struct Template {
    Atom atom;
    std::vector<Atom> expanded;        // of members that nobody has asked for yet; empty: nobody has asked for any
    std::vector<InstancePtr> members;  // null: not asked for yet
  };
  using MemberIndex = std::pair<std::size_t, std::size_t>;  // template, member

  Registry();
  const std::vector<InstancePtr>& members(std::size_t i);
  void read_names();
  [[nodiscard]] const InstancePtr& at(MemberIndex p);

  std::vector<Template> templates_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, MemberIndex> by_name_;
  std::map<std::string, std::vector<MemberIndex>> by_family_;
  static constexpr std::size_t kKindCount = static_cast<std::size_t>(Kind::Sync) + 1;
  std::array<std::vector<InstancePtr>, kKindCount> by_kind_;
  std::array<bool, kKindCount> kind_read_{};
  std::array<std::vector<InstancePtr>, kKindCount> defaults_;
  std::array<bool, kKindCount> defaults_read_{};
  std::vector<InstancePtr> all_;
  std::map<std::pair<std::string, std::int64_t>, InstancePtr> sized_;
  bool names_read_ = false, all_read_ = false;
};

}  // namespace graphene::atoms
