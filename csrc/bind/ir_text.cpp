// The text and JSON forms of kernels, seen from Python.
#include "bind/arguments.h"
#include "bind/bind.h"
#include "bind/record.h"
#include "ir/json.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "ir/statements.h"

namespace graphene::bind {

namespace {

struct NamedTensorRecord {
  std::string name, memory, dtype;
};
struct StatementRecord {
  std::string kind;
  int id = 0;
  std::string what, op, atom;
  py::tuple outs = py::tuple(), ins = py::tuple(), operands = py::tuple();
  std::string text, named, where;
  py::tuple body = py::tuple(), otherwise = py::tuple();
};

py::tuple named_tensors(const std::vector<ir::TensorPtr>& tensors) {
  py::list out;
  for (const ir::TensorPtr& t : tensors)
    out.append(NamedTensorRecord{t->buffer->name, ir::name(t->memory()), ir::name(t->dtype)});
  return py::tuple(out);
}

py::tuple statement_records(const std::vector<ir::StatementView>& views) {
  py::list out;
  for (const ir::StatementView& v : views) {
    out.append(StatementRecord{v.kind, v.id, v.what, v.op, v.atom, named_tensors(v.outs), named_tensors(v.ins),
                               py::tuple(py::cast(v.operands)), v.text, v.named, v.loc.str(), statement_records(v.body),
                               statement_records(v.otherwise)});
  }
  return py::tuple(out);
}

void bind_statements(py::module_& m) {
  using T = NamedTensorRecord;
  register_record<T>(m, "StatementTensor", R"doc(A tensor that a statement names: that of its buffer, if it is a view.

``name``: the buffer's. ``memory``: "GL", "SH", "DSM" or "RF". ``dtype``: the name of the type.)doc",
                     field("name", &T::name), field("memory", &T::memory), field("dtype", &T::dtype));
  using S = StatementRecord;
  register_record<S>(m, "Statement",
                     R"doc(A statement of a kernel: ``kernel.statements()`` lists them in textual order.

``kind``: "spec", "sync", "for", "if", "only", "exit_if", "allocate", "view", "threads", "indices", "scalar", "assign",
"index", as in the JSON form. ``id``: its number in the kernel, as in traces. ``what``: of a spec its kind ("Move"), of
a synchronising statement its operation ("barrier"). ``op``: what a pointwise spec or a reduction computes ("max").
``atom``: the instruction that it names. ``outs``, ``ins``: tensors that it writes or makes, and reads or waits for.
``operands``: of a spec, what stands in its parentheses, with names. ``text``: its line of the IR. ``named``: the same
with the names of what it computes with; views keep numbers. ``where``: the Python ``file:line``. ``body``: the statements in it,
``otherwise``: those of its ``else``.)doc",
                     field("kind", &S::kind), field("id", &S::id), field("what", &S::what), field("op", &S::op),
                     field("atom", &S::atom), field("outs", &S::outs), field("ins", &S::ins),
                     field("operands", &S::operands), field("text", &S::text), field("named", &S::named),
                     field("where", &S::where), field("body", &S::body), field("otherwise", &S::otherwise));
  m.def(
      "ir_statements", [](const ir::Kernel& kernel) { return statement_records(ir::statements(kernel)); },
      py::arg("kernel"), "The statements of a kernel, in textual order.");
}

}  // namespace

void register_ir_text(py::module_& m) {
  bind_statements(m);
  m.def(
      "ir_print", [](const ir::Kernel& kernel) { return ir::print(kernel); }, py::arg("kernel"),
      "The kernel as text; ir_parse reads it back to an equal kernel.");
  m.def(
      "ir_parse",
      [](const Arg<"text", std::string>& text) {
        return std::make_shared<ir::Kernel>(ir::parse(text.value, &complete_spec));
      },
      py::arg("text"), "Reads the text form. Raises VerifyError IR_* with line and column.");
  m.def(
      "ir_to_json",
      [](const ir::Kernel& kernel, const Arg<"indent", int>& indent, const Arg<"locations", bool>& locations) {
        return ir::to_json(kernel, {.indent = indent, .locations = locations});
      },
      py::arg("kernel"), py::arg("indent") = -1, py::arg("locations") = false, "The kernel as JSON.");
  m.def(
      "ir_from_json",
      [](const Arg<"text", std::string>& text) {
        return std::make_shared<ir::Kernel>(ir::from_json(text.value, &complete_spec));
      },
      py::arg("text"), "Reads the JSON form. Raises VerifyError IR_JSON_* with line and column, or a JSON pointer.");
  m.def(
      "ir_equal", [](const ir::Kernel& a, const ir::Kernel& b) { return a == b; }, py::arg("a"), py::arg("b"),
      "Structural equality, source locations apart.");
}

}  // namespace graphene::bind
