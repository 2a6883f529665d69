// Structural equality of kernels: every field but source locations. Written apart from the printer, so that each checks
// the other.
#include <algorithm>
#include <bit>
#include <cmath>

#include "ir/declare.h"
#include "ir/stmt.h"

namespace graphene::ir {

namespace {

// NaNs equal each other; 0.0 and -0.0 differ.
bool same_number(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

bool same(const Expr& a, const Expr& b) { return identical(a, b); }
bool same(const Layout& a, const Layout& b) { return identical(a, b); }
bool same(const std::optional<Layout>& a, const std::optional<Layout>& b) {
  return a.has_value() == b.has_value() && (!a || identical(*a, *b));
}
bool same(const ThreadTensor& a, const ThreadTensor& b);
bool same(const Tensor& a, const Tensor& b);
bool same(const Buffer& a, const Buffer& b);
bool same(const Stmt& a, const Stmt& b);
bool same(const Operand& a, const Operand& b);
bool same(const IndexArg& a, const IndexArg& b);
bool same(const DimBound& a, const DimBound& b);
bool same(const ScalarParam& a, const ScalarParam& b);

template <class T>
bool same(const std::shared_ptr<const T>& a, const std::shared_ptr<const T>& b) {
  if (a == b) return true;
  return a && b && same(*a, *b);
}

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const T& x, const T& y) { return same(x, y); });
}

bool same(const Attrs& a, const Attrs& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.first == y.first && same_attr(x.second, y.second); });
}

bool same(const ThreadTensor& a, const ThreadTensor& b) {
  return a.id == b.id && a.unit == b.unit && same(a.dims, b.dims) && same(a.levels, b.levels) &&
         same(a.offset, b.offset) && a.subset == b.subset && a.root == b.root;
}

bool same(const Fragment& a, const Fragment& b) {
  return a.shape == b.shape && same(a.group, b.group) && same(a.tv, b.tv) && a.label == b.label;
}

bool same(const Buffer& a, const Buffer& b) {
  return a.id == b.id && a.name == b.name && a.dtype == b.dtype && a.memory == b.memory && a.role == b.role &&
         same(a.layout, b.layout) && a.swizzle == b.swizzle && a.stages == b.stages &&
         same(a.stage_elems, b.stage_elems) && a.count == b.count && a.align_bytes == b.align_bytes &&
         a.arrivals == b.arrivals && a.over == b.over && a.at_bytes == b.at_bytes &&
         a.fragment.has_value() == b.fragment.has_value() && (!a.fragment || same(*a.fragment, *b.fragment));
}

bool same(const DimBound& a, const DimBound& b) {
  return same(a.base, b.base) && same(a.levels, b.levels) && same(a.extent, b.extent) && a.outside == b.outside;
}

bool same(const Tensor& a, const Tensor& b) {
  return a.id == b.id && same(a.buffer, b.buffer) && same(a.offset, b.offset) && same(a.levels, b.levels) &&
         same(a.bounds, b.bounds) && a.dtype == b.dtype && a.own_values == b.own_values &&
         a.member.has_value() == b.member.has_value() && (!a.member || same(*a.member, *b.member)) &&
         a.rank.has_value() == b.rank.has_value() && (!a.rank || same(*a.rank, *b.rank));
}

bool same(const IndexArg& a, const IndexArg& b) {
  if (a.kind != b.kind) return false;
  if (a.kind == IndexArg::Kind::All) return true;
  return same(a.at, b.at) && (a.kind == IndexArg::Kind::At || same(a.stop, b.stop));
}

bool same(const Operand& a, const Operand& b) {
  if (a.index() != b.index()) return false;
  if (const auto* t = std::get_if<TensorPtr>(&a)) return same(*t, std::get<TensorPtr>(b));
  if (const auto* d = std::get_if<double>(&a)) return same_number(*d, std::get<double>(b));
  return same(std::get<Expr>(a), std::get<Expr>(b));
}

bool same(const ScalarParam& a, const ScalarParam& b) {
  return a.name == b.name && a.dtype == b.dtype && same(a.var, b.var) && same(a.tensor, b.tensor) &&
         a.position == b.position;
}

