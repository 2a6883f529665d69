#include "build/relayout.h"

#include <map>
#include <set>

#include "build/frame.h"
#include "build/lanes.h"
#include "build/pointwise.h"

namespace graphene::build {

namespace {

using ir::TensorPtr;

constexpr std::int64_t kLanes = 32;
// Registers of the source that one register of the destination may come from, before shared memory is cheaper.
constexpr std::size_t kMaxCandidates = 4;

bool same_owners(ir::Builder& b, const ir::SpecStmt& spec, const TensorPtr& dst, const TensorPtr& src) {
  try {
    Frame frame(b, spec, dst, held_of(spec, dst).shape);
    frame.reads(src, nullptr);
    return true;
  } catch (const Error& e) {
    if (e.diagnostics().front().code != Code::POINTWISE_OWNER) throw;
    return false;
  }
}

class Relayout {
 public:
  Relayout(ir::Builder& b, const ir::SpecStmt& spec, TensorPtr dst, TensorPtr src)
      : b_(b), spec_(spec), nest_(b, spec), dst_(std::move(dst)), src_(std::move(src)) {}

  void run() {
    hd_ = held_of(spec_, dst_);
    hs_ = held_of(spec_, src_);
    group_ = dst_->buffer->fragment->group;
    if (hd_.threads != hs_.threads || !hd_.whole_group || !hs_.whole_group) {
      refuse(spec_, Code::RELAYOUT, "fragments that different threads hold",
             {"destination: on " + group_->type_str(), "source: on " + src_->buffer->fragment->group->type_str()},
             "re-lay out between fragments of one group");
    }
    // A thread takes what it holds itself where that is a regular exchange, else the first copy of each element: rows
    // of one operand, whose lanes hold copies, become columns of accumulators so.
    if ((plan_shuffles(true) && regular()) || (plan_shuffles(false) && regular())) return shuffle();
    through_shared();
  }

 private:
  struct Source {
    std::int64_t thread = 0;
    std::size_t position = 0;
  };

  std::int64_t number(const Held& h, std::int64_t t, std::size_t i) const {
    std::int64_t n = 0;
    for (std::size_t d = h.shape.size(); d-- > 0;) n = n * h.shape[d] + h.coord(t, i)[d];
    return n;
  }

  // Per register of the destination: the lane and the register that each thread gets its element from.
  bool plan_shuffles(bool own) {
    tables_.clear();
    candidates_.clear();
    const bool warps = group_->levels.back().size().is_const(kLanes) && sym::divisor(group_->offset) % kLanes == 0;
    if (!warps || ir::bits(dst_->dtype) != 32) return false;
    std::map<std::int64_t, std::vector<Source>> holders;
    for (std::int64_t t = 0; t < hs_.threads; ++t) {
      for (std::size_t p = 0; p < hs_.registers.size(); ++p) holders[number(hs_, t, p)].push_back({t, p});
    }
    for (std::size_t i = 0; i < hd_.registers.size(); ++i) {
      std::vector<Row> table;
      std::set<std::int64_t> candidates;
      for (std::int64_t t = 0; t < hd_.threads; ++t) {
        const auto it = holders.find(number(hd_, t, i));
        if (it == holders.end()) return false;
        const Source* best = nullptr;
        for (const Source& s : it->second) {
          if (s.thread / kLanes != t / kLanes) continue;
          if (best == nullptr || (own && s.thread == t)) best = &s;
        }
        if (best == nullptr) return false;
        table.push_back({best->thread % kLanes, hs_.registers[best->position]});
        candidates.insert(table.back()[1]);
      }
      if (candidates.size() > kMaxCandidates) return false;
      tables_.push_back(std::move(table));
      candidates_.push_back(std::move(candidates));
    }
    return true;
  }

  // Whether every lane and register number is a sum over the digits of the thread's own number.
  bool regular() {
    sums_.clear();
    for (const std::vector<Row>& table : tables_) {
      auto sums = lane_sums(nest_, group_, true, table);
      if (!sums) return false;
      sums_.push_back(*std::move(sums));
    }
    return true;
  }

