#include "plan/pack.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/diag.h"

namespace graphene::plan {

namespace {

std::int64_t aligned(std::int64_t at, std::int64_t align) { return (at + align - 1) / align * align; }

class Packer {
 public:
  Packer(const std::vector<Object>& objects, std::int64_t most_nodes)
      : objects_(objects), most_nodes_(most_nodes), at_(objects.size(), -1) {
    for (std::size_t i = 0; i < objects.size(); ++i) {
      std::int64_t alive = 0;
      for (const Object& o : objects) {
        if (o.first <= objects[i].first && objects[i].first < o.end) alive += o.bytes;
      }
      bound_ = std::max(bound_, alive);
    }
  }

  Packing run() {
    // Orders that usually do well come first; the search then has a good result to beat.
    const auto by = [&](auto key) {
      std::vector<std::size_t> order(objects_.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) > key(b); });
      greedy(order);
    };
    by([&](std::size_t i) { return objects_[i].bytes; });
    by([&](std::size_t i) { return objects_[i].end - objects_[i].first; });
    by([&](std::size_t i) { return objects_[i].bytes * (objects_[i].end - objects_[i].first); });
    by([&](std::size_t i) { return -objects_[i].first; });
    at_.assign(objects_.size(), -1);
    if (best_ > bound_) search(0, 0, 0);
    return {best_, bound_, best_at_, best_ == bound_ || nodes_ <= most_nodes_};
  }

 private:
  // The lowest aligned place where the object meets nothing that is placed and alive at the same time.
  [[nodiscard]] std::int64_t lowest(std::size_t i) const {
    const Object& o = objects_[i];
    std::int64_t at = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t j = 0; j < objects_.size(); ++j) {
        const Object& p = objects_[j];
        if (at_[j] < 0 || p.end <= o.first || o.end <= p.first) continue;
        if (at + o.bytes <= at_[j] || at_[j] + p.bytes <= at) continue;
        at = aligned(at_[j] + p.bytes, o.align);
        moved = true;
      }
    }
    return at;
  }

  void keep(std::int64_t bytes) {
    if (!best_at_.empty() && bytes >= best_) return;
    best_ = bytes;
    best_at_ = at_;
  }

  void greedy(const std::vector<std::size_t>& order) {
    at_.assign(objects_.size(), -1);
    std::int64_t end = 0;
    for (const std::size_t i : order) {
      at_[i] = lowest(i);
      end = std::max(end, at_[i] + objects_[i].bytes);
    }
    keep(end);
  }

  // Objects are placed by ascending offset, and those at one offset by number: each packing is met once.
  void search(std::size_t placed, std::int64_t end, std::int64_t floor) {
    if (placed == objects_.size()) return keep(end);
    for (std::size_t i = 0; i < objects_.size() && best_ > bound_; ++i) {
      if (at_[i] >= 0 || twin_before(i)) continue;
      if (++nodes_ > most_nodes_) return;
      const std::int64_t at = lowest(i);
      const std::int64_t after = std::max(end, at + objects_[i].bytes);
      if (at < floor || after >= best_) continue;
      at_[i] = at;
      search(placed + 1, after, at);
      at_[i] = -1;
    }
  }

  // Of objects that are alike the first one that is left stands for all.
  [[nodiscard]] bool twin_before(std::size_t i) const {
    const Object& o = objects_[i];
    for (std::size_t j = 0; j < i; ++j) {
      const Object& p = objects_[j];
      if (at_[j] < 0 && p.bytes == o.bytes && p.align == o.align && p.first == o.first && p.end == o.end) return true;
    }
    return false;
  }

  const std::vector<Object>& objects_;
  const std::int64_t most_nodes_;
  std::vector<std::int64_t> at_, best_at_;
  std::int64_t best_ = 0, bound_ = 0, nodes_ = 0;
};

}  // namespace

Packing pack(const std::vector<Object>& objects, std::int64_t most_nodes) {
  for (std::size_t i = 0; i < objects.size(); ++i) {
    const Object& o = objects[i];
    const std::string which = "object: " + std::to_string(i);
    if (o.bytes < 1 || o.align < 1)
      fail(Code::PLAN_GRAPH, "an object needs bytes and an alignment",
           {which, "got: " + std::to_string(o.bytes) + " bytes, aligned to " + std::to_string(o.align)});
    if (o.end <= o.first)
      fail(Code::PLAN_GRAPH, "an object that is never alive",
           {which, "got: slots " + std::to_string(o.first) + " to " + std::to_string(o.end)});
  }
  if (objects.empty()) return {0, 0, {}, true};
  return Packer(objects, most_nodes).run();
}

}  // namespace graphene::plan
