#include "ir/types.h"

#include <array>

namespace graphene::ir {

namespace {

constexpr std::array<const char*, 4> kMemories = {"GL", "SH", "RF", "DSM"};

constexpr std::array<const char*, 10> kSpecs = {
    "Spec",      "Move", "MatMul", "UnaryPointwise", "BinaryPointwise", "TernaryPointwise",
    "Reduction", "Shfl", "Init",   "Allocate"};

template <class E, std::size_t N>
std::optional<E> find(const std::array<const char*, N>& names, std::string_view name) {
  for (std::size_t i = 0; i < N; ++i)
    if (name == names.at(i)) return static_cast<E>(i);
  return std::nullopt;
}

}  // namespace

const ScalarInfo& info(ScalarType t) { return scalars()[static_cast<std::size_t>(t)]; }

std::optional<ScalarType> scalar_type_from_name(std::string_view name) {
  const Scalar* s = find_scalar(name);
  if (s == nullptr) return std::nullopt;
  return static_cast<ScalarType>(s - scalars().data());
}

const char* name(Memory m) { return kMemories.at(static_cast<std::size_t>(m)); }
std::optional<Memory> memory_from_name(std::string_view name) { return find<Memory>(kMemories, name); }

const char* name(SpecKind k) { return kSpecs.at(static_cast<std::size_t>(k)); }
std::optional<SpecKind> spec_kind_from_name(std::string_view name) { return find<SpecKind>(kSpecs, name); }

}  // namespace graphene::ir
