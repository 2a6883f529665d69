#include "atoms/match.h"

#include <algorithm>
#include <bit>
#include <set>

#include "atoms/attempt.h"
#include "atoms/facts.h"
#include "atoms/registry.h"

namespace graphene::atoms {

namespace {

std::optional<Kind> kind_of(ir::SpecKind k) {
  for (int i = 0; i < static_cast<int>(Kind::Sync); ++i) {
    if (spec_kind(static_cast<Kind>(i)) == k) return static_cast<Kind>(i);
  }
  return std::nullopt;
}

ir::AttrValue default_value(const KindAttr& k) {
  if (k.type == "bool") return k.fallback == "true";
  if (k.type == "int" || k.type == "number") return static_cast<std::int64_t>(std::stoll(k.fallback));
  return k.fallback;
}

// How far an entry is from a leaf; smaller is nearer.
int distance(const Attempt& a) {
  int d = 0;
  for (const Mismatch& m : a.mismatches) {
    switch (m.aspect) {
      case Aspect::Dtype:
      case Aspect::Strides:
      case Aspect::Layout:
        d += 10;
        break;
      case Aspect::Arch:
        d += 15;
        break;
      case Aspect::Shape:
        d += 20;
        break;
      case Aspect::Threads:
        d += 25;
        break;
      case Aspect::Memory:
        d += 40;
        break;
      case Aspect::Attribute:
      case Aspect::Counts:
        d += 60;
        break;
    }
  }
  return d + (a.match.instance->atom.is_default ? 0 : 5);
}

}  // namespace

std::string by_smaller_specs(ir::SpecKind kind) {
  return "enter this " + std::string(ir::name(kind)) + " by `with`, and write it as smaller specs inside";
}

namespace {

bool is_fragment(const ir::Operand& o) {
  const auto* t = std::get_if<ir::TensorPtr>(&o);
  return t != nullptr && (*t)->is_fragment();
}

// What no instruction moves: from memory to memory, more than 16 bytes of a thread's at once, or half a byte.
std::string suggest_moves(const ir::SpecStmt& spec) {
  const ir::Tensor& written = *spec.outs.front();
  const bool moves = spec.kind == ir::SpecKind::Move || spec.kind == ir::SpecKind::Init;
  if (moves && ir::is_packed(written.dtype) && written.size().is_const(1))
    return "memory holds two elements of 4 bits in a byte, and threads access whole bytes: move two by two between "
           "registers and memory, t.tile([2])[i]";
  const auto* src = spec.kind == ir::SpecKind::Move ? std::get_if<ir::TensorPtr>(spec.ins.data()) : nullptr;
  if (src == nullptr) return {};
  const ir::Tensor& dst = *spec.outs.front();
  const bool to_registers = dst.memory() == ir::Memory::RF;
  const bool of_registers = (*src)->memory() == ir::Memory::RF;
  const bool alone = spec.threads == nullptr || spec.threads->size().is_const(1);
  if (!to_registers && !of_registers && alone && spec.atom.empty())
    return "no thread moves from memory to memory: go through registers, r = gr.load(source), then "
           "gr.move(destination, r)";
  const Expr elems = dst.size();
  const std::int64_t most = 128 / ir::bits(dst.dtype);
  if (to_registers != of_registers && alone && elems.is_const() && elems.value() > most)
    return "a thread moves at most 16 bytes at once, " + std::to_string(most) + " of " + ir::name(dst.dtype) +
           ": cut both into tiles of as many neighbours, .tile([" + std::to_string(most) + "])";
  if (to_registers != of_registers && alone && elems.is_const() &&
      !std::has_single_bit(static_cast<std::uint64_t>(elems.value())))
    return "a thread moves 1, 2, 4, ... neighbours at once, up to 16 bytes: cut both into such tiles, .tile([2])";
  return {};
}

std::string suggest_fix(const ir::SpecStmt& spec, const Mismatch& m, const std::string& arch) {
  if (std::string moves = suggest_moves(spec); !moves.empty()) return moves;
  std::string smaller = by_smaller_specs(spec.kind);
  if (spec.kind == ir::SpecKind::Move && spec.atom.empty() &&
      (std::any_of(spec.ins.begin(), spec.ins.end(), is_fragment) ||
       std::any_of(spec.outs.begin(), spec.outs.end(), is_fragment))) {
    smaller =
        "name the atom that moves one thread's elements, by which the tile is taken apart: atom=gr.atom(...); or " +
        smaller;
  }
  if (m.aspect == Aspect::Dtype && m.input >= 0) {
    if (const auto* t = std::get_if<ir::TensorPtr>(&spec.ins[static_cast<std::size_t>(m.input)])) {
      const std::string id = (*t)->id >= 0 ? "%" + std::to_string((*t)->id) : (*t)->buffer->name;
      return "copy " + id + " to " + ir::name(m.want) + " first, or " + smaller;
    }
  }
  if (m.aspect == Aspect::Arch) return "compile for an architecture that has it; for " + arch + " " + smaller;
  if (m.aspect == Aspect::Attribute && m.text.starts_with("fill:")) {
    return "copy with fill=0 and mask the elements outside when they are used (gr.where), or copy through "
           "registers, which take any fill: atom=(a load, a store)";
  }
  return smaller;
}

[[noreturn]] void no_atom(const ir::SpecStmt& spec, const ir::Attrs& attrs, const std::string& arch,
                          const std::vector<InstancePtr>& candidates, const SourceLoc& where) {
  struct Row {
    int distance;
    std::size_t order;
    Attempt attempt;
  };
  std::vector<Row> rows;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    Attempt a = attempt(candidates[i], spec, attrs, arch, true);
    const int d = distance(a);
    rows.push_back({d, i, std::move(a)});
  }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.distance != b.distance ? a.distance < b.distance : a.order < b.order;
  });
  Diagnostic d;
  d.code = Code::NO_ATOM;
  d.where = where;
  d.message = spec.atom.empty() ? "no atomic spec implements this on " + arch
                                : spec.atom + " does not implement this on " + arch;
  d.ir.push_back(spec_line(spec));
  std::vector<const Row*> shown;
  std::set<std::string> families;
  std::size_t width = 0;
  for (const Row& r : rows) {
    if (shown.size() == 3 || (!shown.empty() && r.distance > shown.front()->distance + 30)) break;
    const std::string& name = r.attempt.match.instance->atom.name;
    if (!families.insert(r.attempt.match.instance->family).second) continue;
    shown.push_back(&r);
    width = std::max(width, name.size());
  }
  for (const Row* r : shown) {
    std::string line = r == shown.front() ? "nearest: " : "         ";
    const std::string& name = r->attempt.match.instance->atom.name;
    line += name + std::string(width - name.size() + 2, ' ');
    for (std::size_t i = 0; i < r->attempt.mismatches.size() && i < 2; ++i) {
      line += (i > 0 ? "; " : "") + r->attempt.mismatches[i].text;
    }
    if (r->attempt.mismatches.empty()) line += "fits, and is used where it is named";
    d.details.push_back(std::move(line));
  }
  const Attempt* nearest = shown.empty() ? nullptr : &shown.front()->attempt;
  const std::string moves = suggest_moves(spec);
  if (nearest == nullptr) {
    d.fix = by_smaller_specs(spec.kind);
  } else if (nearest->mismatches.empty()) {  // not a default
    d.fix = (moves.empty() ? std::string() : moves + "; or ") + "name it: atom=\"" + nearest->match.instance->family +
            "\"" + (moves.empty() ? "; or " + by_smaller_specs(spec.kind) : "");
  } else {
    d.fix = suggest_fix(spec, nearest->mismatches.front(), arch);
    // Where no other architecture is needed, since threads move it through registers, none is asked for.
    if (nearest->mismatches.front().aspect == Aspect::Arch && moves.empty()) {
      const Atom& atom = nearest->match.instance->atom;
      throw OtherArch(std::move(d), atom.name, atom.arch);
    }
  }
  throw Error(std::move(d));
}

