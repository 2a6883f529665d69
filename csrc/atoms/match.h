// From a leaf of the IR to the one entry that implements it, with every operand bound to registers or element offsets.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "atoms/atom.h"
#include "atoms/forms.h"
#include "ir/constant.h"

namespace graphene::atoms {

// How one operand of a leaf is bound. Values are numbered as the entry numbers them (v of its TV layout).
struct OperandBinding {
  enum class Kind : std::uint8_t { Registers, Memory, Immediate, Expression } kind = Kind::Registers;
  ir::TensorPtr tensor;  // Registers, Memory
  ir::ScalarType dtype = ir::ScalarType::fp32;
  std::vector<int> registers;        // Registers: value v is register registers[v] of the buffer (stages included)
  std::vector<std::int64_t> deltas;  // Memory: value v lives at element tensor->offset + deltas[v], before the swizzle
  ir::Constant immediate;            // Immediate: one that the type has
  Expr expression;                   // Expression
  std::optional<FormMatch> form;     // Via::Descriptor: the canonical layout that the view has
};

// What cannot be decided before the arguments are there. Either `condition` over sizes and parameters must hold, or the
// address of argument `buffer` must be a multiple of align_bytes.
struct LaunchFact {
  int buffer = -1;  // id of the argument's tensor
  int align_bytes = 0;
  Expr condition = 1;
  std::string text;  // for the message: "align(src) % 16 == 0 of ld.global.v4.b32"
};

struct Match {
  InstancePtr instance;
  std::map<std::string, ir::ScalarType> dtypes;  // class -> what it is bound to: {"b16": fp16}
  ir::ScalarType dtype = ir::ScalarType::fp32;   // of the first output (of the first input where there is none)
  std::vector<OperandBinding> out, in, aux;
  ir::Attrs attrs;  // the spec's, defaults of the kind filled in; numbers are double, or int64_t that no double equals
  std::vector<LaunchFact> facts;
};

// NO_ATOM for a statement that an entry of other architectures would implement.
class OtherArch : public Error {
 public:
  OtherArch(Diagnostic d, std::string atom, std::string archs)
      : Error(std::move(d)), atom_(std::move(atom)), archs_(std::move(archs)) {}
  [[nodiscard]] const std::string& atom() const { return atom_; }
  [[nodiscard]] const std::string& archs() const { return archs_; }  // as entries say it: "sm_90+"

 private:
  std::string atom_, archs_;
};

// The one entry that implements a leaf. Loop counters of unrolled loops must be substituted: an index into registers
// that is not a constant is refused. Throws SelectError:
//   NO_ATOM         no entry fits; lists the nearest with want and got
//   AMBIGUOUS_ATOM  several fit (a family named where the operands do not decide)
//   ATOM_FACT       the one that fits needs a fact that does not hold or cannot be proven
//   ATOM_UNKNOWN    atom= names no entry or family
//   CONSTANT_RANGE  a constant that its type does not have
//   LOWER_FORM      a matrix in shared memory in a layout that the instruction cannot address
//   VERIFY_BARRIER  a copy that completes on an mbarrier and names none, or the other way round
//   ATOM_REGISTER   registers indexed by something that is not a constant, or held by other threads than the atom's
[[nodiscard]] Match match(const ir::SpecStmt& spec, const std::string& arch, const SourceLoc& where = {});

// A spec's attributes with its kind's defaults. ATOM_ATTR: one that the kind does not have, or a required one missing.
[[nodiscard]] ir::Attrs complete_attrs(ir::SpecKind kind, const ir::Attrs& attrs, const SourceLoc& where = {});

// A barrier, commit, wait or fence. `block_threads`: threads of the block (0: unknown). Attributes of the result:
//   barrier of the block: none; of a part of one warp: mask (relative to its first lane when it has fewer than 32
//   threads); of several whole warps: threads. `id` of the latter is the lowering's: entries print $id, $threads,
//   $mask.
[[nodiscard]] Match match_sync(const ir::SyncStmt& sync, const std::string& arch, std::int64_t block_threads,
                               const SourceLoc& where = {});

// The registry: built on first use, extended by define(). Iteration is in the order of registration.
[[nodiscard]] InstancePtr find(const std::string& name);                      // exact name; null: none
[[nodiscard]] std::vector<InstancePtr> find_family(const std::string& name);  // the entry, or all of a family
[[nodiscard]] std::vector<InstancePtr> require_family(
    const std::string& name, const SourceLoc& where = {},
    std::vector<std::string> ir = {});  // ATOM_UNKNOWN if there is none
[[nodiscard]] const std::vector<InstancePtr>& entries();
[[nodiscard]] std::vector<std::string> similar_names(const std::string& name);  // for messages, best first

// Registers an atom (a family gives several instances) after the same checks as the built-in ones. Throws SelectError
// ATOM_* and registers nothing on failure.
std::vector<InstancePtr> define(const Atom& atom);

// "%11:[2,2].[1,2].fp16.RF <- Move<<<#3:[1].block, #4:[32].thread>>>(%10:[1,8].fp32.SH)"
[[nodiscard]] std::string spec_line(const ir::SpecStmt& spec);

// The advice for a leaf that no instruction implements: what to write instead, in words.
[[nodiscard]] std::string by_smaller_specs(ir::SpecKind kind);

}  // namespace graphene::atoms
