#include "ir/declare.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ir/barriers.h"
#include "ir/levels.h"
#include "layout/tv.h"

namespace graphene::ir {

sym::VarInfo loop_info(const std::string& name, const Expr& start, const Expr& stop, const Expr& step) {
  sym::VarInfo v;
  v.name = name;
  v.kind = sym::VarKind::Loop;
  v.min = sym::lower_bound(start);
  const std::int64_t stop_max = sym::upper_bound(stop);
  const bool unbounded = stop_max == sym::kMaxInt || stop_max == sym::kMinInt;
  v.max = std::max(v.min, unbounded ? stop_max : stop_max - 1);
  // A mutable scalar may change while the loop runs: only its numeric facts bound the counter.
  const auto fixed = [](const Expr& e) {
    return !e.is_const() && !sym::depends_on(e, [](const sym::VarInfo& i) { return i.kind == sym::VarKind::Scalar; });
  };
  if (fixed(start)) v.lo = start;
  if (fixed(stop)) v.hi = stop - 1;
  v.multiple_of = std::max<std::int64_t>(std::gcd(sym::divisor(start), sym::divisor(step)), 1);
  return v;
}

bool steps_forward(const Expr& step, const ThreadPtr& grid, std::int64_t cluster) {
  if (sym::prove(sym::le(1, step))) return true;
  if (!grid) return false;
  const auto same = [&](const Expr& e) { return identical(step, e) || identical(step, sym::floor_div(e, cluster)); };
  return same(grid->launch_size()) || std::any_of(grid->dims.begin(), grid->dims.end(), same);
}

sym::VarInfo coord_info(const std::string& name, const Expr& def) {
  sym::VarInfo v;
  v.name = name;
  v.kind = sym::VarKind::Coord;
  v.min = sym::lower_bound(def);
  v.max = sym::upper_bound(def);
  v.multiple_of = std::max<std::int64_t>(sym::divisor(def), 1);
  v.def = def;
  if (def.is_var()) {
    v.lo = def.var().lo;
    v.hi = def.var().hi;
  }
  return v;
}

sym::VarInfo param_info(const std::string& name, ScalarType dtype) {
  sym::VarInfo v;
  v.name = name;
  v.kind = sym::VarKind::Param;
  const ScalarInfo& i = info(dtype);
  const bool is_signed = i.cls == ScalarInfo::Class::Signed;
  const int value_bits = dtype == ScalarType::pred ? 1 : is_signed ? i.bits - 1 : std::min(i.bits, 63);
  v.max = value_bits == 63 ? sym::kMaxInt : (std::int64_t{1} << value_bits) - 1;
  v.min = is_signed ? -v.max - 1 : 0;
  return v;
}

std::vector<ArgumentRef> arguments(const Kernel& k) {
  std::vector<ArgumentRef> out;
  auto tensor = k.args.begin();
  for (const ScalarParam& p : k.params) {
    while (static_cast<int>(out.size()) < p.position && tensor != k.args.end()) out.push_back({.tensor = &*tensor++});
    out.push_back({.scalar = &p});
  }
  while (tensor != k.args.end()) out.push_back({.tensor = &*tensor++});
  return out;
}

Tensor result_of(const ViewStmt& v) {
  switch (v.op) {
    case ViewOp::Tile:
      return tile(*v.source, v.tiler);
    case ViewOp::Index:
      return index(*v.source, v.index);
    case ViewOp::Transpose:
      return transpose(*v.source);
    case ViewOp::Permute:
      return permute(*v.source, v.order);
    case ViewOp::Reshape:
      return reshape(*v.source, v.level, v.shape);
    case ViewOp::Window:
      return window(*v.source, v.index.at(0).at, v.index.at(0).stop);
    case ViewOp::Values:
      return values(*v.source);
    case ViewOp::Of:
      return of(*v.source, v.index.at(0).at);
  }
  return *v.source;
}

ThreadTensor result_of(const ThreadStmt& t) {
  switch (t.op) {
    case ThreadOp::Tile:
      return tile(*t.source, t.tiler);
    case ThreadOp::Index:
      return index(*t.source, t.index);
    case ThreadOp::Reshape:
      return reshape(*t.source, t.level, t.shape);
    case ThreadOp::Scalar:
      return scalar(*t.source);
  }
  return *t.source;
}

const Attrs& default_attrs(SpecKind kind) {
  static const Attrs none;
  static const Attrs move = {{"fill", 0.0}};
  static const Attrs matmul = {{"accumulate", true}};
  static const Attrs reduction = {{"accumulate", false}};
  switch (kind) {
    case SpecKind::Move:
      return move;
    case SpecKind::MatMul:
      return matmul;
    case SpecKind::Reduction:
      return reduction;
    default:
      return none;
  }
}

bool same_attr(const AttrValue& a, const AttrValue& b) {
  if (a.index() != b.index()) return false;
  if (const auto* e = std::get_if<Expr>(&a)) return identical(*e, std::get<Expr>(b));
  if (const auto* s = std::get_if<std::string>(&a)) return *s == std::get<std::string>(b);
  if (const auto* i = std::get_if<std::int64_t>(&a)) return *i == std::get<std::int64_t>(b);
  if (const auto* d = std::get_if<double>(&a)) {
    const double other = std::get<double>(b);
    return (*d == other && std::signbit(*d) == std::signbit(other)) || (*d != *d && other != other);
  }
  return std::get<bool>(a) == std::get<bool>(b);
}

namespace {

constexpr std::int64_t kMaxRegisters = 16'384;                     // of one tensor in one thread; a device has 255
constexpr std::int64_t kMaxSharedBytes = std::int64_t{1} << 20;    // of one tensor; a device has 227 KiB
constexpr std::int64_t kMaxGlobalBytes = std::int64_t{1} << 48;    // of one argument; devices address 2^49
constexpr std::int64_t kMaxGroupRegisters = kMaxRegisters * 1024;  // of one fragment: a block has 1024 threads
constexpr int kMaxList = 1024;                                     // tensors in one list; parameters are 4 to 32 KiB

// The product, or `limit` + 1 where that is passed. Factors are not negative.
std::int64_t product_up_to(std::int64_t limit, std::initializer_list<std::int64_t> factors) {
  std::int64_t p = 1;
  for (const std::int64_t f : factors)
    if (__builtin_mul_overflow(p, f, &p) || p > limit) p = limit + 1;
  return p;
}

[[noreturn]] void too_large(const Buffer& b, const std::string& want) {
  std::string got = b.fragment ? "" : level_str(b.layout);
  if (b.fragment)
    for (const std::int64_t s : b.fragment->shape) got += (got.empty() ? "[" : ",") + std::to_string(s);
  if (b.fragment) got += "]";
  got += std::string(".") + name(b.dtype) + "." + name(b.memory);
  if (b.stages > 0) got += ", " + std::to_string(b.stages) + " stages";
  fail(Code::TENSOR_SIZE, "a tensor that no device can hold", {"tensor: " + b.name, "want: " + want, "got: " + got},
       b.memory == Memory::RF   ? "give each thread a part of it, or put it into shared memory"
       : b.memory == Memory::SH ? "use smaller tiles or fewer stages"
                                : "");
}

}  // namespace

void check_fragment_capacity(const Buffer& b) {
  std::int64_t elems = 1;
  for (const std::int64_t s : b.fragment->shape) elems = product_up_to(kMaxGroupRegisters, {elems, s});
  if (product_up_to(kMaxGroupRegisters, {elems, std::max(b.stages, 1)}) > kMaxGroupRegisters)
    too_large(b, "at most " + std::to_string(kMaxGroupRegisters) + " elements in a block");
}

void check_capacity(const Buffer& b) {
  if (b.count > kMaxList)
    fail(Code::TENSOR_SIZE, "a list of too many arguments",
         {"list: " + b.name, "want: at most " + std::to_string(kMaxList), "got: " + std::to_string(b.count)},
         "pass one tensor with another dimension");
  const std::vector<Expr> sizes = b.layout.shape().leaves();
  const std::vector<Expr> strides = b.layout.stride().leaves();
  for (std::size_t i = 0; i < sizes.size(); ++i) {  // a mode may run backwards, which the cosize does not count
    if (!sizes[i].is_const() || !strides[i].is_const() || sizes[i].value() < 2 || strides[i].value() >= 0) continue;
    if (strides[i].value() < -kMaxGlobalBytes ||
        product_up_to(kMaxGlobalBytes, {sizes[i].value(), -strides[i].value()}) > kMaxGlobalBytes)
      too_large(b, "a mode that reaches back at most 2^48 elements");
  }
  std::optional<std::int64_t> elems;  // of a stage; none: past 64 bits
  try {
    if (b.fragment && (b.fragment->tv.mode(0).cosize() + b.fragment->tv.mode(1).cosize()).value() > kMaxGroupRegisters)
      fail(Code::TENSOR_SIZE, "a TV layout that reaches far past its fragment",
           {"tensor: " + b.name, "tv: " + b.fragment->tv.str()});
    const Expr n = b.fragment ? b.fragment->tv.mode(1).size() : b.layout.cosize();
    if (!n.is_const()) return;
    elems = n.value();
  } catch (const Error& e) {
    if (e.diagnostics().front().code != Code::SYM_OVERFLOW) throw;
  }
  const std::int64_t limit = b.memory == Memory::RF   ? kMaxRegisters
                             : b.memory == Memory::SH ? kMaxSharedBytes
                                                      : kMaxGlobalBytes;
  const std::int64_t size = b.memory == Memory::RF || is_packed(b.dtype) ? 1 : bits(b.dtype) / 8;
  if (elems && product_up_to(limit, {*elems, size, std::max(b.stages, 1)}) <= limit) return;
  too_large(b, b.memory == Memory::RF   ? "at most " + std::to_string(limit) + " values in a thread"
               : b.memory == Memory::SH ? "at most " + std::to_string(limit) + " bytes"
                                        : "at most 2^48 bytes");
}

void check_sizes(const Buffer& b) {
  const bool scalar = !b.layout.shape().is_leaf() && b.layout.rank() == 0;
  const std::vector<std::string> details = {"tensor: " + b.name, "got: " + level_str(b.layout)};
  if (!scalar && lacks_modes(b.layout))
    fail(Code::TENSOR_TYPE, "a mode without sizes", details, "leave the mode out; a scalar has no modes: []");
  for (const Expr& s : b.layout.shape().leaves())
    if (s.is_const() && s.value() < 1)
      fail(Code::TENSOR_TYPE, "a size must be positive", details,
           b.memory == Memory::GL ? "a size that may be 0 at a launch is symbolic: gr.sym" : "");
}

// Elements that share bytes fill them: lines begin at whole bytes and end there.
void check_packed(const Buffer& b) {
  if (!is_packed(b.dtype) || b.memory == Memory::RF) return;
  const std::vector<Expr> sizes = b.layout.shape().leaves();
  const std::vector<Expr> strides = b.layout.stride().leaves();
  int lines = 0;
  bool whole = true;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i].is_const(1)) continue;
    const bool line = strides[i].is_const(1);
    lines += line ? 1 : 0;
    whole = whole && sym::divisor(line ? sizes[i] : strides[i]) % 2 == 0;
  }
  if (lines == 1 && whole) return;
  fail(Code::TENSOR_TYPE, "elements of 4 bits that do not fill bytes",
       {"tensor: " + b.name, "want: one mode of stride 1, of an even size, and even strides of all others",
        "got: " + level_str(b.layout) + "." + name(b.dtype)},
       "pad the lines to even sizes; for sizes that are symbols, declare multiple_of=2");
}

