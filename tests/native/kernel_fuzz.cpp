// Mutated kernels through the whole core: what is accepted as text is verified, lowered and printed for some
// architecture, and simulated on arguments of random bytes. Each stage succeeds or refuses with an Error.
//
//   kernel_fuzz COUNT SEED FILE.gir...
#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>

#include "emit/emit.h"
#include "ir/parse.h"
#include "lower/lowered.h"
#include "mutator.h"
#include "sim/simulate.h"

namespace {

using namespace graphene;

constexpr double kBoundSeconds = 0.25;  // a kernel may run for ever: what it did until then counts
constexpr double kSlowSeconds = 20;     // between two polls, or in all: a hang
constexpr std::size_t kArgumentBytes = 1U << 16;

struct OutOfTime {};

[[noreturn]] void give_up(const std::string& why, const std::string& input) {
  std::cout << why << "\n--- input\n" << input << "\n";
  std::exit(1);
}

class Timer {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// A small value that keeps what the symbol promises, as a launch checks before it; 0 where that is none.
std::int64_t keeping_facts(const Expr& symbol, fuzz::Mutator& m) {
  const sym::VarInfo& v = symbol.var();
  std::int64_t least = std::max<std::int64_t>(v.min, 0);
  if (least > std::int64_t{1} << 40 || v.multiple_of > std::int64_t{1} << 20) return 0;
  least += static_cast<std::int64_t>(m.below(70));
  const std::int64_t value = (least + v.multiple_of - 1) / v.multiple_of * v.multiple_of;
  return value <= v.max ? value : v.max / v.multiple_of * v.multiple_of;
}

void run(const lower::ProgramPtr& program, fuzz::Mutator& m, const std::function<void()>& poll) {
  const ir::Kernel& k = *program->kernel;
  std::vector<std::vector<char>> bytes;
  std::vector<sim::Argument> arguments;
  for (std::size_t i = 0; i < k.args.size(); ++i) {
    bytes.emplace_back(kArgumentBytes);
    for (char& c : bytes.back()) c = static_cast<char>(m.rng());
  }
  for (std::vector<char>& b : bytes) arguments.push_back({b.data(), static_cast<std::int64_t>(b.size())});
  sim::SimulateOptions options;
  options.seed = m.rng();
  options.poll = poll;
  for (const Expr& s : k.symbols) options.sizes[s.node()] = Expr(keeping_facts(s, m));
  for (const ir::ScalarParam& p : k.params) {
    const std::int64_t value = p.var.is_var() ? keeping_facts(p.var, m) : static_cast<std::int64_t>(m.below(100));
    options.scalars.push_back(static_cast<std::uint64_t>(value));
    if (p.var.is_var()) options.sizes[p.var.node()] = Expr(value);
  }
  static_cast<void>(sim::simulate(program, arguments, options));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: kernel_fuzz COUNT SEED FILE.gir...\n";
    return 2;
  }
  const long count = std::stol(argv[1]);
  fuzz::Mutator m{std::mt19937_64(std::stoull(argv[2])), {}, {}};
  for (int i = 3; i < argc; ++i) {
    std::ifstream in(argv[i], std::ios::binary);
    m.seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    m.tokens.push_back(fuzz::Mutator::split(m.seeds.back()));
  }
  static const std::vector<std::string> kArchs = {"sm_70", "sm_75", "sm_80", "sm_86", "sm_90a"};
  long parsed = 0;
  long lowered = 0;
  long simulated = 0;
  for (long i = 0; i < count; ++i) {
    const std::string input = m.chance(20) ? m.next() : m.alike();
    const Timer timer;
    const auto poll = [&] {
      if (timer.seconds() > kBoundSeconds) throw OutOfTime{};
    };
    try {
      const auto kernel = std::make_shared<const ir::Kernel>(ir::parse(input));
      ++parsed;
      const lower::ProgramPtr program = lower::lower(kernel, kArchs[m.below(kArchs.size())], poll);
      ++lowered;
      if (emit::cuda_source(*program).empty()) give_up("an empty program", input);
      run(program, m, poll);
      ++simulated;
    } catch (const OutOfTime&) {
    } catch (const Error& e) {
      if (e.diagnostics().front().code == Code::INTERNAL) give_up(e.what(), input);
    } catch (const std::exception& e) {
      give_up(std::string("another exception: ") + e.what(), input);
    }
    if (timer.seconds() > kSlowSeconds) give_up("took " + std::to_string(timer.seconds()) + " s", input);
  }
  std::cout << "inputs " << count << " parsed " << parsed << " lowered " << lowered << " simulated " << simulated
            << "\n";
  return 0;
}
