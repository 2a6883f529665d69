// One instruction of the lowered tree as C++ statements: the atom's text with its holes filled.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "atoms/text.h"
#include "emit/expressions.h"
#include "emit/registers.h"
#include "lower/lowered.h"

namespace graphene::emit {

using Lines = std::vector<std::string>;

// Prefixes every line; appends to `out`.
void append(Lines& out, const Lines& lines, const std::string& indent = "");
[[nodiscard]] std::string join(const std::vector<std::string>& parts, const std::string& separator);

class AtomText {
 public:
  // `buffers`, `fill_rows`, `maps`: C names of those of the program.
  AtomText(const lower::Program& program, Expressions& expressions, Registers& registers,
           std::vector<std::string> buffers, std::vector<std::string> fill_rows, std::vector<std::string> maps)
      : program_(program),
        expressions_(expressions),
        registers_(registers),
        buffers_(std::move(buffers)),
        fill_rows_(std::move(fill_rows)),
        maps_(std::move(maps)) {}

  Lines statement(const lower::AtomCall& call);

 private:
  struct AsmOperand {
    std::string constraint, text;
  };
  struct Asm {
    std::vector<AsmOperand> outs, ins;
    Lines before, after;   // packing of values that do not sit in a word
    bool untyped = false;  // the instruction moves bits: .b32 takes a .f32 register
    bool flies = false;    // it goes on behind the statement, and its sums stay where products keep them
    Lines copies;          // of sums that a wait completes
  };
  struct Slot {  // one operand of the call, found by name
    const atoms::OperandInstance* def = nullptr;
    const lower::Operand* value = nullptr;
    bool is_out = false;
  };

  Slot slot(const lower::AtomCall& call, const std::string& name) const;
  std::string fill_text(const lower::AtomCall& call, Asm* ptx);
  std::string operand(const atoms::Piece& piece, const lower::AtomCall& call, Asm* ptx);
  bool present(const std::string& what, const lower::AtomCall& call) const;
  std::string attribute(const atoms::Piece& piece, const lower::AtomCall& call, Asm* ptx);
  std::string cxx_operand(const atoms::Piece& piece, const lower::AtomCall& call, const Slot& s);
  std::string ptx_operand(const atoms::Piece& piece, const lower::AtomCall& call, const Slot& s, Asm& ptx);
  std::vector<std::string> ptx_registers(const lower::RegRef& regs, const Slot& s, Asm& ptx);
  std::string single_register(const std::string& value, ir::ScalarType dtype, char constraint, const Slot& s, Asm& ptx);
  std::string packed_half(const lower::RegRef& regs, const std::vector<int>& values, const Slot& s, Asm& ptx);
  std::string packed_register(const lower::RegRef& regs, const std::vector<int>& values, const Slot& s, Asm& ptx);
  std::string add_register(const std::string& constraint, const std::string& text, const Slot& s, Asm& ptx);
  std::string add_input(Asm& ptx, const std::string& constraint, const std::string& text);
  Expr unit_of(const lower::MemRef& ref, std::int64_t delta) const;
  std::string element(const lower::MemRef& ref, std::int64_t delta);
  std::string address(const lower::MemRef& ref, std::int64_t before);
  std::string descriptor(const lower::MemRef& ref);
  std::string bytes_inside(const lower::MemRef& ref);
  std::string blocks_text(const lower::AtomCall& call, Asm& ptx);
  void completed(const lower::AtomCall& call, Asm& ptx);
  Lines asm_statement(const lower::AtomCall& call);
  Lines fill_outputs(const lower::AtomCall& call);
  bool touches_memory(const lower::AtomCall& call) const;
  bool clobbers_memory(const lower::AtomCall& call) const;

  const lower::Program& program_;
  Expressions& expressions_;
  Registers& registers_;
  std::vector<std::string> buffers_, fill_rows_, maps_;
  Expr to_ = 0;  // of a statement that is printed once for each block: its rank in the cluster
};

}  // namespace graphene::emit
