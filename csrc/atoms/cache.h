// What an instruction's entry says of caches.
#pragma once

#include <algorithm>

#include "atoms/atom.h"

namespace graphene::atoms {

// False: it reads memory as if nobody wrote it while the kernel runs.
[[nodiscard]] inline bool is_coherent(const Atom& atom) {
  return std::ranges::none_of(atom.attrs, [](const AttrDef& a) {
    return a.name == "cache" && std::ranges::any_of(a.accepts, [](const auto& v) { return v.starts_with("nc"); });
  });
}

}  // namespace graphene::atoms
