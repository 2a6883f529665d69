// The text of an entry, parsed: what printers walk. No printer looks at the template string itself.
//
//   "ld.v4.b32 {$dst}, [$src];"   Text "ld.v4.b32 ", Operand dst with braces, Text ", [", Operand src, Text "];"
//
// What an operand prints as, by Via and memory:
//   Natural, RF: registers as inline-assembly operands, reinterpreted as the constraint's C type (RegPacking)
//   Natural, GL: the address ("l"); SH: the 32-bit shared-state-space address ("r")
//   TensorMap:   the map's address and the coordinates, fastest dimension first: "%1, {%2, %3}"
//   Descriptor:  a 64-bit matrix descriptor ("l")
//   Lvalue:      the C++ expression of the element itself (RF, SH, GL), or the immediate
// "$}" is a brace that closes no "{?x: ". "$src.bytes" is how many bytes of an input in memory are inside its tensor
// (Guard::Bytes), as an "r" operand. "$src.rank" is the number of a tensor map's dimensions as in "2d", "$a.major" 1
// where lines of a descriptor's matrix run along its rows, else 0. "$to" is the set of blocks of the cluster that a
// copy goes to, a bit each ("h"), and of a statement on an mbarrier, which is printed once for each of them, that block
// ("r"). An attribute prints as its literal, or as an integer expression ("r" in PTX).
//
// C++ text and helpers assume a prelude that names the scalar types: `half` and `bfloat16` are unsigned short (the
// bits), fp32 float, fp64 double, i8..u64 the integers of that width, pred bool.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace graphene::atoms {

struct Piece {
  static constexpr int kEach = -2;
  enum class Kind : std::uint8_t { Text, Operand, Bytes, Rank, Major, Attr, IfBegin, IfEnd } kind = Kind::Text;
  std::string text;     // Text: as is; Operand, Bytes, Rank, Major: its name; Attr, IfBegin: the attribute's name
  int element = -1;     // Operand: one register "$d[i]"; -1: all (C++: value 0); kEach: "$d...", all values listed
  bool braces = false;  // Operand: "{$d}", all registers as a PTX vector
};
struct Text {
  bool is_ptx = true;
  std::vector<Piece> pieces;
};

}  // namespace graphene::atoms
