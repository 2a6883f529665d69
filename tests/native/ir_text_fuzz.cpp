// Mutated IR texts and JSON documents: every input is either refused with a positioned Error or accepted, and an
// accepted one prints to a text, and a document, that reads back to an equal kernel.
//
//   ir_text_fuzz text|json COUNT SEED FILE.gir...
#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <random>
#include <sstream>

#include "ir/json.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "mutator.h"

namespace {

using graphene::Error;
using graphene::fuzz::Mutator;
namespace ir = graphene::ir;

constexpr double kSlowSeconds = 5;  // an input that takes longer is a hang

[[noreturn]] void give_up(const std::string& what, const std::string& input) {
  std::cout << "FAILED: " << what << "\n--- input\n" << input << "\n---\n";
  std::exit(1);
}

// An accepted kernel survives both forms.
void check_laws(const ir::Kernel& k, const std::string& input) {
  try {
    const std::string text = ir::print(k);
    const ir::Kernel again = ir::parse(text);
    if (!(again == k)) give_up("parse(print(k)) != k\n--- printed\n" + text, input);
    if (ir::print(again) != text) give_up("printing is not idempotent\n--- printed\n" + text, input);
    const std::string json = ir::to_json(k, {.indent = 1, .locations = true});
    const ir::Kernel from = ir::from_json(json);
    if (!(from == k)) give_up("from_json(to_json(k)) != k\n--- json\n" + json, input);
    if (ir::print(from) != text) give_up("JSON changes the text\n--- json\n" + json, input);
  } catch (const std::exception& e) {
    give_up(std::string("what was accepted does not survive: ") + e.what() + "\n--- printed\n" + ir::print(k), input);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::cerr << "usage: ir_text_fuzz text|json COUNT SEED FILE.gir...\n";
    return 2;
  }
  const bool json = std::string(argv[1]) == "json";
  const long count = std::stol(argv[2]);
  Mutator m{std::mt19937_64(std::stoull(argv[3])), {}, {}};
  for (int i = 4; i < argc; ++i) {
    std::ifstream in(argv[i], std::ios::binary);
    std::string s{std::istreambuf_iterator<char>(in), {}};
    const ir::Kernel k = ir::parse(s);
    check_laws(k, s);
    m.seeds.push_back(json ? ir::to_json(k, {.indent = 1}) : s);
    m.tokens.push_back(Mutator::split(m.seeds.back()));
  }

  std::map<std::string, long> codes;
  long accepted = 0;
  for (long i = 0; i < count; ++i) {
    const std::string input = m.next();
    const auto start = std::chrono::steady_clock::now();
    try {
      const ir::Kernel k = json ? ir::from_json(input) : ir::parse(input);
      ++accepted;
      check_laws(k, input);
    } catch (const Error& e) {
      const auto& d = e.diagnostics().front();
      ++codes[graphene::code_info(d.code).name];
      if (d.code == graphene::Code::INTERNAL) give_up(e.what(), input);
      const bool positioned = json ? d.message.find(": ") != std::string::npos || d.code == graphene::Code::IR_DEPTH ||
                                         d.code == graphene::Code::IR_NUMBER ||
                                         d.message.find("key") != std::string::npos
                                   : std::isdigit(static_cast<unsigned char>(d.message[0])) != 0;
      if (!positioned) give_up(std::string("an error without a place: ") + e.what(), input);
    } catch (const std::exception& e) {
      give_up(std::string("another exception: ") + e.what(), input);
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (took.count() > kSlowSeconds) give_up("took " + std::to_string(took.count()) + " s", input);
  }
  std::cout << "inputs " << count << " accepted " << accepted;
  for (const auto& [code, n] : codes) std::cout << " " << code << " " << n;
  std::cout << "\n";
  return 0;
}
