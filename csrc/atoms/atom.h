// An instruction is data: one Atom per atomic spec family. Matching, verification, emission, simulation, error
// messages, pictures and docs are generic readers of it. Entries hold no functions.
//
// Strings hold Graphene's own notation; "${N/8}" substitutes a family parameter (an integer expression over it, or the
// parameter's text when the expression is a bare name).
//
// Names follow PTX. What the operands determine (the element type) follows a '/': "ld.global.v4.b32/b16" is one entry
// of the family "ld.global.v4.b32"; atom= takes either.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "atoms/text.h"
#include "ir/stmt.h"

namespace graphene::atoms {

// Spec: registers of one thread, of a meaning that whoever defines the entry says. Sync: barriers, fences, commit/wait.
enum class Kind : std::uint8_t { Move, MatMul, Unary, Binary, Ternary, Reduction, Shfl, Init, Spec, Sync };
enum class Access : std::uint8_t { Read, Write, Update };  // Update: one location, read and written ("+r")
enum class Via : std::uint8_t {
  Natural,
  Lvalue,
  Descriptor,
  TensorMap
};  // Natural: registers for RF, address otherwise
enum class Proxy : std::uint8_t { Generic, Async };
enum class Guard : std::uint8_t { Refuse, Branch, Bytes, Redirect, Clipped };  // how a partial tile is realised

[[nodiscard]] const char* name(Kind k);        // "Move", "UnaryPointwise", ..., "Sync"
[[nodiscard]] ir::SpecKind spec_kind(Kind k);  // Sync: Spec
[[nodiscard]] const char* name(Access a);
[[nodiscard]] const char* name(Guard g);

struct Numerics {
  std::string arch = {};   // "sm_80", "sm_90+"
  int group = 1;           // products summed in one rounding step
  int guard_bits = 0;      // bits kept below the largest term's ulp; -1: exact
  std::string round = {};  // "rn", "rz", "exact"; "chain": a group's products one after the other in fp32, then their
                           // sum to the running one, to nearest even each
  double ulps = 0;         // tolerance where equal bits cannot be promised; 0 = equal bits
};

struct OperandDef {
  std::string name = {};     // hole in the text: $name, $name[i]
  std::string pattern = {};  // one thread's view: "[2,2].[1,2].b16.RF", "[1,8:_,1].b16.SH", "[].fp16.RF|SH|GL",
                             // "[].fp32.RF|IMM". RF strides number the values v (none at all: row-major over all
                             // levels). GL/SH strides are required ("_" any) and v is the colexicographic coordinate.
                             // IMM: an immediate number or an integer expression is accepted too
  std::string tile = {};     // the collective's tile with named axes, colexicographic: "m16,k16"; "" for a scalar
  std::string tv = {};  // "threads;values" -> element of the tile: "(4,8):(32,1);(2,2,2):(16,8,128)"; "": "1:0;n:1"
  Access access = Access::Read;
  Via via = Via::Natural;
  std::string reg = {};  // override of the derived register packing: "r/2" = two values in a .b32, "h", "f", "d", ...
  std::vector<std::string> require = {};  // facts to prove: "align(src) % 16 == 0" (bytes)
  std::string forms = {};  // name of the set of canonical layouts it must match (descriptors, tensor maps)
  Proxy proxy = Proxy::Generic;
  std::string until = {};  // when a source may be overwritten: "now", a part of the domain ("bulk.read"); "": `done`
};

struct AttrDef {
  std::string name;
  std::vector<std::string> accepts;  // literals, "*const" (a number), "*byte" (0 to 255), "*expr" (an integer)
};

// Correlated rows of family parameters; several Params multiply.
struct Param {
  std::vector<std::string> names;
  std::vector<std::vector<std::string>> rows;
};

struct Atom {
  std::string name = {};  // follows PTX; a family's name has holes: "ld.global.${V}"
  Kind kind = Kind::Move;
  std::string arch = {};        // "sm_75+", "sm_90a" (exact), "gfx90a"
  std::string threads = "[1]";  // collective: "[32]", "[(4,2):(1,16)]"
  int converge = 1;             // threads that must arrive together
  std::vector<OperandDef> out = {}, in = {}, aux = {};
  std::vector<AttrDef> attrs = {};        // unlisted attribute: only its kind's default
  std::vector<std::string> require = {};  // facts across operands
  Guard guard = Guard::Refuse;
  // Exactly one of ptx, cxx (text.h: "$d" operand; "{$d}" all its registers in braces; "$d[i]" register i; "$attr";
  // "{?x: ...}" printed when attribute x differs from its kind's default).
  std::string ptx = {};
  std::string cxx = {};
  std::string helper = {};   // C++ text the entry needs once per kernel (a device function); part of the entry
  std::string done = "now";  // "group:cp_async", "group:wgmma", "mbarrier:bar", ...
  bool is_default = true;    // matched without being named; others only through atom= or an attribute
  std::vector<Numerics> numerics = {};
  std::vector<Param> family = {};
  std::string free = {};  // the family's parameter that a leaf binds, to the elements of its first output
  std::string doc = {}, source = {};
};

// What a spec of a kind may say: its attributes with their defaults.
struct KindAttr {
  std::string name;
  std::string type;  // enum | int | bool | expr | number
  std::string fallback;
  bool required = false;  // no default: the spec must say it (op, mode, arg, value)
  bool hint = false;      // changes no meaning: atom= implies what the named entry needs
};
[[nodiscard]] const std::vector<KindAttr>& kind_attrs(ir::SpecKind kind);

// The operations of UnaryPointwise, BinaryPointwise, TernaryPointwise, Reduction and the modes of Shfl: the vocabulary
// that entries match, in the order of the documentation. Empty for other kinds.
struct OpInfo {
  std::string name;
  std::string meaning;  // one line, over x, y, z
};
[[nodiscard]] const std::vector<OpInfo>& ops(ir::SpecKind kind);

// A static layout mode, flattened: shape and stride of its leaves, leftmost fastest.
struct FlatLayout {
  std::vector<std::int64_t> shape, stride;
  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] std::int64_t operator()(std::int64_t index) const {
    std::int64_t r = 0;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      r += index % shape[i] * stride[i];
      index /= shape[i];
    }
    return r;
  }
};

