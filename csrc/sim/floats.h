// 16- and 32-bit floats in vectors of 32 lanes. Conversions round to nearest even; NaNs become the canonical one.
#pragma once

#include <cstdint>

namespace graphene::sim {

// d = a * b + c, rounded once.
void fma_half(const std::uint16_t* a, const std::uint16_t* b, const std::uint16_t* c, std::uint16_t* d);
void fma_floats(const float* a, const float* b, const float* c, float* d);

void halves_to_floats(const std::uint16_t* in, float* out);
void floats_to_halves(const float* in, std::uint16_t* out);
void bfloats_to_floats(const std::uint16_t* in, float* out);
void floats_to_bfloats(const float* in, std::uint16_t* out);
void canonical_floats(const float* in, float* out);

}  // namespace graphene::sim