void check_holders(const Buffer& b) {
  std::int64_t elems = 1;
  for (const std::int64_t s : b.fragment->shape) elems *= s;
  layout::require_holders(b.fragment->tv, elems, "fragment " + b.name);
}

int usual_align_bytes(const Buffer& b) {
  switch (b.memory) {
    case Memory::GL:
      return static_cast<int>(bytes_of_elems(b.dtype, 1));
    case Memory::SH:
      return b.swizzle.trivial() ? 16 : 1024;
    case Memory::RF:
    case Memory::DSM:
      return 0;
  }
  return 0;
}

Expr usual_stage_elems(const Buffer& b) {
  if (b.stages == 0) return 0;
  if (b.fragment) return b.fragment->covered_elems();
  const Expr n = b.layout.cosize();
  if (b.memory != Memory::SH) return n;
  const std::int64_t unit = std::max(1, 8 * (b.align_bytes > 0 ? b.align_bytes : usual_align_bytes(b)) / bits(b.dtype));
  return sym::ceil_div(n, unit) * unit;
}

Tensor declare(Buffer b) {
  check_barriers(b);
  check_sizes(b);
  check_packed(b);
  check_capacity(b);
  if (b.align_bytes == 0) b.align_bytes = usual_align_bytes(b);
  if (identical(b.stage_elems, Expr(0))) b.stage_elems = usual_stage_elems(b);
  Tensor t;
  t.id = b.id;
  t.dtype = b.dtype;
  const bool scalar = !b.layout.shape().is_leaf() && b.layout.rank() == 0;
  if (!scalar) b.layout = level_of(modes_of(b.layout));
  if (!scalar) t.levels = {b.layout};
  if (b.stages > 0) t.levels.insert(t.levels.begin(), Layout(b.stages, b.stage_elems));
  if (b.count > 0) t.levels.insert(t.levels.begin(), Layout(b.count, 0));
  t.buffer = std::make_shared<const Buffer>(std::move(b));
  return t;
}

