#include "emit/names.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace graphene::emit {

namespace {

// Keywords of C++, CUDA's predefined names, macros, and what the prelude and built-in entries name.
constexpr auto kReserved = std::to_array<std::string_view>({"alignas",
                                                            "alignof",
                                                            "and",
                                                            "and_eq",
                                                            "asm",
                                                            "assert",
                                                            "atomic",
                                                            "auto",
                                                            "bfloat16",
                                                            "bitand",
                                                            "bitor",
                                                            "blockDim",
                                                            "blockIdx",
                                                            "bool",
                                                            "break",
                                                            "case",
                                                            "catch",
                                                            "char",
                                                            "char16_t",
                                                            "char32_t",
                                                            "char8_t",
                                                            "class",
                                                            "co_await",
                                                            "co_return",
                                                            "co_yield",
                                                            "compl",
                                                            "concept",
                                                            "const",
                                                            "const_cast",
                                                            "consteval",
                                                            "constexpr",
                                                            "constinit",
                                                            "continue",
                                                            "decltype",
                                                            "default",
                                                            "defined",
                                                            "delete",
                                                            "do",
                                                            "double",
                                                            "dynamic_cast",
                                                            "else",
                                                            "enum",
                                                            "erff",
                                                            "explicit",
                                                            "export",
                                                            "extern",
                                                            "false",
                                                            "float",
                                                            "for",
                                                            "friend",
                                                            "goto",
                                                            "gridDim",
                                                            "half",
                                                            "i16",
                                                            "i32",
                                                            "i64",
                                                            "i8",
                                                            "if",
                                                            "inline",
                                                            "int",
                                                            "long",
                                                            "max",
                                                            "min",
                                                            "mutable",
                                                            "namespace",
                                                            "new",
                                                            "noexcept",
                                                            "not",
                                                            "not_eq",
                                                            "NULL",
                                                            "nullptr",
                                                            "operator",
                                                            "or",
                                                            "or_eq",
                                                            "private",
                                                            "protected",
                                                            "public",
                                                            "register",
                                                            "reinterpret_cast",
                                                            "requires",
                                                            "return",
                                                            "short",
                                                            "signed",
                                                            "sizeof",
                                                            "static",
                                                            "static_assert",
                                                            "static_cast",
                                                            "std",
                                                            "struct",
                                                            "switch",
                                                            "template",
                                                            "this",
                                                            "thread_local",
                                                            "threadIdx",
                                                            "throw",
                                                            "true",
                                                            "try",
                                                            "typedef",
                                                            "typeid",
                                                            "typename",
                                                            "u16",
                                                            "u32",
                                                            "u64",
                                                            "u8",
                                                            "union",
                                                            "unsigned",
                                                            "using",
                                                            "virtual",
                                                            "void",
                                                            "volatile",
                                                            "warpSize",
                                                            "wchar_t",
                                                            "while",
                                                            "xor",
                                                            "xor_eq"});

// What else a function with C linkage cannot be called: NVRTC declares functions and types of these names itself.
constexpr auto kDeclared = std::to_array<std::string_view>({"abs",
                                                            "clock",
                                                            "clock64",
                                                            "clock_t",
                                                            "dim3",
                                                            "finite",
                                                            "finitef",
                                                            "free",
                                                            "isfinite",
                                                            "isinf",
                                                            "isnan",
                                                            "labs",
                                                            "libraryPropertyType",
                                                            "llabs",
                                                            "llmax",
                                                            "llmin",
                                                            "main",
                                                            "MAJOR_VERSION",
                                                            "malloc",
                                                            "memcmp",
                                                            "memcpy",
                                                            "memmove",
                                                            "memset",
                                                            "MINOR_VERSION",
                                                            "PATCH_LEVEL",
                                                            "printf",
                                                            "ptrdiff_t",
                                                            "signbit",
                                                            "size_t",
                                                            "ullmax",
                                                            "ullmin",
                                                            "umax",
                                                            "umin",
                                                            "va_arg",
                                                            "va_copy",
                                                            "va_end",
                                                            "va_list",
                                                            "va_start",
                                                            "vprintf"});

// The mathematical functions, of double; with an f behind, of float.
constexpr auto kMath = std::to_array<std::string_view>({"acos",
                                                        "acosh",
                                                        "asin",
                                                        "asinh",
                                                        "atan",
                                                        "atan2",
                                                        "atanh",
                                                        "cbrt",
                                                        "ceil",
                                                        "copysign",
                                                        "cos",
                                                        "cosh",
                                                        "cospi",
                                                        "cyl_bessel_i0",
                                                        "cyl_bessel_i1",
                                                        "erf",
                                                        "erfc",
                                                        "erfcinv",
                                                        "erfcx",
                                                        "erfinv",
                                                        "exp",
                                                        "exp10",
                                                        "exp2",
                                                        "expm1",
                                                        "fabs",
                                                        "fdim",
                                                        "fdivide",
                                                        "floor",
                                                        "fma",
                                                        "fmax",
                                                        "fmin",
                                                        "fmod",
                                                        "frexp",
                                                        "hypot",
                                                        "ilogb",
                                                        "j0",
                                                        "j1",
                                                        "jn",
                                                        "ldexp",
                                                        "lgamma",
                                                        "llrint",
                                                        "llround",
                                                        "log",
                                                        "log10",
                                                        "log1p",
                                                        "log2",
                                                        "logb",
                                                        "lrint",
                                                        "lround",
                                                        "modf",
                                                        "nan",
                                                        "nearbyint",
                                                        "nextafter",
                                                        "norm",
                                                        "norm3d",
                                                        "norm4d",
                                                        "normcdf",
                                                        "normcdfinv",
                                                        "pow",
                                                        "powi",
                                                        "rcbrt",
                                                        "remainder",
                                                        "remquo",
                                                        "rhypot",
                                                        "rint",
                                                        "rnorm",
                                                        "rnorm3d",
                                                        "rnorm4d",
                                                        "round",
                                                        "rsqrt",
                                                        "scalbln",
                                                        "scalbn",
                                                        "sin",
                                                        "sincos",
                                                        "sincospi",
                                                        "sinh",
                                                        "sinpi",
                                                        "sqrt",
                                                        "tan",
                                                        "tanh",
                                                        "tgamma",
                                                        "trunc",
                                                        "y0",
                                                        "y1",
                                                        "yn"});

template <std::size_t N>
bool among(std::string_view name, const std::array<std::string_view, N>& list) {
  return std::ranges::find(list, name) != list.end();
}

bool declared(std::string_view name) {
  return among(name, kDeclared) || among(name, kMath) ||
         (name.ends_with('f') && among(name.substr(0, name.size() - 1), kMath));
}

std::string legal(std::string_view hint) {
  std::string out;
  for (const char c : hint) out += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  if (out.empty() || std::isdigit(static_cast<unsigned char>(out.front())) != 0) out.insert(0, "v");
  // Names that begin so belong to the compiler, to CUDA's headers and to the prelude; "_" alone is not a name in PTX.
  const bool underscored =
      out[0] == '_' && (out.size() == 1 || out[1] == '_' || std::isupper(static_cast<unsigned char>(out[1])) != 0);
  constexpr std::array<std::string_view, 5> kPrefixes = {"gr_", "CU", "cuda", "NV_", "nv_"};
  if (underscored || std::ranges::any_of(kPrefixes, [&](std::string_view p) { return out.starts_with(p); })) {
    out.insert(0, "v");
  }
  return out;
}

}  // namespace

std::string Names::fresh(std::string_view hint) {
  const std::string base = legal(hint);
  std::string name = base;
  for (int n = 2; used_.contains(name) || among(name, kReserved); ++n) {
    name = base + "_" + std::to_string(n);
  }
  used_.insert(name);
  return name;
}

std::string function_name(std::string_view hint) {
  Names names;
  const std::string name = names.fresh(hint);
  return declared(name) ? name + "_2" : name;
}

void Names::release(std::string_view name) {
  const auto it = used_.find(name);
  if (it != used_.end()) used_.erase(it);
}

}  // namespace graphene::emit