[[noreturn]] void refuse(Code code, const ir::SpecStmt& spec, std::string message, std::vector<std::string> details,
                         std::string fix, const SourceLoc& where) {
  Diagnostic d;
  d.code = code;
  d.where = where;
  d.message = std::move(message);
  d.ir.push_back(spec_line(spec));
  d.details = std::move(details);
  d.fix = std::move(fix);
  throw Error(std::move(d));
}

void check_facts(Match* m, const ir::SpecStmt& spec, const SourceLoc& where) {
  const Instance& e = *m->instance;
  const auto check = [&](const OperandInstance& o, const OperandBinding& b) {
    if (o.align_bytes == 0 || b.kind != OperandBinding::Kind::Memory) return;
    const FactProblem p = check_alignment(*b.tensor, o, e.atom.name, &m->facts);
    if (p.text.empty()) return;
    refuse(Code::ATOM_FACT, spec,
           e.atom.name + " needs align(" + o.def.name + ") % " + std::to_string(o.align_bytes) + " == 0",
           {"which " + p.text}, p.fix, where);
  };
  for (std::size_t i = 0; i < e.out.size(); ++i) check(e.out[i], m->out[i]);
  for (std::size_t i = 0; i < e.in.size(); ++i) check(e.in[i], m->in[i]);
}