// How an operand's values sit in the registers of inline PTX: register r holds values [r*per_reg, (r+1)*per_reg), the
// first in the low bits. `constraint` is the inline-assembly letter: h 16-bit, r 32-bit, l 64-bit, f float, d double.
struct RegPacking {
  char constraint = 'r';
  int per_reg = 1;
  int regs = 0;  // 0: not registers
};

struct TypePattern {                          // of an operand
  std::vector<Layout> levels;                 // shapes per level; strides of registers number the values
  std::vector<std::vector<bool>> any_stride;  // per level and leaf: "_"
  std::vector<ir::ScalarType> dtypes;         // accepted: b16 expands to every 16-bit type
  std::string dtype_class;  // "b16", "fp16", ...: operands with the same bits class bind one type together
  std::vector<ir::Memory> memories;
  bool immediate = false;  // IMM
  [[nodiscard]] bool accepts(ir::Memory m) const;
  [[nodiscard]] bool accepts(ir::ScalarType t) const;
};

// One member of a family with every hole filled, and its strings parsed.
struct OperandInstance {
  OperandDef def;  // after substitution
  TypePattern type;
  std::vector<std::string> axes;      // tile axes, "m","k"
  std::vector<std::int64_t> extents;  // their extents
  Layout tv;                          // (thread, value) -> element of the tile, axes colexicographic
  FlatLayout tv_thread, tv_value;     // the same, for evaluation: element(t, v) = tv_thread(t) + tv_value(v)
  int values = 1;                     // per thread
  int tile_size = 1;                  // product of the extents
  std::vector<int> value_of;  // coordinate (colexicographic, modes of the levels outermost level first) -> value number
  RegPacking packing;         // where the operand may be RF and the text sees registers
  int align_bytes = 0;        // what `require` asks of the address: align(x) % n == 0; 0: nothing

  [[nodiscard]] std::int64_t element(std::int64_t t, std::int64_t v) const { return tv_thread(t) + tv_value(v); }
};
struct Instance {
  Atom atom;           // after substitution
  std::string family;  // its name up to '/'
  std::vector<OperandInstance> out, in, aux;
  Layout threads;  // of the collective: member -> linear thread, relative to the first
  int thread_count = 1;
  Text text;            // parsed ptx or cxx
  int arch_min = 0;     // "sm_75+": 75; exact architectures: 0
  bool builtin = true;  // false: from define_atom

  [[nodiscard]] const OperandInstance* operand(const std::string& name) const;  // null: none
  [[nodiscard]] bool runs_on(const std::string& arch) const;                    // "sm_90a" runs "sm_75+" and "sm_90a"
};
using InstancePtr = std::shared_ptr<const Instance>;

}  // namespace graphene::atoms
