#include "call/recipe.h"

namespace graphene::call {

std::int64_t evaluate(const std::vector<Extent>& extents, const Arguments& call, const std::vector<Shaped>& outputs) {
  std::int64_t n = 1;
  for (const Extent& e : extents) {
    const auto d = static_cast<std::size_t>(e.dim), i = static_cast<std::size_t>(e.tensor);
    const std::int64_t size = e.tensor < 0              ? e.dim
                              : i < call.tensor_count() ? call.tensor(i).shape[d]
                                                        : outputs.at(i - call.tensor_count()).shape.at(d);
    n *= (size + e.multiple - 1) / e.multiple * e.multiple;
  }
  return n;
}

Shaped evaluate(const OutputSpec& spec, const Arguments& call) {
  Shaped out;
  for (const auto& d : spec.dims) out.shape.push_back(evaluate(d, call, {}));
  out.strides.resize(out.shape.size());
  std::int64_t stride = 1;
  for (std::size_t d = out.shape.size(); d-- > 0;) {
    out.strides[d] = stride;
    stride *= std::max<std::int64_t>(out.shape[d], 1);
  }
  return out;
}

std::optional<Shaped> evaluate(const View& view, const Arguments& call, const std::vector<Shaped>& outputs) {
  const auto inputs = static_cast<int>(call.tensor_count());
  const auto shape_at = [&](int d) {
    return view.source < inputs
               ? call.tensor(view.source).shape[d]
               : outputs[static_cast<std::size_t>(view.source - inputs)].shape[static_cast<std::size_t>(d)];
  };
  const auto stride_at = [&](int d) {
    return view.source < inputs
               ? call.tensor(view.source).stride(d)
               : outputs[static_cast<std::size_t>(view.source - inputs)].strides[static_cast<std::size_t>(d)];
  };
  Shaped out;
  for (const ViewDim& v : view.dims) {
    out.shape.push_back(evaluate(v.extents, call, outputs));
    std::int64_t stride = v.own.empty() ? 0 : 1, next = -1;  // `next`: what the next dimension's stride must be
    for (std::size_t i = v.own.size(); i-- > 0;) {
      const int d = v.own[i];
      if (shape_at(d) == 1) continue;
      if (next < 0)
        stride = stride_at(d);
      else if (stride_at(d) != next)
        return std::nullopt;
      next = stride_at(d) * shape_at(d);
    }
    out.strides.push_back(stride);
  }
  return out;
}

}  // namespace graphene::call
