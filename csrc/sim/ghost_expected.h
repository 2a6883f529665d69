// Attributes of what a decomposed spec means, and which run can hold it to its promise.
#pragma once

#include <optional>
#include <string>

#include "sim/ghost_view.h"

namespace graphene::sim {

[[nodiscard]] std::string text_attr(const Scope& s, const char* name);
[[nodiscard]] double number_attr(const Scope& s, const char* name);
[[nodiscard]] bool accumulates(const Scope& s, bool fallback);

struct ProductShape {
  std::int64_t batch = 1, m = 1, n = 1, k = 1;
};
// Rank 0: one product; rank 1: elementwise; rank 2: out[M,N], a[M,K], b[K,N].
[[nodiscard]] std::optional<ProductShape> product_shape(const View& out, const View& a, const View& b);

// Whether a promise of this kind is decided exactly over the field; or else over the reals, within a tolerance.
[[nodiscard]] bool field_decides(const Scope& s);
[[nodiscard]] bool reals_decide(const Scope& s);

}  // namespace graphene::sim
