#include "build/frame.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_map>

#include "atoms/fragment.h"
#include "build/lanes.h"
#include "build/pointwise.h"
#include "ir/levels.h"

namespace graphene::build {

using ir::TensorPtr;

namespace {

constexpr std::string_view kPlaceholder = "element";

bool is_placeholder(const sym::VarInfo& v) {
  return v.kind == sym::VarKind::Data && v.name.starts_with(kPlaceholder) && v.name.find('.') != std::string::npos;
}

// "element1.128x64": the dimension, and the shape.
std::vector<std::int64_t> numbers_of(const std::string& name) {
  std::vector<std::int64_t> out;
  const char* end = name.data() + name.size();
  for (const char* p = name.data() + kPlaceholder.size(); p < end; ++p) {
    std::int64_t n = 0;
    p = std::from_chars(p, end, n).ptr;
    out.push_back(n);
  }
  return out;
}

std::string coordinate_text(const std::vector<std::int64_t>& c) {
  std::string s;
  for (const std::int64_t x : c) s += (s.empty() ? "" : ",") + std::to_string(x);
  return "(" + s + ")";
}

bool same_level(const Layout& x, const Layout& y) {
  return identical(x.shape(), y.shape()) && identical(x.stride(), y.stride());
}

// Do the threads that hold `x` and `y` (of which `a` and `b` say how) hold them in the same order? A group's own part
// of a larger fragment is held by the same threads as a fragment that the group has for itself.
bool same_threads(const ir::Tensor& x, const Held& a, const ir::Tensor& y, const Held& b) {
  const ir::ThreadTensor& g = *x.buffer->fragment->group;
  const ir::ThreadTensor& h = *y.buffer->fragment->group;
  if (a.whole_group && b.whole_group) {
    return identical(sym::expand_coords(g.offset), sym::expand_coords(h.offset)) &&
           std::equal(g.levels.begin(), g.levels.end(), h.levels.begin(), h.levels.end(), same_level);
  }
  const auto one_level = [](const ir::ThreadTensor& t, const Held& of) {
    return !of.whole_group || t.levels.size() == 1;
  };
  if (!one_level(g, a) || !one_level(h, b) || !same_level(g.levels.back(), h.levels.back())) return false;
  const std::optional<std::int64_t> apart =
      atoms::constant_difference(atoms::own_group_base(g), atoms::own_group_base(h));
  return apart && *apart == 0;
}

}  // namespace

Expr element_coordinate(const std::vector<std::int64_t>& shape, std::size_t dim, std::int64_t extent) {
  sym::VarInfo v;
  v.kind = sym::VarKind::Data;
  v.name = std::string(kPlaceholder) + std::to_string(dim);
  for (std::size_t d = 0; d < shape.size(); ++d) v.name += (d == 0 ? "." : "x") + std::to_string(shape[d]);
  v.max = extent - 1;
  return sym::make_var(v);
}

std::vector<Expr> coordinates(const ir::Tensor& fragment) {
  if (!fragment.buffer->fragment) {
    fail(Code::TENSOR_VALUES, "only the elements of a fragment have coordinates of their own, one for each thread",
         {"got: " + fragment.type_str() + " of " + fragment.buffer->name},
         "ask the fragment that gr.fragment returned");
  }
  const ir::Fragment& f = *fragment.buffer->fragment;
  const std::vector<std::int64_t> shape = static_shape(fragment);
  std::int64_t own = 1;
  for (const std::int64_t s : f.shape) own *= s;
  std::vector<Expr> out;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const bool last = d + 1 == shape.size();
    out.push_back(element_coordinate(shape, d, last ? shape[d] * f.covered_elems() / own : shape[d]));
  }
  return out;
}

Expr valid(const ir::Tensor& fragment) {
  const std::vector<Expr> at = coordinates(fragment);
  return at.empty() ? Expr(1) : sym::lt(at.back(), static_shape(fragment).back());
}

std::vector<std::int64_t> Frame::placeholder_shape(const Expr& e) {
  if (e.is_const()) return {};
  for (const Expr& v : sym::free_vars(e)) {
    if (!is_placeholder(v.var())) continue;
    std::vector<std::int64_t> n = numbers_of(v.var().name);
    n.erase(n.begin());
    return n;
  }
  return {};
}

constexpr std::int64_t kMostPrivate = 16'384;  // as much as can be declared; strides of 0 name more

