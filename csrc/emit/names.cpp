#include "emit/names.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace graphene::emit {

namespace {

// Keywords of C++, CUDA's predefined names, and the names the prelude may define.
constexpr auto kReserved = std::to_array<std::string_view>(
    {"alignas",  "alignof",  "and",      "asm",       "atomic",    "auto",     "bfloat16", "bitand",    "bitor",
     "blockDim", "blockIdx", "bool",     "break",     "case",      "catch",    "char",     "class",     "compl",
     "concept",  "const",    "continue", "decltype",  "default",   "delete",   "do",       "double",    "else",
     "enum",     "explicit", "export",   "extern",    "false",     "float",    "for",      "friend",    "goto",
     "gridDim",  "half",     "i16",      "i32",       "i64",       "i8",       "if",       "inline",    "int",
     "long",     "max",      "min",      "mutable",   "namespace", "new",      "noexcept", "not",       "nullptr",
     "operator", "or",       "private",  "protected", "public",    "register", "requires", "return",    "short",
     "signed",   "sizeof",   "static",   "struct",    "switch",    "template", "this",     "threadIdx", "throw",
     "true",     "try",      "typedef",  "typeid",    "typename",  "u16",      "u32",      "u64",       "u8",
     "union",    "unsigned", "using",    "virtual",   "void",      "volatile", "warpSize", "wchar_t",   "while",
     "xor",      "std"});

std::string legal(std::string_view hint) {
  std::string out;
  for (const char c : hint) out += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  if (out.empty() || std::isdigit(static_cast<unsigned char>(out.front())) != 0) out.insert(0, "v");
  // Names that begin with two underscores, or with gr_, belong to the compiler and to the prelude.
  if (out.starts_with("__") || out.starts_with("gr_")) out.insert(0, "v");
  return out;
}

}  // namespace

std::string Names::fresh(std::string_view hint) {
  const std::string base = legal(hint);
  std::string name = base;
  for (int n = 2; used_.contains(name) || std::ranges::find(kReserved, name) != kReserved.end(); ++n) {
    name = base + "_" + std::to_string(n);
  }
  used_.insert(name);
  return name;
}

void Names::release(std::string_view name) {
  const auto it = used_.find(name);
  if (it != used_.end()) used_.erase(it);
}

}  // namespace graphene::emit
