// Operand definitions that many entries share: a thread's own scalar or vector.
#pragma once

#include "atoms/entries.h"

namespace graphene::atoms {

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

}  // namespace graphene::atoms
