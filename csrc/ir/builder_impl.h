// What the builder's source files share.
#pragma once

#include <string>
#include <vector>

#include "ir/builder.h"

namespace graphene::ir {

[[nodiscard]] bool is_identifier(const std::string& s);

template <class F>
auto Builder::located(F&& f) const {
  try {
    return f();
  } catch (const Error& e) {
    std::vector<Diagnostic> ds = e.diagnostics();
    for (Diagnostic& d : ds)
      if (!d.where.known()) d.where = here();
    throw Error(std::move(ds));
  }
}

}  // namespace graphene::ir
