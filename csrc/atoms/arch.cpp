#include "atoms/arch.h"

#include <array>
#include <string_view>

#include "base/diag.h"

namespace graphene::atoms {

namespace {

// CUDA C++ Programming Guide, technical specifications per compute capability; the occupancy calculator's units.
constexpr auto kArchs = std::to_array<Arch>({{"sm_70", 96, "", {64, 32, 96, 0, 256}},
                                             {"sm_72", 96, "", {64, 32, 96, 0, 256}},
                                             {"sm_75", 64, "", {32, 16, 64, 0, 256}},
                                             {"sm_80", 163, "", {64, 32, 164, 1024, 128}},
                                             {"sm_86", 99, "", {48, 16, 100, 1024, 128}},
                                             {"sm_87", 163, "", {48, 16, 164, 1024, 128}},
                                             {"sm_88", 0, ""},
                                             {"sm_89", 99, "", {48, 24, 100, 1024, 128}},
                                             {"sm_90", 227, "a", {64, 32, 228, 1024, 128}},
                                             {"sm_100", 227, "af", {64, 32, 228, 1024, 128}},
                                             {"sm_101", 227, "af"},
                                             {"sm_103", 227, "af", {64, 32, 228, 1024, 128}},
                                             {"sm_107", 0, "af"},
                                             {"sm_110", 227, "af", {48, 24, 228, 1024, 128}},
                                             {"sm_120", 99, "af", {48, 24, 100, 1024, 128}},
                                             {"sm_121", 99, "af", {48, 24, 100, 1024, 128}},
                                             {"gfx90a", 64, ""}});

}  // namespace

std::span<const Arch> archs() { return kArchs; }

const Arch* find_arch(const std::string& name) {
  for (const Arch& a : kArchs) {
    const std::string_view plain = a.name;
    if (!name.starts_with(plain)) continue;
    const std::string_view rest = std::string_view(name).substr(plain.size());
    if (rest.empty()) return &a;
    if (rest.size() == 1 && std::string_view(a.suffixes).find(rest[0]) != std::string_view::npos) return &a;
  }
  return nullptr;
}

const Arch& require_arch(const std::string& name, const std::string& shown) {
  if (const Arch* a = find_arch(name)) return *a;
  std::string known;
  for (const Arch& a : kArchs) {
    known += (known.empty() ? "known: " : " ") + std::string(a.name);
    for (const char c : std::string_view(a.suffixes)) known += std::string(" ") + a.name + c;
  }
  fail(Code::ARCH_UNKNOWN, "there is no architecture " + shown, {known},
       "name the GPU's, as `python -m graphene doctor` shows it: \"sm_80\" is an A100, \"sm_90a\" an H100 or H200");
}

}  // namespace graphene::atoms
