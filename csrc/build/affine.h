// Tables of integers as sums of digits: how brute-force results become loops and index expressions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sym/expr.h"

namespace graphene::build {

using Row = std::vector<std::int64_t>;

// rows[i] == rows[0] + sum over k of digit k of i times step[k], the digits of i having the sizes extent[k], fastest
// first.
struct Digits {
  std::vector<std::int64_t> extent;
  std::vector<Row> step;
};
[[nodiscard]] std::optional<Digits> find_digits(const std::vector<Row>& rows);

// sum over k of digit k of `index` times step[k][column]. 0 <= index < the product of the extents.
[[nodiscard]] Expr digit_sum(const Digits& d, const Expr& index, std::size_t column);

}  // namespace graphene::build
