// Where the elements of strided tensors lie, and whether two of them meet.
#pragma once

#include <cstdint>

#include "runtime/args.h"

namespace graphene::runtime {

// The bytes [first, last) that the tensor's elements span, relative to its data; {0, 0} when it has none.
struct Span {
  std::int64_t first = 0;
  std::int64_t last = 0;
};
[[nodiscard]] Span byte_span(const TensorArg& t);

// Whether an element of one shares a byte with an element of the other. Exact, except that a pair whose strides make
// the search longer than some thousand steps counts as overlapping.
[[nodiscard]] bool overlap(const TensorArg& a, const TensorArg& b);

enum class Meet : std::uint8_t { No, Yes, Unknown };

// Whether two elements of one tensor lie at one address. Unknown: the search would take longer than some hundredths of
// a second.
[[nodiscard]] Meet elements_meet(const TensorArg& t);

}  // namespace graphene::runtime