// A matrix that a descriptor addresses is in one of the canonical layouts, and starts where one may.
void check_forms(Match* m, const ir::SpecStmt& spec, const SourceLoc& where) {
  const Instance& e = *m->instance;
  const auto flat = [](const Layout& l) {
    FlatLayout f;
    for (const Expr& x : l.shape().leaves()) f.shape.push_back(x.value());
    for (const Expr& x : l.stride().leaves()) f.stride.push_back(x.is_const() ? x.value() : 0);
    return f;
  };
  const auto check = [&](const OperandInstance& o, OperandBinding& b, bool columns_first) {
    if (o.def.via != Via::Descriptor || b.kind != OperandBinding::Kind::Memory) return;
    const ir::Tensor& t = *b.tensor;
    const Layout& level = t.levels.back();
    const int bytes = ir::bits(b.dtype) / 8;
    MatrixView view{flat(level.mode(0)), flat(level.mode(1)), bytes, t.buffer->swizzle};
    if (columns_first) std::swap(view.rows, view.columns);
    const bool k_only = o.def.forms == "k_major";
    const std::string got =
        t.type_str() + (t.buffer->swizzle.trivial() ? "" : " by " + t.buffer->swizzle.str()) + " of " + t.buffer->name;
    b.form = find_form(view, k_only);
    if (!b.form) {
      std::vector<std::string> details{"operand " + o.def.name + ": " + got, "want: one of, in elements"};
      for (const CanonicalForm& f : matrix_forms()) {
        if (k_only && f.mn_major) continue;
        details.push_back("  " + form_text(f, bytes, view.rows.size(), view.columns.size()));
      }
      refuse(Code::LOWER_FORM, spec, "a matrix in shared memory in a layout that " + e.atom.name + " cannot address",
             std::move(details),
             std::string("rows of n, columns of k: allocate it with rows of 128 bytes (or 64, or 32) and ") +
                 "swizzle=gr.swizzle(elements of a row, dtype); cut longer rows into panels",
             where);
    }
    Expr rest = 0;
    Expr multiple = t.offset;
    if (t.offset.is_const()) {
      rest = t.offset;
      multiple = 0;
    } else if (t.offset.op() == sym::Op::Add) {
      rest = Expr(t.offset.node()->constant);
      multiple = t.offset - rest;
    }
    const std::int64_t step =
        multiple.is_const() ? 0 : std::max(sym::divisor(sym::expand_coords(multiple)), sym::divisor(multiple));
    if (form_may_start(*b.form->form, step * bytes, rest.value() * bytes)) return;
    refuse(Code::LOWER_FORM, spec, "a matrix that starts where " + e.atom.name + " cannot address one",
           {"operand " + o.def.name + ": " + got, "starts at element: " + t.offset.str(),
            "want: a multiple of 16 bytes in row 0 of the pattern, whose rows are 128 bytes and number " +
                std::to_string(1 << b.form->form->bits)},
           "cut tiles at multiples of 8 rows", where);
  };
  for (std::size_t i = 0; i < e.in.size(); ++i) check(e.in[i], m->in[i], i == 1);
}

