#include "build/affine.h"

namespace graphene::build {

namespace {

Row minus(const Row& a, const Row& b) {
  Row r(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) r[i] = a[i] - b[i];
  return r;
}

// rows[a * length + i] == rows[a * length] + i * step
bool repeats(const std::vector<Row>& rows, std::size_t length, const Row& step) {
  for (std::size_t a = 0; a < rows.size(); a += length) {
    for (std::size_t i = 0; i < length; ++i) {
      for (std::size_t c = 0; c < step.size(); ++c) {
        if (rows[a + i][c] != rows[a][c] + static_cast<std::int64_t>(i) * step[c]) return false;
      }
    }
  }
  return true;
}

}  // namespace

std::optional<Digits> find_digits(const std::vector<Row>& rows) {
  Digits out;
  std::vector<Row> rest = rows;
  while (rest.size() > 1) {
    const Row step = minus(rest[1], rest[0]);
    std::size_t length = rest.size();
    while (length > 1 && (rest.size() % length != 0 || !repeats(rest, length, step))) --length;
    if (length == 1) return std::nullopt;
    out.extent.push_back(static_cast<std::int64_t>(length));
    out.step.push_back(step);
    std::vector<Row> next;
    for (std::size_t a = 0; a < rest.size(); a += length) next.push_back(rest[a]);
    rest = std::move(next);
  }
  return out;
}

Expr digit_sum(const Digits& d, const Expr& index, std::size_t column) {
  Expr sum = 0;
  std::int64_t place = 1;
  for (std::size_t k = 0; k < d.extent.size(); ++k) {
    if (d.step[k][column] != 0) {
      Expr digit = sym::floor_div(index, place);
      if (k + 1 < d.extent.size()) digit = sym::mod(digit, d.extent[k]);
      sum = sum + digit * d.step[k][column];
    }
    place *= d.extent[k];
  }
  return sum;
}

}  // namespace graphene::build