Held held_of(const ir::SpecStmt& spec, const TensorPtr& t) {
  if (t->is_fragment()) return enumerate(spec, *t);
  Held h;
  h.shape = t->levels.empty() ? std::vector<std::int64_t>{} : static_shape(*t);
  std::int64_t n = 1;
  for (const std::int64_t s : h.shape) {
    if (!__builtin_mul_overflow(n, s, &n) && n <= kMostPrivate) continue;
    refuse(spec, Code::TENSOR_SIZE, "a view of more elements than a thread has registers",
           {"want: at most " + std::to_string(kMostPrivate), "got: " + t->type_str() + " of " + t->buffer->name},
           "give each thread a part of it");
  }
  for (std::int64_t i = 0; i < n; ++i) {
    h.registers.push_back(i);
    std::int64_t rest = i;
    for (const std::int64_t s : h.shape) {
      h.coords_.push_back(rest % s);
      rest /= s;
    }
  }
  return h;
}

Frame::Frame(ir::Builder& b, const ir::SpecStmt& spec, TensorPtr like, std::vector<std::int64_t> shape)
    : b_(b), spec_(spec), nest_(b, spec), like_(std::move(like)), shape_(std::move(shape)) {
  if (like_ != nullptr) {
    held_ = held_of(spec, like_);
  } else {
    held_.registers = {0};
  }
  rows_.resize(held_.registers.size());
}

void Frame::add_column(const std::vector<std::int64_t>& values) {
  for (std::size_t i = 0; i < rows_.size(); ++i) rows_[i].push_back(values[i]);
}

// Per element of the frame: which of the registers that a thread holds of `t` is the element's.
std::vector<std::size_t> Frame::positions(const TensorPtr& t) const {
  const bool own = like_ != nullptr && like_->is_fragment();
  const Held h = held_of(spec_, t);
  const auto elsewhere = [&](const std::string& detail) {
    refuse(spec_, Code::POINTWISE_OWNER, "a pointwise expression does not cross threads",
           {"destination: " + (like_ == nullptr ? std::string("one value a thread") : like_->type_str(false)),
            "operand: " + t->type_str(false) + " of " + t->buffer->name, detail},
           "re-lay it out with gr.move(fragment, fragment), or use .values");
  };
  if (t->is_fragment() != own) elsewhere(own ? "a private array" : "a fragment");
  if (own && (h.threads != held_.threads || !same_threads(*t, h, *like_, held_))) {
    elsewhere("held by " + t->buffer->fragment->group->type_str());
  }
  const std::size_t rank = h.shape.size();
  // An element's coordinates in `t`: aligned with the last dimension, 0 where it is broadcast.
  const auto wanted = [&](std::int64_t thread, std::size_t i, std::vector<std::int64_t>& c) {
    const std::int64_t* at = held_.coord(thread, i);
    for (std::size_t d = 0; d < rank; ++d) c[d] = h.shape[d] == 1 ? 0 : at[held_.shape.size() - rank + d];
  };
  const auto key = [&](const std::int64_t* c) {
    std::int64_t k = 0;
    for (std::size_t d = rank; d-- > 0;) k = k * (std::int64_t{1} << 20) + c[d];
    return k;
  };
  std::unordered_map<std::int64_t, std::size_t> of;
  for (std::size_t p = 0; p < h.registers.size(); ++p) of.emplace(key(h.coord(0, p)), p);
  std::vector<std::size_t> out;
  std::vector<std::int64_t> c(rank);
  for (std::size_t i = 0; i < held_.registers.size(); ++i) {
    wanted(0, i, c);
    const auto it = of.find(key(c.data()));
    if (it == of.end()) elsewhere("thread 0 does not hold its element " + coordinate_text(c));
    out.push_back(it->second);
  }
  for (std::int64_t t1 = 1; t1 < held_.threads; ++t1) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      wanted(t1, i, c);
      if (!std::equal(c.begin(), c.end(), h.coord(t1, out[i]))) {
        elsewhere("thread " + std::to_string(t1) + " does not hold its element " + coordinate_text(c) +
                  " where thread 0 holds its own");
      }
    }
  }
  return out;
}

