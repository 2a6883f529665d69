#include "sim/bulk.h"

namespace graphene::sim {

void bulk_elements(const IntPlans& plans, const Warp& w, const Operand& o, int lane, std::vector<std::int64_t>& out) {
  const auto number = [&](const IntPlan& plan) { return plans.at_lane(plan, w.ints, lane); };
  out.clear();
  const std::int64_t first = number(o.offset);
  if (o.box.empty()) {
    const bool inside = o.inside.is_const(1) || plans.nonzero(o.inside, w.ints, 1U << lane) != 0;
    const std::int64_t valid = !inside ? 0 : o.cut ? number(o.valid) : o.values;
    for (int v = 0; v < o.values; ++v) {
      out.push_back(v < valid ? first + o.deltas[static_cast<std::size_t>(v)] : kOutside);
    }
    return;
  }
  struct Dim {
    std::int64_t at, extent, stride, box, c;
  };
  std::vector<Dim> dims;
  for (const BoxDim& d : o.box) dims.push_back({number(d.at), number(d.extent), number(d.stride), d.box, 0});
  for (int v = 0; v < o.values; ++v) {
    std::int64_t element = first;
    bool inside = true;
    for (const Dim& d : dims) {
      const std::int64_t x = d.at + d.c;
      inside = inside && x >= 0 && x < d.extent;
      element += x * d.stride;
    }
    out.push_back(inside ? element : kOutside);
    for (Dim& d : dims) {
      if (++d.c < d.box) break;
      d.c = 0;
    }
  }
}

}  // namespace graphene::sim