// Only the arguments that the operation has are compared.
bool same(const ViewStmt& a, const ViewStmt& b) {
  if (!same(a.result, b.result) || !same(a.source, b.source) || a.op != b.op) return false;
  switch (a.op) {
    case ViewOp::Tile:
      return same(a.tiler, b.tiler);
    case ViewOp::Index:
    case ViewOp::Window:
    case ViewOp::Of:
      return same(a.index, b.index);
    case ViewOp::Permute:
      return a.order == b.order;
    case ViewOp::Reshape:
      return a.level == b.level && same(a.shape, b.shape);
    case ViewOp::Transpose:
    case ViewOp::Values:
      return true;
  }
  return true;
}

bool same(const ThreadStmt& a, const ThreadStmt& b) {
  if (!same(a.result, b.result) || !same(a.source, b.source) || a.op != b.op) return false;
  switch (a.op) {
    case ThreadOp::Tile:
      return same(a.tiler, b.tiler);
    case ThreadOp::Index:
      return same(a.index, b.index);
    case ThreadOp::Reshape:
      return a.level == b.level && same(a.shape, b.shape);
    case ThreadOp::Scalar:
      return true;
  }
  return true;
}

bool same(const IndicesStmt& a, const IndicesStmt& b) { return same(a.group, b.group) && same(a.vars, b.vars); }
bool same(const AllocStmt& a, const AllocStmt& b) { return same(a.tensor, b.tensor); }
bool same(const SpecStmt& a, const SpecStmt& b) {
  return a.kind == b.kind && same(a.attrs, b.attrs) && same(a.outs, b.outs) && same(a.ins, b.ins) &&
         same(a.blocks, b.blocks) && same(a.threads, b.threads) && a.atom == b.atom && a.means == b.means &&
         same(a.done, b.done) && same(a.to, b.to) && a.tv.has_value() == b.tv.has_value() &&
         (!a.tv || same(*a.tv, *b.tv)) && a.decomposed == b.decomposed && a.collective == b.collective &&
         same(a.body, b.body);
}
bool same(const LoopStmt& a, const LoopStmt& b) {
  return same(a.var, b.var) && same(a.start, b.start) && same(a.stop, b.stop) && same(a.step, b.step) &&
         a.unroll == b.unroll && same(a.condition, b.condition) && same(a.body, b.body);
}
bool same(const IfStmt& a, const IfStmt& b) {
  return same(a.condition, b.condition) && same(a.then_body, b.then_body) && same(a.else_body, b.else_body);
}
bool same(const OnlyStmt& a, const OnlyStmt& b) {
  return same(a.group, b.group) && a.elect == b.elect && same(a.body, b.body);
}
bool same(const ExitIfStmt& a, const ExitIfStmt& b) { return same(a.condition, b.condition); }
bool same(const ScalarStmt& a, const ScalarStmt& b) {
  return same(a.var, b.var) && same(a.value, b.value) && a.declare == b.declare && same(a.from, b.from);
}
bool same(const SyncStmt& a, const SyncStmt& b) {
  return a.op == b.op && same(a.group, b.group) && a.atom == b.atom && same(a.attrs, b.attrs) &&
         same(a.barrier, b.barrier) && a.phase.has_value() == b.phase.has_value() &&
         (!a.phase || same(*a.phase, *b.phase)) && same(a.expect, b.expect) && same(a.expect_bytes, b.expect_bytes) &&
         same(a.to, b.to) && same(a.values, b.values);
}

bool same(const Stmt& a, const Stmt& b) {
  if (&a == &b) return true;
  if (a.id != b.id || a.node.index() != b.node.index()) return false;
  return std::visit([&](const auto& x) { return same(x, std::get<std::decay_t<decltype(x)>>(b.node)); }, a.node);
}

}  // namespace

bool operator==(const Kernel& a, const Kernel& b) {
  return a.name == b.name && same(a.args, b.args) && same(a.params, b.params) && same(a.symbols, b.symbols) &&
         same(a.grid, b.grid) && same(a.block, b.block) && a.cluster == b.cluster && same(a.body, b.body);
}

}  // namespace graphene::ir
