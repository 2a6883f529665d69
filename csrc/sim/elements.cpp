#include "sim/elements.h"

#include <algorithm>
#include <tuple>

namespace graphene::sim {

namespace {

std::int64_t number(const Expr& e, const Bytecode& code) { return code.plans->at_thread(e, 0); }

}  // namespace

FlatModes flat_modes(const Layout& layout, const Bytecode& code) {
  FlatModes f;
  const bool leaf = layout.shape().is_leaf();
  for (int i = 0; i < layout.rank(); ++i) {
    const Layout mode = leaf ? layout : layout.mode(i);
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> stride;
    for (const Expr& e : mode.shape().leaves()) shape.push_back(number(e, code));
    for (const Expr& e : mode.stride().leaves()) stride.push_back(number(e, code));
    f.shape.push_back(std::move(shape));
    f.stride.push_back(std::move(stride));
  }
  return f;
}

std::vector<std::int64_t> layout_elements(const Layout& layout, const Bytecode& code) {
  const FlatModes f = flat_modes(layout, code);
  std::vector<std::int64_t> out = {0};
  for (std::size_t m = 0; m < f.shape.size(); ++m) {
    for (std::size_t i = 0; i < f.shape[m].size(); ++i) {
      const std::size_t inner = out.size();
      const std::int64_t n = f.shape[m][i];
      if (n == 0) return {};
      out.reserve(inner * static_cast<std::size_t>(n));
      for (std::int64_t c = 1; c < n; ++c) {
        for (std::size_t k = 0; k < inner; ++k) out.push_back(out[k] + c * f.stride[m][i]);
      }
    }
  }
  return out;
}

std::string describe_element(const ir::Buffer& buffer, std::int64_t element, const Bytecode& code) {
  const std::string plain = "element " + std::to_string(element) + " of " + buffer.name;
  std::string text;
  std::int64_t rest = element;
  if (!buffer.swizzle.trivial()) {  // its own inverse where source and target bits are apart
    if (buffer.swizzle.shift < buffer.swizzle.bits) return plain;
    rest = number(buffer.swizzle(Expr(rest)), code);
  }
  if (buffer.stages > 0) {
    const std::int64_t stage = number(buffer.stage_elems, code);
    if (stage <= 0) return plain;
    text = std::to_string(rest / stage);
    rest %= stage;
  }
  const FlatModes f = flat_modes(buffer.layout, code);
  // Largest strides first: exact for layouts whose strides nest, checked below.
  std::vector<std::tuple<std::int64_t, std::size_t, std::size_t>> order;
  std::vector<std::vector<std::int64_t>> at(f.shape.size());
  for (std::size_t m = 0; m < f.shape.size(); ++m) {
    at[m].assign(f.shape[m].size(), 0);
    for (std::size_t i = 0; i < f.shape[m].size(); ++i) order.emplace_back(f.stride[m][i], m, i);
  }
  std::sort(order.rbegin(), order.rend());
  for (const auto& [stride, m, i] : order) {
    if (stride <= 0) continue;
    at[m][i] = std::min(rest / stride, f.shape[m][i] - 1);
    rest -= at[m][i] * stride;
  }
  if (rest != 0) return plain;
  for (std::size_t m = 0; m < f.shape.size(); ++m) {
    std::int64_t c = 0;
    std::int64_t scale = 1;
    for (std::size_t i = 0; i < f.shape[m].size(); ++i) {
      c += at[m][i] * scale;
      scale *= f.shape[m][i];
    }
    if (!f.shape[m].empty()) text += (text.empty() ? "" : ", ") + std::to_string(c);
  }
  return buffer.name + "[" + text + "]";
}

}  // namespace graphene::sim
