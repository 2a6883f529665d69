// The vocabularies of specs: attributes of each kind, operations, and their names.
#include "atoms/atom.h"

namespace graphene::atoms {

const char* name(Kind k) {
  static constexpr const char* kNames[] = {
      "Move", "MatMul", "UnaryPointwise", "BinaryPointwise", "TernaryPointwise", "Reduction", "Shfl", "Init",
      "Spec", "Sync"};
  return kNames[static_cast<std::size_t>(k)];
}

ir::SpecKind spec_kind(Kind k) {
  using ir::SpecKind;
  static constexpr SpecKind kKinds[] = {SpecKind::Move,
                                        SpecKind::MatMul,
                                        SpecKind::UnaryPointwise,
                                        SpecKind::BinaryPointwise,
                                        SpecKind::TernaryPointwise,
                                        SpecKind::Reduction,
                                        SpecKind::Shfl,
                                        SpecKind::Init,
                                        SpecKind::Spec,
                                        SpecKind::Spec};
  return kKinds[static_cast<std::size_t>(k)];
}

const char* name(Access a) {
  static constexpr const char* kNames[] = {"read", "write", "update"};
  return kNames[static_cast<std::size_t>(a)];
}

const char* name(Guard g) {
  static constexpr const char* kNames[] = {"refuse", "branch", "bytes", "redirect", "clipped"};
  return kNames[static_cast<std::size_t>(g)];
}

const std::vector<KindAttr>& kind_attrs(ir::SpecKind kind) {
  using ir::SpecKind;
  static const std::vector<KindAttr> none;
  static constexpr bool kOptional = false;
  static constexpr bool kRequired = true;
  static constexpr bool kHint = true;
  static const std::vector<KindAttr> move = {{"cache", "enum", "default", kOptional, kHint},
                                             {"bulk", "enum", "none", kOptional, kHint},
                                             {"evict", "enum", "default", kOptional, kHint},
                                             {"prefetch", "enum", "none", kOptional, kHint},
                                             {"combine", "enum", "none"},
                                             {"atomic", "enum", "none"},
                                             {"fill", "number", "0"}};
  static const std::vector<KindAttr> matmul = {{"accumulate", "bool", "true"},
                                               {"round", "enum", "rn"},
                                               {"ftz", "bool", "false", kOptional, kHint},
                                               {"saturate", "bool", "false"}};
  static const std::vector<KindAttr> unary = {{"op", "enum", "", kRequired},
                                              {"round", "enum", "default", kOptional, kHint},
                                              {"ftz", "bool", "false", kOptional, kHint},
                                              {"accuracy", "enum", "default", kOptional, kHint}};
  static const std::vector<KindAttr> binary = {{"op", "enum", "", kRequired},
                                               {"round", "enum", "rn"},
                                               {"ftz", "bool", "false", kOptional, kHint},
                                               {"accuracy", "enum", "default", kOptional, kHint}};
  static const std::vector<KindAttr> ternary = {{"op", "enum", "", kRequired},
                                                {"round", "enum", "rn"},
                                                {"ftz", "bool", "false", kOptional, kHint},
                                                {"table", "int", "0"}};
  static const std::vector<KindAttr> reduction = {
      {"op", "enum", "", kRequired}, {"axis", "int", "", kRequired}, {"accumulate", "bool", "false"}};
  static const std::vector<KindAttr> shfl = {{"mode", "enum", "", kRequired}, {"arg", "expr", "", kRequired}};
  static const std::vector<KindAttr> init = {{"value", "number", "", kRequired}};
  switch (kind) {
    case SpecKind::Move:
      return move;
    case SpecKind::MatMul:
      return matmul;
    case SpecKind::UnaryPointwise:
      return unary;
    case SpecKind::BinaryPointwise:
      return binary;
    case SpecKind::TernaryPointwise:
      return ternary;
    case SpecKind::Reduction:
      return reduction;
    case SpecKind::Shfl:
      return shfl;
    case SpecKind::Init:
      return init;
    case SpecKind::Spec:
    case SpecKind::Allocate:
      break;
  }
  return none;
}

const std::vector<OpInfo>& ops(ir::SpecKind kind) {
  using ir::SpecKind;
  static const std::vector<OpInfo> none;
  static const std::vector<OpInfo> unary = {
      {"cast", "x in the output's type; float to integer truncates, to pred tests x != 0"},
      {"neg", "-x"},
      {"abs", "|x|"},
      {"exp", "e to the x"},
      {"exp2", "2 to the x"},
      {"log", "natural logarithm of x"},
      {"log2", "logarithm of x to base 2"},
      {"sqrt", "square root of x"},
      {"rsqrt", "1 / sqrt(x)"},
      {"rcp", "1 / x"},
      {"sin", "sine of x in radians"},
      {"cos", "cosine of x in radians"},
      {"tanh", "hyperbolic tangent of x"},
      {"erf", "error function of x"},
      {"floor", "largest integer not above x"},
      {"ceil", "smallest integer not below x"},
      {"round", "nearest integer, ties to even"},
      {"trunc", "x without its fraction"},
      {"not", "every bit inverted; of pred: logical not"},
      {"popc", "the number of bits of x that are set"},
      {"clz", "the number of zero bits above the highest that is set"},
      {"ffs", "the number of the lowest bit that is set, from 1; 0 where none is"},
      {"brev", "the bits of x in reverse order"},
      {"bitcast", "x's bits as the output's type; a word as several smaller elements, or the reverse"}};
  static const std::vector<OpInfo> binary = {{"add", "x + y"},
                                             {"sub", "x - y"},
                                             {"mul", "x * y"},
                                             {"div", "x / y; integers truncate toward zero"},
                                             {"max", "the larger one; a NaN loses to a number"},
                                             {"min", "the smaller one; a NaN loses to a number"},
                                             {"and", "bitwise; of pred: logical"},
                                             {"or", "bitwise; of pred: logical"},
                                             {"xor", "bitwise; of pred: logical"},
                                             {"shl", "x shifted left by y bits"},
                                             {"shr", "x shifted right by y bits, arithmetically where signed"},
                                             {"floordiv", "x / y of integers, rounded down; 0 where y is 0"},
                                             {"mod", "x - y * floor(x / y) of integers; 0 where y is 0"},
                                             {"mulhi", "the upper half of the product of two integers"},
                                             {"pow", "x to the y"},
                                             {"fmod", "x - y * trunc(x / y) of floats, exactly"},
                                             {"eq", "pred: x == y"},
                                             {"ne", "pred: x != y"},
                                             {"lt", "pred: x < y"},
                                             {"le", "pred: x <= y"},
                                             {"gt", "pred: x > y"},
                                             {"ge", "pred: x >= y"}};
  static const std::vector<OpInfo> ternary = {{"fma", "x * y + z, rounded once"},
                                              {"where", "y where the pred x holds, else z"},
                                              {"prmt", "the bytes of x and y that z's four nibbles name"},
                                              {"dp4a", "the four bytes of x times those of y, added to z"},
                                              {"lop3", "each bit is bit 4 x + 2 y + z of the table"}};
  static const std::vector<OpInfo> reduction = {{"add", "sum"},
                                                {"mul", "product"},
                                                {"max", "largest"},
                                                {"min", "smallest"},
                                                {"and", "bitwise"},
                                                {"or", "bitwise"},
                                                {"xor", "bitwise"},
                                                {"ballot", "u32: bit i says whether x holds in lane i of the warp"},
                                                {"match", "u32: bit i says whether lane i of the warp has the same x"}};
  static const std::vector<OpInfo> shfl = {{"idx", "from lane arg"},
                                           {"up", "from lane - arg; own value where there is none"},
                                           {"down", "from lane + arg; own value where there is none"},
                                           {"bfly", "from lane ^ arg"}};
  switch (kind) {
    case SpecKind::UnaryPointwise:
      return unary;
    case SpecKind::BinaryPointwise:
      return binary;
    case SpecKind::TernaryPointwise:
      return ternary;
    case SpecKind::Reduction:
      return reduction;
    case SpecKind::Shfl:
      return shfl;
    default:
      return none;
  }
}

}  // namespace graphene::atoms
