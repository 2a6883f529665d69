// The text and JSON forms of kernels, seen from Python.
#include "bind/arguments.h"
#include "bind/bind.h"
#include "ir/json.h"
#include "ir/parse.h"
#include "ir/print.h"

namespace graphene::bind {

void register_ir_text(py::module_& m) {
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
