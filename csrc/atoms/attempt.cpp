#include "atoms/attempt.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "atoms/fragment.h"
#include "atoms/parse.h"
#include "atoms/registry.h"

namespace graphene::atoms {

namespace {

using ir::Operand;
using ir::ScalarType;
using ir::TensorPtr;

// The leaves of all levels, outermost level first; nullopt where a shape or a needed stride is not constant.
std::optional<FlatLayout> flat_view(const ir::Tensor& t) {
  FlatLayout f;
  for (const Layout& l : t.levels) {
    const std::vector<Expr> shape = l.shape().leaves();
    const std::vector<Expr> stride = l.stride().leaves();
    for (std::size_t i = 0; i < shape.size(); ++i) {
      if (!shape[i].is_const() || (shape[i].value() > 1 && !stride[i].is_const())) return std::nullopt;
      f.shape.push_back(shape[i].value());
      f.stride.push_back(shape[i].value() > 1 ? stride[i].value() : 0);
    }
  }
  return f;
}

class Matcher {
 public:
  Matcher(const InstancePtr& entry, const ir::SpecStmt& spec, const ir::Attrs& attrs, const std::string& arch, bool all)
      : e_(*entry), spec_(spec), attrs_(attrs), arch_(arch), all_(all) {
    a_.match.instance = entry;
  }

  Attempt run() {
    match_all();
    return std::move(a_);
  }

 private:
  // True: stop here.
  bool miss(Aspect aspect, std::string text, int input = -1, ScalarType want = ScalarType::fp32) {
    a_.mismatches.push_back({aspect, std::move(text), input, want});
    return !all_;
  }

  void match_all() {
    if (!e_.runs_on(arch_) && miss(Aspect::Arch, all_ ? "arch: want " + e_.atom.arch + ", got " + arch_ : "")) return;
    if (e_.out.size() != spec_.outs.size() || e_.in.size() != spec_.ins.size()) {
      miss(Aspect::Counts, all_ ? "operands: want " + counts(e_.out.size(), e_.in.size()) + ", got " +
                                      counts(spec_.outs.size(), spec_.ins.size())
                                : "");
      return;
    }
    if (match_attrs()) return;
    if (match_threads()) return;
    for (std::size_t i = 0; i < e_.out.size(); ++i) {
      if (match_tensor(e_.out[i], spec_.outs[i], true, i)) return;
    }
    for (std::size_t i = 0; i < e_.in.size(); ++i) {
      if (const auto* t = std::get_if<TensorPtr>(&spec_.ins[i])) {
        if (match_tensor(e_.in[i], *t, false, i)) return;
      } else {
        a_.match.in.emplace_back();
      }
    }
    // Immediates take the type that the tensors have bound.
    for (std::size_t i = 0; i < e_.in.size(); ++i) {
      if (!std::holds_alternative<TensorPtr>(spec_.ins[i]) && match_immediate(i)) return;
    }
    if (!a_.match.out.empty()) {
      a_.match.dtype = a_.match.out[0].dtype;
    } else if (!a_.match.in.empty()) {
      a_.match.dtype = a_.match.in[0].dtype;
    }
  }

  static std::string counts(std::size_t outs, std::size_t ins) {
    return std::to_string(outs) + (outs == 1 ? " output and " : " outputs and ") + std::to_string(ins) +
           (ins == 1 ? " input" : " inputs");
  }

  bool is_default(const std::string& name, const std::string& text, bool hint = false) const {
    const auto& known = kind_attrs(spec_.kind);
    return std::any_of(known.begin(), known.end(), [&](const KindAttr& k) {
      return k.name == name && !k.required && text == k.fallback && (k.hint || !hint);
    });
  }

