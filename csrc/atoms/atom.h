// An instruction is data: one Atom per atomic spec family. Matching, verification, emission, simulation, error
// messages, pictures and docs are generic readers of it. Entries hold no functions.
//
// Strings hold Graphene's own notation; "${N/8}" substitutes a family parameter (an integer expression over it).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ir/stmt.h"

namespace graphene::atoms {

// Sync: barriers, fences, commit/wait.
enum class Kind : std::uint8_t { Move, MatMul, Unary, Binary, Ternary, Reduction, Shfl, Init, Sync };
enum class Access : std::uint8_t { Read, Write, Update };  // Update: one location, read and written ("+r")
enum class Via : std::uint8_t {
  Natural,
  Lvalue,
  Descriptor,
  TensorMap
};  // Natural: registers for RF, address otherwise
enum class Proxy : std::uint8_t { Generic, Async };
enum class Guard : std::uint8_t { Refuse, Branch, Bytes, Redirect, Clipped };  // how a partial tile is realised

struct Numerics {
  std::string arch;    // "sm_80", "sm_90+"
  int group = 1;       // products summed in one rounding step
  int guard_bits = 0;  // bits kept below the largest term's ulp; -1: exact
  std::string round;   // "rn", "rz", "exact"
  double ulps = 0;     // tolerance where equal bits cannot be promised; 0 = equal bits
};

struct OperandDef {
  std::string name;     // hole in the text: $name, $name[i]
  std::string pattern;  // one thread's view: "[2,2].[1,2].b16.RF", "[1,8:_,1].b16.SH", "[].fp16.RF|SH|GL".
                        // RF strides number the values v (none: row-major over all levels); GL/SH strides are required
                        // ("_" any)
  std::string tile;     // the collective's tile with named axes, colexicographic: "m16,k16"; "" for a scalar
  std::string tv;       // "threads;values" -> element of the tile: "(4,8):(32,1);(2,2,2):(16,8,128)"
  Access access = Access::Read;
  Via via = Via::Natural;
  std::string reg;  // override of the derived register packing: "r/2" = two values in a .b32, "h", "f", "d", ...
  std::vector<std::string> require;  // facts to prove: "align(src) % 16 == 0" (bytes)
  std::string forms;                 // name of the set of canonical layouts it must match (descriptors, tensor maps)
  Proxy proxy = Proxy::Generic;
  std::string until;  // when a source may be overwritten; default: `done`
};

struct AttrDef {
  std::string name;
  std::vector<std::string> accepts;  // literals, or "*const", "*expr"
};

// Correlated rows of family parameters; several Params multiply.
struct Param {
  std::vector<std::string> names;
  std::vector<std::vector<std::string>> rows;
};

struct Atom {
  std::string name;  // follows PTX; a family's name has holes: "ld.global.${V}"
  Kind kind = Kind::Move;
  std::string arch;             // "sm_75+", "sm_90a" (exact), "gfx90a"
  std::string threads = "[1]";  // collective: "[32]", "[(4,2):(1,16)]"
  int converge = 1;             // threads that must arrive together
  std::vector<OperandDef> out, in, aux;
  std::vector<AttrDef> attrs;        // unlisted attribute: only its kind's default
  std::vector<std::string> require;  // facts across operands
  Guard guard = Guard::Refuse;
  std::string
      ptx;  // exactly one of ptx, cxx. "$d" operand; "{$d}" braces all registers; "{?x: ...}" printed when x is present
  std::string cxx;
  std::string helper;        // C++ text the entry needs once per kernel (a device function); part of the entry
  std::string done = "now";  // "group:cp_async", "group:wgmma", "mbarrier:bar", ...
  bool is_default = true;    // matched without being named; others only through atom= or an attribute
  std::vector<Numerics> numerics;
  std::vector<Param> family;
  std::string doc, source;
};

// Attributes of each kind with their defaults: what a spec may say.
struct KindAttr {
  std::string name, type, fallback;  // type: enum | int | bool | expr | number
};
[[nodiscard]] const std::vector<KindAttr>& kind_attrs(ir::SpecKind kind);

// One member of a family with every hole filled, and its strings parsed.
struct TypePattern {                        // of an operand
  std::vector<Layout> levels;               // shapes per level; static
  std::vector<std::vector<Expr>> wildcard;  // reserved for free extents
  std::vector<ir::ScalarType>
      dtypes;               // accepted (b16 expands to every 16-bit type), same index = same binding across operands
  std::string dtype_class;  // "b16", "fp16", ...: operands with the same bits class bind one type together
  std::vector<ir::Memory> memories;
};
struct OperandInstance {
  OperandDef def;  // after substitution
  TypePattern type;
  std::vector<std::string> axes;      // tile axes, "m","k"
  std::vector<std::int64_t> extents;  // their extents
  Layout tv;                          // (thread, value) -> element of the tile, axes colexicographic
  int values = 1;                     // per thread
  Layout value_order;  // RF: coordinate over all levels (colexicographic within outer-to-inner concatenation) -> value
                       // number
};
struct Instance {
  Atom atom;  // after substitution
  std::vector<OperandInstance> out, in, aux;
  Layout threads;  // of the collective
  int thread_count = 1;
};
using InstancePtr = std::shared_ptr<const Instance>;

}  // namespace graphene::atoms
