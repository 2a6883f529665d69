#include "build/lanes.h"

#include <algorithm>

#include "ir/levels.h"

namespace graphene::build {

std::optional<std::vector<Expr>> lane_sums(Nest& nest, const ir::ThreadPtr& group, bool whole_group,
                                           const std::vector<Row>& table) {
  const std::size_t columns = table[0].size();
  std::vector<Expr> sum(columns, Expr(0));
  if (std::all_of(table.begin(), table.end(), [&](const Row& r) { return r == table[0]; })) return sum;
  const std::vector<std::vector<Expr>> own = nest.indices(group);
  const std::size_t outermost = whole_group ? 0 : group->levels.size() - 1;
  std::vector<Row> total(table.size(), Row(columns, 0));
  std::size_t place = 1;  // of a mode's coordinate in the thread's rank
  for (std::size_t l = group->levels.size(); l-- > outermost;) {
    const std::vector<Layout> modes = ir::modes_of(group->levels[l]);
    for (std::size_t m = 0; m < modes.size(); ++m) {
      const auto extent = static_cast<std::size_t>(modes[m].size().value());
      std::vector<Row> rows;
      for (std::size_t x = 0; x < extent; ++x) {
        Row r(columns);
        for (std::size_t d = 0; d < columns; ++d) r[d] = table[x * place][d] - table[0][d];
        rows.push_back(std::move(r));
      }
      const std::optional<Digits> digits = find_digits(rows);
      if (!digits) return std::nullopt;
      for (std::size_t d = 0; d < columns; ++d) sum[d] = sum[d] + digit_sum(*digits, own[l][m], d);
      for (std::size_t t = 0; t < table.size(); ++t) {
        for (std::size_t d = 0; d < columns; ++d) total[t][d] += rows[t / place % extent][d];
      }
      place *= extent;
    }
  }
  for (std::size_t t = 0; t < table.size(); ++t) {
    for (std::size_t d = 0; d < columns; ++d) {
      if (total[t][d] != table[t][d] - table[0][d]) return std::nullopt;
    }
  }
  return sum;
}

}  // namespace graphene::build
