// The canonical layouts of a matrix in shared memory: what the descriptor of a matrix instruction can say. One table,
// one function; no instruction has rules of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "atoms/atom.h"

namespace graphene::atoms {

// Rows (of m or n) times k, in lines of `span_bytes` that eight rows of k, or eight k of rows, share a pattern with.
// Hardware swizzles are Sw<bits,4,3> of the byte address.
struct CanonicalForm {
  const char* name;  // "128-byte K-major"
  int span_bytes;    // of a line: 128, 64, 32; 16: not swizzled
  bool mn_major;     // a line runs along the rows
  int bits;          // of the swizzle
  int code;          // bits 62 and 63 of the descriptor
};
[[nodiscard]] std::span<const CanonicalForm> matrix_forms();

// A view in one of them. `leading` and `stride` are the distances that its formula leaves open (PTX ISA: leading and
// stride dimension byte offset): where the tile has no second group along a dimension, 0.
struct FormMatch {
  const CanonicalForm* form = nullptr;
  std::int64_t leading_bytes = 0, stride_bytes = 0;

  // The descriptor of PTX ISA, "matrix descriptor format", but for the address in bits 0 to 13.
  [[nodiscard]] std::uint64_t descriptor_bits() const;
};

// A view's offsets, in elements before the swizzle: of row x and column k, rows(x) + columns(k).
struct MatrixView {
  FlatLayout rows, columns;
  int element_bytes = 2;
  Swizzle swizzle;  // of elements
};

// The form that gives every element of the view its place, relative to its first one; nullopt: none does. Remembered by
// layout. `k_major_only`: the instruction reads no other.
[[nodiscard]] std::optional<FormMatch> find_form(const MatrixView& view, bool k_major_only);

// Whether a view may start there: at a multiple of 16 bytes, in row 0 of the swizzle's pattern. The address is a
// multiple of `multiple_bytes` plus `rest_bytes`.
[[nodiscard]] bool form_may_start(const CanonicalForm& form, std::int64_t multiple_bytes, std::int64_t rest_bytes);

// Where element (x, k) of a view in that form lies, in bytes from its first one, before the swizzle.
[[nodiscard]] std::int64_t form_offset_bytes(const FormMatch& match, int element_bytes, std::int64_t x, std::int64_t k);

// "128-byte K-major: [(8,8),16:(64,SBO),1] by Sw<3,3,3>", of a tile of these rows and columns.
[[nodiscard]] std::string form_text(const CanonicalForm& form, int element_bytes, std::int64_t rows,
                                    std::int64_t columns);

}  // namespace graphene::atoms