void Frame::reads(const TensorPtr& t, const TensorPtr& like) {
  if (access_.contains(t.get())) return;
  Access a;
  a.first = rows_[0].size();
  const TensorPtr& shaped = like != nullptr ? like : t;
  const bool scalar = t->levels.empty();
  if (!scalar) {
    const std::vector<std::size_t> at = positions(shaped);
    const Held h = held_of(spec_, shaped);
    if (like != nullptr || t->is_fragment()) {
      std::vector<std::int64_t> column;
      for (const std::size_t p : at) {
        column.push_back(like != nullptr ? static_cast<std::int64_t>(p) : h.registers[p]);
      }
      add_column(column);
      a.columns = 1;
    } else {
      a.columns = h.shape.size();
      for (std::size_t d = 0; d < a.columns; ++d) {
        std::vector<std::int64_t> column;
        for (const std::size_t p : at) column.push_back(h.coord(0, p)[d]);
        add_column(column);
      }
    }
  }
  access_.emplace(t.get(), a);
  order_.push_back(t);
}

void Frame::uses(const Expr& e) {
  const std::vector<std::int64_t> shape = placeholder_shape(e);
  if (shape.empty() || coordinates_ > 0) return;
  if (like_ == nullptr || !like_->is_fragment() || shape != held_.shape) {
    refuse(spec_, Code::POINTWISE_SHAPE, "coordinates of another shape than the destination's",
           {"destination: " + (like_ == nullptr ? std::string("[]") : like_->type_str(false)),
            "coordinates of: " + tile_text(shape)},
           "take .coords() of the destination");
  }
  if (rows_[0].empty()) add_column(std::vector<std::int64_t>(rows_.size(), 0));  // so that 0 means none
  coordinates_ = rows_[0].size();
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::vector<std::int64_t> column;
    for (std::size_t i = 0; i < rows_.size(); ++i) column.push_back(held_.coord(0, i)[d]);
    add_column(column);
  }
}

bool Frame::permutes(const TensorPtr& written) const {
  const Access& to = access_.at(written.get());
  for (const TensorPtr& t : order_) {
    if (t == written || t->buffer->id != written->buffer->id) continue;
    const Access& from = access_.at(t.get());
    if (t->is_fragment() != written->is_fragment() || from.columns != to.columns) return true;
    for (const Row& r : rows_) {
      for (std::size_t c = 0; c < to.columns; ++c) {
        if (r[from.first + c] != r[to.first + c]) return true;
      }
    }
    if (!t->is_fragment() && !identical(t->offset, written->offset)) return true;
  }
  return false;
}

bool Frame::runs_possible(std::int64_t n) const {
  const auto length = static_cast<std::size_t>(n);
  if (rows_.size() % length != 0) return false;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const Row& first = rows_[i / length * length];
    for (std::size_t c = 0; c < rows_[0].size(); ++c) {
      if (rows_[i][c] - first[c] != rows_[i % length][c] - rows_[0][c]) return false;
    }
  }
  return true;
}

bool Frame::in_runs(const TensorPtr& t, std::int64_t n) const {
  const auto it = access_.find(t.get());
  if (it == access_.end() || it->second.columns != 1 || !runs_possible(n)) return false;
  const auto length = static_cast<std::size_t>(n);
  const std::size_t c = it->second.first;
  for (std::size_t k = 1; k < length; ++k) {
    if (rows_[k][c] - rows_[0][c] != static_cast<std::int64_t>(k)) return false;
  }
  for (std::size_t i = 0; i < rows_.size(); i += length) {
    if (rows_[i][c] % n != 0) return false;
  }
  return true;
}

TensorPtr Frame::array(ir::ScalarType type) {
  const bool scalar = like_ == nullptr || rows_.size() == 1;
  const Layout layout =
      scalar && like_ == nullptr ? Layout(IntTuple(std::vector<IntTuple>{})) : Layout(static_cast<int>(rows_.size()));
  TensorPtr t = b_.alloc(b_.unique_name(scalar ? "t" : "row"), layout, type, ir::Memory::RF, {});
  Access a;
  a.first = rows_[0].size();
  if (like_ != nullptr) {
    std::vector<std::int64_t> column;
    for (std::size_t i = 0; i < rows_.size(); ++i) column.push_back(static_cast<std::int64_t>(i));
    add_column(column);
    a.columns = 1;
  }
  access_.emplace(t.get(), a);
  order_.push_back(t);
  return t;
}

