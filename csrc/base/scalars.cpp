#include "base/scalars.h"

#include <algorithm>
#include <array>

namespace graphene {

namespace {

using Class = Scalar::Class;

// DLPack's codes: 0 signed, 1 unsigned, 2 float, 4 bfloat, 6 bool, 10 float8_e4m3fn, 12 float8_e5m2.
constexpr auto kScalars = std::to_array<Scalar>({
    {"fp16", 16, Class::Float, "float16", 2},
    {"bf16", 16, Class::Float, "bfloat16", 4},
    {"fp32", 32, Class::Float, "float32", 2},
    {"tf32", 32, Class::Float, "float32", 2},
    {"fp64", 64, Class::Float, "float64", 2},
    {"fp8e4m3", 8, Class::Float, "float8_e4m3fn", 10},
    {"fp8e5m2", 8, Class::Float, "float8_e5m2", 12},
    {"i8", 8, Class::Signed, "int8", 0},
    {"u8", 8, Class::Unsigned, "uint8", 1},
    {"i16", 16, Class::Signed, "int16", 0},
    {"u16", 16, Class::Unsigned, "uint16", 1},
    {"i32", 32, Class::Signed, "int32", 0},
    {"u32", 32, Class::Unsigned, "uint32", 1},
    {"i64", 64, Class::Signed, "int64", 0},
    {"u64", 64, Class::Unsigned, "uint64", 1},
    {"fp6e2m3", 8, Class::Float, "uint8", 1},
    {"fp6e3m2", 8, Class::Float, "uint8", 1},
    {"fp4e2m1", 4, Class::Float, "uint8", 1},
    {"i4", 4, Class::Signed, "uint8", 1},
    {"u4", 4, Class::Unsigned, "uint8", 1},
    {"pred", 8, Class::Pred, "bool", 6},
    {"mbar", 64, Class::Barrier},
    {"bar", 8, Class::Barrier},
    {"b4", 4, Class::Bits},
    {"b8", 8, Class::Bits},
    {"b16", 16, Class::Bits},
    {"b32", 32, Class::Bits},
    {"b64", 64, Class::Bits},
});

const Scalar* found(decltype(kScalars)::const_iterator at) { return at == kScalars.end() ? nullptr : &*at; }

}  // namespace

std::span<const Scalar> scalars() { return kScalars; }

const Scalar* find_scalar(std::string_view name) {
  return found(std::ranges::find_if(kScalars, [&](const Scalar& s) { return name == s.name; }));
}

const Scalar* find_array_scalar(std::string_view array) {
  return found(std::ranges::find_if(kScalars, [&](const Scalar& s) { return s.in_arrays() && array == s.array; }));
}

}  // namespace graphene
