// Views and groups with the counters of unrolled loops replaced by their values.
#pragma once

#include <variant>

#include "ir/stmt.h"

namespace graphene::lower {

using sym::Substitution;

[[nodiscard]] Layout substitute(const Layout& l, const Substitution& s);
[[nodiscard]] ir::TensorPtr substitute(const ir::TensorPtr& t, const Substitution& s);
[[nodiscard]] ir::ThreadPtr substitute(const ir::ThreadPtr& t, const Substitution& s);
[[nodiscard]] ir::Attrs substitute(const ir::Attrs& attrs, const Substitution& s);
[[nodiscard]] ir::Operand substitute(const ir::Operand& o, const Substitution& s);
// Operands, groups and attributes; the body is left out.
[[nodiscard]] ir::SpecStmt substitute_head(const ir::SpecStmt& spec, const Substitution& s);

}  // namespace graphene::lower
