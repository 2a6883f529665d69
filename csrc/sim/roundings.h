// Where values become narrower than fp32 and are then computed with. Every float carries a tag: the set of what may
// have narrowed it on its way. A statement whose result may lose bits sets it, moves and exact operations carry it,
// arithmetic reads it; what is read has been found. A rounding that only a result sees is read by nobody.
#pragma once

#include <array>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/bytecode.h"

namespace graphene::sim {

struct Rounding {
  std::string tensor;  // that the statement writes
  ir::ScalarType from = ir::ScalarType::fp32, to = ir::ScalarType::fp16;
  const ir::Stmt* origin = nullptr;
};

// A set of members, interned. 0 is the empty set: constants, which no type is too narrow for.
using Tag = std::uint16_t;
using LaneTags = std::array<Tag, kLanes>;

class Roundings {
 public:
  // Of values that are all those of a type: arguments, and what arithmetic gives.
  [[nodiscard]] Tag native(ir::ScalarType t);
  // Of values that a statement narrows.
  [[nodiscard]] Tag narrowed(const Rounding& by);
  [[nodiscard]] Tag join(Tag a, Tag b);
  // Whether a type holds every value with this tag.
  [[nodiscard]] bool fits(Tag tag, ir::ScalarType t) const;
  void read(const LaneTags& tags, Mask lanes) {
    std::uint8_t any = 0;
    for (const Tag t : tags) any |= unread_[t];
    if (any != 0) find(tags, lanes);
  }
  // Sorted by tensor, types and line; of a line's statements that agree in these, the first.
  [[nodiscard]] std::vector<Rounding> found() const;

 private:
  struct Member {
    ir::ScalarType type;  // that holds the value
    int point = -1;       // which of points_; -1: none
  };
  using Key = std::tuple<std::string, ir::ScalarType, ir::ScalarType, std::string>;

  Tag intern(std::vector<int> members);
  void find(const LaneTags& tags, Mask lanes);

  std::vector<Member> members_;
  std::vector<Rounding> points_;
  std::vector<char> found_;
  std::map<Key, int> point_members_;
  std::map<ir::ScalarType, int> native_members_;
  std::vector<std::vector<int>> sets_{{}};
  std::map<std::vector<int>, Tag> tags_{{{}, 0}};
  std::map<std::pair<Tag, Tag>, Tag> joins_;
  std::vector<std::uint8_t> unread_{0};  // by tag: it has a point that has not been found
};

}  // namespace graphene::sim