void Frame::record_views() {
  for (const TensorPtr& t : order_) {
    Access& a = access_.at(t.get());
    a.view = t;
    if (t->is_fragment()) {
      TensorPtr whole = b_.declared(t->buffer->id);
      if (t->buffer->stages > 0) whole = nest_.at(whole, {Expr(held_of(spec_, t).stage)});
      a.view = nest_.values(whole);
    }
    if (in_runs(t, run_)) a.runs = nest_.tile(a.view, {run_});
  }
}

void Frame::record_coordinates() {
  if (coordinates_ == 0) return;
  std::vector<Row> first;
  const std::size_t rank = held_.shape.size();
  for (std::int64_t t = 0; t < held_.threads; ++t) {
    first.emplace_back(held_.coord(t, 0), held_.coord(t, 0) + rank);
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      for (std::size_t d = 0; d < rank; ++d) {
        if (held_.coord(t, i)[d] - held_.coord(t, 0)[d] == held_.coord(0, i)[d] - held_.coord(0, 0)[d]) continue;
        refuse(spec_, Code::POINTWISE_OWNER, "the coordinates are not a sum of a thread's and a register's part",
               {"fragment: " + like_->type_str(false)});
      }
    }
  }
  const auto sums = lane_sums(nest_, like_->buffer->fragment->group, held_.whole_group, first);
  if (!sums) {
    refuse(spec_, Code::POINTWISE_OWNER, "the coordinates do not depend regularly on the thread",
           {"fragment: " + like_->type_str(false)});
  }
  lane_ = *sums;
}

void Frame::each(std::int64_t n, const std::function<void()>& body) {
  run_ = std::max<std::int64_t>(n, 2);
  record_views();
  record_coordinates();
  std::vector<Row> rows;
  for (std::size_t i = 0; i < rows_.size(); i += static_cast<std::size_t>(n)) rows.push_back(rows_[i]);
  pair_step_.clear();
  if (n == 2) {
    for (std::size_t c = 0; c < rows_[0].size(); ++c) pair_step_.push_back(rows_[1][c] - rows_[0][c]);
  }
  const auto set = [&](const Row& r) {
    at_.clear();
    for (const std::int64_t x : r) at_.emplace_back(x);
  };
  const std::optional<Digits> digits = find_digits(rows);
  if (!digits) {  // no regular order: one after the other
    for (const Row& r : rows) {
      set(r);
      body();
    }
    return;
  }
  set(rows[0]);
  int open = 0;
  for (std::size_t k = digits->extent.size(); k-- > 0;) {
    const Expr i = b_.loop("v", 0, digits->extent[k], 1, 0);
    ++open;
    for (std::size_t c = 0; c < at_.size(); ++c) at_[c] = at_[c] + i * digits->step[k][c];
  }
  body();
  for (; open > 0; --open) b_.leave();
}

void Frame::each_of_pair(const std::function<void()>& body) {
  const std::vector<Expr> base = at_;
  const Expr e = b_.loop("e", 0, 2, 1, 0);
  for (std::size_t c = 0; c < at_.size(); ++c) at_[c] = base[c] + e * pair_step_[c];
  pair_index_ = e;
  body();
  b_.leave();
  at_ = base;
}

TensorPtr Frame::element(const TensorPtr& t) {
  const Access& a = access_.at(t.get());
  if (a.columns == 0) return a.view;
  std::vector<Expr> index(at_.begin() + static_cast<std::ptrdiff_t>(a.first),
                          at_.begin() + static_cast<std::ptrdiff_t>(a.first + a.columns));
  TensorPtr x = a.view;
  if (x->levels.size() == 1) return nest_.at(x, index);
  refuse(spec_, Code::POINTWISE_SHAPE, "private registers of several levels", {"got: " + t->type_str(false)},
         "index the outer level");
}

TensorPtr Frame::run(const TensorPtr& t) {
  const Access& a = access_.at(t.get());
  return nest_.at(a.runs, {sym::floor_div(at_[a.first], run_)});
}

TensorPtr Frame::half_of(const TensorPtr& two) { return nest_.at(two, {pair_index_}); }

Expr Frame::here(const Expr& e) {
  if (e.is_const()) return e;
  sym::Substitution s;
  for (const Expr& v : sym::free_vars(e)) {
    if (!is_placeholder(v.var())) continue;
    const auto d = static_cast<std::size_t>(numbers_of(v.var().name)[0]);
    s[v.node()] = at_[coordinates_ + d] + lane_[d];
  }
  return s.empty() ? e : sym::substitute(e, s);
}

}  // namespace graphene::build