// A copy that completes on an mbarrier names one.
void check_done(Match* m, const ir::SpecStmt& spec, const SourceLoc& where) {
  const Instance& e = *m->instance;
  const bool completes = e.atom.done.starts_with("mbarrier:");
  if (completes && spec.done != nullptr) {
    OperandBinding b;
    b.kind = OperandBinding::Kind::Memory;
    b.tensor = spec.done;
    b.dtype = spec.done->dtype;
    b.deltas = {0};
    m->aux.push_back(std::move(b));
    return;
  }
  if (completes == (spec.done != nullptr)) return;
  refuse(Code::VERIFY_BARRIER, spec,
         completes ? e.atom.name + " completes on an mbarrier, and none is named"
                   : e.atom.name + " completes on no mbarrier, and one is named",
         {}, completes ? "say on which: gr.move(..., done=full[i])" : "leave done= out", where);
}

// Constants meet their types here: whatever is built on a match holds none that its type does not have.
void check_constants(Match* m, const ir::SpecStmt& spec, const SourceLoc& where) {
  const auto check = [&](const std::string& what, const ir::Constant& c, ir::ScalarType type) {
    const std::string want = ir::constant_refused(c, type);
    if (want.empty()) return;
    const std::string got = ir::constant_text(c);
    refuse(Code::CONSTANT_RANGE, spec, std::string("a constant that ") + ir::name(type) + " does not have",
           {what + ": want " + want + ", got " + got},
           "write a constant that the type has, or compute in a type that has this one", where);
  };
  for (std::size_t i = 0; i < m->in.size(); ++i) {
    const OperandBinding& b = m->in[i];
    if (b.kind == OperandBinding::Kind::Immediate) check(m->instance->in[i].def.name, b.immediate, b.dtype);
  }
  for (const KindAttr& k : kind_attrs(spec.kind)) {
    const auto it = m->attrs.find(k.name);
    if (k.type != "number" || it == m->attrs.end()) continue;
    // A fill stands for elements of what is read, the value of an Init for those of what is written.
    const ir::ScalarType type = m->in.empty() ? m->dtype : m->in.front().dtype;
    if (const auto* e = std::get_if<Expr>(&it->second); e != nullptr && !e->is_const()) continue;
    const ir::Constant c = ir::constant_attr(m->attrs, k.name);
    check(k.name, c, type);
    std::visit([&](auto number) { it->second = number; }, c);
  }
}

// What rules most entries out, before anything is set up for a comparison in full: operation, operands' memory and
// type.
bool worth_trying(const Instance& e, const ir::SpecStmt& spec, const std::string* operation) {
  if (e.out.size() != spec.outs.size() || e.in.size() != spec.ins.size()) return false;
  if (operation != nullptr) {
    const auto says = [](const AttrDef& d) { return d.name == "op" || d.name == "mode"; };
    const auto it = std::find_if(e.atom.attrs.begin(), e.atom.attrs.end(), says);
    if (it != e.atom.attrs.end() &&
        std::find(it->accepts.begin(), it->accepts.end(), *operation) == it->accepts.end()) {
      return false;
    }
  }
  const auto takes = [](const OperandInstance& o, const ir::Tensor& t) {
    return o.type.accepts(t.memory()) && o.type.accepts(t.dtype);
  };
  for (std::size_t i = 0; i < e.out.size(); ++i) {
    if (!takes(e.out[i], *spec.outs[i])) return false;
  }
  for (std::size_t i = 0; i < e.in.size(); ++i) {
    const auto* t = std::get_if<ir::TensorPtr>(&spec.ins[i]);
    if (t != nullptr && !takes(e.in[i], **t)) return false;
  }
  return true;
}

}  // namespace