  bool match_attrs() {
    for (const auto& [name, value] : attrs_) {
      const auto it = std::find_if(e_.atom.attrs.begin(), e_.atom.attrs.end(),
                                   [&key = name](const AttrDef& d) { return d.name == key; });
      const std::string got = attr_text(value);
      if (it == e_.atom.attrs.end()) {
        const auto& known = kind_attrs(spec_.kind);
        const auto k =
            std::find_if(known.begin(), known.end(), [&key = name](const KindAttr& x) { return x.name == key; });
        if (is_default(name, got)) {
          a_.match.attrs[name] = value;
          continue;
        }
        std::string want = k != known.end() ? k->fallback : "none";
        if (name == "fill" && e_.atom.guard == Guard::Bytes) want += " (it writes zeros for what is outside)";
        if (miss(Aspect::Attribute, all_ ? name + ": want " + want + ", got " + got : "")) return true;
        continue;
      }
      const bool expression = std::holds_alternative<Expr>(value);
      const bool number = std::holds_alternative<std::int64_t>(value) || std::holds_alternative<double>(value);
      const bool takes = std::any_of(it->accepts.begin(), it->accepts.end(), [&, &given = value](const std::string& s) {
        if (s == "*const") return number || (expression && std::get<Expr>(given).is_const());
        if (s == "*byte") {
          const auto* n = std::get_if<std::int64_t>(&given);
          return n != nullptr && *n >= 0 && *n <= 255;
        }
        if (s == "*expr") return expression || std::holds_alternative<std::int64_t>(given);
        return s == got;
      });
      if (takes) {
        a_.match.attrs[name] = value;
        continue;
      }
      // A named entry implies its own attributes where the spec says nothing else.
      if (!spec_.atom.empty() && it->accepts.front()[0] != '*' && is_default(name, got, true)) {
        a_.match.attrs[name] = it->accepts.front();
        continue;
      }
      std::string want;
      for (const std::string& s : it->accepts) {
        want += (want.empty() ? "" : " or ") + (s == "*const"  ? "a number"
                                                : s == "*byte" ? "an integer from 0 to 255"
                                                : s == "*expr" ? "an integer"
                                                               : s);
      }
      if (miss(Aspect::Attribute, all_ ? name + ": want " + want + ", got " + got : "")) return true;
    }
    return false;
  }

  bool match_threads() {
    const ir::ThreadTensor* t = spec_.threads.get();
    const bool alone = t == nullptr || t->levels.empty();
    const auto want = [&] { return e_.atom.threads + ".thread"; };
    if (e_.thread_count == 1) {
      if (alone || t->size().is_const(1)) return false;
      return miss(Aspect::Threads, all_ ? "threads: want " + want() + ", got " + t->type_str() : "");
    }
    if (alone) return miss(Aspect::Threads, all_ ? "threads: want " + want() + ", got [].thread" : "");
    const Layout& inner = t->levels.back();
    bool same = inner.is_static() && inner.size().is_const(e_.thread_count);
    if (same) {
      const FlatLayout x = flatten(inner);
      const FlatLayout y = flatten(e_.threads);
      for (std::int64_t i = 0; i < e_.thread_count && same; ++i) same = x(i) == y(i);
    }
    if (!same) return miss(Aspect::Threads, all_ ? "threads: want " + want() + ", got " + t->type_str() : "");
    // A collective lies within the threads that arrive together: contiguous ones start at a multiple of their number.
    const FlatLayout f = flatten(e_.threads);
    const bool run = f.shape.size() == 1 && f.stride[0] == 1;
    if (!run) return false;
    Expr first = t->offset;
    std::int64_t d = first.is_const() ? first.value() : sym::divisor(first);
    if (d % e_.thread_count != 0) {
      first = sym::expand_coords(first);
      d = first.is_const() ? first.value() : sym::divisor(first);
    }
    if (d % e_.thread_count != 0) {
      return miss(Aspect::Threads, all_ ? "threads: want a first thread divisible by " +
                                              std::to_string(e_.thread_count) + ", got " + t->offset.str()
                                        : "");
    }
    return false;
  }

  bool bind_dtype(const OperandInstance& o, ScalarType got, int input) {
    if (!o.type.accepts(got)) {
      // Fix: what the others are bound to, if one is bound; else the entry's own type.
      ScalarType want = o.type.dtypes.front();
      for (const auto& [cls, bound] : a_.match.dtypes) {
        if (o.type.accepts(bound)) want = bound;
      }
      return miss(Aspect::Dtype,
                  all_ ? o.def.name + " dtype: want " + want_dtype(o.type) + ", got " + ir::name(got) : "", input,
                  want);
    }
    const auto it = a_.match.dtypes.find(o.type.dtype_class);
    if (it != a_.match.dtypes.end() && it->second != got) {
      return miss(
          Aspect::Dtype,
          all_ ? o.def.name + " dtype: want " + ir::name(it->second) + " as the other operand, got " + ir::name(got)
               : "",
          input, it->second);
    }
    a_.match.dtypes.emplace(o.type.dtype_class, got);
    return false;
  }

