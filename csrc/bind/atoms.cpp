#include <algorithm>
#include <array>

#include "atoms/attempt.h"
#include "atoms/match.h"
#include "atoms/registry.h"
#include "bind/bind.h"

namespace graphene::bind {

using atoms::Instance;
using atoms::InstancePtr;
using atoms::OperandInstance;

namespace {

constexpr std::array<const char*, 4> kVias = {"natural", "lvalue", "descriptor", "tensor_map"};
constexpr std::array<const char*, 2> kProxies = {"generic", "async"};

// An operand keeps its entry alive.
struct Operand {
  InstancePtr atom;
  const OperandInstance* operand = nullptr;
  std::string label;
};

std::vector<const OperandInstance*> operands_of(const Instance& i) {
  std::vector<const OperandInstance*> out;
  for (const auto* list : {&i.out, &i.in, &i.aux}) {
    for (const OperandInstance& o : *list) out.push_back(&o);
  }
  return out;
}

// The accumulator of a MatMul goes by the name `c` too.
const OperandInstance* operand_by_name(const Instance& i, const std::string& name) {
  const OperandInstance* o = i.operand(name);
  if (o == nullptr && name == "c" && i.atom.kind == atoms::Kind::MatMul) o = &i.out[0];
  return o;
}

Operand make_operand(const InstancePtr& i, const OperandInstance* o, const std::string& name) {
  return {i, o, i->family + "." + name};
}

std::vector<std::string> dtype_names(const OperandInstance& o) {
  std::vector<std::string> out;
  for (const ir::ScalarType t : o.type.dtypes) out.emplace_back(ir::name(t));
  return out;
}

template <class E, std::size_t N>
E enum_from(const std::string& text, const std::array<const char*, N>& names, const char* what) {
  for (std::size_t i = 0; i < N; ++i) {
    if (text == names.at(i)) return static_cast<E>(i);
  }
  std::string list;
  for (const char* n : names) list += (list.empty() ? "" : ", ") + std::string(n);
  fail(Code::ATOM_DEFINITION, std::string(what) + " `" + text + "`", {"known: " + list});
}

// What a field takes, in words.
template <class T>
constexpr const char* kWanted = "a list of dicts";
template <>
constexpr const char* kWanted<std::string> = "a string";
template <>
constexpr const char* kWanted<int> = "an integer";
template <>
constexpr const char* kWanted<double> = "a number";
template <>
constexpr const char* kWanted<bool> = "True or False";
template <>
constexpr const char* kWanted<py::dict> = "a dict";
template <>
constexpr const char* kWanted<std::vector<std::string>> = "a list of strings";
using Rows = std::vector<std::vector<std::string>>;
using Family = std::vector<std::pair<std::vector<std::string>, Rows>>;
template <>
constexpr const char* kWanted<Family> = "a list of pairs: parameter names, and rows of their values as strings";

// Reads the keyword arguments of gr.define_atom: every field once, none unknown.
class Fields {
 public:
  Fields(py::dict d, std::string what) : dict_(std::move(d)), what_(std::move(what)) {}

  template <class T>
  T take(const char* key, T fallback) {
    known_.emplace_back(key);
    if (!dict_.contains(key)) return fallback;
    const py::object value = dict_[key];
    // pybind11 would take anything as a bool, and a string's letters as a list.
    const bool other = (std::is_same_v<T, bool> && !py::isinstance<py::bool_>(value)) ||
                       (std::is_same_v<T, py::dict> && !py::isinstance<py::dict>(value));
    if (!other) {
      try {
        return value.cast<T>();
      } catch (const py::cast_error&) {
      }
    }
    throw py::type_error(what_ + ": `" + key + "` cannot be " + shown(value) + "; want " + kWanted<T>);
  }
  void finish() const {
    for (const auto& [key, value] : dict_) {
      const auto name = key.cast<std::string>();
      if (std::find(known_.begin(), known_.end(), name) == known_.end()) {
        std::string known;
        for (const std::string& k : known_) known += (known.empty() ? "" : ", ") + (k == "in" ? "in_" : k);
        throw py::type_error(what_ + ": no field is called `" + name + "`; known: " + known);
      }
    }
  }

