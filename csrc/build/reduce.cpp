#include "build/reduce.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "atoms/atom.h"
#include "build/axes.h"
#include "build/frame.h"
#include "build/held.h"
#include "build/lanes.h"
#include "build/nest.h"
#include "ir/levels.h"

namespace graphene::build {

namespace {

using ir::ScalarType;
using ir::TensorPtr;

constexpr std::int64_t kWarp = 32;

bool is_half(ScalarType t) { return ir::info(t).cls == ir::ScalarInfo::Class::Float && ir::bits(t) < 32; }

double neutral(const std::string& op, ScalarType t) {
  const bool is_float = ir::info(t).cls == ir::ScalarInfo::Class::Float;
  const double inf = std::numeric_limits<double>::infinity();
  if (op == "add" || op == "or" || op == "xor") return 0;
  if (op == "mul") return 1;
  if (op == "and") return -1;
  const bool smallest = op == "max";
  if (is_float) return smallest ? -inf : inf;
  const bool is_signed = ir::info(t).cls == ir::ScalarInfo::Class::Signed;
  const double top = static_cast<double>(std::uint64_t{1} << static_cast<unsigned>(ir::bits(t) - (is_signed ? 1 : 0)));
  return smallest ? (is_signed ? -top : 0) : top - 1;
}

// Threads of a group in whole warps, for instructions of a warp.
ir::ThreadPtr as_warps(ir::Builder& b, const ir::ThreadPtr& group) {
  const Expr inner = group->levels.back().size();
  if (!inner.is_const() || inner.value() <= kWarp) return group;
  ir::ThreadStmt s;
  s.source = group;
  s.op = ir::ThreadOp::Tile;
  s.tiler.emplace_back(Layout(IntTuple(kWarp)));
  return b.thread_view(std::move(s));
}

// Groups of this size side by side: the number of the executing thread's own, and how many a block has.
struct Side {
  Expr index;
  std::int64_t count = 1;
};
std::optional<Side> side_by_side(const ir::ThreadTensor& group) {
  const Expr launch = group.launch_size();
  const Expr size = group.size();
  if (!launch.is_const() || !size.is_const()) return std::nullopt;
  const std::int64_t n = size.value();
  if (launch.value() == n) return Side{0, 1};
  Expr reach = 1;
  for (const Layout& l : group.levels) reach = reach + (l.cosize() - 1);
  const Expr offset = sym::expand_coords(group.offset);
  if (!reach.is_const(n) || launch.value() % n != 0) return std::nullopt;
  if ((offset.is_const() ? offset.value() : sym::divisor(offset)) % n != 0) return std::nullopt;
  return Side{sym::floor_div(offset, n), launch.value() / n};
}

class Reducer {
 public:
  Reducer(ir::Builder& b, const ir::SpecStmt& spec, std::string op) : b_(b), spec_(spec), op_(std::move(op)) {}