Tensor declare_param(int id, const std::string& name, ScalarType dtype) {
  Buffer b;
  b.id = id;
  b.name = name;
  b.dtype = dtype;
  b.memory = Memory::RF;
  b.role = Role::Input;
  b.layout = Layout(IntTuple(std::vector<IntTuple>{}));
  return declare(std::move(b));
}

namespace {

std::string shape_str(const std::vector<std::int64_t>& shape) {
  std::string s = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) s += (i > 0 ? "," : "") + std::to_string(shape[i]);
  return s + "]";
}

// A fragment cut evenly: per dimension, from the atom outwards, one mode of stride `at`.
struct Spread {
  std::vector<Layout> thread_modes, value_modes;  // into logical elements, fastest first
  std::vector<Layout> levels;                     // outermost first
};

Spread spread_over(const std::vector<std::int64_t>& shape, const FragmentSpec& spec, const ThreadPtr& group,
                   const std::vector<std::string>& details) {
  const std::size_t rank = shape.size();
  std::vector<std::int64_t> column(rank, 1);  // colexicographic strides of the whole shape
  for (std::size_t d = 1; d < rank; ++d) column[d] = column[d - 1] * shape[d - 1];
  if (spec.extents.size() != rank)
    fail(Code::FRAGMENT_SHAPE, "the fragment and the atom's tile have different ranks", details);

  // The innermost levels that together are the atom's threads; the others cut the shape.
  const std::int64_t atom_threads = spec.tv.mode(0).size().value();
  std::size_t outer = group->levels.size();
  std::int64_t inside = 1;
  while (inside < atom_threads && outer > 0) inside *= group->levels[--outer].size().value();
  if (inside != atom_threads)
    fail(Code::FRAGMENT_GROUP, "the group's innermost levels are not the threads of the atom", details,
         "tile the threads so that the innermost level has " + std::to_string(atom_threads) + " members");

  std::vector<std::int64_t> regs = shape;
  for (std::size_t d = 0; d < rank; ++d) {
    std::int64_t outside = spec.extents[d];
    for (std::size_t l = 0; l < outer; ++l) {
      const std::vector<Layout> modes = modes_of(group->levels[l]);
      if (modes.size() != rank)
        fail(Code::FRAGMENT_GROUP, "the group's outer levels must have the rank of the fragment", details,
             "reshape the outer level, as in .reshape(0, gr.Layout((2, 4)))");
      outside *= modes[d].size().value();
    }
    if (outside <= 0 || shape[d] % outside != 0)
      fail(Code::FRAGMENT_SHAPE, "the group and the atom's tile do not divide the fragment", details,
           "make each size a multiple of the tile's times the number of the group's outer members");
    regs[d] = shape[d] / outside;
  }

  Spread s;
  std::vector<IntTuple> tile_shape;
  std::vector<IntTuple> tile_stride;
  std::vector<Layout> atom;
  for (std::size_t d = 0; d < rank; ++d) {
    tile_shape.emplace_back(spec.extents[d]);
    tile_stride.emplace_back(column[d]);
    atom.emplace_back(spec.extents[d], column[d]);
  }
  const Layout into{IntTuple(tile_shape), IntTuple(tile_stride)};
  s.thread_modes.push_back(layout::composition(into, spec.tv.mode(0)));
  s.value_modes.push_back(layout::composition(into, spec.tv.mode(1)));
  s.levels.insert(s.levels.begin(), level_of(atom));
  std::vector<std::int64_t> at = spec.extents;
  auto add_level = [&](const std::vector<std::int64_t>& counts) {
    std::vector<Layout> modes;
    for (std::size_t d = 0; d < rank; ++d) {
      modes.emplace_back(counts[d], at[d] * column[d]);
      at[d] *= counts[d];
    }
    s.levels.insert(s.levels.begin(), level_of(modes));
    return modes;
  };
  for (Layout& m : add_level(regs))
    if (!m.size().is_const(1)) s.value_modes.push_back(m);
  for (std::size_t l = outer; l-- > 0;) {
    std::vector<std::int64_t> counts;
    for (const Layout& m : modes_of(group->levels[l])) counts.push_back(m.size().value());
    for (Layout& m : add_level(counts))
      if (!m.size().is_const(1)) s.thread_modes.push_back(m);
  }
  return s;
}