 private:
  py::dict dict_;
  std::string what_;
  std::vector<std::string> known_;
};

atoms::OperandDef operand_from_py(const py::dict& d, const std::string& atom) {
  Fields f(d, "an operand of " + atom);
  atoms::OperandDef o;
  o.name = f.take<std::string>("name", "");
  o.pattern = f.take<std::string>("pattern", "");
  o.tile = f.take<std::string>("tile", "");
  o.tv = f.take<std::string>("tv", "");
  static constexpr std::array<const char*, 3> kAccesses = {"read", "write", "update"};
  o.access = enum_from<atoms::Access>(f.take<std::string>("access", "read"), kAccesses, "no access is called");
  o.via = enum_from<atoms::Via>(f.take<std::string>("via", "natural"), kVias, "no via is called");
  o.reg = f.take<std::string>("reg", "");
  o.require = f.take<std::vector<std::string>>("require", {});
  o.forms = f.take<std::string>("forms", "");
  o.proxy = enum_from<atoms::Proxy>(f.take<std::string>("proxy", "generic"), kProxies, "no proxy is called");
  o.until = f.take<std::string>("until", "");
  f.finish();
  return o;
}

atoms::Atom atom_from_py(const py::dict& d) {
  const std::string name = d.contains("name") ? printable_text(py::str(d["name"])) : "an atom";
  Fields f(d, name);
  atoms::Atom a;
  a.name = f.take<std::string>("name", "");
  const auto kind = f.take<std::string>("kind", "Move");
  static constexpr std::array<const char*, 10> kKinds = {
      "Move", "MatMul", "UnaryPointwise", "BinaryPointwise", "TernaryPointwise", "Reduction", "Shfl", "Init",
      "Spec", "Sync"};
  a.kind = enum_from<atoms::Kind>(kind, kKinds, "no kind is called");
  a.arch = f.take<std::string>("arch", "");
  a.threads = f.take<std::string>("threads", "[1]");
  a.converge = f.take<int>("converge", 1);
  for (const auto& [key, list] : {std::pair{"out", &a.out}, std::pair{"in", &a.in}, std::pair{"aux", &a.aux}}) {
    for (const py::dict& o : f.take<std::vector<py::dict>>(key, {})) list->push_back(operand_from_py(o, name));
  }
  const py::dict attrs = f.take<py::dict>("attrs", {});
  Fields listed(attrs, name + ": attrs");
  for (const auto& [key, accepts] : attrs) {
    const std::string attr = py::str(key);
    a.attrs.push_back({attr, listed.take<std::vector<std::string>>(attr.c_str(), {})});
  }
  static constexpr std::array<const char*, 5> kGuards = {"refuse", "branch", "bytes", "redirect", "clipped"};
  a.guard = enum_from<atoms::Guard>(f.take<std::string>("guard", "refuse"), kGuards, "no guard is called");
  a.ptx = f.take<std::string>("ptx", "");
  a.cxx = f.take<std::string>("cxx", "");
  a.helper = f.take<std::string>("helper", "");
  a.done = f.take<std::string>("done", "now");
  a.is_default = f.take<bool>("is_default", a.kind != atoms::Kind::Spec);
  for (const py::dict& n : f.take<std::vector<py::dict>>("numerics", {})) {
    Fields g(n, name + ": numerics");
    atoms::Numerics x;
    x.arch = g.take<std::string>("arch", "");
    x.group = g.take<int>("group", 1);
    x.guard_bits = g.take<int>("guard_bits", 0);
    x.round = g.take<std::string>("round", "rn");
    x.ulps = g.take<double>("ulps", 0);
    g.finish();
    a.numerics.push_back(std::move(x));
  }
  for (const auto& [names, rows] : f.take<Family>("family", {})) {
    a.family.push_back({names, rows});
  }
  a.doc = f.take<std::string>("doc", "");
  a.source = f.take<std::string>("source", "");
  f.finish();
  return a;
}

// Element offsets that each thread of the block accesses, per value; block indices, sizes and everything else are 0.
std::vector<std::vector<std::int64_t>> addresses(const atoms::OperandBinding& b, std::int64_t threads) {
  const Expr offset = sym::expand_coords(b.tensor->offset);
  std::vector<std::vector<std::int64_t>> out;
  for (std::int64_t tid = 0; tid < threads; ++tid) {
    const std::int64_t base = sym::evaluate(
        offset, [tid](const sym::VarInfo& v) { return v.kind == sym::VarKind::ThreadIdx ? tid : std::int64_t{0}; });
    auto& row = out.emplace_back();
    for (const std::int64_t d : b.deltas) row.push_back(base + d);
  }
  return out;
}

py::dict binding_to_py(const atoms::OperandBinding& b, std::int64_t threads) {
  py::dict d;
  using Kind = atoms::OperandBinding::Kind;
  if (b.tensor != nullptr) d["buffer"] = b.tensor->buffer->name;
  switch (b.kind) {
    case Kind::Registers:
      d["registers"] = b.registers;
      break;
    case Kind::Memory:
      d["deltas"] = b.deltas;
      d["offset"] = b.tensor->offset.str();
      d["addresses"] = addresses(b, threads);
      d["bounded"] = !b.tensor->bounds.empty();
      break;
    case Kind::Immediate:
      std::visit([&](auto number) { d["immediate"] = number; }, b.immediate);
      break;
    case Kind::Expression:
      d["expression"] = b.expression.str();
      break;
  }
  d["dtype"] = ir::name(b.dtype);
  return d;
}

py::dict match_to_py(const atoms::Match& m, std::int64_t threads) {
  py::dict d;
  d["atom"] = m.instance->atom.name;
  py::list out, in, facts;
  for (const auto& b : m.out) out.append(binding_to_py(b, threads));
  for (const auto& b : m.in) in.append(binding_to_py(b, threads));
  for (const atoms::LaunchFact& f : m.facts) {
    facts.append(py::make_tuple(f.buffer, f.align_bytes, f.condition.str(), f.text));
  }
  d["out"] = out;
  d["in"] = in;
  d["facts"] = facts;
  py::dict attrs;
  for (const auto& [name, value] : m.attrs) attrs[py::str(name)] = atoms::attr_text(value);
  d["attrs"] = attrs;
  return d;
}

// Every leaf of a kernel with what implements it, in order; loops with unroll=0 are unrolled, others seen once, with
// their counter. The first leaf that nothing implements raises.
class KernelMatches {
 public:
  KernelMatches(const ir::Kernel& kernel, std::string arch)
      : arch_(std::move(arch)), threads_(kernel.block == nullptr ? 1 : kernel.block->launch_size().value()) {
    walk(kernel.body);
  }
  py::list out;

