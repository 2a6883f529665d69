// The names of operations, as entries write them.
#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "sim/values.h"

namespace graphene::sim {

namespace {

constexpr std::array<std::pair<std::string_view, Op>, 55> kOps = {{
    {"cast", Op::Cast},
    {"neg", Op::Neg},
    {"abs", Op::Abs},
    {"exp", Op::Exp},
    {"exp2", Op::Exp2},
    {"log", Op::Log},
    {"log2", Op::Log2},
    {"sqrt", Op::Sqrt},
    {"rsqrt", Op::Rsqrt},
    {"rcp", Op::Rcp},
    {"sin", Op::Sin},
    {"cos", Op::Cos},
    {"tanh", Op::Tanh},
    {"erf", Op::Erf},
    {"floor", Op::Floor},
    {"ceil", Op::Ceil},
    {"round", Op::Round},
    {"trunc", Op::Trunc},
    {"not", Op::Not},
    {"add", Op::Add},
    {"sub", Op::Sub},
    {"mul", Op::Mul},
    {"div", Op::Div},
    {"max", Op::Max},
    {"min", Op::Min},
    {"and", Op::And},
    {"or", Op::Or},
    {"xor", Op::Xor},
    {"shl", Op::Shl},
    {"shr", Op::Shr},
    {"eq", Op::Eq},
    {"ne", Op::Ne},
    {"lt", Op::Lt},
    {"le", Op::Le},
    {"gt", Op::Gt},
    {"ge", Op::Ge},
    {"fma", Op::Fma},
    {"where", Op::Where},
    {"popc", Op::Popc},
    {"clz", Op::Clz},
    {"ffs", Op::Ffs},
    {"brev", Op::Brev},
    {"bitcast", Op::Bitcast},
    {"floordiv", Op::FloorDiv},
    {"mod", Op::Mod},
    {"mulhi", Op::MulHi},
    {"pow", Op::Pow},
    {"fmod", Op::Fmod},
    {"exchange", Op::Exchange},
    {"prmt", Op::Prmt},
    {"dp4a", Op::Dp4a},
    {"lop3", Op::Lop3},
    {"cas", Op::Cas},
    {"ballot", Op::Ballot},
    {"match", Op::Match},
}};

}  // namespace

bool op_from_name(std::string_view name, Op& op) {
  const auto* it = std::find_if(kOps.begin(), kOps.end(), [&](const auto& o) { return o.first == name; });
  if (it == kOps.end()) return false;
  op = it->second;
  return true;
}

}  // namespace graphene::sim