  void leaf(ir::SpecKind kind, const TensorPtr& out, std::vector<ir::Operand> ins, ir::Attrs attrs) {
    ir::SpecStmt s;
    s.kind = kind;
    s.attrs = std::move(attrs);
    s.outs = {out};
    s.ins = std::move(ins);
    s.blocks = spec_.blocks;
    s.threads = b_.each(ir::ThreadUnit::Thread);
    b_.spec(std::move(s));
  }
  void combine(const TensorPtr& to, const TensorPtr& x) {
    leaf(ir::SpecKind::BinaryPointwise, to, {to, x}, {{"op", op_}});
  }
  void start(const TensorPtr& to) { leaf(ir::SpecKind::Init, to, {}, {{"value", neutral(op_, to->dtype)}}); }
  void move(const TensorPtr& to, const TensorPtr& x) {
    if (to->dtype == x->dtype) return leaf(ir::SpecKind::Move, to, {x}, {});
    leaf(ir::SpecKind::UnaryPointwise, to, {x}, {{"op", std::string("cast")}});
  }
  TensorPtr scalar(const std::string& name, ScalarType type) {
    return b_.alloc(b_.unique_name(name), Layout(IntTuple(std::vector<IntTuple>{})), type, ir::Memory::RF, {});
  }
  TensorPtr wide(const TensorPtr& x) {
    if (!is_half(x->dtype)) return x;
    const TensorPtr w = scalar("w", ScalarType::fp32);
    move(w, x);
    return w;
  }
  // x <- op(x of this lane, x of the lane `mask` away), for every mask.
  void butterfly(const TensorPtr& x, const std::vector<std::int64_t>& masks, const ir::ThreadPtr& warps) {
    if (masks.empty()) return;
    const Expr width = warps->levels.back().size();
    if (width.is_const() && masks.front() >= width.value()) {
      fail(Code::REDUCE_FRAGMENT, "an exchange between lanes that are not tiled together",
           {"want: tiles of at least " + std::to_string(2 * masks.front()) + " threads", "got: " + warps->type_str()},
           "tile the group by 32, or combine within one tile of it");
    }
    for (const std::int64_t mask : masks) {
      const TensorPtr other = scalar("other", x->dtype);
      ir::SpecStmt s;
      s.kind = ir::SpecKind::Shfl;
      s.attrs = {{"mode", std::string("bfly")}, {"arg", Expr(mask)}};
      s.outs = {other};
      s.ins = {x};
      s.blocks = spec_.blocks;
      s.threads = warps;
      b_.spec(std::move(s));
      combine(x, other);
    }
  }
  void barrier(const ir::ThreadPtr& group) {
    ir::SyncStmt s;
    s.op = "barrier";
    s.group = group;
    b_.sync(std::move(s));
  }