 private:
  ir::TensorPtr substituted(const ir::TensorPtr& t) const {
    if (counters_.empty()) return t;
    ir::Tensor copy = *t;
    copy.offset = sym::substitute(t->offset, counters_);
    return std::make_shared<const ir::Tensor>(std::move(copy));
  }

  void leaf(ir::SpecStmt s, const SourceLoc& loc) {
    for (ir::TensorPtr& t : s.outs) t = substituted(t);
    for (ir::Operand& o : s.ins) {
      if (auto* t = std::get_if<ir::TensorPtr>(&o)) *t = substituted(*t);
    }
    out.append(match_to_py(atoms::match(s, arch_, loc), threads_));
  }

  void loop(const ir::LoopStmt& l) {
    if (l.unroll != 0 || !l.start.is_const() || !l.stop.is_const() || !l.step.is_const()) return walk(l.body);
    for (std::int64_t i = l.start.value(); i < l.stop.value(); i += l.step.value()) {
      counters_[l.var.node()] = Expr(i);
      walk(l.body);
    }
    counters_.erase(l.var.node());
  }

  void walk(const ir::Block& block) {
    for (const ir::StmtPtr& s : block) {
      if (const auto* spec = s->as<ir::SpecStmt>()) {
        if (spec->decomposed) {
          walk(spec->body);
        } else {
          leaf(*spec, s->loc);
        }
      } else if (const auto* l = s->as<ir::LoopStmt>()) {
        loop(*l);
      } else if (const auto* branch = s->as<ir::IfStmt>()) {
        walk(branch->then_body);
        walk(branch->else_body);
      } else if (const auto* only = s->as<ir::OnlyStmt>()) {
        walk(only->body);
      } else if (const auto* sync = s->as<ir::SyncStmt>()) {
        out.append(match_to_py(atoms::match_sync(*sync, arch_, threads_, s->loc), threads_));
      }
    }
  }

