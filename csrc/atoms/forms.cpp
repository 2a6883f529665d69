#include "atoms/forms.h"

#include <array>
#include <bit>
#include <map>
#include <vector>

namespace graphene::atoms {

namespace {

constexpr std::array<CanonicalForm, 8> kForms = {{{"128-byte K-major", 128, false, 3, 1},
                                                  {"64-byte K-major", 64, false, 2, 2},
                                                  {"32-byte K-major", 32, false, 1, 3},
                                                  {"unswizzled K-major", 16, false, 0, 0},
                                                  {"128-byte MN-major", 128, true, 3, 1},
                                                  {"64-byte MN-major", 64, true, 2, 2},
                                                  {"32-byte MN-major", 32, true, 1, 3},
                                                  {"unswizzled MN-major", 16, true, 0, 0}}};

constexpr std::int64_t kChunk = 16;                       // bytes that a swizzle moves as a whole
constexpr std::int64_t kLargest = std::int64_t{1} << 18;  // bytes that a descriptor's 14 bits reach

int log2_of(int element_bytes) { return std::countr_zero(static_cast<unsigned>(element_bytes)); }

// The swizzle of a form, of elements.
bool has_swizzle(const CanonicalForm& form, const Swizzle& s, int element_bytes) {
  if (form.bits == 0 || s.trivial()) return form.bits == 0 && s.trivial();
  return s.bits == form.bits && s.base == 4 - log2_of(element_bytes) && s.shift == 3;
}

std::optional<FormMatch> search(const MatrixView& view, bool k_major_only) {
  const std::int64_t e = view.element_bytes;
  const std::int64_t rows = view.rows.size();
  const std::int64_t columns = view.columns.size();
  // 0 where the tile ends before: nothing depends on that distance.
  const auto at = [&](std::int64_t x, std::int64_t k) {
    return x < rows && k < columns ? e * (view.rows(x) + view.columns(k)) : 0;
  };
  for (const CanonicalForm& form : kForms) {
    if ((k_major_only && form.mn_major) || !has_swizzle(form, view.swizzle, view.element_bytes)) continue;
    const std::int64_t chunk = kChunk / e;
    FormMatch m{&form, 0, 0};
    if (!form.mn_major) {
      m.stride_bytes = at(8, 0);
      m.leading_bytes = at(0, chunk);
    } else if (form.bits > 0) {
      m.leading_bytes = at(form.span_bytes / e, 0);
      m.stride_bytes = at(0, 8);
    } else {
      m.leading_bytes = at(0, 8);
      m.stride_bytes = at(chunk, 0);
    }
    const auto fits = [](std::int64_t bytes) { return bytes % kChunk == 0 && bytes >= 0 && bytes < kLargest; };
    bool same = fits(m.leading_bytes) && fits(m.stride_bytes);
    for (std::int64_t x = 0; x < rows && same; ++x) {
      for (std::int64_t k = 0; k < columns && same; ++k)
        same = at(x, k) == form_offset_bytes(m, view.element_bytes, x, k);
    }
    if (same) return m;
  }
  return std::nullopt;
}

}  // namespace

std::span<const CanonicalForm> matrix_forms() { return kForms; }

std::uint64_t FormMatch::descriptor_bits() const {
  const auto field = [](std::int64_t bytes) { return static_cast<std::uint64_t>(bytes) >> 4U & 0x3fffU; };
  return static_cast<std::uint64_t>(form->code) << 62U | field(stride_bytes) << 32U | field(leading_bytes) << 16U;
}

std::int64_t form_offset_bytes(const FormMatch& match, int element_bytes, std::int64_t x, std::int64_t k) {
  const CanonicalForm& form = *match.form;
  const std::int64_t e = element_bytes;
  const std::int64_t chunk = kChunk / e;
  if (!form.mn_major) {
    const std::int64_t inside = k / chunk * (form.bits > 0 ? kChunk : match.leading_bytes) + k % chunk * e;
    return x % 8 * form.span_bytes + x / 8 * match.stride_bytes + inside;
  }
  if (form.bits == 0) {
    return x % chunk * e + x / chunk * match.stride_bytes + k % 8 * kChunk + k / 8 * match.leading_bytes;
  }
  const std::int64_t line = form.span_bytes / e;
  return x % line * e + x / line * match.leading_bytes + k % 8 * form.span_bytes + k / 8 * match.stride_bytes;
}

std::optional<FormMatch> find_form(const MatrixView& view, bool k_major_only) {
  static thread_local std::map<std::vector<std::int64_t>, std::optional<FormMatch>> known;
  std::vector<std::int64_t> key = {k_major_only ? 1 : 0, view.element_bytes, view.swizzle.bits, view.swizzle.base,
                                   view.swizzle.shift};
  for (const FlatLayout* l : {&view.rows, &view.columns}) {
    key.push_back(static_cast<std::int64_t>(l->shape.size()));
    key.insert(key.end(), l->shape.begin(), l->shape.end());
    key.insert(key.end(), l->stride.begin(), l->stride.end());
  }
  const auto it = known.find(key);
  if (it != known.end()) return it->second;
  constexpr std::size_t kMany = 4096;
  if (known.size() >= kMany) known.clear();
  return known.emplace(std::move(key), search(view, k_major_only)).first->second;
}

bool form_may_start(const CanonicalForm& form, std::int64_t multiple_bytes, std::int64_t rest_bytes) {
  const std::int64_t pattern = 8 * form.span_bytes;  // bytes
  if (form.bits == 0) return multiple_bytes % kChunk == 0 && rest_bytes % kChunk == 0;
  return multiple_bytes % pattern == 0 && rest_bytes % kChunk == 0 && (rest_bytes >> 7) % (1 << form.bits) == 0;
}

std::string form_text(const CanonicalForm& form, int element_bytes, std::int64_t rows, std::int64_t columns) {
  const std::int64_t e = element_bytes;
  const std::int64_t chunk = kChunk / e;
  const std::int64_t line = form.span_bytes / e;
  const auto cut = [](std::int64_t size, std::int64_t by, std::int64_t stride, const char* open) {
    const std::string step = std::to_string(stride);
    if (size <= by) return std::pair{std::to_string(size), step};
    return std::pair{"(" + std::to_string(by) + "," + std::to_string((size + by - 1) / by) + ")",
                     "(" + step + "," + open + ")"};
  };
  std::pair<std::string, std::string> x, k;
  if (!form.mn_major) {
    x = cut(rows, 8, line, "SBO");
    k = form.bits > 0 ? std::pair{std::to_string(columns), std::string("1")} : cut(columns, chunk, 1, "LBO");
  } else if (form.bits > 0) {
    x = cut(rows, line, 1, "LBO");
    k = cut(columns, 8, line, "SBO");
  } else {
    x = cut(rows, chunk, 1, "SBO");
    k = cut(columns, 8, chunk, "LBO");
  }
  std::string text = std::string(form.name) + ": [" + x.first + "," + k.first + ":" + x.second + "," + k.second + "]";
  if (form.bits > 0) text += " by " + Swizzle(form.bits, 4 - log2_of(element_bytes), 3).str();
  return text;
}

}  // namespace graphene::atoms
