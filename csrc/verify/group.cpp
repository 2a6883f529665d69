#include "verify/group.h"

#include <algorithm>

#include "ir/levels.h"

namespace graphene::verify {

namespace {

struct Mode {
  std::int64_t size, stride;
};

void collect(const IntTuple& shape, const IntTuple& stride, std::vector<Mode>& out) {
  if (!shape.is_leaf()) {
    for (int i = 0; i < shape.rank(); ++i) collect(shape[i], stride[i], out);
    return;
  }
  if (shape.leaf().is_const(1)) return;
  GR_ASSERT(shape.leaf().is_const() && stride.leaf().is_const() && stride.leaf().value() >= 1,
            "threads of a block are counted by constants");
  out.push_back({shape.leaf().value(), stride.leaf().value()});
}

}  // namespace

InThread::InThread(Expr e, std::int64_t block_threads) : e_(std::move(e)), tid_(ir::tid_var(block_threads)) {
  const auto others = [&](const sym::VarInfo& v) { return &v != &tid_.var(); };
  number_ = !sym::depends_on(e_, others);
}

Expr InThread::operator()(std::int64_t thread) const {
  if (number_) return Expr(sym::evaluate(e_, [&](const sym::VarInfo&) { return thread; }));
  return sym::substitute(e_, {{tid_.node(), Expr(thread)}});
}

Expr is_member(const ir::ThreadTensor& group, bool elect) {
  // "My warp" has an offset in the executing thread's own coordinates: spelt out, most of it cancels.
  const Expr index = sym::expand_coords(group.linear_index() - group.offset);
  if (elect) return sym::eq(index, 0);
  std::vector<Mode> modes;
  for (const Layout& level : group.levels) collect(level.shape(), level.stride(), modes);
  if (modes.empty()) return sym::eq(index, 0);
  std::ranges::sort(modes, {}, &Mode::stride);

  // index = sum of digit * stride with digit < size; what lies between two modes must be 0.
  Expr member = sym::le(0, index);
  std::int64_t span = 1;  // every smaller index is decided
  for (const Mode& m : modes) {
    GR_ASSERT(m.stride % span == 0, "tiles of a launch nest");
    if (m.stride > span) {
      member = sym::logical_and(member, sym::eq(sym::mod(sym::floor_div(index, span), m.stride / span), 0));
    }
    span = m.stride * m.size;
  }
  return sym::logical_and(member, sym::lt(index, span));
}

}  // namespace graphene::verify
