#include "ir/arity.h"

namespace graphene::ir {

std::optional<Arity> arity(SpecKind kind) {
  switch (kind) {
    case SpecKind::Move:
      return Arity{1, 1, 1};
    case SpecKind::UnaryPointwise:
    case SpecKind::Reduction:
    case SpecKind::Shfl:
      return Arity{1, 1};
    case SpecKind::MatMul:
    case SpecKind::BinaryPointwise:
      return Arity{1, 2};
    case SpecKind::TernaryPointwise:
      return Arity{1, 3};
    case SpecKind::Init:
      return Arity{1, 0};
    case SpecKind::Spec:
    case SpecKind::Allocate:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace graphene::ir
