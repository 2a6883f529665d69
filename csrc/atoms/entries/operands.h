// What entries of many subjects share: operands that are a thread's own scalar or vector.
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

// The manual of gfx90a; the texts of its entries are HIP C++, whose compiler picks loads and stores by their types.
inline constexpr const char* kMi200Isa = "AMD Instinct MI200 instruction set architecture";

}  // namespace graphene::atoms::subjects
