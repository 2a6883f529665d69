#include "emit/prelude.h"

#include <array>
#include <cctype>
#include <set>
#include <string_view>

namespace graphene::emit {

namespace {

struct Entry {
  std::string_view name;
  std::string_view text;
};

// In the order of printing: what an entry uses stands before it.
constexpr auto kEntries = std::to_array<Entry>({
    {"i8", "using i8 = signed char;"},
    {"u8", "using u8 = unsigned char;"},
    {"i16", "using i16 = short;"},
    {"u16", "using u16 = unsigned short;"},
    {"i32", "using i32 = int;"},
    {"u32", "using u32 = unsigned int;"},
    {"i64", "using i64 = long long;"},
    {"u64", "using u64 = unsigned long long;"},
    {"half", "using half = u16;  // the bits of an IEEE binary16"},
    {"bfloat16", "using bfloat16 = u16;"},
    {"gr_list",
     "// A list of tensors, in the kernel's parameters.\n"
     "template <class T, int N>\n"
     "struct gr_list {\n"
     "  T* at[N];\n"
     "};"},
    {"gr_shared",
     "// The 32-bit address of shared memory that instructions take.\n"
     "static __device__ __forceinline__ u32 gr_shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }"},
    {"gr_of",
     "// The 32-bit address of an element in the shared memory of another block of the cluster.\n"
     "template <class T>\n"
     "static __device__ __forceinline__ u32 gr_of(const T* start, u32 rank, int element) {\n"
     "  u32 there;\n"
     "  asm(\"mapa.shared::cluster.u32 %0, %1, %2;\" : \"=r\"(there) : \"r\"(gr_shared(start)), \"r\"(rank));\n"
     "  return there + (u32)sizeof(T) * element;\n"
     "}"},
    {"gr_there",
     "// A tensor in shared memory as it lies in another block of the cluster.\n"
     "template <class T>\n"
     "static __device__ __forceinline__ T* gr_there(T* start, u32 rank) {\n"
     "  T* there;\n"
     "  asm(\"mapa.u64 %0, %1, %2;\" : \"=l\"(there) : \"l\"(start), \"r\"(rank));\n"
     "  return there;\n"
     "}"},
    {"gr_map",
     "// A tensor map, as the driver encodes it.\n"
     "struct alignas(64) gr_map {\n"
     "  u64 words[16];\n"
     "};"},
    {"gr_matrix",
     "// The descriptor of a matrix in shared memory: how it lies there, and where. Matrices of one stage differ by a\n"
     "// constant in `low`: one addition each. In a cluster the bits of an address from 24 on are the block's rank.\n"
     "static __device__ __forceinline__ u64 gr_matrix(u32 high, u32 low, const void* p) {\n"
     "  return (u64)high << 32 | (low + (gr_shared(p) >> 4 & 0x3fff));\n"
     "}"},
    {"gr_pack16", "static __device__ __forceinline__ u32 gr_pack16(u16 a, u16 b) { return a | (u32)b << 16; }"},
    {"gr_pack8",
     "static __device__ __forceinline__ u32 gr_pack8(u8 a, u8 b, u8 c, u8 d) {\n"
     "  return a | (u32)b << 8 | (u32)c << 16 | (u32)d << 24;\n"
     "}"},
    {"gr_pack4",
     "static __device__ __forceinline__ u32 gr_pack4(u32 a, u32 b, u32 c, u32 d, u32 e, u32 f, u32 g, u32 h) {\n"
     "  return (a & 15) | (b & 15) << 4 | (c & 15) << 8 | (d & 15) << 12 | (e & 15) << 16 | (f & 15) << 20 |\n"
     "         (g & 15) << 24 | h << 28;\n"
     "}"},
    {"gr_i4x8",
     "// Eight elements of 4 bits in a word.\n"
     "struct gr_i4x8 {\n"
     "  i32 e0 : 4, e1 : 4, e2 : 4, e3 : 4, e4 : 4, e5 : 4, e6 : 4, e7 : 4;\n"
     "};"},
    {"gr_u4x8",
     "// Eight elements of 4 bits in a word.\n"
     "struct gr_u4x8 {\n"
     "  u32 e0 : 4, e1 : 4, e2 : 4, e3 : 4, e4 : 4, e5 : 4, e6 : 4, e7 : 4;\n"
     "};"},
    {"gr_floor_div",
     "// Division and remainder that round towards minus infinity.\n"
     "template <class A, class B>\n"
     "static __device__ __forceinline__ auto gr_floor_div(A a, B b) -> decltype(a / b) {\n"
     "  return a / b - (a % b != 0 && (a < 0) != (b < 0));\n"
     "}"},
    {"gr_mod",
     "template <class A, class B>\n"
     "static __device__ __forceinline__ auto gr_mod(A a, B b) -> decltype(a % b) {\n"
     "  return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);\n"
     "}"},
    {"gr_min",
     "template <class A, class B>\n"
     "static __device__ __forceinline__ auto gr_min(A a, B b) -> decltype(a + b) { return a < b ? a : b; }"},
    {"gr_max",
     "template <class A, class B>\n"
     "static __device__ __forceinline__ auto gr_max(A a, B b) -> decltype(a + b) { return a < b ? b : a; }"},
});

void collect_identifiers(std::string_view text, std::set<std::string_view>& out) {
  const auto word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  for (std::size_t i = 0; i < text.size();) {
    if (!word(text[i])) {
      // Comments are not code.
      if (text.substr(i).starts_with("//")) {
        i = std::min(text.find('\n', i), text.size());
      } else {
        ++i;
      }
      continue;
    }
    const std::size_t begin = i;
    while (i < text.size() && word(text[i])) ++i;
    out.insert(text.substr(begin, i - begin));
  }
}

// A helper's top-level functions, each ending with a closing brace at the start of a line.
std::vector<std::string> functions(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::size_t end = text.find("\n}\n");
    const std::size_t size = end == std::string_view::npos ? text.size() : end + 3;
    out.emplace_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return out;
}

std::string_view declared_name(std::string_view function) {
  const std::size_t paren = function.find('(');
  if (paren == std::string_view::npos) return {};
  std::size_t begin = paren;
  while (begin > 0 &&
         (std::isalnum(static_cast<unsigned char>(function[begin - 1])) != 0 || function[begin - 1] == '_')) {
    --begin;
  }
  return function.substr(begin, paren - begin);
}

}  // namespace

std::string used_helpers(const std::vector<std::string>& helpers, const std::string& body) {
  std::set<std::string_view> used;
  collect_identifiers(body, used);
  std::vector<std::string> all;
  for (const std::string& h : helpers) {
    for (std::string& f : functions(h.ends_with('\n') ? h : h + "\n")) all.push_back(std::move(f));
  }
  std::vector<bool> wanted(all.size());
  for (std::size_t i = all.size(); i-- > 0;) {
    const std::string_view name = declared_name(all[i]);
    wanted[i] = name.empty() || used.contains(name);
    if (wanted[i]) collect_identifiers(all[i], used);
  }
  std::string out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (wanted[i]) out += all[i];
  }
  return out.empty() ? out : out + "\n";
}

std::string prelude(const std::string& body) {
  std::set<std::string_view> used;
  collect_identifiers(body, used);
  std::array<bool, kEntries.size()> wanted{};
  // Backwards: what an entry uses stands before it.
  for (std::size_t i = kEntries.size(); i-- > 0;) {
    wanted.at(i) = used.contains(kEntries.at(i).name);
    if (wanted.at(i)) collect_identifiers(kEntries.at(i).text, used);
  }
  std::string out;
  bool types = true;
  for (std::size_t i = 0; i < kEntries.size(); ++i) {
    if (!wanted.at(i)) continue;
    const bool type = kEntries.at(i).text.starts_with("using");
    if (types && !type && !out.empty()) out += "\n";
    types = type;
    out += std::string(kEntries.at(i).text) + "\n";
  }
  return out.empty() ? out : out + "\n";
}

}  // namespace graphene::emit
