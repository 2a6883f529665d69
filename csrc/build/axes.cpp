#include "build/axes.h"

#include <algorithm>

#include "atoms/parse.h"

namespace graphene::build {

namespace {

void cut(const ir::Fragment& f, const Layout& mode, std::vector<AxisMode>& out) {
  const atoms::FlatLayout flat = atoms::flatten(mode);
  std::int64_t place = 1;
  for (std::size_t i = 0; i < flat.shape.size(); ++i) {
    std::int64_t extent = flat.shape[i];
    std::int64_t stride = flat.stride[i];
    if (extent == 1) continue;
    if (stride == 0) {
      out.push_back({extent, 0, 0, place});
      place *= extent;
      continue;
    }
    // The dimension whose coordinates a stride counts; where the mode leaves it, the rest goes on in the next one.
    while (extent > 1) {
      std::int64_t column = 1;
      std::size_t d = 0;
      while (d + 1 < f.shape.size() && stride % (column * f.shape[d]) == 0) column *= f.shape[d++];
      const std::int64_t step = stride / column;
      const bool last = d + 1 == f.shape.size();
      const std::int64_t room = last ? extent : (f.shape[d] + step - 1) / step;
      const std::int64_t take = std::min(extent, room);
      if (stride % column != 0 || extent % take != 0 || (take < extent && step * take != f.shape[d])) {
        fail(Code::REDUCE_FRAGMENT, "a TV layout whose modes move along several dimensions at once",
             {"tv: " + f.tv.str()}, "use a TV layout whose modes each stay in one dimension");
      }
      out.push_back({take, d, step, place});
      place *= take;
      extent /= take;
      stride *= take;
    }
  }
}

}  // namespace

AxisModes axis_modes(const ir::Fragment& f) {
  AxisModes m;
  cut(f, f.tv.mode(0), m.threads);
  cut(f, f.tv.mode(1), m.values);
  return m;
}

}  // namespace graphene::build