  void shuffle() {
    TensorPtr to = nest_.values(b_.declared(dst_->buffer->id));
    const TensorPtr from = nest_.values(b_.declared(src_->buffer->id));
    const ir::AttrValue idx = std::string("idx");
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      const Expr lane = sums_[i][0] + Expr(tables_[i][0][0]);
      const Expr reg = sums_[i][1] + Expr(tables_[i][0][1]);
      const TensorPtr result = nest_.at(to, {Expr(hd_.registers[i])});
      bool first = true;
      for (const std::int64_t r : candidates_[i]) {
        const TensorPtr got = first ? result : other();
        ir::SpecStmt s;
        s.kind = ir::SpecKind::Shfl;
        s.attrs = {{"mode", idx}, {"arg", lane}};
        s.outs = {got};
        s.ins = {nest_.at(from, {Expr(r)})};
        s.blocks = spec_.blocks;
        s.threads = group_;
        b_.spec(std::move(s));
        if (!first) {
          ir::SpecStmt w;
          w.kind = ir::SpecKind::TernaryPointwise;
          w.attrs = {{"op", std::string("where")}};
          w.outs = {result};
          w.ins = {sym::eq(reg, r), got, result};
          w.blocks = spec_.blocks;
          w.threads = b_.each(ir::ThreadUnit::Thread);
          b_.spec(std::move(w));
        }
        first = false;
      }
    }
  }

  TensorPtr other() {
    if (!other_)
      other_ =
          b_.alloc(b_.unique_name("other"), Layout(IntTuple(std::vector<IntTuple>{})), dst_->dtype, ir::Memory::RF, {});
    return other_;
  }

  void through_shared() {
    std::vector<IntTuple> sizes(hd_.shape.begin(), hd_.shape.end());
    const TensorPtr tile =
        b_.alloc(b_.unique_name("exchange"), Layout::row_major(IntTuple(sizes)), dst_->dtype, ir::Memory::SH, {});
    pass(src_, tile, true);
    barrier();
    pass(dst_, tile, false);
    barrier();
  }

  void pass(const TensorPtr& fragment, const TensorPtr& tile, bool store) {
    Frame frame(b_, spec_, fragment, hd_.shape);
    frame.reads(fragment, nullptr);
    const std::vector<Expr> at = coordinates(*fragment);
    for (const Expr& c : at) frame.uses(c);
    frame.each(1, [&] {
      std::vector<Expr> index;
      for (const Expr& c : at) index.push_back(frame.here(c));
      const TensorPtr m = nest_.at(tile, index);
      const TensorPtr r = frame.element(fragment);
      nest_.leaf(ir::SpecKind::Move, store ? m : r, {store ? r : m}, "", true);
    });
  }

  void barrier() {
    ir::SyncStmt s;
    s.op = "barrier";
    s.group = group_;
    b_.sync(std::move(s));
  }

  ir::Builder& b_;
  const ir::SpecStmt& spec_;
  Nest nest_;
  TensorPtr dst_, src_;
  ir::ThreadPtr group_;
  Held hd_, hs_;
  std::vector<std::vector<Row>> tables_;
  std::vector<std::vector<Expr>> sums_;  // of each table: the parts of lane and register that depend on the thread
  std::vector<std::set<std::int64_t>> candidates_;
  TensorPtr other_;
};

}  // namespace

void relayout(ir::Builder& b, const ir::SpecStmt& spec, const TensorPtr& dst, const TensorPtr& src) {
  if (static_shape(*dst) != static_shape(*src) || dst->dtype != src->dtype) {
    refuse(spec, Code::RELAYOUT, "a Move between registers keeps shape and type",
           {"destination: " + dst->type_str(false), "source: " + src->type_str(false)},
           "convert with dst[:] = src where the threads hold the same elements");
  }
  if (same_owners(b, spec, dst, src)) {
    PointNode n;
    n.kind = PointNode::Kind::Tensor;
    n.tensor = src;
    return pointwise(b, dst, {n});
  }
  if (!dst->is_fragment() || !src->is_fragment()) {
    refuse(spec, Code::RELAYOUT, "a Move between a fragment and private registers",
           {"destination: " + dst->type_str(false), "source: " + src->type_str(false)}, "use the fragment's .values");
  }
  Relayout(b, spec, dst, src).run();
}

}  // namespace graphene::build