ir::Attrs complete_attrs(ir::SpecKind kind, const ir::Attrs& attrs, const SourceLoc& where) {
  ir::Attrs out = attrs;
  const auto& known = kind_attrs(kind);
  for (const auto& [name, value] : attrs) {
    if (std::any_of(known.begin(), known.end(), [&key = name](const KindAttr& k) { return k.name == key; })) continue;
    std::string list;
    for (const KindAttr& k : known) list += (list.empty() ? "" : ", ") + k.name;
    fail(Code::ATOM_ATTR, std::string(ir::name(kind)) + " has no attribute `" + name + "`",
         {"known: " + (list.empty() ? "none" : list)}, {}, where);
  }
  for (const KindAttr& k : known) {
    if (out.count(k.name) > 0) continue;
    if (k.required) {
      fail(Code::ATOM_ATTR, std::string(ir::name(kind)) + " needs the attribute `" + k.name + "`", {}, {}, where);
    }
    out.emplace(k.name, default_value(k));
  }
  return out;
}

std::string spec_line(const ir::SpecStmt& spec) {
  const auto threads = [](const ir::ThreadPtr& t, const char* none) {
    if (t == nullptr) return std::string(none);
    return (t->id >= 0 ? "#" + std::to_string(t->id) + ":" : std::string()) + t->type_str();
  };
  std::string s;
  for (const ir::TensorPtr& t : spec.outs) s += (s.empty() ? "" : ", ") + operand_text(t);
  s += " <- " + std::string(ir::name(spec.kind)) + "<<<" + threads(spec.blocks, "[].block") + ", " +
       threads(spec.threads, "[].thread") + ">>>(";
  for (std::size_t i = 0; i < spec.ins.size(); ++i) s += (i > 0 ? ", " : "") + operand_text(spec.ins[i]);
  return s + ")";
}

Match match(const ir::SpecStmt& spec, const std::string& arch, const SourceLoc& where) {
  const std::optional<Kind> kind = kind_of(spec.kind);
  if (!kind) {
    refuse(Code::NO_ATOM, spec, "a leaf " + std::string(ir::name(spec.kind)) + " has no meaning", {},
           "give it a decomposition", where);
  }
  if (*kind == Kind::Spec && spec.atom.empty())
    refuse(Code::NO_ATOM, spec, "a leaf Spec names its atom", {}, "give it a decomposition, or atom=", where);
  const ir::Attrs attrs = complete_attrs(spec.kind, spec.attrs, where);
  std::vector<InstancePtr> named;
  if (!spec.atom.empty()) {
    named = require_family(spec.atom, where, {spec_line(spec)});
    if (named.front()->atom.kind != *kind) {
      refuse(Code::NO_ATOM, spec, spec.atom + " is a " + name(named.front()->atom.kind), {}, "", where);
    }
  }
  const std::vector<InstancePtr>& candidates = spec.atom.empty() ? Registry::get().defaults(*kind) : named;
  const std::string* operation = nullptr;
  for (const char* name : {"op", "mode"}) {
    if (const auto it = attrs.find(name); it != attrs.end()) operation = std::get_if<std::string>(&it->second);
  }
  std::vector<Attempt> found;
  for (const InstancePtr& entry : candidates) {
    if (!worth_trying(*entry, spec, operation)) continue;
    Attempt a = attempt(entry, spec, attrs, arch, false);
    if (a.fits()) found.push_back(std::move(a));
  }
  if (found.empty()) no_atom(spec, attrs, arch, spec.atom.empty() ? Registry::get().of_kind(*kind) : named, where);
  if (found.size() > 1) {
    std::vector<std::string> details;
    for (const Attempt& a : found) details.push_back("matches: " + a.match.instance->atom.name);
    refuse(Code::AMBIGUOUS_ATOM, spec, "several atomic specs implement this on " + arch, std::move(details),
           "name one with atom=", where);
  }
  Attempt& a = found.front();
  if (!a.register_error.empty()) {
    refuse(Code::ATOM_REGISTER, spec, a.match.instance->atom.name + ": " + a.register_error, {}, a.register_fix, where);
  }
  check_constants(&a.match, spec, where);
  check_facts(&a.match, spec, where);
  check_forms(&a.match, spec, where);
  check_done(&a.match, spec, where);
  return std::move(a.match);
}

}  // namespace graphene::atoms