Layout joined(const std::vector<Layout>& modes) { return modes.size() == 1 ? modes[0] : layout::make_layout(modes); }

}  // namespace

Tensor declare_fragment(Buffer b, const std::vector<std::int64_t>& shape, const FragmentSpec& spec,
                        const ThreadPtr& group) {
  const std::vector<std::string> details = {"fragment: " + shape_str(shape) + " of " +
                                                (spec.label.empty() ? "tv" : spec.label) +
                                                (spec.extents.empty() ? "" : ", tile " + shape_str(spec.extents)),
                                            "on: " + group->type_str(), "tv: " + spec.tv.str()};
  if (shape.empty() || std::any_of(shape.begin(), shape.end(), [](std::int64_t s) { return s < 1; }))
    fail(Code::FRAGMENT_SHAPE, "a fragment's sizes must be positive", details);
  b.memory = Memory::RF;
  check_barriers(b);
  b.fragment = Fragment{.shape = shape, .group = group, .tv = spec.tv, .label = spec.label};
  check_fragment_capacity(b);
  layout::require_two_modes(spec.tv, "fragment " + b.name);
  Fragment f;
  f.shape = shape;
  f.group = group;
  f.label = spec.label.empty() ? "tv" : spec.label;
  std::vector<Layout> levels;
  if (spec.extents.empty()) {
    if (!group->size().is_const(spec.tv.mode(0).size().value()))
      fail(Code::FRAGMENT_GROUP, "the TV layout is for another number of threads", details);
    f.tv = spec.tv;
    levels = {level_of(modes_of(Layout(IntTuple(std::vector<IntTuple>(shape.begin(), shape.end())))))};
  } else {
    Spread s = spread_over(shape, spec, group, details);
    f.tv = layout::make_layout({joined(s.thread_modes), joined(s.value_modes)});
    levels = std::move(s.levels);
  }
  b.layout = Layout(IntTuple(std::vector<IntTuple>(shape.begin(), shape.end())));
  b.fragment = std::move(f);
  check_capacity(b);
  check_holders(b);
  b.stage_elems = usual_stage_elems(b);
  Tensor t;
  t.id = b.id;
  t.dtype = b.dtype;
  t.levels = std::move(levels);
  if (b.stages > 0) t.levels.insert(t.levels.begin(), Layout(b.stages, b.stage_elems));
  t.buffer = std::make_shared<const Buffer>(std::move(b));
  return t;
}

}  // namespace graphene::ir
