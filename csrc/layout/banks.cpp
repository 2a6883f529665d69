#include "layout/banks.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/diag.h"
#include "layout/tv.h"

namespace graphene::layout {

namespace {

constexpr int kBanks = 32;
constexpr int kBankBytes = 4;
constexpr int kSectorBytes = 32;
constexpr int kWarp = 32;
constexpr int kVectorBytes = 16;

}  // namespace

BankCount count_banks(const std::vector<LanePiece>& pieces, int vector_bytes, std::vector<std::int64_t>& words) {
  BankCount out;
  const int group = vector_bytes <= 4 ? 32 : vector_bytes <= 8 ? 16 : 8;  // lanes served at once
  for (std::size_t i = 0; i < pieces.size();) {
    const int number = pieces[i].lane / group;
    words.clear();
    for (; i < pieces.size() && pieces[i].lane / group == number; ++i) {
      const LanePiece& p = pieces[i];
      for (std::int64_t word = p.address / kBankBytes; word * kBankBytes < p.address + p.bytes; ++word) {
        words.push_back(word);
      }
    }
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    std::array<int, kBanks> in_bank{};
    int most = 0;
    for (const std::int64_t word : words) most = std::max(most, ++in_bank[static_cast<std::size_t>(word % kBanks)]);
    out.wavefronts += static_cast<std::uint64_t>(most);
    out.conflicts += static_cast<std::uint64_t>(most - 1);
    out.ways = std::max(out.ways, most);
  }
  return out;
}

SectorCount count_sectors(std::vector<LanePiece>& pieces, std::vector<std::int64_t>& words) {
  words.clear();
  std::int64_t bytes = 0;
  std::sort(pieces.begin(), pieces.end(), [](const LanePiece& x, const LanePiece& y) { return x.address < y.address; });
  std::int64_t end = std::numeric_limits<std::int64_t>::min();
  for (const LanePiece& p : pieces) {
    const std::int64_t last = p.address + p.bytes;
    bytes += std::max<std::int64_t>(last - std::max(end, p.address), 0);
    end = std::max(end, last);
    for (std::int64_t s = p.address / kSectorBytes; s * kSectorBytes < last; ++s) words.push_back(s);
  }
  std::sort(words.begin(), words.end());
  return {static_cast<std::uint64_t>(std::unique(words.begin(), words.end()) - words.begin()),
          static_cast<std::uint64_t>((bytes + kSectorBytes - 1) / kSectorBytes)};
}

AccessCount count_access(const Layout& tile, const Layout& tv, int element_bits, const Swizzle& swizzle) {
  if (!tile.is_static())
    fail(Code::LAYOUT_FACT, "an access is counted for constant sizes and strides", {"got: " + tile.str()});
  if (element_bits < 8 || element_bits % 8 != 0 || element_bits > 8 * kVectorBytes)
    fail(Code::LAYOUT_SIZE, "an access is counted for elements of whole bytes",
         {"got: " + std::to_string(element_bits) + " bits"});
  const TvTable table(tv, tile.size().value());
  std::vector<std::int64_t> at(static_cast<std::size_t>(table.elements()));
  for (std::size_t e = 0; e < at.size(); ++e) {
    const Expr offset = tile(static_cast<std::int64_t>(e));
    at[e] = (swizzle.trivial() ? offset : swizzle(offset)).value();
    if (at[e] < 0) fail(Code::LAYOUT_BOUNDS, "an element before the start of the tile", {"got: " + tile.str()});
  }
  const int bytes = element_bits / 8;
  AccessCount out;
  std::vector<LanePiece> pieces;
  std::vector<std::int64_t> words;
  // A vector is one where the values lie side by side in every thread, aligned to what it is cut into.
  const auto neighbours = [&](int first, int n) {
    for (int t = 0; t < table.threads(); ++t) {
      const std::int64_t start = at[static_cast<std::size_t>(table.element(t, first))];
      if (start % n != 0) return false;
      for (int v = 1; v < n; ++v) {
        if (at[static_cast<std::size_t>(table.element(t, first + v))] != start + v) return false;
      }
    }
    return true;
  };
  for (int v = 0; v < table.values();) {
    int n = 1;
    while (2 * n * bytes <= kVectorBytes && v + 2 * n <= table.values() && neighbours(v, 2 * n)) n *= 2;
    for (int warp = 0; warp < table.threads(); warp += kWarp) {
      pieces.clear();
      for (int t = warp; t < std::min(warp + kWarp, table.threads()); ++t) {
        pieces.push_back({t - warp, at[static_cast<std::size_t>(table.element(t, v))] * bytes, n * bytes});
      }
      ++out.requests;
      out.bytes += static_cast<std::int64_t>(pieces.size()) * n * bytes;
      const BankCount banks = count_banks(pieces, n * bytes, words);
      out.wavefronts += static_cast<std::int64_t>(banks.wavefronts);
      out.conflicts += static_cast<std::int64_t>(banks.conflicts);
      out.ways = std::max(out.ways, banks.ways);
      const SectorCount sectors = count_sectors(pieces, words);
      out.sectors += static_cast<std::int64_t>(sectors.sectors);
      out.ideal_sectors += static_cast<std::int64_t>(sectors.ideal);
    }
    out.vector_bytes = std::max(out.vector_bytes, n * bytes);
    v += n;
  }
  return out;
}

}  // namespace graphene::layout