  bool match_tensor(const OperandInstance& o, const TensorPtr& t, bool is_output, std::size_t index) {
    OperandBinding b;
    b.tensor = t;
    b.dtype = t->dtype;
    const ir::Memory m = t->memory();
    if (!o.type.accepts(m)) {
      std::string want;
      if (all_) {
        for (const ir::Memory x : o.type.memories) want += (want.empty() ? "" : " or ") + std::string(ir::name(x));
      }
      if (miss(Aspect::Memory, all_ ? o.def.name + " memory: want " + want + ", got " + ir::name(m) : "")) return true;
    }
    if (bind_dtype(o, t->dtype, is_output ? -1 : static_cast<int>(index))) return true;
    if (!o.def.forms.empty() && o.def.via != Via::Descriptor) {
      if (match_box(o, *t, &b)) return true;
    } else if (m == ir::Memory::RF && t->is_fragment()) {
      if (match_fragment(o, *t, is_output, index, &b)) return true;
    } else if (match_levels(o, *t, &b)) {
      return true;
    }
    (is_output ? a_.match.out : a_.match.in).push_back(std::move(b));
    return false;
  }

  bool match_fragment(const OperandInstance& o, const ir::Tensor& t, bool is_output, std::size_t index,
                      OperandBinding* b) {
    const bool collective = spec_.threads != nullptr && !spec_.threads->levels.empty();
    if (e_.thread_count == 1 || !collective || o.axes.empty()) {
      return miss(Aspect::Layout,
                  all_ ? o.def.name + ": want a thread's own registers, got a fragment " + t.type_str(false) : "");
    }
    if (std::any_of(a_.mismatches.begin(), a_.mismatches.end(),
                    [](const Mismatch& x) { return x.aspect == Aspect::Threads; })) {
      return false;  // which registers are whose depends on the threads
    }
    FragmentRegisters r = fragment_registers(t, o, view_axes(e_, is_output, index), *spec_.threads, e_.thread_count);
    if (!r.mismatch.empty()) return miss(Aspect::Layout, all_ ? o.def.name + ": " + r.mismatch : "");
    if (!r.error.empty() && a_.register_error.empty()) {
      a_.register_error = o.def.name + ": " + r.error;
      a_.register_fix = r.fix;
    }
    b->registers = std::move(r.registers);
    return false;
  }

  // Either side of a copy by a tensor map: both views have the same shape, and as many elements as the box. Which box
  // it is, and whether shared memory holds it in order, is decided where the positions are known.
  bool match_box(const OperandInstance& o, const ir::Tensor& t, OperandBinding* b) {
    b->kind = OperandBinding::Kind::Memory;
    const ir::Tensor& first = *spec_.outs.front();
    bool same = t.size().is_const(o.values) && t.levels.size() == first.levels.size();
    for (std::size_t l = 0; l < t.levels.size() && same; ++l) {
      same = t.levels[l].rank() == first.levels[l].rank();
      for (int m = 0; m < t.levels[l].rank() && same; ++m)
        same = identical(t.levels[l].mode(m).size(), first.levels[l].mode(m).size());
    }
    if (same) return false;
    return miss(Aspect::Shape,
                all_ ? o.def.name + " shape: want " + shape_str(first.levels) + ", got " + shape_str(t.levels) : "");
  }

