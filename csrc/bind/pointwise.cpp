// Pointwise expressions and reductions on registers. Python builds the tree; csrc/build decomposes it.
#include "build/pointwise.h"

#include "bind/arguments.h"
#include "bind/ir_common.h"
#include "build/reduce.h"

namespace graphene::bind {

namespace {

build::PointNode node_from_py(const py::tuple& t) {
  const auto kind = t[0].cast<std::string>();
  build::PointNode n;
  if (kind == "tensor") {
    n.kind = build::PointNode::Kind::Tensor;
    n.tensor = tensor_from_py(t[1], "an operand");
  } else if (kind == "number") {
    const ir::Constant c = constant_from_py(t[1]);
    if (const auto* i = std::get_if<std::int64_t>(&c)) {
      n.kind = build::PointNode::Kind::Integer;
      n.integer = *i;
    } else {
      n.number = std::get<double>(c);
    }
  } else if (kind == "integer") {
    n.kind = build::PointNode::Kind::Integer;
    n.integer = PyBool_Check(t[1].ptr()) ? Expr(t[1].ptr() == Py_True ? 1 : 0) : expr_from_py(t[1]);
  } else {
    n.kind = build::PointNode::Kind::Op;
    const auto spec = ir::spec_kind_from_name(kind);
    if (!spec) throw py::value_error("no spec is called '" + kind + "'");
    n.spec = *spec;
    n.op = t[1].cast<std::string>();
    n.args = t[2].cast<std::vector<int>>();
    if (!t[3].is_none()) n.to = t[3].cast<const DType&>().type;
    if (py::isinstance<py::dict>(t[4])) n.attrs = attrs_from_py(t[4].cast<py::dict>());
  }
  return n;
}

template <class F>
auto located(F&& f) {
  try {
    return f();
  } catch (const Error& e) {
    std::vector<Diagnostic> ds = e.diagnostics();
    for (Diagnostic& d : ds) {
      if (!d.where.known()) d.where = python_location();
    }
    throw Error(std::move(ds));
  }
}

}  // namespace

void register_pointwise(py::module_& m) {
  m.def("record_pointwise", [](const py::object& dst, const py::list& nodes) {
    std::vector<build::PointNode> list;
    for (const py::handle n : nodes) list.push_back(node_from_py(n.cast<py::tuple>()));
    ir::Builder& b = ir::Builder::require_active("an assignment to registers");
    located([&] { build::pointwise(b, tensor_from_py(dst, "the destination"), list); });
  });
  m.def("expression_type", [](const py::list& nodes) -> py::object {
    ir::Builder& b = ir::Builder::require_active("an expression on registers");
    std::vector<build::PointNode> list;
    for (const py::handle n : nodes) list.push_back(node_from_py(n.cast<py::tuple>()));
    const std::optional<ir::ScalarType> type = located([&] { return build::type_of(b, list); });
    return type ? py::cast(DType{*type}) : py::none();
  });
  m.def("fragment_coordinates", [](const ir::Tensor& t) {
    py::list out;
    for (const Expr& e : build::coordinates(t)) out.append(expr_to_py(e));
    return py::tuple(out);
  });
  m.def("fragment_valid", [](const ir::Tensor& t) { return condition_to_py(build::valid(t)); });
  m.def("reduced_fragment", [](const py::object& t, const Arg<"axis", int>& axis, const Arg<"name", std::string>& name,
                               const py::object& dtype, const Arg<"lanes", bool>& lanes) {
    ir::Builder& b = ir::Builder::require_active("reduced()");
    const ir::TensorPtr x = tensor_from_py(t, "a fragment");
    return located([&] {
      return tensor_to_py(build::reduced(b, x, axis, name, dtype.is_none() ? x->dtype : dtype_from_py(dtype), lanes));
    });
  });
  m.def("record_allreduce", [](const Arg<"op", std::string>& op, const py::object& x, const py::object& on) {
    ir::Builder& b = ir::Builder::require_active("gr.allreduce()");
    const ir::ThreadPtr group = threads_from_py(on, "on=");
    if (!group) throw py::type_error("allreduce needs the threads that take part: on=");
    located([&] { build::allreduce(b, op, tensor_from_py(x, "a private register"), group); });
  });
}

}  // namespace graphene::bind
