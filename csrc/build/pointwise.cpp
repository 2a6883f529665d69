#include "build/pointwise.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>

#include "build/frame.h"
#include "build/held.h"
#include "build/nest.h"
#include "build/point_types.h"
#include "ir/constant.h"

namespace graphene::build {

namespace {

using ir::ScalarType;
using ir::TensorPtr;
using Kind = PointNode::Kind;
using Shape = std::vector<std::int64_t>;

constexpr std::int64_t kWord = 8;  // elements of 4 bits

class Pointwise {
 public:
  Pointwise(ir::Builder& b, const TensorPtr& dst, const std::vector<PointNode>& nodes)
      : b_(b), dst_(dst), nodes_(nodes), types_(nodes.size()), shapes_(nodes.size()) {
    spec_.kind = ir::SpecKind::Spec;
    spec_.outs = {dst};
    for (const PointNode& n : nodes) {
      const bool seen = std::any_of(spec_.ins.begin(), spec_.ins.end(),
                                    [&](const ir::Operand& o) { return std::get<TensorPtr>(o) == n.tensor; });
      if (n.kind == Kind::Tensor && !seen) spec_.ins.emplace_back(n.tensor);
    }
    if (dst == nullptr) spec_.outs.clear();
    if (dst != nullptr && dst->is_fragment()) spec_.threads = dst->buffer->fragment->group;
  }

  // Of the value; nullopt: of a number, which takes any.
  std::optional<ScalarType> type() {
    infer();
    return types_.back();
  }

  void run() {
    infer();
    drop_idle_casts();
    const Shape want = shape_of(dst_);
    if (!broadcasts(shapes_[root_], want)) {
      refuse(Code::POINTWISE_SHAPE, "the value does not fit the destination",
             {"destination: " + tile_text(want), "value: " + tile_text(shapes_[root_])},
             "tile or index both to one shape; a size of 1 repeats");
    }
    b_.decompose(spec_, [&](const ir::SpecStmt& recorded) {
      spec_.blocks = recorded.blocks;
      spec_.threads = recorded.threads;
      evaluate_smaller(want);
      store(want);
    });
  }

 private:
  [[noreturn]] void refuse(Code code, std::string message, std::vector<std::string> details, std::string fix) const {
    build::refuse(spec_, code, std::move(message), std::move(details), std::move(fix));
  }

  // ---- types and shapes

  Shape shape_of(const TensorPtr& t) const {
    if (t->memory() != ir::Memory::RF) {
      refuse(Code::POINTWISE_TYPE, "pointwise expressions work on registers",
             {"got: " + t->type_str(false) + " of " + t->buffer->name}, "move it to registers first");
    }
    if (t->levels.empty()) return {};
    Shape s = static_shape(*t);
    if (s.empty()) {
      refuse(Code::POINTWISE_SHAPE, "an operand needs levels of one rank and constant sizes",
             {"got: " + t->type_str(false) + " of " + t->buffer->name}, "index its outer level");
    }
    return s;
  }

  static bool broadcasts(const Shape& from, const Shape& to) {
    if (from.size() > to.size()) return false;
    for (std::size_t i = 0; i < from.size(); ++i) {
      const std::int64_t n = from[from.size() - 1 - i];
      if (n != 1 && n != to[to.size() - 1 - i]) return false;
    }
    return true;
  }

  Shape joined(const Shape& a, const Shape& b) const {
    Shape out(std::max(a.size(), b.size()), 1);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
      const std::int64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
      if (x != y && x != 1 && y != 1) {
        refuse(Code::POINTWISE_SHAPE, "shapes that do not broadcast", {"got: " + tile_text(a) + " and " + tile_text(b)},
               "as in NumPy, sizes are equal or 1, counted from the last dimension");
      }
      out[out.size() - 1 - i] = std::max(x, y);
    }
    return out;
  }

  void infer() {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const PointNode n = nodes_[i];
      switch (n.kind) {
        case Kind::Tensor:
          types_[i] = n.tensor->dtype;
          shapes_[i] = shape_of(n.tensor);
          break;
        case Kind::Number:
          break;
        case Kind::Integer:
          if (sym::is_condition(n.integer) && !n.integer.is_const()) types_[i] = ScalarType::pred;
          shapes_[i] = Frame::placeholder_shape(n.integer);
          break;
        case Kind::Op:
          infer_op(i, n);
          break;
      }
    }
  }

