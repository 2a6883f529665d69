// How much memory expressions take.
#pragma once

#include <cstddef>

namespace graphene::sym {

struct Kept {
  std::size_t nodes = 0;
  std::size_t bytes = 0;
};

// Of all nodes that live as long as the process.
[[nodiscard]] Kept kept();

}  // namespace graphene::sym
