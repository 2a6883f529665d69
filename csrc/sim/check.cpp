#include "sim/check.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "sim/blocks.h"
#include "sim/ghost.h"
#include "sim/ghost_expected.h"

namespace graphene::sim {

namespace {

constexpr std::int64_t kMaxTile = 4096;
constexpr std::int64_t kAllBlocks = 8;
constexpr std::int64_t kGhostOperations = 20'000'000;

void each_division(const Expr& e, const std::function<void(const Expr&, std::int64_t)>& f) {
  if (e.is_const() || e.is_var()) return;
  const sym::Node& n = *e.node();
  if (n.op == sym::Op::FloorDiv && n.args[1].is_const()) f(n.args[0], n.args[1].value());
  for (const Expr& a : n.args) each_division(a, f);
}

void each_bound(const lower::Block& block, const std::function<void(const Expr&)>& f) {
  for (const lower::NodePtr& n : block) {
    if (const auto* loop = n->as<lower::Loop>()) {
      f(loop->stop);
      each_bound(loop->body, f);
    } else if (const auto* branch = n->as<lower::If>()) {
      f(branch->condition);
      each_bound(branch->then_body, f);
      each_bound(branch->else_body, f);
    } else if (const auto* scope = n->as<lower::SpecScope>()) {
      each_bound(scope->body, f);
    }
  }
}

// Throws SYM_OVERFLOW, as every sum and product here: sizes are anybody's numbers.
std::int64_t round_up(std::int64_t x, std::int64_t m) { return (sym::ceil_div(Expr(x), Expr(m)) * Expr(m)).value(); }

// Is the symbol a stride of some argument, and nothing's size?
bool only_a_stride(const lower::Program& program, const Expr& symbol) {
  const auto has = [&](const Expr& e) {
    const auto vars = sym::free_vars(e);
    return std::any_of(vars.begin(), vars.end(), [&](const Expr& v) { return identical(v, symbol); });
  };
  bool stride = false;
  for (const lower::MemBuffer& b : program.buffers) {
    if (b.memory != ir::Memory::GL) continue;
    const std::vector<Expr> shape = b.buffer->layout.shape().leaves();
    if (std::any_of(shape.begin(), shape.end(), has)) return false;
    for (const Expr& s : b.buffer->layout.stride().leaves()) stride = stride || identical(s, symbol);
  }
  return stride;
}

// The smallest values of strides with which no argument overlaps itself. Of a tensor's strides that are not known yet
// the last one is the innermost.
void choose_strides(const lower::Program& program, std::vector<Expr> strides, sym::Substitution& known) {
  while (!strides.empty()) {
    std::map<std::string, std::int64_t> wanted;
    for (const lower::MemBuffer& b : program.buffers) {
      if (b.memory != ir::Memory::GL) continue;
      const std::vector<Expr> shape = b.buffer->layout.shape().leaves();
      const std::vector<Expr> stride = b.buffer->layout.stride().leaves();
      std::int64_t inside = 1;
      const Expr* innermost = nullptr;
      for (std::size_t i = 0; i < stride.size(); ++i) {
        const Expr s = sym::substitute(stride[i], known);
        const Expr n = sym::substitute(shape[i], known);
        if (s.is_const() && n.is_const())
          inside = (Expr(inside) + Expr(std::max<std::int64_t>(n.value() - 1, 0)) * s).value();
        if (s.is_var()) innermost = &stride[i];
      }
      if (innermost != nullptr) {
        std::int64_t& w = wanted[innermost->var().name];
        w = std::max(w, inside);
      }
    }
    const auto next =
        std::find_if(strides.begin(), strides.end(), [&](const Expr& s) { return wanted.contains(s.var().name); });
    if (next == strides.end()) return;
    const sym::VarInfo& facts = next->var();
    const std::int64_t size = round_up(std::max(wanted[facts.name], facts.min), facts.multiple_of);
    known[next->node()] = Expr(std::min(size, facts.max));
    strides.erase(next);
  }
}

// What of the arguments takes how much is said where they alone are too many. In floating point: the sum need not fit
// in 64 bits.
void check_bytes(const Bytecode& code, std::int64_t limit_bytes) {
  double total = 0;
  std::vector<std::string> details;
  for (std::size_t i = 0; i < code.program->buffers.size(); ++i) {
    const lower::MemBuffer& b = code.program->buffers[i];
    if (b.memory != ir::Memory::GL) continue;
    const double bytes = static_cast<double>(code.buffer_elems[i]) * ir::bits(b.dtype) / 8;
    total += bytes;
    details.push_back(b.buffer->name + ": " + std::to_string(code.buffer_elems[i]) + " elements of " +
                      (ir::is_packed(b.dtype) ? std::to_string(ir::bits(b.dtype)) + " bits"
                                              : std::to_string(bytes_of(b.dtype)) + " bytes"));
  }
  if (total <= static_cast<double>(limit_bytes)) return;
  details.push_back("want: at most " + std::to_string(limit_bytes) + " bytes in all");
  fail(Code::SIM_MEMORY, "the arguments are too large to check", details,
       "pass smaller sizes, or a larger memory_bytes=");
}

}  // namespace

std::vector<std::int64_t> chosen_blocks(const Bytecode& code, std::int64_t few) {
  const auto& g = code.grid;
  std::set<std::int64_t> out;
  const bool all = g[0] * g[1] * g[2] <= few;
  const auto some = [&](std::int64_t n) {
    std::vector<std::int64_t> v;
    for (std::int64_t i = 0; i < n; ++i) {
      if (all || i == 0 || i == n / 2 || i == n - 1) v.push_back(i);
      if (!all && i == 0) i = std::max<std::int64_t>(n / 2 - 1, 0);
      if (!all && i == n / 2 && n - 2 > i) i = n - 2;
    }
    return v;
  };
  for (const std::int64_t z : some(g[2])) {
    for (const std::int64_t y : some(g[1])) {
      for (const std::int64_t x : some(g[0])) out.insert(x + g[0] * (y + g[1] * z));
    }
  }
  add_clusters(code, out);
  return {out.begin(), out.end()};
}

std::vector<std::pair<Expr, std::int64_t>> problem_sizes(const lower::Program& program,
                                                         const std::map<std::string, std::int64_t>& given) {
  std::vector<std::pair<Expr, std::int64_t>> out;
  std::map<std::string, std::int64_t> rest = given;
  sym::Substitution known;
  std::vector<Expr> strides;
  for (const Expr& symbol : program.kernel->symbols) {
    const sym::VarInfo& facts = symbol.var();
    std::int64_t size = 0;
    if (const auto it = rest.find(facts.name); it != rest.end()) {
      size = it->second;
      rest.erase(it);
      if (size < facts.min || size > facts.max || size % facts.multiple_of != 0) {
        fail(Code::SIM_ARGUMENT, "the size " + facts.name + "=" + std::to_string(size) + " breaks the symbol's facts",
             {"want: from " + std::to_string(facts.min) + " to " + std::to_string(facts.max) + ", a multiple of " +
              std::to_string(facts.multiple_of)});
      }
    } else if (facts.name == "sm_count") {
      size = kMultiprocessors;
    } else {
      std::int64_t tile = 1;
      const auto see = [&](const Expr& e) {
        each_division(e, [&](const Expr& dividend, std::int64_t divisor) {
          const auto vars = sym::free_vars(dividend);
          const bool has = std::any_of(vars.begin(), vars.end(), [&](const Expr& v) { return identical(v, symbol); });
          if (has && divisor <= kMaxTile) tile = std::max(tile, divisor);
        });
      };
      for (const Expr& e : program.grid) see(sym::expand_coords(e));
      each_bound(program.body, [&](const Expr& e) { see(sym::expand_coords(e)); });
      const std::int64_t m = facts.multiple_of;
      size = round_up(2 * tile + (m < tile ? std::max<std::int64_t>(tile * 3 / 8, 1) : 0), m);
      if (tile == 1) size = round_up(3, m);
      if (size > facts.max) size = facts.max / m * m;
      if (size < facts.min) size = round_up(facts.min, m);
    }
    if (!given.contains(facts.name) && only_a_stride(program, symbol)) {
      strides.push_back(symbol);
    } else {
      known[symbol.node()] = Expr(size);
    }
    out.emplace_back(symbol, size);
  }
  choose_strides(program, strides, known);
  for (auto& [symbol, size] : out) {
    if (const auto it = known.find(symbol.node()); it != known.end()) size = it->second.value();
  }
  if (!rest.empty()) {
    std::string names;
    for (const auto& [symbol, size] : out) names += (names.empty() ? "" : ", ") + symbol.str();
    fail(Code::SIM_ARGUMENT, "the kernel has no size " + rest.begin()->first,
         {"sizes: " + (names.empty() ? std::string("none") : names)}, "leave it out, or name one of these");
  }
  return out;
}

namespace {

// The integers in a call's arguments, by buffer.
Integers integers_of(const Bytecode& code, const std::vector<CountedVector<char>>& storage) {
  Integers out(storage.size());
  for (std::size_t i = 0; i < storage.size(); ++i) {
    const lower::MemBuffer& b = code.program->buffers[i];
    if (b.memory != ir::Memory::GL || is_float(b.dtype)) continue;
    const auto elems = static_cast<std::int64_t>(storage[i].size()) * 8 / ir::bits(b.dtype);
    for (std::int64_t e = 0; e < elems; ++e)
      out[i].push_back(decode_int(b.dtype, load_element(b.dtype, storage[i].data(), e)));
  }
  return out;
}

}  // namespace

CheckResult check(const lower::ProgramPtr& program, const std::map<std::string, std::int64_t>& sizes,
                  const CheckOptions& wanted) {
  const Budget budget(wanted.memory_bytes);
  CheckResult result;
  CompileOptions options;
  options.skip = wanted.skip;
  options.relax = wanted.relax;
  const std::uint64_t seed = wanted.seed;
  for (const auto& [symbol, size] : problem_sizes(*program, sizes)) {
    options.sizes[symbol.node()] = Expr(size);
    result.sizes.emplace_back(symbol.var().name, size);
  }
  for (const ir::ScalarParam& p : program->kernel->params) {
    if (p.var.is_var()) {
      const auto given = wanted.parameters.find(p.var.node());
      options.sizes[p.var.node()] =
          given != wanted.parameters.end() ? given->second : Expr(std::max<std::int64_t>(p.var.var().min, 1));
    }
    options.scalars.push_back(p.tensor ? encode(p.dtype, 0.5) : 0);
  }
  options.scopes = true;
  const Bytecode code = compile(program, options);
  const std::vector<std::int64_t> blocks =
      wanted.blocks.empty() ? telling_blocks(code, kAllBlocks, wanted.poll).blocks : wanted.blocks;
  for (const std::int64_t b : blocks) {
    if (b < 0 || b >= code.grid[0] * code.grid[1] * code.grid[2]) {
      fail(Code::SIM_ARGUMENT, "the grid has no block " + std::to_string(b));
    }
  }
  result.blocks = static_cast<std::int64_t>(blocks.size());

  // Integers that the kernel reads indices from keep their facts.
  std::int64_t least = 0;
  std::int64_t most = 8;
  std::int64_t step = 1;
  for (const SetCode& s : code.sets) {
    if (s.from < 0) continue;
    const sym::VarInfo& facts = s.var.var();
    step = std::lcm(step, facts.multiple_of);
    least = std::max(least, facts.min);
    most = std::min(std::max(most, facts.min + 8 * step), facts.max);
  }
  const std::int64_t first = (least + step - 1) / step;
  const std::int64_t choices = std::max<std::int64_t>(most / step - first + 1, 1);
  std::mt19937_64 random(seed);
  std::vector<CountedVector<char>> storage(program->buffers.size());
  std::vector<Argument> arguments;
  check_bytes(code, wanted.memory_bytes);
  for (std::size_t i = 0; i < program->buffers.size(); ++i) {
    const lower::MemBuffer& b = program->buffers[i];
    if (b.memory != ir::Memory::GL) continue;
    CountedVector<char> data(static_cast<std::size_t>(ir::bytes_of_elems(b.dtype, code.buffer_elems[i])));
    for (std::int64_t e = 0; e < code.buffer_elems[i]; ++e) {
      if ((e & 0xfffff) == 0xfffff && wanted.poll) wanted.poll();
      const std::uint64_t r = random();
      const double x = is_float(b.dtype)
                           ? (static_cast<double>(r % 17) - 8) / 4
                           : static_cast<double>(
                                 (first + static_cast<std::int64_t>(r % static_cast<std::uint64_t>(choices))) * step);
      store_element(b.dtype, data.data(), e, encode(b.dtype, x));
    }
    const auto at = static_cast<std::size_t>(b.argument);
    if (!is_float(b.dtype) && at < wanted.arguments.size()) {
      const Argument& given = wanted.arguments[at];
      std::copy_n(given.data, std::min(given.bytes, static_cast<std::int64_t>(data.size())), data.data());
    }
    storage[i] = std::move(data);
    if (arguments.size() <= at) arguments.resize(at + 1);
    arguments[at] = {storage[i].data(), static_cast<std::int64_t>(storage[i].size())};
  }
  const Integers integers = integers_of(code, storage);  // before anything writes them
  const bool every_block = result.blocks == code.grid[0] * code.grid[1] * code.grid[2];
  if (!wanted.promises_alone) try {
      Interpreter hazards(code, arguments, seed);
      hazards.poll = wanted.poll;
      if (every_block) {
        hazards.simulate();
      } else {
        hazards.run_blocks(blocks);
      }
      result.stats = hazards.stats();
    } catch (const Error& e) {
      if (e.error_class() != ErrorClass::Simulation) throw;
      result.problems = e.diagnostics();
      return result;
    }
  if (wanted.hazards_alone) return result;
  // The ghost run is some hundred times slower: a few blocks of a long kernel, first and last among them.
  std::vector<std::int64_t> followed = blocks;
  const auto operations = static_cast<std::int64_t>(result.stats.lane_ops);
  const std::int64_t room =
      std::max<std::int64_t>(kGhostOperations * result.blocks / std::max<std::int64_t>(operations, 1), 1);
  if (room < result.blocks) {
    std::swap(followed[1 % followed.size()], followed.back());
    followed.resize(static_cast<std::size_t>(room));
  }
  Ghost ghost(code, seed, integers);
  ghost.poll = wanted.poll;
  result.problems = ghost.check(followed);
  result.promises = ghost.promises();
  if (result.problems.empty() && std::any_of(code.scopes.begin(), code.scopes.end(), reals_decide)) {
    Ghost real(code, seed, integers, true, wanted.reference);
    real.poll = wanted.poll;
    result.problems = real.check(followed);
    result.promises += real.promises();
  }
  return result;
}

}  // namespace graphene::sim