  // Shapes per level; a rank-1 pattern takes any view with one mode that is longer than 1; a named atom's registers
  // also come as one list in the atom's own order.
  bool match_levels(const OperandInstance& o, const ir::Tensor& t, OperandBinding* b) {
    const std::vector<Layout>& want = o.type.levels;
    const bool registers = t.memory() == ir::Memory::RF;
    const auto wrong_shape = [&] {
      return miss(Aspect::Shape,
                  all_ ? o.def.name + " shape: want " + shape_str(want) + ", got " + shape_str(t.levels) : "");
    };
    const std::optional<FlatLayout> flat = flat_view(t);
    const bool vector = want.size() <= 1 && (want.empty() || want[0].shape().is_leaf());
    bool listed = false;
    if (vector) {
      if (!t.size().is_const(o.values)) return wrong_shape();
      if (o.values > 1 && !one_mode(t)) return wrong_shape();
    } else {
      bool same = want.size() == t.levels.size();
      for (std::size_t l = 0; l < want.size() && same; ++l) {
        same = want[l].rank() == t.levels[l].rank();
        for (int m = 0; m < want[l].rank() && same; ++m) {
          same = identical(want[l].mode(m).size(), t.levels[l].mode(m).size());
        }
      }
      listed = !same && registers && !spec_.atom.empty() && t.levels.size() == 1 && t.levels[0].shape().is_leaf() &&
               t.levels[0].size().is_const(o.values);
      if (!same && !listed) return wrong_shape();
    }
    for (const std::string& fact : o.def.require) {
      if (!fact.starts_with("bytes(")) continue;
      const std::int64_t unit = parse_fact(fact, o.def.name, e_.atom.name).bytes;
      const std::int64_t bytes = std::int64_t{o.values} * ir::bits(t.dtype) / 8;
      if (bytes % unit == 0) continue;
      return miss(Aspect::Shape, all_ ? o.def.name + " bytes: want a multiple of " + std::to_string(unit) + ", got " +
                                            std::to_string(bytes)
                                      : "");
    }
    if (!flat) {
      return miss(Aspect::Strides, all_ ? o.def.name + " strides: want constants, got " + t.type_str() : "");
    }
    if (!registers && !vector && o.def.via != Via::Descriptor && !strides_match(o, t)) {
      return miss(Aspect::Strides,
                  all_ ? o.def.name + " strides: want " + pattern_levels(o) + ", got " + t.type_str() : "");
    }
    std::vector<std::int64_t> delta(static_cast<std::size_t>(o.values));
    for (int c = 0; c < o.values; ++c) {
      const int v = listed ? c : o.value_of[static_cast<std::size_t>(c)];
      delta[static_cast<std::size_t>(v)] = (*flat)(c);
    }
    if (!registers && vector && !want.empty() && !o.type.any_stride[0][0]) {
      const std::int64_t step = flatten(want[0]).stride[0];
      for (int v = 0; v < o.values; ++v) {
        if (delta[static_cast<std::size_t>(v)] == v * step) continue;
        return miss(Aspect::Strides,
                    all_ ? o.def.name + " strides: want " + pattern_levels(o) + ", got " + t.type_str() : "");
      }
    }
    if (!registers) {
      b->kind = OperandBinding::Kind::Memory;
      b->deltas = std::move(delta);
      return false;
    }
    const Expr offset = t.offset.is_const() ? t.offset : sym::expand_coords(t.offset);
    for (const std::int64_t d : delta)
      b->registers.push_back(static_cast<int>((offset.is_const() ? offset.value() : 0) + d));
    if (!offset.is_const() && a_.register_error.empty()) {
      a_.register_error = o.def.name + ": registers are indexed by " + t.offset.str() + ", which is not a constant";
      std::string loops;
      for (const Expr& v : sym::free_vars(t.offset)) {
        if (v.var().kind == sym::VarKind::Loop) loops += (loops.empty() ? "" : ", ") + v.var().name;
      }
      a_.register_fix = loops.empty() ? "index registers by constants"
                                      : "unroll the loop over " + loops + " (a Python range, or unroll=0)";
    }
    return false;
  }

  static bool one_mode(const ir::Tensor& t) {
    int modes = 0;
    for (const Layout& l : t.levels) {
      for (int m = 0; m < l.rank(); ++m) {
        const Layout mode = l.shape().is_leaf() ? l : l.mode(m);
        if (!mode.size().is_const(1)) ++modes;
      }
    }
    return modes == 1;
  }

  static bool strides_match(const OperandInstance& o, const ir::Tensor& t) {
    for (std::size_t l = 0; l < o.type.levels.size(); ++l) {
      const Layout& want = o.type.levels[l];
      std::size_t leaf = 0;
      for (int m = 0; m < want.rank(); ++m) {
        const Layout w = want.shape().is_leaf() ? want : want.mode(m);
        const Layout g = t.levels[l].shape().is_leaf() ? t.levels[l] : t.levels[l].mode(m);
        const FlatLayout f = flatten(w);
        const bool any = std::any_of(o.type.any_stride[l].begin() + static_cast<std::ptrdiff_t>(leaf),
                                     o.type.any_stride[l].begin() + static_cast<std::ptrdiff_t>(leaf + f.shape.size()),
                                     [](bool x) { return x; });
        leaf += f.shape.size();
        if (any) continue;
        for (std::int64_t i = 1; i < f.size(); ++i) {
          if (!g(Expr(i)).is_const(f(i))) return false;
        }
      }
    }
    return true;
  }

