#include "plan/swizzle.h"

#include <algorithm>
#include <bit>
#include <string>
#include <tuple>

#include "base/diag.h"
#include "layout/banks.h"

namespace graphene::plan {

namespace {

constexpr int kLineBytes = 128;   // all banks once
constexpr int kVectorBytes = 16;  // the widest access
constexpr int kMostBits = 3;      // of a swizzle: eight vectors of 16 bytes fill a line
constexpr std::int64_t kMostElems = std::int64_t{1} << 24;

std::int64_t permuted(const Swizzle& s, std::int64_t at) {
  if (s.trivial()) return at;
  return at ^ (((at >> (s.base + s.shift)) & ((std::int64_t{1} << s.bits) - 1)) << s.base);
}

void check_tile(std::int64_t rows, std::int64_t columns, int bits, const std::vector<TileAccess>& accesses) {
  if (bits < 8 || bits % 8 != 0 || bits > 8 * kVectorBytes || !std::has_single_bit(static_cast<unsigned>(bits)))
    fail(Code::PLAN_GRAPH, "a swizzle is for elements of 1, 2, 4, 8 or 16 bytes",
         {"got: " + std::to_string(bits) + " bits"});
  if (rows < 1 || columns < 1 || rows > kMostElems / columns)
    fail(Code::PLAN_GRAPH, "a tile that shared memory cannot hold",
         {"got: " + std::to_string(rows) + " x " + std::to_string(columns) + " elements"});
  for (const TileAccess& a : accesses) {
    if (a.elems < 1 || a.elems * (bits / 8) > kVectorBytes || !std::has_single_bit(static_cast<unsigned>(a.elems)))
      fail(Code::PLAN_GRAPH, "a lane accesses a power of two of elements, at most 16 bytes",
           {"got: " + std::to_string(a.elems) + " elements of " + std::to_string(bits) + " bits"});
    if (columns % a.elems != 0)
      fail(Code::PLAN_GRAPH, "vectors that the end of a row cuts",
           {"got: vectors of " + std::to_string(a.elems) + " in rows of " + std::to_string(columns)});
    for (const auto& request : a.requests) {
      for (std::size_t i = 0; i < request.size(); ++i) {
        const Spot& s = request[i];
        const bool inside = s.row >= 0 && s.row < rows && s.column >= 0 && s.column + a.elems <= columns;
        if (!inside || s.column % a.elems != 0 || s.lane < 0 || s.lane > 31 || (i > 0 && s.lane <= request[i - 1].lane))
          fail(Code::PLAN_GRAPH, "an access that is none of the tile's",
               {"want: lanes 0 to 31, ascending, at multiples of " + std::to_string(a.elems) + " columns, inside of " +
                    std::to_string(rows) + " x " + std::to_string(columns),
                "got: lane " + std::to_string(s.lane) + " at (" + std::to_string(s.row) + "," +
                    std::to_string(s.column) + ")"});
      }
    }
  }
}

}  // namespace

std::vector<Arrangement> arrangements(std::int64_t rows, std::int64_t columns, int element_bits,
                                      const std::vector<TileAccess>& accesses, int most_padding) {
  check_tile(rows, columns, element_bits, accesses);
  const int bytes = element_bits / 8;
  int chunk = 1;  // what every access finds together
  for (const TileAccess& a : accesses) chunk = std::max(chunk, a.elems);
  const int base = std::countr_zero(static_cast<unsigned>(chunk));

  std::vector<Arrangement> out;
  std::vector<layout::LanePiece> pieces;
  std::vector<std::int64_t> words;
  const auto look_at = [&](const Swizzle& swizzle, std::int64_t row_elems) {
    Arrangement a{swizzle, row_elems, rows * row_elems * bytes, 0, 0};
    for (const TileAccess& access : accesses) {
      for (const auto& request : access.requests) {
        pieces.clear();
        for (const Spot& s : request) {
          pieces.push_back({s.lane, permuted(swizzle, s.row * row_elems + s.column) * bytes, access.elems * bytes});
        }
        const layout::BankCount n = layout::count_banks(pieces, access.elems * bytes, words);
        a.wavefronts += static_cast<std::int64_t>(n.wavefronts);
        a.conflicts += static_cast<std::int64_t>(n.conflicts);
      }
    }
    out.push_back(a);
  };
  look_at(Swizzle(), columns);
  const std::int64_t elems = rows * columns;
  // Bits that tell vectors of a line apart: those from the chunk to the line. They take bits from above.
  const int line = std::countr_zero(static_cast<unsigned>(kLineBytes / bytes));
  for (int low = base; low < line; ++low) {
    for (int bits = 1; bits <= std::min(kMostBits, line - low); ++bits) {
      for (int shift = bits; (std::int64_t{1} << (low + shift + bits)) <= elems; ++shift) {
        if (elems % (std::int64_t{1} << (low + bits)) == 0) look_at(Swizzle(bits, low, shift), columns);
      }
    }
  }
  for (int pad = 1; pad <= most_padding; ++pad) look_at(Swizzle(), columns + std::int64_t{pad} * chunk);

  // Of equal swizzles the one that is nearest to that of matrices' rows, which TMA and descriptors know.
  Swizzle usual;
  if (columns * bytes % kVectorBytes == 0) usual = layout::row_swizzle(columns, element_bits);
  std::stable_sort(out.begin(), out.end(), [&](const Arrangement& a, const Arrangement& b) {
    const auto key = [&](const Arrangement& x) {
      return std::tuple(x.conflicts, x.bytes, !x.swizzle.trivial(), !(x.swizzle == usual), x.swizzle.bits,
                        x.swizzle.base, x.swizzle.shift);
    };
    return key(a) < key(b);
  });
  return out;
}

}  // namespace graphene::plan
