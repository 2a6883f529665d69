// Copies by tensor maps: one leaf a box. A box is dense in shared memory, and its fastest dimension lies within a line
// of the swizzle's pattern.
#include <algorithm>

#include "build/moves.h"
#include "build/nest.h"
#include "ir/levels.h"

namespace graphene::build {

namespace {

constexpr std::int64_t kMaxBoxExtent = 256;  // along each dimension (CUDA driver: cuTensorMapEncodeTiled)

bool addresses_boxes(const std::string& atom) {
  const auto by_map = [](const atoms::OperandInstance& o) { return o.def.via == atoms::Via::TensorMap; };
  const std::vector<atoms::InstancePtr> family = atoms::find_family(atom);
  return std::any_of(family.begin(), family.end(), [&](const atoms::InstancePtr& e) {
    return std::any_of(e->in.begin(), e->in.end(), by_map) || std::any_of(e->out.begin(), e->out.end(), by_map);
  });
}

struct Run {
  std::size_t dim;
  std::int64_t extent, stride;
};

// The largest box at the tile's start: runs are taken while they follow on each other.
std::vector<std::int64_t> box_of(const ir::Tensor& shared) {
  const std::vector<Layout> modes = ir::modes_of(shared.levels[0]);
  std::vector<Run> runs;
  for (std::size_t d = 0; d < modes.size(); ++d) {
    const std::vector<Expr> shape = modes[d].shape().leaves();
    const std::vector<Expr> stride = modes[d].stride().leaves();
    for (std::size_t i = 0; i < shape.size(); ++i) {
      if (!shape[i].is_const() || !stride[i].is_const()) return {};
      if (!shape[i].is_const(1)) runs.push_back({d, shape[i].value(), stride[i].value()});
    }
  }
  std::stable_sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.stride < b.stride; });
  const Swizzle& swizzle = shared.buffer->swizzle;
  const std::int64_t line = swizzle.trivial() ? kMaxBoxExtent : std::int64_t{1} << (swizzle.base + swizzle.bits);
  std::vector<std::int64_t> box(modes.size(), 1);
  std::int64_t place = 1;
  std::size_t current = modes.size();
  for (const Run& r : runs) {
    // A box's dimensions follow on each other as wholes.
    if (r.stride != place || (r.dim != current && box[r.dim] > 1)) break;
    current = r.dim;
    const std::int64_t limit = r.dim == runs.front().dim ? std::min(line, kMaxBoxExtent) : kMaxBoxExtent;
    std::int64_t take = std::min(r.extent, limit / box[r.dim]);
    while (take > 1 && r.extent % take != 0) --take;
    box[r.dim] *= take;
    place *= take;
    if (take < r.extent) break;
  }
  return box;
}

}  // namespace

bool copy_boxes(ir::Builder& b, const ir::SpecStmt& spec) {
  const auto* src = spec.ins.size() == 1 ? std::get_if<ir::TensorPtr>(&spec.ins[0]) : nullptr;
  if (src == nullptr || spec.outs.size() != 1 || !addresses_boxes(spec.atom)) return false;
  const ir::TensorPtr& dst = spec.outs[0];
  const ir::TensorPtr& shared = dst->memory() == ir::Memory::SH ? dst : *src;
  const std::vector<std::int64_t> shape = static_shape(*shared);
  if (shared->memory() != ir::Memory::SH || shared->levels.size() != 1 || (*src)->levels.size() != 1 ||
      dst->levels.size() != 1 || shape.empty() || shape != static_shape(*dst) || shape != static_shape(**src))
    return false;  // lowering says what differs
  const std::vector<std::int64_t> box = box_of(*shared);
  if (box.empty() || box == shape) return false;
  Nest nest(b, spec);
  const ir::TensorPtr from = nest.tile(*src, box);
  const ir::TensorPtr to = nest.tile(dst, box);
  std::vector<Expr> index;
  for (std::size_t d = 0; d < shape.size(); ++d) index.push_back(nest.loop("box", shape[d] / box[d]));
  const ir::TensorPtr s = nest.at(from, index);
  nest.leaf(ir::SpecKind::Move, nest.at(to, index), {s}, spec.atom, false);
  nest.close();
  return true;
}

}  // namespace graphene::build