  void infer_op(std::size_t i, const PointNode& n) {
    std::optional<ScalarType> common;
    bool truths = false;
    for (std::size_t a = 0; a < n.args.size(); ++a) {
      const auto arg = static_cast<std::size_t>(n.args[a]);
      shapes_[i] = joined(shapes_[i], shapes_[arg]);
      const bool chooses = n.op == "where" && a == 0;
      if (chooses && types_[arg] != ScalarType::pred)
        refuse(Code::POINTWISE_TYPE, "where chooses by a comparison or by .valid()", {}, "write gr.where(x > 0, y, z)");
      if (chooses || !types_[arg]) continue;
      truths = truths || types_[arg] == ScalarType::pred;
      common = common ? point::promoted(*common, *types_[arg]) : *types_[arg];
    }
    const ScalarType in = common ? point::widened(*common) : ScalarType::fp32;
    if (n.op == "bitcast") return infer_bitcast(i, n);
    if (n.op == "cast") {
      types_[i] = n.to;
      operand_type_[i] = common.value_or(n.to);
      return;
    }
    if (truths && (in != ScalarType::pred || (!point::logic(n.op) && n.op != "where"))) {
      refuse(Code::POINTWISE_TYPE, "arithmetic on truth values", {"operation: " + n.op},
             "choose numbers with gr.where(condition, 1, 0)");
    }
    if (n.op == "div" && !point::is_float(in) && in != ScalarType::pred) {
      refuse(Code::POINTWISE_TYPE, "a division of integers in registers", {std::string("got: ") + ir::name(in)},
             "write x // y, which rounds down as in Python, or divide floats: gr.cast(x, gr.fp32) / y");
    }
    const bool bits = (point::logic(n.op) && in != ScalarType::pred) || point::of_integers(n.op);
    if (bits && common && point::is_float(in)) {
      refuse(Code::POINTWISE_TYPE, "an operation on integers, of floats",
             {"operation: " + n.op, std::string("got: ") + ir::name(*common)},
             n.op == "floordiv" ? "write gr.floor(x / y)"
             : n.op == "mod"    ? "write gr.fmod(x, y), whose sign is that of x, or x - y * gr.floor(x / y)"
                                : "write gr.bitcast(x, gr.u32) for the bits, or gr.cast(x, gr.i32) for the number");
    }
    divide_by_shift(i, in);
    operand_type_[i] = in;
    types_[i] = point::compares(n.op) ? ScalarType::pred : in;
  }

  void infer_bitcast(std::size_t i, const PointNode& n) {
    const ScalarType from = types_[static_cast<std::size_t>(n.args[0])].value_or(n.to);
    if (ir::bits(from) != ir::bits(n.to) || from == ScalarType::pred || n.to == ScalarType::pred) {
      refuse(Code::POINTWISE_TYPE, "a bitcast of elements of another width",
             {"got: " + std::string(ir::name(from)) + " to " + ir::name(n.to)},
             "gr.bitcast of a whole tensor of registers regroups them; gr.cast converts numbers");
    }
    types_[i] = n.to;
    operand_type_[i] = from;
  }

  // Division of an integer by a power of two that is known: both round down, whatever the sign.
  void divide_by_shift(std::size_t i, ScalarType in) {
    PointNode& n = nodes_[i];
    if ((n.op != "floordiv" && n.op != "mod") || point::is_float(in)) return;
    PointNode& by = nodes_[static_cast<std::size_t>(n.args[1])];  // a number is the operand of one operation alone
    if (by.kind != Kind::Number || by.number < 1 || by.number >= 0x1p62) return;
    const auto divisor = static_cast<std::uint64_t>(by.number);
    if (static_cast<double>(divisor) != by.number || !std::has_single_bit(divisor)) return;
    if (std::countr_zero(divisor) >= ir::bits(in) - 1) return;  // not a number of the type
    const bool quotient = n.op == "floordiv";
    by.number = quotient ? std::countr_zero(divisor) : by.number - 1;
    n.op = quotient ? "shr" : "and";
  }

