// Rules about the operands of each kind of spec.
#include <algorithm>
#include <optional>

#include "atoms/atom.h"
#include "ir/arity.h"
#include "ir/print.h"
#include "verify/rule.h"

namespace graphene::verify {

namespace {

using ir::SpecKind;
using ir::SpecStmt;
using Shape = std::vector<Expr>;

std::string text(const Shape& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) out += (i == 0 ? "" : ",") + shape[i].str();
  return out + "]";
}

bool equal(const Expr& a, const Expr& b) { return identical(a, b) || sym::prove(sym::eq(a, b)); }

bool equal(const Shape& a, const Shape& b) {
  return a.size() == b.size() && std::ranges::equal(a, b, [](const Expr& x, const Expr& y) { return equal(x, y); });
}

Shape without_ones(const Shape& s) {
  Shape out;
  for (const Expr& e : s) {
    if (!e.is_const(1)) out.push_back(e);
  }
  return out;
}

const ir::TensorPtr* tensor(const ir::Operand& o) { return std::get_if<ir::TensorPtr>(&o); }

// What a group of threads does together is described by what each of them sees where an operand is private to each
// thread; then the shapes are those of the atom's pattern, which the matcher compares.
bool seen_by_each_thread(const SpecStmt& s) {
  if (s.threads == nullptr || s.threads->size().is_const(1)) return false;
  if (!s.decomposed) return true;
  const auto is_private = [](const ir::TensorPtr& t) { return t->memory() == ir::Memory::RF && !t->is_fragment(); };
  return std::ranges::any_of(s.outs, is_private) || std::ranges::any_of(s.ins, [&](const ir::Operand& o) {
           return tensor(o) != nullptr && is_private(*tensor(o));
         });
}

bool well_formed(const SpecStmt& s) {
  const auto want = ir::arity(s.kind);
  return want && want->fits(s.outs.size(), s.ins.size());
}

void operand_count(Context& c, const ir::Stmt& s) {
  const auto* spec = s.as<SpecStmt>();
  if (spec == nullptr) return;
  if (spec->kind == SpecKind::Spec) {
    if (spec->decomposed || !spec->atom.empty()) return;
    c.problem(s, Code::VERIFY_OPERANDS, "a generic Spec needs a decomposition", {},
              "enter it with `with`, or use a built-in kind for a leaf");
    return;
  }
  const auto want = ir::arity(spec->kind);
  if (!want || well_formed(*spec)) return;
  c.problem(s, Code::VERIFY_OPERANDS, std::string("wrong number of operands of ") + ir::name(spec->kind),
            {"want: " + std::to_string(want->outs) + " out, " + std::to_string(want->ins) + " in",
             "got: " + std::to_string(spec->outs.size()) + " out, " + std::to_string(spec->ins.size()) + " in"});
}

void matmul(Context& c, const ir::Stmt& s) {
  const auto* spec = s.as<SpecStmt>();
  if (spec == nullptr || spec->kind != SpecKind::MatMul || !well_formed(*spec) || seen_by_each_thread(*spec)) return;
  const auto* a = tensor(spec->ins[0]);
  const auto* b = tensor(spec->ins[1]);
  if (a == nullptr || b == nullptr) return;  // an immediate takes the shape of the others
  const Shape out = spec->outs[0]->logical_shape();
  const Shape sa = (*a)->logical_shape();
  const Shape sb = (*b)->logical_shape();
  bool ok = out.size() == sa.size() && out.size() == sb.size() && out.size() <= 2;
  if (ok && out.size() == 2) {
    ok = equal(out[0], sa[0]) && equal(out[1], sb[1]) && equal(sa[1], sb[0]);
  } else if (ok) {
    ok = equal(out, sa) && equal(out, sb);
  }
  if (ok) return;
  std::string fix;
  if (out.size() == 2 && sa.size() == 2 && sb.size() == 2) {
    if (equal(out[0], sa[0]) && equal(out[1], sb[0]) && equal(sa[1], sb[1])) {
      fix = "pass " + ir::ref(*b) + " as .T";
    } else if (equal(out[0], sa[1]) && equal(out[1], sb[1]) && equal(sa[0], sb[0])) {
      fix = "pass " + ir::ref(*a) + " as .T";
    }
  }
  c.problem(s, Code::VERIFY_MATMUL, "shapes that do not multiply",
            {"want: [M,N] += [M,K] @ [K,N]", "got: " + text(out) + " += " + text(sa) + " @ " + text(sb)}, fix);
}

void move(Context& c, const ir::Stmt& s) {
  const auto* spec = s.as<SpecStmt>();
  if (spec == nullptr || spec->kind != SpecKind::Move || !well_formed(*spec)) return;
  const auto* src = tensor(spec->ins[0]);
  if (src == nullptr) {
    c.problem(s, Code::VERIFY_OPERANDS, "a Move takes a tensor", {}, "use gr.init to set a tensor to a number");
    return;
  }
  const ir::TensorPtr& dst = spec->outs[0];
  const auto atomic = spec->attrs.find("atomic");
  const auto* scope = atomic == spec->attrs.end() ? nullptr : std::get_if<std::string>(&atomic->second);
  if ((spec->outs.size() > 1 || spec->ins.size() > 1) && (scope == nullptr || *scope == "none")) {
    c.problem(s, Code::VERIFY_OPERANDS, "a Move of one tensor to one, unless it is atomic",
              {"got: " + std::to_string(spec->outs.size()) + " out, " + std::to_string(spec->ins.size()) + " in"},
              "use gr.atomic(op, place, value), which gives what was there before");
    return;
  }
  if (ir::bits(dst->dtype) != ir::bits((*src)->dtype)) {
    c.problem(
        s, Code::VERIFY_MOVE_DTYPE, "a Move between types of different sizes",
        {std::string("destination: ") + ir::name(dst->dtype) + ", " + std::to_string(ir::bits(dst->dtype)) + " bits",
         std::string("source: ") + ir::name((*src)->dtype) + ", " + std::to_string(ir::bits((*src)->dtype)) + " bits"},
        "a Move preserves bits: convert in registers (gr.load(source, dtype)), or assign: destination[...] = r");
    return;
  }
  if (seen_by_each_thread(*spec)) return;
  const bool same_ranks =
      std::ranges::all_of(dst->levels, [&](const Layout& l) { return l.rank() == dst->levels[0].rank(); }) &&
      std::ranges::all_of((*src)->levels, [&](const Layout& l) { return l.rank() == (*src)->levels[0].rank(); });
  if (!same_ranks) {
    if (equal(dst->size(), (*src)->size())) return;
    c.problem(s, Code::VERIFY_MOVE_SHAPE, "a Move between different numbers of elements",
              {"want: " + dst->size().str(), "got: " + (*src)->size().str()});
    return;
  }
  const Shape want = dst->logical_shape();
  const Shape got = (*src)->logical_shape();
  if (equal(without_ones(want), without_ones(got))) return;
  std::string fix = "tile both the same way";
  if (want.size() == 2 && got.size() == 2 && equal(want[0], got[1]) && equal(want[1], got[0])) {
    fix = "pass " + ir::ref(*src) + " as .T";
  }
  c.problem(s, Code::VERIFY_MOVE_SHAPE, "a Move between different shapes", {"want: " + text(want), "got: " + text(got)},
            fix);
}

// NumPy's broadcasting, from the right; nullopt: the shapes do not go together.
std::optional<Shape> broadcast(const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Expr x = i < a.size() ? a[a.size() - 1 - i] : Expr(1);
    const Expr y = i < b.size() ? b[b.size() - 1 - i] : Expr(1);
    if (!equal(x, y) && !x.is_const(1) && !y.is_const(1)) return std::nullopt;
    out[out.size() - 1 - i] = x.is_const(1) ? y : x;
  }
  return out;
}

