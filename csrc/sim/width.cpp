// Why an access is narrower than 16 bytes, from the view, its buffer and what is proven of both.
#include <algorithm>
#include <numeric>
#include <optional>

#include "sim/report.h"

namespace graphene::sim {

namespace {

constexpr std::int64_t kWideBytes = 16;

std::string bytes_text(std::int64_t n) { return std::to_string(n) + (n == 1 ? " byte" : " bytes"); }

// The largest power of two up to 16 bytes that divides n elements; of 0: 16.
std::int64_t aligned_bytes(std::int64_t elems, std::int64_t element_bits) {
  if (elems == 0) return kWideBytes;
  return std::gcd(elems * element_bits / 8, kWideBytes);
}

// The strides of a view's modes of more than one element.
std::vector<std::int64_t> strides_of(const ir::Tensor& t) {
  std::vector<std::int64_t> out;
  for (const Layout& level : t.levels) {
    const auto shapes = level.shape().leaves();
    const auto strides = level.stride().leaves();
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      if (shapes[i].is_const(1)) continue;
      out.push_back(strides[i].is_const() ? strides[i].value() : 0);
    }
  }
  return out;
}

// Whether the buffer has a mode of consecutive elements, and how many there are; 0: unknown.
std::pair<bool, std::int64_t> unit_mode(const Layout& layout) {
  const auto shapes = layout.shape().leaves();
  const auto strides = layout.stride().leaves();
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (strides[i].is_const(1) && !shapes[i].is_const(1)) return {true, shapes[i].is_const() ? shapes[i].value() : 0};
  }
  return {false, 1};
}

// How many consecutive elements there are, where a bound of the view depends on that.
std::optional<Expr> bounded_run(const ir::Tensor& view, const Layout& layout) {
  const auto shapes = layout.shape().leaves();
  const auto strides = layout.stride().leaves();
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (!strides[i].is_const(1)) continue;
    for (const ir::DimBound& b : view.bounds) {
      for (const Expr& v : sym::free_vars(b.extent)) {
        const auto of_run = sym::free_vars(shapes[i]);
        if (std::any_of(of_run.begin(), of_run.end(), [&](const Expr& e) { return identical(e, v); })) return shapes[i];
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> width_limits(const lower::AtomCall& call, const lower::MemRef& ref,
                                                              const ir::Tensor& view, const lower::MemBuffer& buffer,
                                                              bool named) {
  std::vector<std::pair<std::string, std::string>> out;
  const std::int64_t bits = ir::bits(buffer.dtype);
  const auto values = static_cast<std::int64_t>(ref.deltas.size());
  const std::int64_t wide = 8 * kWideBytes / bits;
  const auto say = [&](const char* what, std::string text) { out.emplace_back(what, std::move(text)); };

  const bool spread = std::adjacent_find(ref.deltas.begin(), ref.deltas.end(),
                                         [](auto x, auto y) { return y != x + 1; }) != ref.deltas.end();
  const auto [unit, length] = unit_mode(buffer.buffer->layout);
  if (spread) {
    const auto strides = strides_of(view);
    const std::int64_t apart = strides.empty() ? ref.deltas[1] - ref.deltas[0] : strides.back();
    say("contiguity", "neighbouring values of the tile are " +
                          (apart > 0 ? std::to_string(apart) : "a symbolic number of") +
                          " elements apart: let its last mode run along the mode of stride 1");
  } else if (!unit) {
    say("contiguity", buffer.buffer->name + " has no mode of stride 1");
  } else if (length != 0 && length * bits / 8 < kWideBytes) {
    say("contiguity", buffer.buffer->name + " has rows of " + bytes_text(length * bits / 8) + " only");
  }
  if (!spread && values < wide) {
    const std::string takes = call.atom->atom.name + " takes " + bytes_text(values * bits / 8);
    if (call.atom->atom.kind != atoms::Kind::Move) {
      say("atom", takes + ": move a vector to registers first");
    } else if (named) {
      say("atom", takes + ", and it was chosen by name");
    } else {
      say("tile", "the leaf moves " + std::to_string(values) + (values == 1 ? " element" : " elements") +
                      " a thread: tile by " + std::to_string(wide) + " along the mode of stride 1");
    }
  }
  for (const Expr& stride : buffer.buffer->layout.stride().leaves()) {
    const std::int64_t d = sym::divisor(stride);
    if (stride.is_const(1) || stride.is_const(0) || aligned_bytes(d, bits) == kWideBytes) continue;
    const bool known = stride.is_const();
    say("alignment", "rows of " + buffer.buffer->name + " start " + stride.str() + " elements apart" +
                         (known ? ": pad them to a multiple of " + std::to_string(wide)
                                : ", proven a multiple of " + std::to_string(d) +
                                      " only: declare multiple_of=" + std::to_string(wide)));
  }
  if (buffer.memory == ir::Memory::GL && buffer.buffer->align_bytes > 0 && buffer.buffer->align_bytes < kWideBytes) {
    say("alignment", "argument " + buffer.buffer->name + " is declared aligned to " +
                         bytes_text(buffer.buffer->align_bytes) + ": declare align_bytes=16");
  }
  if (const Swizzle& s = buffer.buffer->swizzle; !s.trivial()) {
    const int base = std::min(s.base, s.base + std::min(s.shift, 0));
    const std::int64_t together = (std::int64_t{1} << base) * bits / 8;
    if (together < kWideBytes) {
      say("swizzle", "the swizzle keeps " + bytes_text(together) + " together: use gr.swizzle(row, dtype)");
    }
  }
  if (const auto run = bounded_run(view, buffer.buffer->layout)) {
    const std::int64_t whole = aligned_bytes(sym::divisor(*run), bits);
    if (whole < kWideBytes) {
      say("bounds", "the end " + run->str() + " may cut a vector: it is proven a multiple of " +
                        std::to_string(8 * whole / bits) + (8 * whole == bits ? " element" : " elements") +
                        " only (multiple_of=), or copy by an atom that takes partial vectors");
    }
  }
  return out;
}

}  // namespace graphene::sim
