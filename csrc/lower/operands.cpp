#include "lower/operands.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <variant>

#include "ir/levels.h"

namespace graphene::lower {

namespace {

std::int64_t floor_mod(std::int64_t a, std::int64_t b) { return ((a % b) + b) % b; }

// Where the values of one operand lie along a bounded dimension: base + deltas[v].
struct Along {
  Expr base;
  std::vector<std::int64_t> deltas;
};

Along along(const ir::DimBound& bound, std::size_t values) {
  Along out{bound.base, {}};
  for (std::size_t v = 0; v < values; ++v) {
    Expr at = 0;
    std::int64_t rest = static_cast<std::int64_t>(v);
    for (const Layout& level : bound.levels) {
      for (const Layout& mode : ir::modes_of(level)) {
        const Expr size = mode.size();
        GR_ASSERT(size.is_const() && size.value() > 0, "a matched operand has constant sizes");
        at = at + mode(Expr(rest % size.value()));
        rest /= size.value();
      }
    }
    GR_ASSERT(at.is_const(), "a matched operand's values are at constant distances");
    out.deltas.push_back(at.value());
  }
  return out;
}

// The distance of consecutive values when it is one and positive; else 0.
std::int64_t step_of(const std::vector<std::int64_t>& deltas) {
  const std::int64_t step = deltas.size() > 1 ? deltas[1] : 0;
  for (std::size_t v = 0; v < deltas.size(); ++v) {
    if (deltas[v] != static_cast<std::int64_t>(v) * step) return 0;
  }
  return std::max<std::int64_t>(step, 0);
}

// Fills in the condition under which all values are inside; they must be all inside or all outside. With `may_cut`, the
// end of the tensor may cut them: the condition is then that of the first value, and valid_values counts those inside.
void bound(MemRef& ref, const ir::Tensor& t, const std::string& atom, bool may_cut) {
  const std::size_t values = ref.deltas.size();
  for (const ir::DimBound& bound : t.bounds) {
    const Along a = along(bound, values);
    const auto [lo, hi] = std::ranges::minmax(a.deltas);
    if (sym::prove(sym::lt(a.base + Expr(hi), bound.extent))) continue;
    const Expr first = a.base + Expr(lo);
    if (hi != lo) {
      // Multiples of g never lie between first and first + (hi - lo): the vector is cut by no extent.
      const std::int64_t g = std::gcd(sym::divisor(first), sym::divisor(bound.extent));
      const bool cut = g != 0 && hi - lo >= g;
      const bool splits_byte = ir::is_packed(t.dtype) && g % 2 != 0;
      if (const std::int64_t step = step_of(a.deltas); cut && may_cut && step > 0 && !splits_byte) {
        const Expr left = sym::ceil_div(bound.extent - a.base, step);
        ref.valid_values = sym::min(left, ref.valid_values.value_or(static_cast<std::int64_t>(values)));
      } else if (cut) {
        const std::string n = std::to_string(hi - lo + 1);
        fail(Code::LOWER_VECTOR_EDGE, "a vector that the end of the tensor may cut",
             {"atom: " + atom + ", " + std::to_string(values) + " values",
              "want: " + first.str() + " and " + bound.extent.str() + " multiples of " + n,
              "got: multiples of " + std::to_string(sym::divisor(first)) + " and " +
                  std::to_string(sym::divisor(bound.extent))},
             "declare the size with multiple_of=" + n + ", or use a narrower atom");
      }
    }
    if (sym::prove(sym::lt(first, bound.extent))) continue;
    const Expr inside = sym::lt(first, bound.extent);
    ref.inside = sym::logical_and(ref.inside, inside);
    if (bound.outside == ir::Outside::Fill) ref.tiles = sym::logical_and(ref.tiles, inside);
    if (bound.outside == ir::Outside::Past) ref.claims.push_back({first, bound.extent});
    if (bound.outside == ir::Outside::Before) ref.claims.push_back({-first, std::nullopt});
  }
}

// Registers have no place outside: what the views left undecided must be decided once loops are unrolled.
void require_inside(const ir::Tensor& t) {
  for (const ir::DimBound& bound : t.bounds) {
    std::size_t values = 1;
    for (const Layout& level : bound.levels) values *= static_cast<std::size_t>(level.size().value());
    const Along a = along(bound, values);
    const Expr last = a.base + Expr(*std::ranges::max_element(a.deltas));
    if (sym::prove(sym::lt(last, bound.extent))) continue;
    fail(Code::TENSOR_INDEX, "an index that may be outside of the registers",
         {"tensor: " + t.type_str(false) + " of " + t.buffer->name, "want: at most " + (bound.extent - Expr(1)).str(),
          "got: " + last.str()},
         "keep tiles and indices of registers inside");
  }
}

std::int64_t swizzled(const Swizzle& s, std::int64_t offset) {
  const auto o = static_cast<std::uint64_t>(offset);
  const std::uint64_t mask = (std::uint64_t{1} << static_cast<unsigned>(s.bits)) - 1;
  const auto low = static_cast<unsigned>(s.shift >= 0 ? s.base : s.base - s.shift);
  const auto high = static_cast<unsigned>(s.shift >= 0 ? s.base + s.shift : s.base);
  return static_cast<std::int64_t>(o ^ (o >> high & mask) << low);
}

}  // namespace

Swizzled apply_swizzle(const Swizzle& swizzle, const Expr& offset, const std::vector<std::int64_t>& deltas) {
  if (swizzle.trivial()) return {offset, deltas};
  // offset = e + c. When e is a multiple of 2^base, the low bits of every element are constant and pass through.
  const std::int64_t unit = std::int64_t{1}
                            << static_cast<unsigned>(std::min(swizzle.base, swizzle.base + std::min(swizzle.shift, 0)));
  std::int64_t constant = 0;
  Expr rest = offset;
  if (!offset.is_const() && offset.op() == sym::Op::Add) {
    constant = offset.node()->constant;
    rest = offset - Expr(constant);
  } else if (offset.is_const()) {
    constant = offset.value();
    rest = 0;
  }
  const std::int64_t multiple = rest.is_const() ? 0 : sym::divisor(rest);
  const std::int64_t step = multiple == 0 ? unit : std::gcd(multiple, unit);
  Swizzled out;
  // Many values, as of a box or a matrix: where the start leaves the permutation alone, it is one of plain numbers.
  constexpr std::size_t kMany = 256;
  if (deltas.size() >= kMany && multiple % swizzle.period() == 0) {
    const std::int64_t first = swizzled(swizzle, constant + deltas.front());
    out.offset = rest + Expr(first);
    for (const std::int64_t d : deltas) out.deltas.push_back(swizzled(swizzle, constant + d) - first);
    return out;
  }
  Expr first_high = 0;
  std::int64_t first_low = 0;
  for (std::size_t v = 0; v < deltas.size(); ++v) {
    const std::int64_t total = constant + deltas[v];
    // With e a multiple of `step` only, higher low bits are unknown and stay inside the permutation.
    const std::int64_t low = floor_mod(total, step);
    const Expr high = swizzle(rest + Expr(total - low));
    if (v == 0) {
      first_high = high;
      first_low = low;
    }
    const Expr distance = high - first_high + Expr(low - first_low);
    if (!distance.is_const()) {
      fail(Code::LOWER_SWIZZLE, "values of one access that the swizzle moves apart",
           {"swizzle: " + swizzle.str(), "offset: " + offset.str(),
            "value " + std::to_string(v) + ": at a distance of " + distance.str()},
           unit == 1 ? "access single elements"
                     : "access at most " + std::to_string(unit) + " consecutive elements, from a multiple of " +
                           std::to_string(unit) + " on");
    }
    out.deltas.push_back(distance.value());
  }
  out.offset = first_high + Expr(first_low);
  return out;
}

Operand resolve(const atoms::OperandBinding& binding, const Buffers& buffers, const atoms::Instance& atom,
                bool is_input) {
  using Kind = atoms::OperandBinding::Kind;
  switch (binding.kind) {
    case Kind::Immediate:
      return ImmRef{binding.immediate, binding.dtype};
    case Kind::Expression:
      return ExprRef{binding.expression, binding.dtype};
    case Kind::Registers: {
      const auto it = buffers.array_of.find(binding.tensor->buffer->id);
      const auto regs = [&](int array) { return buffers.registers[static_cast<std::size_t>(array)].regs; };
      GR_ASSERT(it != buffers.array_of.end(), "registers of " + binding.tensor->buffer->name + " were not placed");
      require_inside(*binding.tensor);
      GR_ASSERT(std::ranges::all_of(binding.registers, [&](int r) { return r >= 0 && r < regs(it->second); }),
                "registers of " + binding.tensor->buffer->name + " that it does not have");
      return RegRef{it->second, binding.registers};
    }
    case Kind::Memory:
      break;
  }
  const ir::Tensor& t = *binding.tensor;
  const auto it = buffers.memory_of.find(t.buffer->id);
  GR_ASSERT(it != buffers.memory_of.end(), "buffer " + t.buffer->name + " was not placed");
  Swizzled at = apply_swizzle(t.buffer->swizzle, t.offset, binding.deltas);
  const bool run = std::ranges::any_of(is_input ? atom.in : atom.out, [](const atoms::OperandInstance& o) {
    return o.def.proxy == atoms::Proxy::Async && o.def.via == atoms::Via::Natural && o.def.forms.empty();
  });
  for (std::size_t v = 0; run && !t.buffer->swizzle.trivial() && v < at.deltas.size(); ++v) {
    if (at.deltas[v] == at.deltas.front() + static_cast<std::int64_t>(v)) continue;
    fail(Code::LOWER_SWIZZLE, "a copy of neighbours that the swizzle moves apart",
         {"atom: " + atom.atom.name, "swizzle: " + t.buffer->swizzle.str() + " of " + t.buffer->name},
         "copy boxes by a tensor map, or leave out swizzle=");
  }
  if (t.is_list()) {
    fail(Code::INPUTS_INDEX, "a list of tensors is not an operand", {"got: " + t.type_str() + " of " + t.buffer->name},
         "choose one of them: " + t.buffer->name + "[i]");
  }
  MemRef out{.buffer = it->second,
             .member = t.member.value_or(Expr(0)),
             .offset = at.offset,
             .deltas = std::move(at.deltas),
             .tiles = 1,
             .claims = {},
             .rank = t.rank};
  if (binding.form) out.descriptor = Descriptor{binding.form->descriptor_bits(), binding.form->form->mn_major};
  const bool may_cut = is_input && atom.atom.guard == atoms::Guard::Bytes;
  bound(out, t, atom.atom.name, may_cut);
  return out;
}

void check_guard(const AtomCall& call) {
  const atoms::Instance& atom = *call.atom;
  const bool collective = atom.thread_count > 1 || atom.atom.converge > 1;
  const auto divergent = [](const Expr& e) {
    return sym::depends_on(sym::expand_coords(e),
                           [](const sym::VarInfo& v) { return v.kind == sym::VarKind::ThreadIdx; });
  };
  // A lane that reads the fill from elsewhere takes part like the others.
  const bool redirects = atom.atom.guard == atoms::Guard::Redirect;
  bool varies = divergent(call.predicate);
  std::string condition = call.predicate.str();
  for (const Operand& o : call.in) {
    const auto* m = std::get_if<MemRef>(&o);
    if (m == nullptr || m->inside.is_const(1)) continue;
    varies = varies || (!redirects && divergent(m->inside));
    condition += (condition == "1" ? condition.clear(), "" : " and ") + m->inside.str();
  }
  if (atom.atom.guard != atoms::Guard::Refuse && !(collective && varies)) return;
  fail(Code::LOWER_PARTIAL, "a partial tile that the instruction cannot take",
       {"atom: " + atom.atom.name +
            (collective ? ", executed by " + std::to_string(std::max(atom.thread_count, atom.atom.converge)) +
                              " threads together"
                        : ""),
        "inside only where: " + condition},
       "use tiles that divide the tensor, declare its size with multiple_of=, or copy through an atom that takes "
       "partial tiles");
}

}  // namespace graphene::lower
