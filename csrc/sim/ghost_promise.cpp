// What a spec promises, evaluated over the field, and what the decomposition left instead.
#include <algorithm>
#include <numeric>

#include "sim/ghost.h"
#include "sim/ghost_field.h"

namespace graphene::sim {

namespace {

constexpr std::int64_t kExactProducts = std::int64_t{1} << 26;  // beyond, products are checked against random vectors

const ir::AttrValue* attr(const lower::SpecScope& s, const char* name) {
  const auto it = s.attrs.find(name);
  return it == s.attrs.end() ? nullptr : &it->second;
}

std::string text_attr(const lower::SpecScope& s, const char* name) {
  const ir::AttrValue* a = attr(s, name);
  const auto* t = a != nullptr ? std::get_if<std::string>(a) : nullptr;
  return t != nullptr ? *t : std::string{};
}

double number_attr(const lower::SpecScope& s, const char* name) {
  const ir::AttrValue* a = attr(s, name);
  if (a == nullptr) return 0;
  if (const auto* d = std::get_if<double>(a)) return *d;
  if (const auto* i = std::get_if<std::int64_t>(a)) return static_cast<double>(*i);
  return 0;
}

bool accumulates(const lower::SpecScope& s, bool fallback) {
  const ir::AttrValue* a = attr(s, "accumulate");
  const auto* b = a != nullptr ? std::get_if<bool>(a) : nullptr;
  return b != nullptr ? *b : fallback;
}

// Operations whose decomposition the field decides.
bool algebraic(Op op) {
  switch (op) {
    case Op::Cast:
    case Op::Neg:
    case Op::Add:
    case Op::Sub:
    case Op::Mul:
    case Op::Fma:
    case Op::Max:
    case Op::Min:
      return true;
    default:
      return false;
  }
}

std::uint64_t combine(Op op, std::uint64_t x, std::uint64_t y, std::uint64_t z) {
  switch (op) {
    case Op::Neg:
      return field::negate(x);
    case Op::Add:
      return field::add(x, y);
    case Op::Sub:
      return field::subtract(x, y);
    case Op::Mul:
      return field::multiply(x, y);
    case Op::Fma:
      return field::add(field::multiply(x, y), z);
    case Op::Max:
      return std::max(x, y);
    case Op::Min:
      return std::min(x, y);
    default:
      return x;
  }
}

struct Shape {
  std::int64_t batch = 1, m = 1, n = 1, k = 1;
};

// Rank 0: one product; rank 1: elementwise; rank 2: out[M,N], a[M,K], b[K,N].
std::optional<Shape> product_shape(const View& out, const View& a, const View& b) {
  if (out.scattered) {  // what the threads hold together
    if (a.extents.size() != 2 || b.extents.size() != 2 || a.extents[1] != b.extents[0]) return std::nullopt;
    return Shape{1, a.extents[0], b.extents[1], a.extents[1]};
  }
  if (out.extents.size() != a.extents.size() || a.extents.size() != b.extents.size()) return std::nullopt;
  if (out.extents.size() == 2) {
    if (out.extents[0] != a.extents[0] || out.extents[1] != b.extents[1] || a.extents[1] != b.extents[0]) {
      return std::nullopt;
    }
    return Shape{1, out.extents[0], out.extents[1], a.extents[1]};
  }
  if (out.extents != a.extents || a.extents != b.extents) return std::nullopt;
  return Shape{out.size(), 1, 1, 1};
}

}  // namespace

std::uint64_t Ghost::before(const Instance& i, std::int64_t cell) const {
  const auto it = i.seen.find(cell);
  return it != i.seen.end() && it->second.accessed ? it->second.before : cells_[static_cast<std::size_t>(cell)].value;
}

std::uint64_t Ghost::after(const Instance& i, std::int64_t cell) const {
  const auto it = i.seen.find(cell);
  if (it != i.seen.end() && it->second.written) return it->second.after;
  return before(i, cell);
}

std::vector<std::uint64_t> Ghost::input_values(const Instance& i, std::size_t operand) const {
  const lower::SpecScope& spec = *code_.scopes[static_cast<std::size_t>(i.scope)].spec;
  const View& v = i.ins[operand];
  const std::uint64_t fill = field::of_double(number_attr(spec, "fill"));
  std::vector<std::uint64_t> out;
  out.reserve(v.cells.size());
  for (const auto& cells : v.cells) {
    std::uint64_t x = fill;
    for (std::size_t h = 0; h < cells.size(); ++h) {  // of several holders, one that was read
      const auto it = i.seen.find(cells[h]);
      if (h == 0 || (it != i.seen.end() && it->second.accessed)) x = before(i, cells[h]);
      if (it != i.seen.end() && it->second.accessed) break;
    }
    out.push_back(x);
  }
  return out;
}

// The values that the output must have; `difference`: that it must have changed by. nullopt: not checked.
std::optional<std::vector<std::uint64_t>> Ghost::expected(const Instance& i, bool& difference) {
  const lower::SpecScope& spec = *code_.scopes[static_cast<std::size_t>(i.scope)].spec;
  difference = false;
  for (const View& v : i.ins) {
    if (v.scattered) return std::nullopt;
  }
  const auto operand = [&](std::size_t k) -> std::vector<std::uint64_t> {
    if (std::holds_alternative<ir::Tensor>(spec.ins[k])) return input_values(i, k);
    const auto* d = std::get_if<double>(&spec.ins[k]);
    const auto* e = std::get_if<Expr>(&spec.ins[k]);
    const std::uint64_t x = d != nullptr ? field::of_double(*d) : e->is_const() ? field::of_int(e->value()) : 0;
    return std::vector<std::uint64_t>(static_cast<std::size_t>(i.out.size()), x);
  };
  for (const auto& in : spec.ins) {
    if (const auto* e = std::get_if<Expr>(&in); e != nullptr && !e->is_const()) return std::nullopt;
  }
  std::vector<std::uint64_t> want;
  switch (spec.kind) {
    case ir::SpecKind::Move:
      if (spec.ins.size() != 1) return std::nullopt;
      want = operand(0);
      break;
    case ir::SpecKind::Init:
      want.assign(static_cast<std::size_t>(i.out.size()), field::of_double(number_attr(spec, "value")));
      break;
    case ir::SpecKind::MatMul: {
      const auto shape = product_shape(i.out, i.ins[0], i.ins[1]);
      if (!shape) return std::nullopt;
      const std::vector<std::uint64_t> a = operand(0);
      const std::vector<std::uint64_t> b = operand(1);
      difference = accumulates(spec, true);
      const auto [batch, m, n, k] = *shape;
      want.assign(static_cast<std::size_t>(batch * m * n), 0);
      for (std::int64_t x = 0; x < batch; ++x) {
        for (std::int64_t col = 0; col < n; ++col) {
          for (std::int64_t row = 0; row < m; ++row) {
            const std::int64_t e = x + row + col * m;
            // Elements that nobody touched in a part of the grid are not this run's.
            if (!every_block_ && m * n * k > kExactProducts) {
              const auto& cells = i.out.cells[static_cast<std::size_t>(e)];
              const auto it = cells.empty() ? i.seen.end() : i.seen.find(cells.front());
              if (it == i.seen.end() || !it->second.accessed) continue;
            }
            std::uint64_t sum = 0;
            for (std::int64_t z = 0; z < k; ++z) {
              const auto ia = static_cast<std::size_t>(batch > 1 ? x : row + z * m);
              const auto ib = static_cast<std::size_t>(batch > 1 ? x : z + col * k);
              sum = field::add(sum, field::multiply(a[ia], b[ib]));
            }
            want[static_cast<std::size_t>(e)] = sum;
          }
        }
      }
      break;
    }
    case ir::SpecKind::UnaryPointwise:
    case ir::SpecKind::BinaryPointwise:
    case ir::SpecKind::TernaryPointwise: {
      Op op = Op::Cast;
      if (!op_from_name(text_attr(spec, "op"), op) || !algebraic(op) || !is_float(spec.outs.front().dtype)) {
        return std::nullopt;
      }
      std::vector<std::vector<std::uint64_t>> in;
      for (std::size_t k = 0; k < spec.ins.size(); ++k) {
        in.push_back(operand(k));
        if (in.back().size() != static_cast<std::size_t>(i.out.size())) return std::nullopt;
      }
      for (std::size_t e = 0; e < static_cast<std::size_t>(i.out.size()); ++e) {
        want.push_back(combine(op, in[0][e], in.size() > 1 ? in[1][e] : 0, in.size() > 2 ? in[2][e] : 0));
      }
      break;
    }
    case ir::SpecKind::Reduction: {
      Op op = Op::Cast;
      if (!op_from_name(text_attr(spec, "op"), op) || accumulates(spec, false)) return std::nullopt;
      const View& in = i.ins[0];
      const auto axis = static_cast<std::size_t>(number_attr(spec, "axis"));
      if (axis >= in.extents.size()) return std::nullopt;
      const std::vector<std::uint64_t> x = operand(0);
      std::int64_t inner = 1;
      for (std::size_t d = 0; d < axis; ++d) inner *= in.extents[d];
      const std::int64_t n = in.extents[axis];
      if (n == 0) return std::nullopt;
      const std::int64_t outer = in.size() / (inner * n);
      for (std::int64_t o = 0; o < outer; ++o) {
        for (std::int64_t r = 0; r < inner; ++r) {
          std::uint64_t v = x[static_cast<std::size_t>(o * inner * n + r)];
          for (std::int64_t z = 1; z < n; ++z)
            v = combine(op, v, x[static_cast<std::size_t>((o * n + z) * inner + r)], 0);
          want.push_back(v);
        }
      }
      break;
    }
    default:
      return std::nullopt;
  }
  return want;
}

std::optional<Diagnostic> Ghost::promise(Instance& i) {
  if (!i.readable) return std::nullopt;
  bool difference = false;
  const auto want = expected(i, difference);
  if (!want) return std::nullopt;
  ++promises_;
  if (i.out.scattered) return matched(i, *want, difference);
  if (want->size() != i.out.cells.size()) return std::nullopt;
  std::int64_t wrong = 0;
  std::int64_t first = -1;
  std::uint64_t got_first = 0;
  const bool whole_grid = scopes_[static_cast<std::size_t>(i.scope)].whole_grid;
  for (std::size_t e = 0; e < want->size(); ++e) {
    for (const std::int64_t cell : i.out.cells[e]) {
      if (whole_grid && !every_block_) {
        const auto it = i.seen.find(cell);
        if (it == i.seen.end() || !it->second.accessed) continue;
      }
      const std::uint64_t now = after(i, cell);
      const std::uint64_t got = difference ? field::subtract(now, before(i, cell)) : now;
      if (got == (*want)[e]) continue;
      ++wrong;
      if (first < 0) {
        first = static_cast<std::int64_t>(e);
        got_first = got;
      }
      break;
    }
  }
  if (wrong == 0) return std::nullopt;
  return problem(i, Code::CHECK_PROMISE, "the decomposition does not do what the spec says",
                 {"wrong: " + std::to_string(wrong) + " of " + std::to_string(want->size()) + " elements",
                  "the first: " + coordinate_text(i.out.extents, first) + ", " +
                      cell_text(i.out.cells[static_cast<std::size_t>(first)].front()),
                  "got: " + meaning(i, got_first, first, *want)});
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
  const lower::SpecScope& spec = *code_.scopes[static_cast<std::size_t>(i.scope)].spec;
  const auto& cells = i.out.cells[static_cast<std::size_t>(element)];
  const auto it = i.seen.find(cells.front());
  if (it == i.seen.end() || !it->second.written) return "nothing was written there";
  for (std::size_t e = 0; e < want.size(); ++e) {
    if (want[e] == got && static_cast<std::int64_t>(e) != element) {
      return "what belongs to " + coordinate_text(i.out.extents, static_cast<std::int64_t>(e));
    }
  }
  if (spec.kind == ir::SpecKind::MatMul) {
    const std::uint64_t right = want[static_cast<std::size_t>(element)];
    if (accumulates(spec, true)) {
      if (got == field::add(right, right)) return "the product, added twice";
      if (field::add(got, it->second.before) == right) return "the product, without what was there before";
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
  if (spec.kind == ir::SpecKind::Move && got == field::of_double(number_attr(spec, "fill"))) return "the fill";
  return "something else";
}

std::string Ghost::cell_text(std::int64_t cell) const {
  if (cell >= map_.register_first) {
    const std::int64_t r = (cell - map_.register_first) / map_.threads;
    const std::int64_t thread = (cell - map_.register_first) % map_.threads;
    for (std::size_t a = 0; a < code_.array_first.size(); ++a) {
      const lower::RegArray& array = code_.program->registers[a];
      if (r < code_.array_first[a] || r >= code_.array_first[a] + array.regs) continue;
      return array.buffer->name + ", register " + std::to_string(r - code_.array_first[a]) + " of thread " +
             std::to_string(thread);
    }
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
  for (const Instance* p = i.parent; p != nullptr; p = p->parent) {
    path += (path.empty() ? "" : ", ") + location_text(code_.scopes[static_cast<std::size_t>(p->scope)].origin);
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