bool is_bitcast(const SpecStmt& s) {
  const auto it = s.attrs.find("op");
  const auto* op = it == s.attrs.end() ? nullptr : std::get_if<std::string>(&it->second);
  return s.kind == SpecKind::UnaryPointwise && op != nullptr && *op == "bitcast";
}

void bitcast(Context& c, const ir::Stmt& s, const SpecStmt& spec) {
  const auto* x = tensor(spec.ins[0]);
  if (x == nullptr) return;
  const auto bits = [](const ir::TensorPtr& t) { return t->size() * ir::bits(t->dtype); };
  if (equal(bits(spec.outs[0]), bits(*x))) return;
  c.problem(s, Code::VERIFY_POINTWISE, "a bitcast between different numbers of bits",
            {"want: " + bits(spec.outs[0]).str() + " bits", "got: " + bits(*x).str()});
}

void pointwise(Context& c, const ir::Stmt& s) {
  const auto* spec = s.as<SpecStmt>();
  if (spec == nullptr || !well_formed(*spec) || seen_by_each_thread(*spec)) return;
  if (spec->kind != SpecKind::UnaryPointwise && spec->kind != SpecKind::BinaryPointwise &&
      spec->kind != SpecKind::TernaryPointwise) {
    return;
  }
  if (is_bitcast(*spec)) return bitcast(c, s, *spec);
  std::optional<Shape> all = Shape{};
  std::string got;
  for (const ir::Operand& o : spec->ins) {
    if (tensor(o) == nullptr) continue;
    const Shape shape = (*tensor(o))->logical_shape();
    got += (got.empty() ? "" : ", ") + text(shape);
    if (all) all = broadcast(*all, shape);
  }
  const Shape out = spec->outs[0]->logical_shape();
  if (all && broadcast(*all, out) && equal(*broadcast(*all, out), out)) return;
  c.problem(s, Code::VERIFY_POINTWISE, "shapes that do not broadcast",
            {"want: inputs that broadcast to " + text(out), "got: " + got});
}

