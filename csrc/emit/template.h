// The text of an atom, parsed: literal pieces, holes for operands and attributes, parts printed only when something is
// present ("{?guard:, $guard.bytes}").
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace graphene::emit {

struct Piece {
  enum class Kind : std::uint8_t { Text, Hole, Optional } kind = Kind::Text;
  std::string text = {};   // Text: as it is. Hole: name. Optional: what must be present
  std::string field = {};  // Hole: after the dot, "" for none
  int index = -1;          // Hole: in brackets, -1 for none
  std::vector<Piece> body = {};
};

[[nodiscard]] std::vector<Piece> parse_template(std::string_view text);

}  // namespace graphene::emit