  bool match_immediate(std::size_t i) {
    const OperandInstance& o = e_.in[i];
    OperandBinding& b = a_.match.in[i];
    if (!o.type.immediate) {
      return miss(Aspect::Memory, all_ ? o.def.name + ": want " + want_dtype(o.type) + " in " + memories(o) + ", got " +
                                             operand_text(spec_.ins[i])
                                       : "");
    }
    const auto bound = a_.match.dtypes.find(o.type.dtype_class);
    b.dtype = bound != a_.match.dtypes.end() ? bound->second : o.type.dtypes.front();
    if (const auto* x = std::get_if<double>(&spec_.ins[i])) {
      b.kind = OperandBinding::Kind::Immediate;
      b.immediate = *x;
      return false;
    }
    const Expr& e = std::get<Expr>(spec_.ins[i]);
    if (e.is_const()) {
      b.kind = OperandBinding::Kind::Immediate;
      b.immediate = ir::constant_of(e.value());
      return false;
    }
    if (ir::info(b.dtype).cls == ir::ScalarInfo::Class::Float) {
      return miss(Aspect::Dtype, all_ ? o.def.name + ": want a number, got " + operand_text(spec_.ins[i]) : "");
    }
    b.kind = OperandBinding::Kind::Expression;
    b.expression = e;
    return false;
  }

  static std::string memories(const OperandInstance& o) {
    std::string s;
    for (const ir::Memory m : o.type.memories) s += (s.empty() ? "" : " or ") + std::string(ir::name(m));
    return s;
  }

  static std::string shape_str(const std::vector<Layout>& levels) {
    if (levels.empty()) return "[]";
    std::string s;
    for (const Layout& l : levels) {
      std::string modes;
      for (int m = 0; m < l.rank(); ++m) {
        modes += (m > 0 ? "," : "") + (l.shape().is_leaf() ? l.shape() : l.shape()[m]).str();
      }
      s += (s.empty() ? "[" : ".[") + modes + "]";
    }
    return s;
  }

  const Instance& e_;
  const ir::SpecStmt& spec_;
  const ir::Attrs& attrs_;
  const std::string& arch_;
  const bool all_;
  Attempt a_;
};

}  // namespace

std::string attr_text(const ir::AttrValue& v) {
  if (const auto* s = std::get_if<std::string>(&v)) return *s;
  if (const auto* i = std::get_if<std::int64_t>(&v)) return std::to_string(*i);
  if (const auto* b = std::get_if<bool>(&v)) return *b ? "true" : "false";
  if (const auto* e = std::get_if<Expr>(&v)) return e->str();
  const double d = std::get<double>(v);
  if (d == std::floor(d) && std::fabs(d) < 1e15) return std::to_string(static_cast<std::int64_t>(d));
  std::string s = std::to_string(d);
  while (s.size() > 1 && s.find('.') != std::string::npos && (s.back() == '0' || s.back() == '.')) {
    const bool stop = s.back() == '.';
    s.pop_back();
    if (stop) break;
  }
  return s;
}

std::string want_dtype(const TypePattern& p) {
  if (p.dtypes.size() == 1) return ir::name(p.dtypes.front());
  const int bits = ir::bits(p.dtypes.front());
  return (bits == 8 ? "an " : "a ") + std::to_string(bits) + "-bit type";
}

std::string operand_text(const ir::Operand& o) {
  if (const auto* d = std::get_if<double>(&o)) return attr_text(*d);
  if (const auto* e = std::get_if<Expr>(&o)) return e->str();
  const ir::Tensor& t = *std::get<TensorPtr>(o);
  const std::string id = t.id >= 0 ? "%" + std::to_string(t.id) : t.buffer->name;
  return id + ":" + t.type_str(false);
}

std::string pattern_levels(const OperandInstance& o) {
  const std::string& p = o.def.pattern;
  return p.substr(0, p.rfind("].") + 1);
}

Attempt attempt(const InstancePtr& entry, const ir::SpecStmt& spec, const ir::Attrs& attrs, const std::string& arch,
                bool all) {
  if (!entry->atom.free.empty() && !spec.outs.empty()) {
    const Expr elems = spec.outs.front()->size();
    constexpr std::int64_t kMost = 1 << 18;  // of shared memory's bytes
    if (elems.is_const() && elems.value() >= 1 && elems.value() <= kMost) {
      return Matcher(Registry::get().sized(entry, elems.value()), spec, attrs, arch, all).run();
    }
  }
  return Matcher(entry, spec, attrs, arch, all).run();
}

}  // namespace graphene::atoms
