#include "sim/blocks.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <unordered_set>

#include "sim/machine.h"

namespace graphene::sim {

namespace {

constexpr std::int64_t kCandidates = 512;
constexpr std::int64_t kMostBlocks = 48;
constexpr std::int64_t kMostPersistent = 1024;   // blocks that run together where they share work out
constexpr std::int64_t kMostLeaves = 2'000'000;  // that are followed in all

// One block's control flow.
class Walk final : public Machine {
 public:
  using Features = std::vector<std::int64_t>;  // sorted

  explicit Walk(const Bytecode& code) : Machine(code, 0) { first_and_last_turns_ = true; }

  [[nodiscard]] Features features(std::int64_t block) {
    found_.clear();
    std::fill(happened_.begin(), happened_.end(), char{0});
    try {
      run_block(block);
    } catch (const Error& e) {  // the run that looks for hazards says what it is
      if (e.error_class() != ErrorClass::Simulation) throw;
      found_.insert(-1);
    }
    Features out(found_.begin(), found_.end());
    for (std::size_t i = 0; i < happened_.size(); ++i) {
      for (int bit = 0; bit < 2; ++bit) {
        if ((happened_[i] >> bit & 1) != 0) out.push_back(-2 - (static_cast<std::int64_t>(i) * 2 + bit));
      }
    }
    std::sort(out.begin(), out.end());
    return out;
  }
  [[nodiscard]] std::int64_t leaves() const { return leaves_; }

 protected:
  void leaf(Warp& w, const Leaf& f) override {
    ++leaves_;
    Mask lanes = w.active;
    if (!f.always) lanes = plans().nonzero(f.predicate, w.ints, lanes);
    if (lanes == 0) return;
    const auto note = [&](std::int64_t what) { found_.insert(std::int64_t{f.site} * kKinds + what); };
    note(lanes == w.lanes ? 0 : 1);
    std::int64_t what = 2;
    for (const auto* list : {&f.in, &f.out}) {
      for (const Operand& o : *list) {
        what += 3;
        if (o.kind != Operand::Kind::Memory) continue;
        Mask inside = lanes;
        if (!o.inside.is_const(1)) inside = plans().nonzero(o.inside, w.ints, lanes);
        if (inside != lanes) note(inside == 0 ? what : what + 1);
        if (!o.cut || inside == 0) continue;
        Lanes valid;
        plans().lanes(o.valid, w.ints, inside, valid);
        for (Mask m = inside; m != 0; m &= m - 1) {
          if (valid[static_cast<std::size_t>(std::countr_zero(m))] >= o.values) continue;
          note(what + 2);
          break;
        }
      }
    }
  }

 private:
  static constexpr std::int64_t kKinds = 32;
  std::unordered_set<std::int64_t> found_;
  std::int64_t leaves_ = 0;
};

// All blocks, or those at the edges of the grid, next to them and in the middle, and some between.
std::vector<std::int64_t> candidates(const std::array<std::int64_t, 3>& g) {
  const std::int64_t all = g[0] * g[1] * g[2];
  std::vector<std::int64_t> out;
  if (all <= kCandidates) {
    out.resize(static_cast<std::size_t>(all));
    std::iota(out.begin(), out.end(), 0);
    return out;
  }
  const auto some = [](std::int64_t n) {
    const std::set<std::int64_t> s = {0, std::min<std::int64_t>(1, n - 1), n / 2, std::max<std::int64_t>(n - 2, 0),
                                      n - 1};
    return std::vector<std::int64_t>(s.begin(), s.end());
  };
  std::set<std::int64_t> seen;
  const auto add = [&](std::int64_t b) {
    if (seen.insert(b).second) out.push_back(b);
  };
  for (const std::int64_t z : some(g[2])) {
    for (const std::int64_t y : some(g[1])) {
      for (const std::int64_t x : some(g[0])) add(x + g[0] * (y + g[1] * z));
    }
  }
  std::mt19937_64 random(1);
  while (static_cast<std::int64_t>(out.size()) < kCandidates)
    add(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(all)));
  return out;
}

// Whether blocks share work out among themselves: a loop's step then follows from the grid, and no output is one
// block's.
bool is_persistent(const lower::Block& body) {
  return std::any_of(body.begin(), body.end(), [](const lower::NodePtr& n) {
    if (const auto* loop = n->as<lower::Loop>()) return !loop->step.is_const() || is_persistent(loop->body);
    if (const auto* scope = n->as<lower::SpecScope>()) return is_persistent(scope->body);
    const auto* branch = n->as<lower::If>();
    return branch != nullptr && (is_persistent(branch->then_body) || is_persistent(branch->else_body));
  });
}

}  // namespace

void add_clusters(const Bytecode& code, std::set<std::int64_t>& blocks) {
  std::set<std::int64_t> all;
  for (const std::int64_t b : blocks) {
    const std::int64_t first = b / code.cluster() * code.cluster();
    for (int rank = 0; rank < code.cluster(); ++rank) all.insert(first + rank);
  }
  blocks = std::move(all);
}

ChosenBlocks telling_blocks(const Bytecode& code, std::int64_t few, const std::function<void()>& poll) {
  ChosenBlocks out;
  out.grid = code.grid[0] * code.grid[1] * code.grid[2];
  if (out.grid <= few || (out.grid <= kMostPersistent && is_persistent(code.program->body))) {
    out.blocks.resize(static_cast<std::size_t>(out.grid));
    std::iota(out.blocks.begin(), out.blocks.end(), 0);
    out.looked_at = out.grid;
    return out;
  }
  Walk walk(code);
  walk.poll = poll;
  std::vector<std::pair<std::int64_t, Walk::Features>> looked;
  for (const std::int64_t b : candidates(code.grid)) {
    if (!looked.empty() && walk.leaves() > kMostLeaves) break;
    looked.emplace_back(b, walk.features(b));
  }
  out.looked_at = static_cast<std::int64_t>(looked.size());
  std::set<std::int64_t> taken;
  std::unordered_set<std::int64_t> done;
  const auto take = [&](const std::pair<std::int64_t, Walk::Features>& c) {
    taken.insert(c.first);
    done.insert(c.second.begin(), c.second.end());
  };
  const auto news = [&](const Walk::Features& f) {
    return std::count_if(f.begin(), f.end(), [&](std::int64_t x) { return !done.contains(x); });
  };
  take(looked.front());
  while (static_cast<std::int64_t>(taken.size()) < kMostBlocks) {
    const auto best = std::max_element(looked.begin(), looked.end(),
                                       [&](const auto& a, const auto& b) { return news(a.second) < news(b.second); });
    if (news(best->second) == 0) break;
    take(*best);
  }
  // Where few tell everything: the last one, the middle one, and some more.
  taken.insert({out.grid - 1, out.grid / 2});
  for (std::size_t i = 0; i < looked.size() && static_cast<std::int64_t>(taken.size()) < few; ++i)
    taken.insert(looked[i * 7919 % looked.size()].first);
  add_clusters(code, taken);
  out.blocks.assign(taken.begin(), taken.end());
  return out;
}

}  // namespace graphene::sim
