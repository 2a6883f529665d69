// The extension module graphene._core: one register_*(m) per layer, in the order of the layers.
#include "bind/bind.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "Graphene's C++ core. The public names are those of the package `graphene`.";
  graphene::bind::register_base(m);
  graphene::bind::register_sym(m);
  graphene::bind::register_layout(m);
  graphene::bind::register_ir(m);
  graphene::bind::register_pointwise(m);
  graphene::bind::register_ir_text(m);
  graphene::bind::register_atoms(m);
  graphene::bind::register_lower(m);
  graphene::bind::register_sim(m);
  graphene::bind::register_runtime(m);
  graphene::bind::register_torch(m);
}