void operation(Context& c, const ir::Stmt& s) {
  const auto* spec = s.as<SpecStmt>();
  if (spec == nullptr) return;
  const std::vector<atoms::OpInfo>& ops = atoms::ops(spec->kind);
  if (ops.empty()) return;
  const char* attr = spec->kind == SpecKind::Shfl ? "mode" : "op";
  const auto it = spec->attrs.find(attr);
  const std::string* op = it == spec->attrs.end() ? nullptr : std::get_if<std::string>(&it->second);
  if (op != nullptr && std::ranges::any_of(ops, [&](const atoms::OpInfo& o) { return o.name == *op; })) return;
  std::string want;
  for (const atoms::OpInfo& o : ops) want += (want.empty() ? "" : ", ") + o.name;
  c.problem(s, Code::VERIFY_OPERATION, std::string("an operation that ") + ir::name(spec->kind) + " does not have",
            {"want: " + want, "got: " + (op == nullptr ? "none" : *op)});
}

void reduction(Context& c, const ir::Stmt& s) {
  const auto* spec = s.as<SpecStmt>();
  if (spec == nullptr || spec->kind != SpecKind::Reduction || !well_formed(*spec)) return;
  const auto* x = tensor(spec->ins[0]);
  if (x == nullptr) return;
  const Shape in = (*x)->logical_shape();
  const Shape out = spec->outs[0]->logical_shape();
  const auto it = spec->attrs.find("axis");
  const auto* axis = it == spec->attrs.end() ? nullptr : std::get_if<std::int64_t>(&it->second);
  // One past the last axis of what each thread sees is the group that executes it.
  const bool across = axis != nullptr && *axis == static_cast<std::int64_t>(in.size()) && seen_by_each_thread(*spec);
  if (across && !spec->decomposed) {
    if (!equal(out, in)) {
      c.problem(s, Code::VERIFY_REDUCTION, "a result of the wrong shape",
                {"want: " + text(in) + ", reduced over the group", "got: " + text(out)});
    }
    return;
  }
  if (axis == nullptr || *axis < 0 || *axis >= static_cast<std::int64_t>(in.size())) {
    c.problem(s, Code::VERIFY_REDUCTION, "an axis that the input does not have",
              {"want: 0 to " + std::to_string(static_cast<std::int64_t>(in.size()) - 1),
               "got: " + (axis == nullptr ? std::string("none") : std::to_string(*axis))});
    return;
  }
  if (seen_by_each_thread(*spec)) return;
  const auto at = static_cast<std::size_t>(*axis);
  Shape dropped = in;
  dropped.erase(dropped.begin() + static_cast<std::ptrdiff_t>(at));
  Shape kept = in;
  kept[at] = 1;
  // A fragment may keep one partial result per lane along the axis.
  const bool lanes = out.size() == in.size() && spec->outs[0]->is_fragment();
  if (lanes) kept[at] = out[at];
  if (equal(out, dropped) || equal(out, kept)) return;
  kept[at] = 1;
  c.problem(s, Code::VERIFY_REDUCTION, "a result of the wrong shape",
            {"want: " + text(dropped) + " or " + text(kept), "got: " + text(out)});
}