 private:
  ir::Builder& b_;
  const ir::SpecStmt& spec_;
  std::string op_;
};

std::vector<std::int64_t> masks_of(std::int64_t place, std::int64_t extent) {
  std::vector<std::int64_t> out;
  for (std::int64_t m = place * extent / 2; m >= place; m /= 2) out.push_back(m);
  return out;
}

bool power_of_two(std::int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

// Many parts are read one by each lane and exchanged, which takes fewer steps than every lane reading all of them: the
// number of the executing lane's own. Nothing for few parts, or where the lanes of a warp want different results.
template <class F>
std::optional<Expr> lane_of_parts(Nest& nest, const ir::ThreadPtr& group, bool whole_group, std::int64_t threads,
                                  std::int64_t parts, F&& result_of) {
  constexpr std::int64_t kFew = 4;
  if (parts <= kFew || parts > kWarp || !power_of_two(parts) || threads % kWarp != 0) return std::nullopt;
  std::vector<Row> table;
  for (std::int64_t t = 0; t < threads; ++t) {
    if (result_of(t) != result_of(t / kWarp * kWarp)) return std::nullopt;
    table.push_back({t % parts});
  }
  const auto sums = lane_sums(nest, group, whole_group, table);
  if (!sums) return std::nullopt;
  return (*sums)[0];
}

class FragmentReduction {
 public:
  FragmentReduction(ir::Builder& b, const ir::SpecStmt& spec, TensorPtr out, TensorPtr x)
      : b_(b),
        spec_(spec),
        nest_(b, spec),
        op_(std::get<std::string>(spec.attrs.at("op"))),
        axis_(static_cast<std::size_t>(std::get<std::int64_t>(spec.attrs.at("axis")))),
        accumulate_(std::get<bool>(spec.attrs.at("accumulate"))),
        out_(std::move(out)),
        x_(std::move(x)),
        reducer_(b, spec, op_) {}

  void run() {
    hx_ = held_of(spec_, x_);
    ho_ = held_of(spec_, out_);
    match();
    if (x_->is_fragment()) plan_exchange();
    record();
  }

 private:
  [[noreturn]] void refuse(const std::string& why, const std::string& detail, const std::string& fix = "") const {
    build::refuse(spec_, Code::REDUCE_FRAGMENT, why,
                  {"out: " + out_->type_str(false), "of: " + x_->type_str(false), detail}, fix);
  }

  // Which registers each register of the result takes.
  void match() {
    const std::size_t rank = hx_.shape.size();
    const bool kept = ho_.shape.size() == rank;  // the axis, with extent 1 or one element per lane
    if (x_->is_fragment() != out_->is_fragment())
      refuse("fragments reduce to fragments, private registers to private ones", "axis: " + std::to_string(axis_),
             "declare the result with .reduced(axis, name), or reduce .values");
    if (hx_.threads != ho_.threads || hx_.whole_group != ho_.whole_group)
      refuse("the result is held by other threads", "threads: " + std::to_string(ho_.threads));
    takes_.assign(ho_.registers.size(), {});
    const auto same = [&](const std::int64_t* cx, const std::int64_t* co) {
      for (std::size_t d = 0; d < rank; ++d) {
        if (d != axis_ && cx[d] != co[kept || d < axis_ ? d : d - 1]) return false;
      }
      return true;
    };
    std::vector<std::size_t> to(hx_.registers.size(), ho_.registers.size());
    for (std::int64_t t = 0; t < hx_.threads; ++t) {
      for (std::size_t p = 0; p < hx_.registers.size(); ++p) {
        if (t == 0) {
          for (std::size_t j = 0; j < ho_.registers.size() && to[p] == ho_.registers.size(); ++j) {
            if (same(hx_.coord(0, p), ho_.coord(0, j))) to[p] = j;
          }
          if (to[p] < ho_.registers.size()) takes_[to[p]].push_back(p);
        }
        if (to[p] == ho_.registers.size() || !same(hx_.coord(t, p), ho_.coord(t, to[p]))) {
          refuse("a thread does not hold the results of its own elements", "thread: " + std::to_string(t),
                 "declare the result with .reduced(axis, name)");
        }
      }
    }
    for (const auto& list : takes_) {
      if (list.size() != takes_[0].size() || list.empty())
        refuse("results of differently many elements", "registers: " + std::to_string(ho_.registers.size()));
    }
    lanes_ = kept && ho_.shape[axis_] != 1;
  }

  // How many threads of a digit stand in one warp, a power of two; 0: some warps hold other parts of it than others.
  static std::int64_t lanes_of(const AxisMode& m) {
    if (m.place % kWarp == 0) return 1;
    if (!power_of_two(m.place)) return 0;
    const std::int64_t reach = kWarp / m.place;
    if (power_of_two(m.extent)) return std::min(m.extent, reach);
    return m.extent % reach == 0 ? reach : 0;
  }

  // Threads that hold elements of one row differ in these digits of their rank.
  void plan_exchange() {
    if (lanes_) return;
    const ir::Fragment& f = *x_->buffer->fragment;
    for (const AxisMode& m : axis_modes(f).threads) {
      if (m.step == 0 || m.dim != axis_) continue;
      if (!hx_.whole_group && m.place >= hx_.threads) continue;
      const std::int64_t in_warp = lanes_of(m);
      if (in_warp == 0) refuse("threads that no exchange pairs up", "threads: " + std::to_string(m.extent));
      for (const std::int64_t mask : in_warp > 1 ? masks_of(m.place, in_warp) : std::vector<std::int64_t>{})
        masks_.push_back(mask);
      if (in_warp < m.extent) across_.push_back({m.extent / in_warp, m.dim, 1, m.place * in_warp});
    }
  }

  void record() {
    const TensorPtr xs = registers(x_);
    const TensorPtr os = registers(out_);
    const std::size_t n = takes_[0].size();
    std::vector<Row> of_result;  // result register, first operand register
    std::vector<Row> of_element;
    bool regular = true;
    for (std::size_t j = 0; j < takes_.size(); ++j)
      of_result.push_back({ho_.registers[j], hx_.registers[takes_[j][0]]});
    for (std::size_t k = 0; k < n; ++k)
      of_element.push_back({hx_.registers[takes_[0][k]] - hx_.registers[takes_[0][0]]});
    for (std::size_t j = 0; j < takes_.size(); ++j) {
      for (std::size_t k = 0; k < n; ++k)
        regular = regular && hx_.registers[takes_[j][k]] == of_result[j][1] + of_element[k][0];
    }
    const auto results = find_digits(of_result);
    const auto elements = find_digits(of_element);
    if (!regular || !results || !elements) refuse("registers in no regular order", "result: " + out_->type_str(false));
    const ir::ThreadPtr warps = masks_.empty() ? nullptr : as_warps(b_, x_->buffer->fragment->group);
    if (!across_.empty()) prepare_scratch();
    Expr o = of_result[0][0];
    Expr x = of_result[0][1];
    int open = 0;
    for (std::size_t k = results->extent.size(); k-- > 0; ++open) {
      const Expr i = b_.loop("row", 0, results->extent[k], 1, 0);
      o = o + i * results->step[k][0];
      x = x + i * results->step[k][1];
    }
    one([&] { return at(os, out_, o); },
        [&](const TensorPtr& to) {
          Expr element = x;
          int inner = 0;
          for (std::size_t k = elements->extent.size(); k-- > 0; ++inner)
            element = element + b_.loop("v", 0, elements->extent[k], 1, 0) * elements->step[k][0];
          reducer_.combine(to, reducer_.wide(at(xs, x_, element)));
          for (; inner > 0; --inner) b_.leave();
          reducer_.butterfly(to, masks_, warps);
          if (!across_.empty()) reducer_.move(at_scratch(o), to);
        });
    for (; open > 0; --open) b_.leave();
    if (!across_.empty()) gather(os, results);
  }

  // Own values start from what the result holds only where the exchange does not count that several times.
  template <class Result, class F>
  void one(Result&& result, F&& body) {
    const ScalarType work = is_half(out_->dtype) ? ScalarType::fp32 : out_->dtype;
    const bool exchanged = !masks_.empty() || !across_.empty();
    const bool repeatable = op_ == "max" || op_ == "min" || op_ == "and" || op_ == "or";
    if (work == out_->dtype && across_.empty() && (!accumulate_ || !exchanged || repeatable)) {
      const TensorPtr to = result();
      if (!accumulate_) reducer_.start(to);
      body(to);
      return;
    }
    const TensorPtr to = across_.empty() ? result() : nullptr;  // else gather() writes it
    const TensorPtr part = reducer_.scalar("part", work);
    reducer_.start(part);
    body(part);
    if (to) finish(to, part);
  }

  void finish(const TensorPtr& to, const TensorPtr& part) {
    if (!accumulate_) return reducer_.move(to, part);
    if (to->dtype == part->dtype) return reducer_.combine(to, part);
    reducer_.combine(part, reducer_.wide(to));
    reducer_.move(to, part);
  }

  // ---- across warps: one value per warp and result in shared memory

  void prepare_scratch() {
    const ir::ThreadPtr& group = x_->buffer->fragment->group;
    std::int64_t parts = 1;
    for (const AxisMode& m : across_) parts *= m.extent;
    std::int64_t results = 1;
    for (const std::int64_t s : ho_.shape) results *= s;
    const ScalarType work = is_half(out_->dtype) ? ScalarType::fp32 : out_->dtype;
    const auto side = side_by_side(*group);
    if (!side) refuse("groups of several warps that are not side by side", "threads: " + group->type_str());
    side_ = *side;
    scratch_ = b_.alloc(b_.unique_name("partial"), Layout(IntTuple({IntTuple(results), IntTuple(parts * side_.count)})),
                        work, ir::Memory::SH, {});
    std::vector<Row> table;  // per thread: number of its first result, of its part
    for (std::int64_t t = 0; t < hx_.threads; ++t) {
      std::int64_t part = 0;
      std::int64_t scale = 1;
      for (const AxisMode& m : across_) {
        part += t / m.place % m.extent * scale;
        scale *= m.extent;
      }
      table.push_back({number(ho_.coord(t, 0)), part});
    }
    const auto sums = lane_sums(nest_, group, hx_.whole_group, table);
    if (!sums) refuse("results in no regular order of the threads", "threads: " + group->type_str());
    lane_ = *sums;
    parts_ = parts;
  }

  std::int64_t number(const std::int64_t* c) const {
    std::int64_t n = 0;
    for (std::size_t d = ho_.shape.size(); d-- > 0;) n = n * ho_.shape[d] + c[d];
    return n;
  }

  // Where the result in register `o` of this thread stands.
  Expr result_number(const Expr& o) {
    std::vector<Row> rows;
    for (std::size_t j = 0; j < ho_.registers.size(); ++j) rows.push_back({number(ho_.coord(0, j))});
    const auto digits = find_digits(rows);
    for (std::int64_t t = 0; t < ho_.threads; ++t) {
      for (std::size_t j = 0; j < rows.size(); ++j) {
        if (!digits || number(ho_.coord(t, j)) - number(ho_.coord(t, 0)) != rows[j][0] - rows[0][0])
          refuse("results in no regular order", "result: " + out_->type_str(false));
      }
    }
    return lane_[0] + Expr(rows[0][0]) + digit_sum(*digits, o - Expr(ho_.registers[0]), 0);
  }

  TensorPtr at_scratch(const Expr& o) {
    return nest_.at(scratch_, {result_number(o), side_.index * parts_ + lane_[1]});
  }

  void gather(const TensorPtr& os, const std::optional<Digits>& results) {
    const ir::ThreadPtr& group = x_->buffer->fragment->group;
    reducer_.barrier(group);
    Expr o = ho_.registers[0];
    int open = 0;
    for (std::size_t k = results->extent.size(); k-- > 0; ++open)
      o = o + b_.loop("row", 0, results->extent[k], 1, 0) * results->step[k][0];
    const TensorPtr sum = reducer_.scalar("sum", scratch_->dtype);
    const auto lane = lane_of_parts(nest_, group, hx_.whole_group, hx_.threads, parts_,
                                    [&](std::int64_t t) { return number(ho_.coord(t, 0)); });
    if (lane) {
      reducer_.move(sum, nest_.at(scratch_, {result_number(o), side_.index * parts_ + *lane}));
      reducer_.butterfly(sum, masks_of(1, parts_), as_warps(b_, group));
    } else {
      const TensorPtr next = reducer_.scalar("next", scratch_->dtype);
      reducer_.start(sum);
      const Expr p = b_.loop("p", 0, parts_, 1, 0);
      reducer_.move(next, nest_.at(scratch_, {result_number(o), side_.index * parts_ + p}));
      reducer_.combine(sum, next);
      b_.leave();
    }
    finish(at(os, out_, o), sum);
    for (; open > 0; --open) b_.leave();
    if (b_.in_loop()) reducer_.barrier(group);  // before the next round writes its parts
  }

  TensorPtr registers(const TensorPtr& t) {
    if (!t->is_fragment()) return t;
    TensorPtr whole = b_.declared(t->buffer->id);
    if (t->buffer->stages > 0) whole = nest_.at(whole, {Expr(held_of(spec_, t).stage)});
    return nest_.values(whole);
  }

  // Register number `r` of a fragment; of private registers, element number r.
  TensorPtr at(const TensorPtr& view, const TensorPtr& t, const Expr& r) {
    if (view->levels.empty()) return view;
    if (t->is_fragment()) return nest_.at(view, {r});
    std::vector<Expr> index;
    Expr rest = r;
    const std::vector<std::int64_t> shape = static_shape(*t);
    for (std::size_t d = 0; d < shape.size(); ++d) {
      index.push_back(d + 1 < shape.size() ? sym::mod(rest, shape[d]) : rest);
      rest = sym::floor_div(rest, shape[d]);
    }
    return nest_.at(view, index);
  }

  ir::Builder& b_;
  const ir::SpecStmt& spec_;
  Nest nest_;
  std::string op_;
  std::size_t axis_;
  bool accumulate_;
  TensorPtr out_, x_;
  Reducer reducer_;
  Held hx_, ho_;
  std::vector<std::vector<std::size_t>> takes_;  // per register of the result: positions in hx_.registers
  bool lanes_ = false;
  std::vector<std::int64_t> masks_;
  std::vector<AxisMode> across_;
  TensorPtr scratch_;
  std::vector<Expr> lane_;
  std::int64_t parts_ = 1;
  Side side_;
};

}  // namespace

TensorPtr reduced(ir::Builder& b, const TensorPtr& x, int axis, const std::string& name, ScalarType dtype, bool lanes) {
  const auto refuse = [&](const std::string& why, const std::string& fix) {
    fail(Code::REDUCE_FRAGMENT, why,
         {"tensor: " + x->type_str(false) + " of " + x->buffer->name, "axis: " + std::to_string(axis)}, fix);
  };
  if (!x->is_fragment() || x->id != x->buffer->id || x->buffer->stages > 0)
    refuse("only a whole fragment without stages has a reduced one", "call .reduced() on what gr.fragment returned");
  const ir::Fragment& f = *x->buffer->fragment;
  if (axis < 0 || static_cast<std::size_t>(axis) >= f.shape.size()) refuse("no such axis", "axes count from 0");
  const auto a = static_cast<std::size_t>(axis);
  const AxisModes modes = axis_modes(f);
  std::vector<std::int64_t> shape = f.shape;
  shape[a] = 1;
  if (lanes) {
    for (const AxisMode& m : modes.threads) {
      if (m.dim == a && m.step != 0) shape[a] *= m.extent;
    }
  }
  std::vector<std::int64_t> column(shape.size(), 1);
  for (std::size_t d = 1; d < shape.size(); ++d) column[d] = column[d - 1] * shape[d - 1];
  const auto layout = [&](const std::vector<AxisMode>& list, bool threads) {
    std::vector<IntTuple> sizes;
    std::vector<IntTuple> strides;
    std::int64_t lane = column[a];
    for (const AxisMode& m : list) {
      const bool along = m.dim == a && m.step != 0;
      if (along && !threads) continue;
      sizes.emplace_back(m.extent);
      strides.emplace_back(along ? (lanes ? lane : 0) : m.step * column[m.dim]);
      if (along) lane *= m.extent;
    }
    if (sizes.empty()) return Layout(1, 0);
    if (sizes.size() == 1) return Layout(sizes[0], strides[0]);
    return Layout(IntTuple(sizes), IntTuple(strides));
  };
  const Layout tv = layout::make_layout({layout(modes.threads, true), layout(modes.values, false)});
  return b.fragment(name, shape, dtype, {tv, {}, "tv"}, f.group, std::nullopt);
}

namespace {

// The result has the other dimensions; the axis is gone, or one value (per lane) is left of it.
bool result_fits(const ir::Tensor& out, const ir::Tensor& x, std::int64_t axis) {
  std::vector<std::int64_t> want = static_shape(x);
  std::vector<std::int64_t> got = out.levels.empty() ? std::vector<std::int64_t>{} : static_shape(out);
  if (static_cast<std::size_t>(axis) >= want.size()) return false;  // levels of several ranks
  if (got.size() == want.size()) got.erase(got.begin() + axis);
  want.erase(want.begin() + axis);
  return got == want;
}

}  // namespace

bool reduce(ir::Builder& b, const ir::SpecStmt& spec) {
  if (spec.outs.size() != 1 || spec.ins.size() != 1) return false;
  const auto* x = std::get_if<TensorPtr>(&spec.ins[0]);
  if (x == nullptr || (*x)->memory() != ir::Memory::RF || spec.outs[0]->memory() != ir::Memory::RF) return false;
  const auto axis = spec.attrs.find("axis");
  const auto* number = axis == spec.attrs.end() ? nullptr : std::get_if<std::int64_t>(&axis->second);
  const auto rank = static_cast<std::int64_t>((*x)->levels.empty() ? 0 : (*x)->levels[0].rank());
  if (number == nullptr || *number < 0 || *number >= rank || !result_fits(*spec.outs[0], **x, *number)) return false;
  FragmentReduction(b, spec, spec.outs[0], *x).run();
  return true;
}

void allreduce(ir::Builder& b, const std::string& op, const TensorPtr& x, const ir::ThreadPtr& group) {
  ir::SpecStmt spec;
  spec.kind = ir::SpecKind::Spec;
  spec.outs = {x};
  spec.ins = {x};
  spec.threads = group;
  const auto refuse = [&](const std::string& why, const std::string& fix) {
    fail(Code::REDUCE_FRAGMENT, why,
         {"register: " + x->type_str(false) + " of " + x->buffer->name, "on: " + group->type_str()}, fix);
  };
  if (x->memory() != ir::Memory::RF || x->is_fragment())
    refuse("allreduce combines private registers", "pass a private tensor, or the .values of a fragment");
  const auto& known = atoms::ops(ir::SpecKind::Reduction);
  if (std::ranges::none_of(known, [&](const atoms::OpInfo& o) { return o.name == op; })) {
    std::string want;
    for (const atoms::OpInfo& o : known) want += (want.empty() ? "" : ", ") + o.name;
    fail(Code::VERIFY_OPERATION, "an operation that allreduce does not have", {"want: " + want, "got: " + op}, "");
  }
  const Expr size = group->size();
  if (!size.is_const() || !power_of_two(std::min(size.value(), kWarp)) ||
      (size.value() > kWarp && size.value() % kWarp != 0))
    refuse("a part of a warp that is a power of two, or whole warps, can combine", "name such a group: on=");
  b.decompose(spec, [&](const ir::SpecStmt& recorded) {
    spec.blocks = recorded.blocks;
    Reducer reducer(b, spec, op);
    Nest nest(b, spec);
    const std::int64_t n = size.value();
    const ir::ThreadPtr warps = as_warps(b, group);
    const std::int64_t parts = n > kWarp ? n / kWarp : 1;
    TensorPtr element = x;
    int open = 0;
    std::vector<Expr> index;
    if (!x->levels.empty()) {
      for (const std::int64_t s : static_shape(*x)) {
        index.push_back(s == 1 ? Expr(0) : b.loop("v", 0, s, 1, 0));
        open += s == 1 ? 0 : 1;
      }
      element = nest.at(x, index);
    }
    reducer.butterfly(element, masks_of(1, std::min(n, kWarp)), warps);
    if (parts > 1) {
      const auto side = side_by_side(*group);
      if (!side) refuse("groups of several warps combine where they stand side by side", "tile the threads evenly");
      const TensorPtr scratch =
          b.alloc(b.unique_name("partial"), Layout(parts * side->count), x->dtype, ir::Memory::SH, {});
      std::vector<Row> table;
      const bool tiled = group->levels.back().size().is_const(kWarp);
      for (std::int64_t t = 0; t < n; ++t) table.push_back({t / kWarp});
      const auto part = lane_sums(nest, tiled ? group : warps, true, table);
      if (!part) refuse("the warps are in no regular order", "");
      reducer.move(nest.at(scratch, {side->index * parts + (*part)[0]}), element);
      reducer.barrier(group);
      const auto lane = lane_of_parts(nest, tiled ? group : warps, true, n, parts, [](std::int64_t) { return 0; });
      if (lane) {
        reducer.move(element, nest.at(scratch, {side->index * parts + *lane}));
        reducer.butterfly(element, masks_of(1, parts), warps);
      } else {
        const TensorPtr next = reducer.scalar("next", x->dtype);
        reducer.start(element);
        const Expr p = b.loop("p", 0, parts, 1, 0);
        reducer.move(next, nest.at(scratch, {side->index * parts + p}));
        reducer.combine(element, next);
        b.leave();
      }
      if (b.in_loop()) reducer.barrier(group);  // before the next round writes its parts
    }
    for (; open > 0; --open) b.leave();
  });
}

}  // namespace graphene::build
