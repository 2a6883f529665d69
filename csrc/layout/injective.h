// is_injective of large layouts, which a caller may end.
#pragma once

#include <functional>

#include "layout/layout.h"

namespace graphene::layout {

// As is_injective; `poll` is called many times a second, and may throw.
[[nodiscard]] bool is_injective(const Layout& l, const std::function<void()>& poll);

}  // namespace graphene::layout
