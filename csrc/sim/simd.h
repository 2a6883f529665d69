// GR_SIM_CLONES: compiles a function for several x86-64 levels and picks one when the program is loaded. The package
// itself is built for the baseline; elsewhere the function is compiled once.
#pragma once

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define GR_SIM_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#define GR_SIM_INLINE inline __attribute__((always_inline))
#elif defined(__GNUC__)
#define GR_SIM_CLONES
#define GR_SIM_INLINE inline __attribute__((always_inline))
#else
#define GR_SIM_CLONES
#define GR_SIM_INLINE inline
#endif

// Where the conversions of 16-bit floats can be the processor's own: functions with this attribute run only if
// has_f16c() holds.
#if defined(__x86_64__) && defined(__GNUC__)
#define GR_SIM_F16C __attribute__((target("avx2,f16c,fma")))
#include <cpuid.h>
namespace graphene::sim {
inline bool has_f16c() {
  static const bool has = [] {  // clang 14 has no __builtin_cpu_supports("f16c")
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("avx2") != 0 && __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  }();
  return has;
}
}  // namespace graphene::sim
#endif