  // What is cast to the type that it has is used as it stands.
  void drop_idle_casts() {
    const auto source = [&](std::size_t i) {
      for (;;) {
        const PointNode& n = nodes_[i];
        const bool cast = n.kind == Kind::Op && n.op == "cast";
        if (!cast || types_[static_cast<std::size_t>(n.args[0])] != n.to) return i;
        i = static_cast<std::size_t>(n.args[0]);
      }
    };
    for (PointNode& n : nodes_) {
      for (int& a : n.args) a = static_cast<int>(source(static_cast<std::size_t>(a)));
    }
    root_ = source(nodes_.size() - 1);
  }

  // ---- evaluation

  // Operations whose shape is smaller than the destination's, once per element of a fragment that has their shape.
  void evaluate_smaller(const Shape& want) {
    std::vector<bool> needed(nodes_.size(), false);
    needed[root_] = true;
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      if (!needed[i]) continue;
      for (const int a : nodes_[i].args) needed[static_cast<std::size_t>(a)] = true;
    }
    std::map<Shape, std::vector<std::size_t>> by_shape;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (needed[i] && nodes_[i].kind == Kind::Op && shapes_[i] != want) by_shape[shapes_[i]].push_back(i);
    }
    std::vector<std::pair<std::int64_t, Shape>> order;
    for (const auto& [shape, list] : by_shape) {
      std::int64_t n = 1;
      for (const std::int64_t s : shape) n *= s;
      order.emplace_back(shape.empty() ? 0 : n, shape);
    }
    std::sort(order.begin(), order.end());
    for (const auto& [n, shape] : order) {
      std::set<std::size_t> results;  // what other shapes need of this one
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        if (!needed[i] || nodes_[i].kind != Kind::Op || shapes_[i] == shape) continue;
        for (const int a : nodes_[i].args) {
          const auto arg = static_cast<std::size_t>(a);
          if (nodes_[arg].kind == Kind::Op && shapes_[arg] == shape) results.insert(arg);
        }
      }
      if (shapes_[root_] == shape) results.insert(root_);
      const TensorPtr like = shape.empty() ? nullptr : fragment_of(shape);
      if (!shape.empty() && like == nullptr) continue;  // evaluated at the destination's elements
      for (const std::size_t r : results) {
        Frame frame(b_, spec_, like, shape);
        const TensorPtr array = frame.array(*types_[r]);
        to_array(frame, r, array);
        computed_[r] = {array, like};
      }
    }
  }

  TensorPtr fragment_of(const Shape& shape) const {
    for (const PointNode& n : nodes_) {
      if (n.kind == Kind::Tensor && n.tensor->is_fragment() && shape_of(n.tensor) == shape) return n.tensor;
    }
    return nullptr;
  }

  struct Computed {
    TensorPtr array, like;
  };

  // Declares to the frame what an expression reads, so that it can plan its loops.
  void declare(Frame& frame, std::size_t i) {
    const PointNode& n = nodes_[i];
    if (const auto it = computed_.find(i); it != computed_.end()) {
      frame.reads(it->second.array, it->second.like);
      return;
    }
    if (n.kind == Kind::Tensor) frame.reads(n.tensor, nullptr);
    if (n.kind == Kind::Integer) frame.uses(n.integer);
    for (const int a : n.args) declare(frame, static_cast<std::size_t>(a));
  }

  void to_array(Frame& frame, std::size_t root, const TensorPtr& array) {
    declare(frame, root);
    frame.each(1, [&] { to_element(frame, root, frame.element(array)); });
  }

  // The value of a node, into one register.
  void to_element(Frame& frame, std::size_t root, const TensorPtr& to) {
    done_.clear();
    root_now_ = root;
    destination_ = to;
    assign(to, emit(frame, root));
  }

  void store(const Shape& want) {
    if (Frame frame(b_, spec_, dst_, want); reads_permuted(frame)) {
      const TensorPtr array = frame.array(types_[root_].value_or(point::widened(dst_->dtype)));
      to_array(frame, root_, array);
      computed_[root_] = {array, dst_};
    }
    Frame frame(b_, spec_, dst_, want);
    declare(frame, root_);
    frame.reads(dst_, nullptr);
    if (const TensorPtr words = cast_operand(); words != nullptr && point::converts_words(words->dtype, dst_->dtype) &&
                                                frame.in_runs(words, kWord) && frame.in_runs(dst_, kWord)) {
      return frame.each(kWord, [&] { cast_run(frame, words); });
    }
    const bool narrow = ir::bits(dst_->dtype) < 32 && point::is_float(dst_->dtype) && !point::narrow(dst_->dtype);
    const TensorPtr same = operand_of(root_);
    const bool other = same != nullptr && same->dtype != dst_->dtype && half_pair(frame, root_);
    if (narrow && frame.paired(dst_) && (types_[root_] == ScalarType::fp32 || other)) return store_pairs(frame);
    if (!widens_pairs(frame, root_)) {
      frame.each(1, [&] { to_element(frame, root_, frame.element(dst_)); });
      return;
    }
    frame.each(2, [&] {
      if (const TensorPtr from = operand_of(root_); from != nullptr && frame.paired(from) && frame.paired(dst_) &&
                                                    point::converts_pairs(from->dtype, dst_->dtype)) {
        return cast_run(frame, from);
      }
      load_pairs(frame, root_);
      frame.each_of_pair([&] { to_element(frame, root_, frame.element(dst_)); });
    });
  }

  void cast_run(Frame& frame, const TensorPtr& from) {
    const TensorPtr source = frame.run(from);  // recorded first: a call's arguments have no order
    unary("cast", frame.run(dst_), source);
  }

  // One conversion for two neighbours of the destination.
  void store_pairs(Frame& frame) {
    const TensorPtr from = operand_of(root_);
    const bool whole = from != nullptr && frame.paired(from) && point::converts_pairs(from->dtype, dst_->dtype);
    TensorPtr pair;
    if (!whole) pair = b_.alloc(b_.unique_name("pair"), Layout(2), ScalarType::fp32, ir::Memory::RF, {});
    frame.each(2, [&] {
      if (whole) return cast_run(frame, from);
      load_pairs(frame, root_);
      frame.each_of_pair([&] { to_element(frame, root_, frame.half_of(pair)); });
      unary("cast", frame.run(dst_), pair);
    });
  }

  // Registers of which the value is a conversion to the destination's type; null: it is something else.
  TensorPtr cast_operand() const {
    const PointNode& n = nodes_[root_];
    const bool cast = n.op == "cast" && n.to == dst_->dtype && !computed_.contains(root_);
    return operand_of(cast ? static_cast<std::size_t>(n.args[0]) : root_);
  }

  // Registers that a node is, as it stands.
  TensorPtr operand_of(std::size_t i) const {
    if (const auto it = computed_.find(i); it != computed_.end()) return it->second.array;
    return nodes_[i].tensor;
  }

  // Writing the destination would overwrite what is still to be read.
  bool reads_permuted(Frame& frame) {
    declare(frame, root_);
    frame.reads(dst_, nullptr);
    return frame.permutes(dst_);
  }

  bool half_pair(const Frame& frame, std::size_t i) const {
    const PointNode& n = nodes_[i];
    return n.kind == Kind::Tensor && ir::bits(n.tensor->dtype) <= 16 && point::is_float(n.tensor->dtype) &&
           !point::narrow(n.tensor->dtype) && frame.paired(n.tensor);
  }

  bool widens_pairs(const Frame& frame, std::size_t i) const {
    if (computed_.contains(i)) return false;
    // Bits that are only moved need no widening.
    if (i == root_ && nodes_[i].kind == Kind::Tensor && nodes_[i].tensor->dtype == dst_->dtype) return false;
    if (nodes_[i].op == "bitcast" && half_pair(frame, static_cast<std::size_t>(nodes_[i].args[0]))) return false;
    return half_pair(frame, i) || std::any_of(nodes_[i].args.begin(), nodes_[i].args.end(),
                                              [&](int a) { return widens_pairs(frame, static_cast<std::size_t>(a)); });
  }

  // 16-bit operands whose neighbours form a register, widened two at a time.
  void load_pairs(Frame& frame, std::size_t root) {
    wide_pairs_.clear();
    add_pairs(frame, root);
  }

  void add_pairs(Frame& frame, std::size_t i) {
    if (computed_.contains(i) || wide_pairs_.contains(i)) return;
    if (half_pair(frame, i)) {
      const TensorPtr wide = b_.alloc(b_.unique_name("wide"), Layout(2), ScalarType::fp32, ir::Memory::RF, {});
      unary("cast", wide, frame.run(nodes_[i].tensor));
      wide_pairs_[i] = wide;
    }
    if (nodes_[i].op == "bitcast" && nodes_[static_cast<std::size_t>(nodes_[i].args[0])].kind == Kind::Tensor) return;
    for (const int a : nodes_[i].args) add_pairs(frame, static_cast<std::size_t>(a));
  }

  // The value of a node at the frame's element.
  ir::Operand emit(Frame& frame, std::size_t i) {
    if (const auto it = done_.find(i); it != done_.end()) return it->second;
    const PointNode& n = nodes_[i];
    ir::Operand out;
    if (const auto it = computed_.find(i); it != computed_.end()) {
      out = frame.element(it->second.array);
    } else if (n.kind == Kind::Number) {
      return n.number;
    } else if (n.kind == Kind::Integer) {
      const Expr e = frame.here(n.integer);
      if (!e.is_const()) return e;
      const ir::Constant c = ir::constant_of(e.value());
      if (const auto* exact = std::get_if<double>(&c)) return *exact;
      return e;
    } else if (n.kind == Kind::Tensor) {
      const auto it = wide_pairs_.find(i);
      out = it != wide_pairs_.end() ? frame.half_of(it->second) : frame.element(n.tensor);
    } else {
      std::vector<ir::Operand> args;
      for (std::size_t a = 0; a < n.args.size(); ++a) {
        const auto arg = static_cast<std::size_t>(n.args[a]);
        const bool chooses = n.op == "where" && a == 0;
        ir::Operand x = emit(frame, arg);
        if (n.op == "bitcast" && nodes_[arg].kind == Kind::Tensor) x = element_of(frame, arg);
        if (!chooses && n.op != "cast" && n.op != "bitcast") x = converted(x, operand_type_.at(i));
        if (n.spec == ir::SpecKind::UnaryPointwise) x = in_register(x, operand_type_.at(i));
        args.push_back(std::move(x));
      }
      const auto* held = std::get_if<TensorPtr>(args.data());
      if (n.op == "cast" && held != nullptr && (*held)->dtype == n.to) return done_[i] = *held;  // a number
      const bool direct = i == root_now_ && destination_ != nullptr && destination_->dtype == *types_[i];
      const TensorPtr to = direct ? destination_ : temporary(*types_[i]);
      if (n.op == "cast" && held != nullptr && point::converts_by_fp32((*held)->dtype, n.to)) args[0] = widen(*held);
      ir::SpecStmt s;
      s.kind = n.spec;
      s.attrs = n.attrs;
      s.attrs["op"] = n.op;
      leaf(std::move(s), to, std::move(args));
      out = to;
    }
    done_[i] = out;
    return out;
  }

  // Of a tensor as it stands, though the expression may also use it widened.
  ir::Operand element_of(Frame& frame, std::size_t i) {
    const auto it = computed_.find(i);
    return frame.element(it != computed_.end() ? it->second.array : nodes_[i].tensor);
  }

  void assign(const TensorPtr& to, const ir::Operand& x) {
    const auto* t = std::get_if<TensorPtr>(&x);
    if (t != nullptr && *t == to) return;
    ir::SpecStmt s;
    if (t == nullptr) {
      if (const auto number = number_of(x)) {
        s.kind = ir::SpecKind::Init;
        s.attrs["value"] = *number;
        return leaf(std::move(s), to, {});
      }
      // An integer has no width of its own, of which the instruction would be chosen.
      if (to->dtype == ScalarType::pred) return unary("cast", to, std::get<TensorPtr>(in_register(x, ScalarType::i32)));
      return assign_converted(to, in_register(x, point::widened(to->dtype)));
    }
    assign_converted(to, x);
  }

  void assign_converted(const TensorPtr& to, const ir::Operand& x) {
    const TensorPtr& t = std::get<TensorPtr>(x);
    if (t == to) return;
    if (point::converts_by_fp32(t->dtype, to->dtype)) return unary("cast", to, widen(t));
    if (t->dtype != to->dtype) return unary("cast", to, t);
    ir::SpecStmt s;
    s.kind = ir::SpecKind::Move;
    leaf(std::move(s), to, {x});
  }

  ir::Operand converted(const ir::Operand& x, ScalarType type) {
    const auto* t = std::get_if<TensorPtr>(&x);
    if (std::holds_alternative<Expr>(x) && point::is_float(type)) return in_register(x, type);
    if (t == nullptr || (*t)->dtype == type) return x;
    const TensorPtr to = temporary(type);
    unary("cast", to, *t);
    return to;
  }

  TensorPtr widen(const TensorPtr& x) {
    const TensorPtr to = temporary(ScalarType::fp32);
    unary("cast", to, x);
    return to;
  }

  static std::optional<ir::AttrValue> number_of(const ir::Operand& x) {
    if (const auto* d = std::get_if<double>(&x)) return *d;
    if (const auto* e = std::get_if<Expr>(&x); e != nullptr && e->is_const()) return e->value();
    return std::nullopt;
  }

  // Instructions on one number take registers only; those on floats take no integers.
  ir::Operand in_register(const ir::Operand& x, ScalarType type) {
    if (std::holds_alternative<TensorPtr>(x)) return x;
    ir::SpecStmt s;
    if (const auto number = number_of(x)) {
      const TensorPtr to = temporary(type);
      s.kind = ir::SpecKind::Init;
      s.attrs["value"] = *number;
      leaf(std::move(s), to, {});
      return to;
    }
    const Expr& e = std::get<Expr>(x);
    const bool narrow = sym::lower_bound(e) >= -0x80000000LL && sym::upper_bound(e) <= 0x7fffffff;
    const TensorPtr integer = temporary(narrow ? ScalarType::i32 : ScalarType::i64);
    s.kind = ir::SpecKind::BinaryPointwise;
    s.attrs["op"] = std::string("add");
    leaf(std::move(s), integer, {x, 0.0});
    if (integer->dtype == type) return integer;
    const TensorPtr to = temporary(type);
    unary("cast", to, integer);
    return to;
  }

  void unary(const std::string& op, const TensorPtr& to, const TensorPtr& x) {
    ir::SpecStmt s;
    s.kind = ir::SpecKind::UnaryPointwise;
    s.attrs["op"] = op;
    leaf(std::move(s), to, {x});
  }

  void leaf(ir::SpecStmt s, const TensorPtr& to, std::vector<ir::Operand> ins) {
    s.outs = {to};
    s.ins = std::move(ins);
    s.blocks = spec_.blocks;
    s.threads = b_.each(ir::ThreadUnit::Thread);
    b_.spec(std::move(s));
  }

  TensorPtr temporary(ScalarType type) {
    return b_.alloc(b_.unique_name("t"), Layout(IntTuple(std::vector<IntTuple>{})), type, ir::Memory::RF, {});
  }

  ir::Builder& b_;
  TensorPtr dst_;
  std::vector<PointNode> nodes_;
  std::vector<std::optional<ScalarType>> types_;  // nullopt: a number or an integer, of whatever type is wanted
  std::vector<Shape> shapes_;
  std::map<std::size_t, ScalarType> operand_type_;  // of operations
  ir::SpecStmt spec_;
  std::size_t root_ = 0, root_now_ = 0;
  std::map<std::size_t, Computed> computed_;
  std::map<std::size_t, ir::Operand> done_;  // in the body that is being recorded
  std::map<std::size_t, TensorPtr> wide_pairs_;
  TensorPtr destination_;
};

// A value that is what the destination holds: `t[i] += 1` assigns what it has changed to where it is.
bool is_place(const PointNode& value, const ir::Tensor& dst) {
  if (value.kind != Kind::Tensor || value.tensor->buffer != dst.buffer || dst.memory() != ir::Memory::RF) return false;
  const ir::Tensor& t = *value.tensor;
  return identical(t.offset, dst.offset) &&
         std::ranges::equal(t.levels, dst.levels, [](const Layout& x, const Layout& y) { return identical(x, y); });
}

}  // namespace

void pointwise(ir::Builder& b, const TensorPtr& dst, const std::vector<PointNode>& nodes) {
  if (is_place(nodes.back(), *dst)) return;
  Pointwise(b, dst, nodes).run();
}

std::optional<ScalarType> type_of(ir::Builder& b, const std::vector<PointNode>& nodes) {
  return Pointwise(b, nullptr, nodes).type();
}

}  // namespace graphene::build