// The instruction takes the lane's low five bits: another one than was meant.
void exchange_lane(Context& c, const ir::Stmt& s, const SpecStmt& spec) {
  const auto it = spec.attrs.find("arg");
  if (it == spec.attrs.end()) return;
  const auto* number = std::get_if<std::int64_t>(&it->second);
  const auto* e = std::get_if<Expr>(&it->second);
  const auto mode = spec.attrs.find("mode");
  const auto* op = mode == spec.attrs.end() ? nullptr : std::get_if<std::string>(&mode->second);
  const bool absolute = op != nullptr && *op == "idx";
  const bool fixed = spec.threads != nullptr && spec.threads->size().is_const();
  const std::int64_t lanes = absolute || !fixed ? 32 : std::clamp<std::int64_t>(spec.threads->size().value(), 1, 32);
  const bool integer = number != nullptr || e != nullptr;
  const std::int64_t low = number != nullptr ? *number : integer ? sym::lower_bound(*e) : 0;
  const std::int64_t high = number != nullptr ? *number : integer ? sym::upper_bound(*e) : 0;
  if (integer && low < lanes && high >= 0) return;
  c.problem(s, Code::VERIFY_SHFL_LANE, "an exchange with a lane that the group does not have",
            {"want: arg from 0 to " + std::to_string(lanes - 1), "got: " + (number != nullptr ? std::to_string(*number)
                                                                            : integer         ? e->str()
                                                                                              : "no integer")},
            lanes < 32 ? "say which threads exchange: on=, a warp of 32" : "");
}

void exchange(Context& c, const ir::Stmt& s) {
  const auto* spec = s.as<SpecStmt>();
  if (spec == nullptr || spec->kind != SpecKind::Shfl || !well_formed(*spec)) return;
  const auto* x = tensor(spec->ins[0]);
  if (x == nullptr || (*x)->memory() != ir::Memory::RF || spec->outs[0]->memory() != ir::Memory::RF) {
    c.problem(s, Code::VERIFY_SHFL, "a Shfl exchanges registers", {},
              "load elements of memory into registers first, or exchange them by shared memory and a barrier");
    return;
  }
  exchange_lane(c, s, *spec);
  if ((*x)->dtype != spec->outs[0]->dtype || !equal((*x)->size(), spec->outs[0]->size())) {
    c.problem(s, Code::VERIFY_SHFL, "a Shfl between different tensors",
              {"want: " + spec->outs[0]->type_str(false), "got: " + (*x)->type_str(false)});
  }
}

}  // namespace

const std::vector<Rule>& shape_rules() {
  static const std::vector<Rule> table = {
      {"spec.operands", "A spec has the operands of its kind; a generic Spec is decomposed.", nullptr, operand_count},
      {"spec.operation", "The operation is one its kind has.", nullptr, operation},
      {"matmul.shapes", "MatMul: [M,N] += [M,K] @ [K,N]; elementwise for rank 1 and 0.", nullptr, matmul},
      {"move.shapes", "Move: the same logical shape (sizes of 1 apart), element types of one size.", nullptr, move},
      {"pointwise.shapes", "Pointwise: the inputs broadcast to the output.", nullptr, pointwise},
      {"reduction.shapes",
       "Reduction: the output is the input without its axis, or with size 1 there; over the group: the same shape.",
       nullptr, reduction},
      {"shfl.operands", "Shfl: registers to registers of one type and size; a lane of the group.", nullptr, exchange},
  };
  return table;
}

}  // namespace graphene::verify