  const std::string arch_;
  const std::int64_t threads_;
  sym::Substitution counters_;
};

void bind_operand(py::module_& m) {
  py::class_<Operand> c(m, "AtomOperand", "One operand of an atomic spec.");
  c.attr("__module__") = "graphene";
  const auto text = [&c](const char* name, std::string atoms::OperandDef::*field, const char* doc) {
    c.def_property_readonly(
        name, [field](const Operand& o) { return o.operand->def.*field; }, doc);
  };
  text("name", &atoms::OperandDef::name, "Its name in the instruction's text.");
  text("pattern", &atoms::OperandDef::pattern,
       "What one thread sees, such as \"[1,8:_,1].b16.SH\"; \"_\" is any stride.");
  text("tile", &atoms::OperandDef::tile,
       "The collective's tile with named axes, such as \"m16,k16\"; \"\" for a scalar.");
  c.def_property_readonly(
      "tv", [](const Operand& o) { return o.operand->tv; },
      "Layout (thread, value) -> element of the tile, axes colexicographic.");
  c.def_property_readonly(
      "extents", [](const Operand& o) { return o.operand->extents; }, "Sizes of the tile's axes.");
  c.def_property_readonly(
      "axes", [](const Operand& o) { return o.operand->axes; }, "Names of the tile's axes.");
  c.def_property_readonly(
      "values", [](const Operand& o) { return o.operand->values; }, "Values per thread.");
  c.def_property_readonly(
      "dtypes", [](const Operand& o) { return dtype_names(*o.operand); }, "Names of the scalar types it accepts.");
  c.def_property_readonly(
      "memories",
      [](const Operand& o) {
        std::vector<std::string> out;
        for (const ir::Memory x : o.operand->type.memories) out.emplace_back(ir::name(x));
        if (o.operand->type.immediate) out.emplace_back("IMM");
        return out;
      },
      "Where it may live: GL, SH, RF; IMM: a number in the text.");
  c.def_property_readonly(
      "access", [](const Operand& o) { return atoms::name(o.operand->def.access); },
      "read, write or update (in place).");
  c.def_property_readonly(
      "align_bytes", [](const Operand& o) { return o.operand->align_bytes; },
      "What its address is a multiple of; 0: any.");
  c.def_property_readonly(
      "registers",
      [](const Operand& o) {
        const atoms::RegPacking& p = o.operand->packing;
        return py::make_tuple(std::string(1, p.constraint), p.per_reg, p.regs);
      },
      "(inline-assembly constraint, values per register, registers); no registers: 0.");
  c.def_property_readonly(
      "via", [](const Operand& o) { return kVias.at(static_cast<std::size_t>(o.operand->def.via)); },
      "How the text sees it: natural (registers or an address), lvalue (a C++ expression), descriptor, tensor_map.");
  c.def_readonly("label", &Operand::label,
                 "What a fragment that it declares prints, such as \"mma.m16n8k16.f32.f16.c\".");
  c.def("__repr__", [](const Operand& o) { return "<operand " + o.label + " " + o.operand->def.pattern + ">"; });
}

void bind_atom(py::module_& m) {
  py::class_<Instance, std::shared_ptr<Instance>> c(m, "Atom", R"doc(An atomic spec: one GPU instruction as data.

Its operands are attributes too: ``mma.a``, ``mma.b``, ``mma.c`` name the TV layouts that gr.fragment takes.)doc");
  c.attr("__module__") = "graphene";
  const auto text = [&c](const char* name, std::string atoms::Atom::*field, const char* doc) {
    c.def_property_readonly(
        name, [field](const Instance& i) { return i.atom.*field; }, doc);
  };
  text("name", &atoms::Atom::name, "Its name, as PTX calls it; what the operands decide follows a '/'.");
  text("arch", &atoms::Atom::arch, "Architectures that have it: \"sm_80+\", or one exactly: \"sm_90a\".");
  text("threads", &atoms::Atom::threads, "The threads that execute it together, such as \"[32]\".");
  text("ptx", &atoms::Atom::ptx, "PTX text with holes such as $dst, or \"\".");
  text("cxx", &atoms::Atom::cxx, "CUDA C++ text with holes, where there is no PTX text.");
  text("helper", &atoms::Atom::helper, "A device function that the text calls, or \"\".");
  text("done", &atoms::Atom::done, "When it is complete: \"now\", \"group:cp_async\", ...");
  text("doc", &atoms::Atom::doc, "What it does, in a sentence.");
  text("source", &atoms::Atom::source, "Where its manual defines it.");
  c.def_readonly("family", &Instance::family, "The name up to '/'.");
  c.def_property_readonly(
      "kind", [](const Instance& i) { return atoms::name(i.atom.kind); }, "The kind of spec it implements.");
  c.def_property_readonly(
      "guard", [](const Instance& i) { return atoms::name(i.atom.guard); },
      "How a partial tile is realised: refuse, branch, bytes, redirect, clipped.");
  c.def_property_readonly(
      "converge", [](const Instance& i) { return i.atom.converge; }, "How many threads must arrive together.");
  c.def_readonly("thread_count", &Instance::thread_count, "Threads of the collective.");
  c.def_property_readonly(
      "thread_layout", [](const Instance& i) { return i.threads; }, "Member of the collective -> linear thread index.");
  c.def_property_readonly(
      "is_default", [](const Instance& i) { return i.atom.is_default; }, "Whether leaves match it without naming it.");
  c.def_property_readonly(
      "attrs",
      [](const Instance& i) {
        py::dict d;
        for (const atoms::AttrDef& a : i.atom.attrs) d[py::str(a.name)] = py::tuple(py::cast(a.accepts));
        return d;
      },
      "Attributes it accepts beyond its kind's defaults, with their values.");
  c.def_property_readonly(
      "numerics",
      [](const Instance& i) {
        py::list out;
        for (const atoms::Numerics& n : i.atom.numerics) {
          py::dict d;
          d["arch"] = n.arch;
          d["group"] = n.group;
          d["guard_bits"] = n.guard_bits;
          d["round"] = n.round;
          d["ulps"] = n.ulps;
          out.append(d);
        }
        return out;
      },
      "How it rounds, by architecture: products per rounding step, guard bits, tolerance in ulps (0: equal bits).");
  c.def_property_readonly(
      "outputs",
      [](const Instance& i) {
        std::vector<std::string> out;
        for (const OperandInstance& o : i.out) out.push_back(o.def.name);
        return out;
      },
      "Names of the operands it writes.");
  c.def_property_readonly(
      "operands",
      [](const std::shared_ptr<Instance>& i) {
        py::dict d;
        for (const OperandInstance* o : operands_of(*i)) d[py::str(o->def.name)] = make_operand(i, o, o->def.name);
        return d;
      },
      "Its operands by name, outputs first.");
  c.def(
      "runs_on", [](const Instance& i, const py::object& arch) { return i.runs_on(architecture(arch)); },
      py::arg("arch"), "Whether an architecture has it: ``runs_on(\"sm_90a\")``. Raises SelectError ARCH_UNKNOWN.");
  c.def("__getattr__", [](const std::shared_ptr<Instance>& i, const std::string& name) {
    const OperandInstance* o = operand_by_name(*i, name);
    if (o == nullptr) throw py::attribute_error(i->atom.name + " has no operand or attribute `" + name + "`");
    return make_operand(i, o, name);
  });
  c.def("__repr__", [](const Instance& i) { return "<atom " + i.atom.name + ">"; });
}

std::shared_ptr<Instance> mutable_ptr(const InstancePtr& i) { return std::const_pointer_cast<Instance>(i); }

py::list instances_to_py(const std::vector<InstancePtr>& list) {
  py::list out;
  for (const InstancePtr& i : list) out.append(mutable_ptr(i));
  return out;
}

}  // namespace

void complete_spec(ir::SpecStmt& s) { (void)atoms::complete_attrs(s.kind, s.attrs); }

void register_atoms(py::module_& m) {
  bind_operand(m);
  bind_atom(m);
  m.def("atom_names", [] { return atoms::Registry::get().names(); });
  m.def(
      "check_atoms", [] { atoms::Registry::get().check_overlaps(); },
      "Raises SelectError ATOM_OVERLAP if two of the entries that are matched without being named fit one leaf.");
  m.def("find_atom", [](const std::string& name) -> py::object {
    const InstancePtr i = atoms::find(name);
    return i == nullptr ? py::object(py::none()) : py::cast(mutable_ptr(i));
  });
  m.def("find_atom_family", [](const std::string& name) { return instances_to_py(atoms::require_family(name)); });
  m.def("define_atom", [](const py::dict& fields) { return instances_to_py(atoms::define(atom_from_py(fields))); });
  m.def("match_kernel", [](const std::shared_ptr<ir::Kernel>& kernel, const std::string& arch) {
    return KernelMatches(*kernel, arch).out;
  });
  m.def(
      "matrix_form",
      [](const Layout& rows, const Layout& columns, int element_bytes, const Swizzle& swizzle) -> py::object {
        const auto flat = [](const Layout& l) {
          atoms::FlatLayout f;
          for (const Expr& e : l.shape().leaves()) f.shape.push_back(e.value());
          for (const Expr& e : l.stride().leaves()) f.stride.push_back(e.value());
          return f;
        };
        const auto found = atoms::find_form({flat(rows), flat(columns), element_bytes, swizzle}, false);
        if (!found) return py::none();
        py::dict d;
        d["name"] = found->form->name;
        d["leading_bytes"] = found->leading_bytes;
        d["stride_bytes"] = found->stride_bytes;
        d["bits"] = found->descriptor_bits();
        return d;
      },
      py::arg("rows"), py::arg("columns"), py::arg("element_bytes"), py::arg("swizzle"),
      "The canonical layout that a matrix in shared memory has, and what its descriptor says of it; None: in none.");
}

}  // namespace graphene::bind
