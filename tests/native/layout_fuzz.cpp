// Random layouts, extreme ones too, through the whole algebra: every result obeys its law at every coordinate, every
// refusal is an Error. Mutated texts are read or refused.   layout_fuzz [rounds] [seed]
#include <cstdio>
#include <cstdlib>
#include <random>

#include "base/diag.h"
#include "layout/layout.h"
#include "layout/tv.h"

using namespace graphene;
using namespace graphene::layout;

namespace {

std::mt19937_64 rng;

std::int64_t pick(std::int64_t lo, std::int64_t hi) { return std::uniform_int_distribution<std::int64_t>(lo, hi)(rng); }

std::int64_t leaf(bool stride, bool extreme) {
  if (extreme && pick(0, 5) == 0) {
    static constexpr std::int64_t kEdges[] = {sym::kMaxInt,          sym::kMinInt,         sym::kMaxInt - 1, -1, 0,
                                              std::int64_t{1} << 62, std::int64_t{1} << 31};
    return kEdges[pick(0, 6)];
  }
  if (!stride) return pick(extreme ? 0 : 1, 6);
  return pick(0, 3) == 0 ? pick(-8, 40) : std::int64_t{1} << pick(0, 6);
}

std::pair<IntTuple, IntTuple> tuples(int depth, bool extreme) {
  if (depth == 0 || pick(0, 2) == 0) return {leaf(false, extreme), leaf(true, extreme)};
  std::vector<IntTuple> s;
  std::vector<IntTuple> d;
  for (std::int64_t n = pick(extreme ? 0 : 1, 3); n > 0; --n) {
    auto [x, y] = tuples(depth - 1, extreme);
    s.push_back(x);
    d.push_back(y);
  }
  return {s, d};
}

Layout random_layout(bool extreme) {
  auto [s, d] = tuples(2, extreme);
  return {s, d};
}

ModeTiler random_tiler(int depth) {
  if (pick(0, 3) == 0) return {};
  if (depth == 0 || pick(0, 1) == 0) return random_layout(false);
  std::vector<ModeTiler> modes;
  for (std::int64_t n = pick(0, 3); n > 0; --n) modes.push_back(random_tiler(depth - 1));
  return modes;
}

[[noreturn]] void broken(const char* law, const Layout& a, const Layout& b) {
  std::printf("broken: %s\n  %s\n  %s\n", law, a.str().c_str(), b.str().c_str());
  std::exit(1);
}

template <class F>
bool defined(F f) {
  try {
    f();
    return true;
  } catch (const Error& e) {
    if (e.diagnostics().front().code == Code::INTERNAL) {
      std::printf("internal error: %s\n", e.what());
      std::exit(1);
    }
    return false;
  }
}

void laws(const Layout& a, const Layout& b) {
  defined([&] {
    const Layout c = coalesce(a);
    for (std::int64_t i = 0; i < a.size().value(); ++i)
      if (!identical(c(i), a(i))) broken("coalesce", a, c);
  });
  defined([&] {  // below 0 a continues along its last mode, or is mirrored
    const Layout r = composition(a, b);
    bool continued = true;
    bool mirrored = true;
    for (std::int64_t i = 0; i < b.size().value() && a.size().value() > 0; ++i) {
      const Expr x = b(i);
      continued = continued && identical(r(i), a(x));
      mirrored = mirrored && identical(r(i), x.value() < 0 ? -a(-x) : a(x));
    }
    if (!continued && !mirrored) broken("composition", a, b);
  });
  defined([&] {
    const Layout c = coalesce(a, b.shape());
    for (std::int64_t i = 0; i < a.size().value(); ++i)
      if (!identical(c(i), a(i))) broken("coalesce by a profile", a, b);
  });
  defined([&] {
    const Layout z = zipped_divide(a, random_tiler(2));
    if (z.rank() != 2) broken("zipped_divide", a, z);
  });
  defined([&] { static_cast<void>(tiled_product(a, random_tiler(2))); });
  defined([&] { static_cast<void>(idx2crd(b.shape(), a.shape(), a.stride())); });
  defined([&] {
    const Layout r = right_inverse(a);
    for (std::int64_t i = 0; i < r.size().value(); ++i)
      if (!a(r(i)).is_const(i)) broken("right_inverse", a, r);
  });
  defined([&] {
    const Layout r = left_inverse(a);
    const bool injective = is_injective(a);
    for (std::int64_t i = 0; i < a.size().value(); ++i)
      if (!identical(a(r(a(i))), a(i)) || (injective && !r(a(i)).is_const(i))) broken("left_inverse", a, r);
  });
  defined([&] {
    const Layout both = make_layout({a, complement(a, a.cosize() * 2)});
    if (is_injective(a) && !is_injective(both)) broken("complement", a, both);
  });
  defined([&] {
    const Layout r = logical_divide(a, b);
    if (!equal_as_functions(r.mode(0), composition(a, b))) broken("logical_divide", a, b);
  });
  defined([&] {
    const Layout r = raked_product(a, b);
    const Layout s = blocked_product(a, b);
    if (!identical(r.size(), s.size())) broken("products", a, b);
  });
  defined([&] {
    if (a.size().value() * b.size().value() > 50000) return;
    const TvTable t(make_layout({a, b}), 4096);
    for (int th = 0; th < t.threads(); ++th)
      for (int v = 0; v < t.values(); ++v)
        if (t.holder_count(t.element(th, v)) < 1) broken("tv", a, b);
  });
  defined([&] { static_cast<void>(max_common_vector(a, b)); });
  defined([&] { static_cast<void>(max_vector(a, 0)); });
}

void text(const Layout& a) {
  if (!identical(parse_layout(a.str()), a)) broken("text", a, parse_layout(a.str()));
  static constexpr char kAlphabet[] = "()[]:,0123456789-_ Mx";
  std::string s = pick(0, 1) == 0 ? a.str() : a.graphene_str();
  for (std::int64_t n = pick(1, 4); n > 0; --n) {
    const auto at = static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(s.size())));
    if (pick(0, 1) == 0)
      s.insert(at, 1, kAlphabet[pick(0, sizeof(kAlphabet) - 2)]);
    else if (at < s.size())
      s.erase(at, 1);
  }
  defined([&] {
    const Layout read = parse_layout(s);
    if (!identical(parse_layout(read.str()), read)) broken("mutated text", a, read);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const long rounds = argc > 1 ? std::atol(argv[1]) : 20000;
  rng.seed(argc > 2 ? static_cast<std::uint64_t>(std::atoll(argv[2])) : 1);
  for (long i = 0; i < rounds; ++i) {
    const bool extreme = i % 3 == 0;
    Layout a;
    Layout b;
    if (!defined([&] { a = random_layout(extreme); }) || !defined([&] { b = random_layout(extreme); })) continue;
    text(a);
    const auto small = [](const Layout& l) {
      std::int64_t n = 0;
      return defined([&] { n = l.size().value(); }) && n <= 5000;
    };
    if (small(a) && small(b)) {
      laws(a, b);
    } else {  // too large to enumerate: only that nothing but Errors comes out
      defined([&] { static_cast<void>(coalesce(a)); });
      defined([&] { static_cast<void>(composition(a, b)); });
      defined([&] { static_cast<void>(complement(a, 1000)); });
      defined([&] { static_cast<void>(right_inverse(a)); });
      defined([&] { static_cast<void>(left_inverse(a)); });
      defined([&] { static_cast<void>(logical_divide(a, b)); });
      defined([&] { static_cast<void>(blocked_product(a, b)); });
      defined([&] { static_cast<void>(max_common_vector(a, b)); });
      defined([&] { static_cast<void>(max_vector(a, 0)); });
    }
  }
  std::printf("%ld rounds\n", rounds);
  return 0;
}
