// What the decomposition of a spec left, held against what it promises.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>

#include "sim/ghost.h"
#include "sim/ghost_expected.h"

namespace graphene::sim {

namespace {

// Constants and intermediate values of the output's type or a wider one are all that rounds in a run over the reals.
double relative_error(ir::ScalarType t) {
  switch (t) {
    case ir::ScalarType::fp64:
      return 0x1p-52;
    case ir::ScalarType::fp32:
    case ir::ScalarType::tf32:
      return 0x1p-22;
    case ir::ScalarType::bf16:
      return 0x1p-8;
    default:
      return 0x1p-11;
  }
}

std::string number_text(double x) {
  std::array<char, 40> text;  // by to_chars: a locale has no say in it
  const auto end = std::to_chars(text.begin(), text.end(), x, std::chars_format::general, 9).ptr;
  return {text.begin(), end};
}

}  // namespace

std::uint64_t Ghost::before(const Instance& i, std::int64_t cell) const {
  const Seen* s = i.seen.find(cell);
  return s != nullptr && s->accessed ? s->before : cells_[static_cast<std::size_t>(cell)].value;
}

std::uint64_t Ghost::after(const Instance& i, std::int64_t cell) const {
  const Seen* s = i.seen.find(cell);
  if (s == nullptr || !s->accessed) return cells_[static_cast<std::size_t>(cell)].value;
  return s->written ? s->after : s->before;
}

std::vector<std::uint64_t> Ghost::input_values(const Instance& i, std::size_t operand) const {
  const Scope& scope = code_.scopes[static_cast<std::size_t>(i.scope)];
  const View& v = i.ins[operand];
  const auto* t = std::get_if<ir::Tensor>(&scope.spec->ins[operand]);
  const ir::ScalarType type = t != nullptr ? t->dtype : scope.spec->outs.front().dtype;
  const std::uint64_t fill = numbers_.of_constant(ir::constant_attr(scope.means.attrs, "fill"), type);
  std::vector<std::uint64_t> out;
  out.reserve(v.cells.size());
  for (const auto& cells : v.cells) {
    std::uint64_t x = fill;
    for (std::size_t h = 0; h < cells.size(); ++h) {  // of several holders, one that was read
      const Seen* s = i.seen.find(cells[h]);
      const bool accessed = s != nullptr && s->accessed;
      if (h == 0 || accessed) x = accessed ? s->before : cells_[static_cast<std::size_t>(cells[h])].value;
      if (accessed) break;
    }
    out.push_back(x);
  }
  return out;
}

bool Ghost::equal(std::uint64_t got, std::uint64_t want, double size, ir::ScalarType t) const {
  if (!numbers_.real || !is_float(t)) return got == want;
  const double x = Numbers::as_double(got);
  const double y = Numbers::as_double(want);
  if (std::isnan(x) || std::isnan(y) || std::isinf(y)) return (std::isnan(x) && std::isnan(y)) || x == y;
  return std::fabs(x - y) <= relative_error(t) * (8 * std::fabs(y) + size);
}

std::optional<Diagnostic> Ghost::promise(Instance& i) {
  if (!i.readable) return std::nullopt;
  const Scope& scope = code_.scopes[static_cast<std::size_t>(i.scope)];
  if (!scope.means.reference.empty()) return numbers_.real ? held_to_reference(i) : std::nullopt;
  if (!i.more_outs.empty()) return std::nullopt;
  if (scope.own && !numbers_.real) return std::nullopt;
  bool difference = false;
  const auto want = expected(i, difference);
  if (!want) {
    const bool generic = scope.spec->kind == ir::SpecKind::Spec && scope.means.kind != ir::SpecKind::Spec;
    const bool scattered =
        i.out.scattered || std::any_of(i.ins.begin(), i.ins.end(), [](const View& v) { return v.scattered; });
    if (!generic || scattered || (field_decides(scope) == numbers_.real)) return std::nullopt;
    return problem(i, Code::CHECK_MEANS, "operands that do not have the shapes of what the spec means",
                   {"means: " + scope.spec->means});
  }
  if (numbers_.real && i.out.scattered) return std::nullopt;
  if (!numbers_.real || !field_decides(scope)) ++promises_;
  if (i.out.scattered) return matched(i, *want, difference);
  return compare(i, i.out, *want, difference);
}

std::optional<Diagnostic> Ghost::compare(const Instance& i, const View& out, const std::vector<std::uint64_t>& want,
                                         bool difference) {
  if (want.size() != out.cells.size()) return std::nullopt;
  const Scope& scope = code_.scopes[static_cast<std::size_t>(i.scope)];
  const ir::ScalarType type = scope.spec->outs.front().dtype;
  double size = 0;
  if (numbers_.real && is_float(type)) {
    for (std::size_t e = 0; e < want.size(); ++e) {
      const double x = Numbers::as_double(want[e]);
      if (std::isfinite(x)) size = std::max(size, std::fabs(x));
      for (const std::int64_t cell : out.cells[e]) {
        const double y = difference ? Numbers::as_double(before(i, cell)) : 0;
        if (std::isfinite(y)) size = std::max(size, std::fabs(y));
      }
    }
  }
  std::int64_t wrong = 0;
  std::int64_t first = -1;
  std::uint64_t got_first = 0;
  for (std::size_t e = 0; e < want.size(); ++e) {
    for (const std::int64_t cell : out.cells[e]) {
      if (missed(i, cell)) continue;
      const std::uint64_t now = after(i, cell);
      const std::uint64_t got = difference ? numbers_.subtract(now, before(i, cell)) : now;
      if (equal(got, want[e], size, type)) continue;
      ++wrong;
      if (first < 0) {
        first = static_cast<std::int64_t>(e);
        got_first = got;
      }
      break;
    }
  }
  if (wrong == 0) {
    if (numbers_.real && is_float(type) && !field_decides(scope)) reseed(i, out, want, difference);
    return std::nullopt;
  }
  const auto at = static_cast<std::size_t>(first);
  std::vector<std::string> details = {
      "wrong: " + std::to_string(wrong) + " of " + std::to_string(want.size()) + " elements",
      "the first: " + coordinate_text(out.extents, first) + ", " + cell_text(out.cells[at].front())};
  if (!is_float(type)) {
    details.push_back("want: " + std::to_string(static_cast<std::int64_t>(want[at])));
    details.push_back("got: " + std::to_string(static_cast<std::int64_t>(got_first)));
  } else if (numbers_.real) {
    details.push_back("want: " + number_text(Numbers::as_double(want[at])));
    details.push_back("got: " + number_text(Numbers::as_double(got_first)));
  } else {
    details.push_back("got: " + meaning(i, got_first, first, want));
  }
  return problem(i, Code::CHECK_PROMISE, "the decomposition does not do what the spec says", std::move(details));
}

// What is within the tolerance becomes exact, so that the specs around are not blamed for what this one may be off.
void Ghost::reseed(const Instance& i, const View& out, const std::vector<std::uint64_t>& want, bool difference) {
  for (std::size_t e = 0; e < want.size(); ++e) {
    for (const std::int64_t cell : out.cells[e]) {
      const Seen* s = i.seen.find(cell);
      if (s == nullptr || !s->written) continue;
      const std::uint64_t left = s->after;
      const std::uint64_t exact = difference ? numbers_.add(before(i, cell), want[e]) : want[e];
      Cell& now = cells_[static_cast<std::size_t>(cell)];
      if (now.value == left) now.value = exact;
      for (Instance* p = i.parent; p != nullptr; p = p->parent) {
        Seen* const seen = p->seen.find(cell);
        if (seen != nullptr && seen->after == left) seen->after = exact;
      }
    }
  }
}

std::optional<Diagnostic> Ghost::held_to_reference(Instance& i) {
  const Scope& scope = code_.scopes[static_cast<std::size_t>(i.scope)];
  const auto scattered = [](const View& v) { return v.scattered; };
  if (!reference_ || i.out.scattered || std::any_of(i.more_outs.begin(), i.more_outs.end(), scattered))
    return std::nullopt;
  std::vector<ReferenceArray> inputs;
  for (std::size_t k = 0; k < i.ins.size(); ++k) {
    ReferenceArray a{i.ins[k].extents, {}};
    const auto* t = std::get_if<ir::Tensor>(&scope.spec->ins[k]);
    if (t == nullptr) {
      const auto* d = std::get_if<double>(&scope.spec->ins[k]);
      const auto* e = std::get_if<Expr>(&scope.spec->ins[k]);
      const Expr known = e != nullptr ? sym::substitute(*e, code_.sizes) : Expr(0);
      if (!known.is_const()) return std::nullopt;
      a.values = {d != nullptr ? *d : static_cast<double>(known.value())};
    } else {
      for (const std::uint64_t x : input_values(i, k)) {
        a.values.push_back(is_float(t->dtype) ? Numbers::as_double(x)
                                              : static_cast<double>(static_cast<std::int64_t>(x)));
      }
      if (i.ins[k].scattered) {  // registers of several threads: a number, if all of them hold the same
        const auto differs = [&](double x) { return x != a.values.front(); };
        if (!a.extents.empty() || a.values.empty() || std::ranges::any_of(a.values, differs)) return std::nullopt;
        a.values.erase(a.values.begin() + 1, a.values.end());
      }
    }
    inputs.push_back(std::move(a));
  }
  std::vector<const View*> outs = {&i.out};
  for (const View& v : i.more_outs) outs.push_back(&v);
  std::vector<std::vector<std::int64_t>> extents;
  for (const View* v : outs) extents.push_back(v->extents);
  const ReferenceResult result = reference_(scope.means.reference, inputs, extents);
  if (!result.problem.empty()) {
    Diagnostic d = problem(i, Code::CHECK_MEANS, "a meaning that cannot be evaluated",
                           {"means: " + scope.means.reference, result.problem});
    d.fix = "register the function: gr.reference, or means=function";
    return d;
  }
  ++promises_;
  for (std::size_t k = 0; k < outs.size(); ++k) {
    std::vector<std::uint64_t> want;
    const bool floats = is_float(scope.spec->outs[k].dtype);
    for (const double x : result.outputs[k])
      want.push_back(floats ? Numbers::as_bits(x) : static_cast<std::uint64_t>(std::llround(x)));
    if (auto wrong = compare(i, *outs[k], want, false)) return wrong;
  }
  return std::nullopt;
}

// Private registers of several threads: every one must hold some element of what is promised, every element must be
// held, and the same element every time.
std::optional<Diagnostic> Ghost::matched(Instance& i, const std::vector<std::uint64_t>& want, bool difference) {
  std::unordered_map<std::uint64_t, std::int64_t> element_of;
  for (std::size_t e = 0; e < want.size(); ++e) element_of.emplace(want[e], static_cast<std::int64_t>(e));
  std::unordered_map<std::int64_t, std::int64_t> held;
  std::unordered_set<std::int64_t> found;
  std::int64_t strangers = 0;
  std::int64_t first = -1;
  for (const auto& cells : i.out.cells) {
    for (const std::int64_t cell : cells) {
      const std::uint64_t now = after(i, cell);
      const auto it = element_of.find(difference ? field::subtract(now, before(i, cell)) : now);
      if (it == element_of.end()) {
        ++strangers;
        if (first < 0) first = cell;
        continue;
      }
      held[cell] = it->second;
      found.insert(it->second);
    }
  }
  const auto missing = static_cast<std::int64_t>(element_of.size()) - static_cast<std::int64_t>(found.size());
  if (strangers != 0 || missing != 0) {
    std::vector<std::string> details;
    if (strangers != 0) {
      details.push_back(std::to_string(strangers) +
                        " registers hold no element of what is promised, the first: " + cell_text(first));
    }
    if (missing != 0) {
      std::int64_t lost = 0;
      while (found.contains(lost) || element_of.at(want[static_cast<std::size_t>(lost)]) != lost) ++lost;
      const std::vector<std::int64_t> flat = {static_cast<std::int64_t>(want.size())};
      details.push_back(std::to_string(missing) +
                        " elements of what is promised are in no register, the first: number " + std::to_string(lost));
    }
    return problem(i, Code::CHECK_PROMISE, "the decomposition does not do what the spec says", std::move(details));
  }
  const std::int64_t key = std::int64_t{i.scope} << 32 | i.group;
  const auto [known, fresh] = distributions_.emplace(key, held);
  if (!fresh && known->second != held) {
    return problem(i, Code::CHECK_DISTRIBUTION, "registers hold the tile's elements differently than the time before",
                   {});
  }
  return std::nullopt;
}

// A wrong value in words, where one is found for it.
std::string Ghost::meaning(const Instance& i, std::uint64_t got, std::int64_t element,
                           const std::vector<std::uint64_t>& want) const {
  const Scope& spec = code_.scopes[static_cast<std::size_t>(i.scope)];
  const auto& cells = i.out.cells[static_cast<std::size_t>(element)];
  const Seen* first = i.seen.find(cells.front());
  if (first == nullptr || !first->written) return "nothing was written there";
  for (std::size_t e = 0; e < want.size(); ++e) {
    if (want[e] == got && static_cast<std::int64_t>(e) != element) {
      return "what belongs to " + coordinate_text(i.out.extents, static_cast<std::int64_t>(e));
    }
  }
  if (spec.means.kind == ir::SpecKind::MatMul) {
    const std::uint64_t right = want[static_cast<std::size_t>(element)];
    if (accumulates(spec, i.accumulates)) {
      if (got == field::add(right, right)) return "the product, added twice";
      if (field::add(got, first->before) == right) return "the product, without what was there before";
    }
    const auto shape = product_shape(i.out, i.ins[0], i.ins[1]);
    if (shape && shape->batch == 1) {
      const std::vector<std::uint64_t> a = input_values(i, 0);
      const std::vector<std::uint64_t> b = input_values(i, 1);
      const std::int64_t row = element % shape->m;
      const std::int64_t col = element / shape->m;
      // Partial sums: the terms [from, to) of k.
      std::vector<std::uint64_t> prefix = {0};
      for (std::int64_t z = 0; z < shape->k; ++z) {
        prefix.push_back(field::add(prefix.back(), field::multiply(a[static_cast<std::size_t>(row + z * shape->m)],
                                                                   b[static_cast<std::size_t>(z + col * shape->k)])));
      }
      for (std::int64_t from = 0; from < shape->k && shape->k <= 1024; ++from) {
        for (std::int64_t to = from + 1; to <= shape->k; ++to) {
          if (field::subtract(prefix[static_cast<std::size_t>(to)], prefix[static_cast<std::size_t>(from)]) != got)
            continue;
          return "the sum over k from " + std::to_string(from) + " to " + std::to_string(to - 1) + " of " +
                 std::to_string(shape->k);
        }
      }
      for (std::int64_t z = 0; z < shape->k; ++z) {
        const std::uint64_t term =
            field::subtract(prefix[static_cast<std::size_t>(z + 1)], prefix[static_cast<std::size_t>(z)]);
        if (field::add(got, term) == right) return "the sum without k = " + std::to_string(z);
        if (got == field::add(right, term)) return "the sum with k = " + std::to_string(z) + " counted twice";
      }
    }
  }
  if (spec.means.kind == ir::SpecKind::Move &&
      got == numbers_.of_constant(ir::constant_attr(spec.means.attrs, "fill"), spec.spec->outs.front().dtype))
    return "the fill";
  return "something else";
}

std::string Ghost::cell_text(std::int64_t cell) const {
  if (cell >= map_.register_first) {
    const std::int64_t r = (cell - map_.register_first) / map_.threads;
    const std::int64_t thread = (cell - map_.register_first) % map_.threads % map_.block_threads;
    for (std::size_t a = 0; a < code_.array_first.size(); ++a) {
      const lower::RegArray& array = code_.program->registers[a];
      if (r < code_.array_first[a] || r >= code_.array_first[a] + array.regs) continue;
      return array.buffer->name + ", register " + std::to_string(r - code_.array_first[a]) + " of thread " +
             std::to_string(thread);
    }
  }
  if (cell >= map_.shared_first && map_.shared_cells > 0) {
    cell = map_.shared_first + (cell - map_.shared_first) % map_.shared_cells;
  }
  std::size_t best = 0;
  for (std::size_t b = 0; b < map_.buffer_first.size(); ++b) {
    const std::int64_t first = map_.buffer_first[b];
    if (first <= cell && first >= map_.buffer_first[best] && code_.buffer_elems[b] > cell - first) best = b;
  }
  return describe_element(*code_.program->buffers[best].buffer, cell - map_.buffer_first[best], code_);
}

Diagnostic Ghost::problem(const Instance& i, Code code, std::string message, std::vector<std::string> details) const {
  const Scope& scope = code_.scopes[static_cast<std::size_t>(i.scope)];
  Diagnostic d;
  d.code = code;
  d.where = scope.origin != nullptr ? scope.origin->loc : SourceLoc{};
  d.message = std::move(message);
  d.ir = {statement_text(scope.origin)};
  std::string path;
  for (int s = scopes_[static_cast<std::size_t>(i.scope)].around; s >= 0;
       s = scopes_[static_cast<std::size_t>(s)].around) {
    path += (path.empty() ? "" : ", ") + location_text(code_.scopes[static_cast<std::size_t>(s)].origin);
  }
  const auto& members = scopes_[static_cast<std::size_t>(i.scope)].members[static_cast<std::size_t>(i.group)];
  const std::string threads =
      members.size() == 1 ? "thread " + std::to_string(members.front())
                          : "threads " + std::to_string(members.front()) + " to " + std::to_string(members.back());
  details.push_back("in: block " + block_text(i.block) + ", " + threads + (path.empty() ? "" : ", inside " + path));
  d.details = std::move(details);
  d.fix = i.children ? "the specs inside it keep their promises: look at how this level is put together from them"
                     : "look at the statements inside it";
  return d;
}

}  // namespace graphene::sim
