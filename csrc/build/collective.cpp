#include "build/collective.h"

#include <algorithm>

#include "atoms/attempt.h"
#include "atoms/registry.h"
#include "build/moves.h"
#include "build/nest.h"
#include "build/reduce.h"
#include "build/relayout.h"
#include "ir/levels.h"

namespace graphene::build {

namespace {

using ir::TensorPtr;

std::vector<std::string> split(const std::string& names) {
  std::vector<std::string> out;
  for (std::size_t start = 0; start <= names.size();) {
    const std::size_t comma = std::min(names.find(',', start), names.size());
    out.push_back(names.substr(start, comma - start));
    start = comma + 1;
  }
  return out;
}

// Some entry takes the spec as it stands, on whatever architecture.
bool is_leaf(const ir::SpecStmt& spec, const std::vector<atoms::InstancePtr>& candidates) {
  const ir::Attrs attrs = atoms::complete_attrs(spec.kind, spec.attrs);
  return std::any_of(candidates.begin(), candidates.end(), [&](const atoms::InstancePtr& e) {
    if (atoms::spec_kind(e->atom.kind) != spec.kind) return false;
    const atoms::Attempt a = atoms::attempt(e, spec, attrs, "", true);
    return std::all_of(a.mismatches.begin(), a.mismatches.end(),
                       [](const atoms::Mismatch& m) { return m.aspect == atoms::Aspect::Arch; });
  });
}

bool between_memories(const ir::SpecStmt& spec) {
  const auto* src = spec.ins.size() == 1 ? std::get_if<TensorPtr>(&spec.ins[0]) : nullptr;
  return src != nullptr && spec.outs.size() == 1 && spec.outs[0]->memory() != ir::Memory::RF &&
         (*src)->memory() != ir::Memory::RF;
}

bool expand_move(ir::Builder& b, const ir::SpecStmt& spec, const std::vector<std::string>& names) {
  if (spec.outs.size() != 1 || spec.ins.size() != 1) return false;
  const auto* source = std::get_if<TensorPtr>(&spec.ins[0]);
  if (source == nullptr) return false;
  const TensorPtr& dst = spec.outs[0];
  const TensorPtr& src = *source;
  const bool to_registers = dst->memory() == ir::Memory::RF;
  const bool from_registers = src->memory() == ir::Memory::RF;
  if (!to_registers && !from_registers) {
    copy(b, spec, dst, src, names);
    return true;
  }
  if (names.size() != 1) {
    refuse(spec, Code::COLLECTIVE_ATOM, "two atoms stage a Move between memories through registers",
           {"got: " + spec.outs[0]->type_str(false) + " from " + src->type_str(false)}, "name one atom");
  }
  if (to_registers && from_registers) {
    refuse(spec, Code::COLLECTIVE_ATOM, spec.atom + " does not move these registers as they stand", {},
           "move values one by one, or through shared memory");
  }
  const TensorPtr& registers = to_registers ? dst : src;
  const TensorPtr& memory = to_registers ? src : dst;
  if (registers->is_fragment()) {
    move_fragment(b, spec, registers, memory, to_registers);
  } else {
    move_private(b, spec, registers, memory, to_registers);
  }
  return true;
}

}  // namespace

atoms::InstancePtr entry_for(const ir::SpecStmt& spec, const std::string& atom, ir::ScalarType dtype, ir::Memory to,
                             ir::Memory from) {
  const std::vector<atoms::InstancePtr> family = atoms::require_family(atom);
  for (const atoms::InstancePtr& e : family) {
    if (e->atom.kind != atoms::Kind::Move || e->out.size() != 1 || e->in.size() != 1) continue;
    const auto& o = e->out[0].type;
    const auto& i = e->in[0].type;
    if (o.accepts(to) && i.accepts(from) && o.accepts(dtype) && i.accepts(dtype)) return e;
  }
  // What the member for this type would do.
  const auto takes = [&](const atoms::InstancePtr& e) {
    return !e->out.empty() && !e->in.empty() && e->in[0].type.accepts(dtype) && e->out[0].type.accepts(dtype);
  };
  const auto nearest = std::find_if(family.begin(), family.end(), takes);
  const atoms::Instance& first = nearest == family.end() ? *family.front() : **nearest;
  const auto what = [](const std::vector<atoms::OperandInstance>& operands) {
    std::string s;
    for (const auto& o : operands) {
      s += (s.empty() ? "" : ", ") + atoms::want_dtype(o.type) + " in " + ir::name(o.type.memories.front());
    }
    return s;
  };
  refuse(spec, Code::COLLECTIVE_ATOM, atom + " does not implement this " + ir::name(spec.kind),
         {std::string("want: ") + atoms::name(first.atom.kind) + " from " + what(first.in) + " to " + what(first.out),
          std::string("got: ") + ir::name(spec.kind) + " of " + ir::name(dtype) + " from " + ir::name(from) + " to " +
              ir::name(to)},
         spec.kind == ir::SpecKind::Move ? "name one that does, or two that go through registers: atom=(load, store)"
                                         : "");
}

int contiguous_dim(const ir::Tensor& t, std::int64_t values) {
  const std::vector<Layout> modes = ir::modes_of(t.levels[0]);
  for (std::size_t d = 0; d < modes.size(); ++d) {
    const std::vector<Expr> shape = modes[d].shape().leaves();
    const std::vector<Expr> stride = modes[d].stride().leaves();
    if (stride[0].is_const(1) && shape[0].is_const() && shape[0].value() % values == 0 && !shape[0].is_const(1)) {
      return static_cast<int>(d);
    }
  }
  return -1;
}

namespace {

// Without an atom: what larger registers and tiles than an instruction's need no choice for.
bool expand_unnamed(ir::Builder& b, const ir::SpecStmt& spec) {
  switch (spec.kind) {
    case ir::SpecKind::Init:
      if (is_leaf(spec, atoms::Registry::get().defaults(atoms::Kind::Init))) return false;
      init(b, spec);
      return true;
    case ir::SpecKind::Reduction:
      if (is_leaf(spec, atoms::Registry::get().defaults(atoms::Kind::Reduction))) return false;
      return reduce(b, spec);
    case ir::SpecKind::Move: {
      const auto* src = spec.ins.size() == 1 ? std::get_if<TensorPtr>(&spec.ins[0]) : nullptr;
      if (src == nullptr || spec.outs.size() != 1 || spec.outs[0]->levels.empty()) return false;
      if (spec.outs[0]->memory() != ir::Memory::RF || (*src)->memory() != ir::Memory::RF) return false;
      if (is_leaf(spec, atoms::Registry::get().defaults(atoms::Kind::Move))) return false;
      relayout(b, spec, spec.outs[0], *src);
      return true;
    }
    default:
      return false;
  }
}

bool expand_once(ir::Builder& b, const ir::SpecStmt& spec) {
  if (spec.tv && (spec.kind != ir::SpecKind::Move || spec.atom.empty() || !between_memories(spec))) {
    refuse(spec, Code::COLLECTIVE_ATOM, "tv= says who moves what of a Move between memories by atom=", {},
           "fragments carry a TV layout of their own");
  }
  if (spec.atom.empty()) return expand_unnamed(b, spec);
  const std::vector<std::string> names = split(spec.atom);
  for (const std::string& n : names) (void)atoms::require_family(n);
  if (names.size() == 1 && spec.kind == ir::SpecKind::Move && copy_boxes(b, spec)) return true;
  if (names.size() == 1 && is_leaf(spec, atoms::find_family(spec.atom))) return false;
  if (names.size() == 1 && !atoms::require_family(spec.atom).front()->atom.free.empty()) return false;  // an agent's
  switch (spec.kind) {
    case ir::SpecKind::Move:
      return expand_move(b, spec, names);
    case ir::SpecKind::MatMul:
      matmul(b, spec);
      return true;
    case ir::SpecKind::Init:
      init(b, spec);
      return true;
    default:
      return false;  // lowering says what differs
  }
}

// What a decomposition records is a leaf, even one that nothing implements: lowering says so.
thread_local bool expanding = false;

}  // namespace

bool expand(ir::Builder& b, const ir::SpecStmt& spec) {
  if (expanding) return false;
  struct Guard {
    Guard() { expanding = true; }
    ~Guard() { expanding = false; }
  } guard;
  return expand_once(b, spec);
}

}  // namespace graphene::build
