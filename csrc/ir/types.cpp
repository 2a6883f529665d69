#include "ir/types.h"

#include <array>

namespace graphene::ir {

namespace {

using Class = ScalarInfo::Class;

constexpr std::array<ScalarInfo, 22> kScalars = {{
    {"fp16", 16, Class::Float},   {"bf16", 16, Class::Float},   {"fp32", 32, Class::Float},
    {"tf32", 32, Class::Float},   {"fp64", 64, Class::Float},   {"fp8e4m3", 8, Class::Float},
    {"fp8e5m2", 8, Class::Float}, {"i8", 8, Class::Signed},     {"u8", 8, Class::Unsigned},
    {"i16", 16, Class::Signed},   {"u16", 16, Class::Unsigned}, {"i32", 32, Class::Signed},
    {"u32", 32, Class::Unsigned}, {"i64", 64, Class::Signed},   {"u64", 64, Class::Unsigned},
    {"pred", 8, Class::Pred},     {"mbar", 64, Class::Barrier}, {"bar", 8, Class::Barrier},
    {"b8", 8, Class::Bits},       {"b16", 16, Class::Bits},     {"b32", 32, Class::Bits},
    {"b64", 64, Class::Bits},
}};

constexpr std::array<const char*, 3> kMemories = {"GL", "SH", "RF"};

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

const ScalarInfo& info(ScalarType t) { return kScalars.at(static_cast<std::size_t>(t)); }

std::optional<ScalarType> scalar_type_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kScalars.size(); ++i)
    if (name == kScalars.at(i).name) return static_cast<ScalarType>(i);
  return std::nullopt;
}

const char* name(Memory m) { return kMemories.at(static_cast<std::size_t>(m)); }
std::optional<Memory> memory_from_name(std::string_view name) { return find<Memory>(kMemories, name); }

const char* name(SpecKind k) { return kSpecs.at(static_cast<std::size_t>(k)); }
std::optional<SpecKind> spec_kind_from_name(std::string_view name) { return find<SpecKind>(kSpecs, name); }

}  // namespace graphene::ir
