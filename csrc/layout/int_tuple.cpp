#include <algorithm>

#include "layout/layout.h"

namespace graphene::layout {

namespace {

void collect(const IntTuple& t, std::vector<Expr>& out) {
  if (t.is_leaf()) {
    out.push_back(t.leaf());
    return;
  }
  for (const IntTuple& m : t.modes()) collect(m, out);
}

void print(const IntTuple& t, std::string& out) {
  if (t.is_leaf()) {
    out += t.leaf().is_const() ? std::to_string(t.leaf().value()) : t.leaf().str();
    return;
  }
  out += '(';
  for (int i = 0; i < t.rank(); ++i) {
    if (i > 0) out += ',';
    print(t[i], out);
  }
  out += ')';
}

}  // namespace

int IntTuple::depth() const {
  if (is_leaf_) return 0;
  int d = 0;
  for (const IntTuple& m : modes_) d = std::max(d, m.depth());
  return d + 1;
}

std::vector<Expr> IntTuple::leaves() const {
  std::vector<Expr> out;
  collect(*this, out);
  return out;
}

Expr IntTuple::product() const {
  if (is_leaf_) return leaf_;
  Expr p = 1;
  for (const IntTuple& m : modes_) p = p * m.product();
  return p;
}

bool IntTuple::is_static() const {
  if (is_leaf_) return leaf_.is_const();
  return std::all_of(modes_.begin(), modes_.end(), [](const IntTuple& m) { return m.is_static(); });
}

std::string IntTuple::str() const {
  std::string s;
  print(*this, s);
  return s;
}

bool identical(const IntTuple& a, const IntTuple& b) {
  if (a.is_leaf_ != b.is_leaf_) return false;
  if (a.is_leaf_) return identical(a.leaf_, b.leaf_);
  return std::equal(a.modes_.begin(), a.modes_.end(), b.modes_.begin(), b.modes_.end(),
                    [](const IntTuple& x, const IntTuple& y) { return identical(x, y); });
}

bool congruent(const IntTuple& a, const IntTuple& b) {
  if (a.is_leaf() || b.is_leaf()) return a.is_leaf() == b.is_leaf();
  return std::equal(a.modes().begin(), a.modes().end(), b.modes().begin(), b.modes().end(), congruent);
}

}  // namespace graphene::layout
