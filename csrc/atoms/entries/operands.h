// What entries of many subjects share: operands that are a thread's own scalar or vector, in registers or in memory.
#pragma once

#include "atoms/atom.h"

namespace graphene::atoms::subjects {

// Registers seen by PTX; `tile` "" for a scalar, "e4" for a vector of four.
inline OperandDef out(std::string name, std::string pattern, std::string tile = {}) {
  return {.name = std::move(name), .pattern = std::move(pattern), .tile = std::move(tile), .access = Access::Write};
}
inline OperandDef in(std::string name, std::string pattern, std::string tile = {}) {
  return {.name = std::move(name), .pattern = std::move(pattern), .tile = std::move(tile)};
}
inline OperandDef update(std::string name, std::string pattern, std::string tile = {}) {
  return {.name = std::move(name), .pattern = std::move(pattern), .tile = std::move(tile), .access = Access::Update};
}
// The same as a C++ expression.
inline OperandDef lvalue(OperandDef o) {
  o.via = Via::Lvalue;
  return o;
}
inline OperandDef packed(OperandDef o, std::string reg) {
  o.reg = std::move(reg);
  return o;
}
inline OperandDef with_tv(OperandDef o, std::string tv) {
  o.tv = std::move(tv);
  return o;
}
inline OperandDef aligned(OperandDef o, std::string bytes) {
  o.require = {"align(" + o.name + ") % " + std::move(bytes) + " == 0"};
  return o;
}

// What one thread loads or stores at once.
// V: PTX vector text; E: bits of an element; R, M: patterns of registers and memory; T: tile; B: bytes; P: packing;
// O, C: braces of a vector.
inline Param vector_widths() {
  return {{"V", "E", "R", "M", "T", "B", "P", "O", "C"},
          {{"v4.b32", "8", "[16]", "[16:1]", "e16", "16", "r/4", "{", "}"},
           {"v4.b32", "16", "[8]", "[8:1]", "e8", "16", "r/2", "{", "}"},
           {"v4.b32", "32", "[4]", "[4:1]", "e4", "16", "r", "{", "}"},
           {"v2.b64", "64", "[2]", "[2:1]", "e2", "16", "l", "{", "}"},
           {"v2.b32", "8", "[8]", "[8:1]", "e8", "8", "r/4", "{", "}"},
           {"v2.b32", "16", "[4]", "[4:1]", "e4", "8", "r/2", "{", "}"},
           {"v2.b32", "32", "[2]", "[2:1]", "e2", "8", "r", "{", "}"},
           {"b64", "64", "[]", "[]", "", "8", "l", "", ""},
           {"b32", "8", "[4]", "[4:1]", "e4", "4", "r/4", "", ""},
           {"b32", "16", "[2]", "[2:1]", "e2", "4", "r/2", "", ""},
           {"b32", "32", "[]", "[]", "", "4", "r", "", ""},
           {"b16", "8", "[2]", "[2:1]", "e2", "2", "h/2", "", ""},
           {"b16", "16", "[]", "[]", "", "2", "h", "", ""},
           {"v4.b32", "4", "[32]", "[32:1]", "e32", "16", "r/8", "{", "}"},
           {"v2.b32", "4", "[16]", "[16:1]", "e16", "8", "r/8", "{", "}"},
           {"b32", "4", "[8]", "[8:1]", "e8", "4", "r/8", "", ""},
           {"b16", "4", "[4]", "[4:1]", "e4", "2", "h/4", "", ""},
           {"b8", "4", "[2]", "[2:1]", "e2", "1", "h/2", "", ""}}};
}

inline OperandDef reg_out() { return packed(out("dst", "${R}.b${E}.RF", "${T}"), "${P}"); }
inline OperandDef reg_in() { return packed(in("src", "${R}.b${E}.RF", "${T}"), "${P}"); }
inline OperandDef mem_out(const char* memory) {
  return aligned(out("dst", std::string("${M}.b${E}.") + memory, "${T}"), "${B}");
}
inline OperandDef mem_in(const char* memory) {
  return aligned(in("src", std::string("${M}.b${E}.") + memory, "${T}"), "${B}");
}
// The fill of a partial tile is the guard's: a thread outside writes it to its registers.
inline const AttrDef kFill = {"fill", {"*const"}};

// The manual of gfx90a; the texts of its entries are HIP C++, whose compiler picks loads and stores by their types.
inline constexpr const char* kMi200Isa = "AMD Instinct MI200 instruction set architecture";

}  // namespace graphene::atoms::subjects
