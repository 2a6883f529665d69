// Verifying, lowering and printing kernels, seen from Python.
#include "atoms/arch.h"
#include "base/stages.h"
#include "bind/bind.h"
#include "bind/manifest.h"
#include "emit/emit.h"
#include "lower/lowered.h"
#include "lower/memory.h"
#include "verify/verify.h"

namespace graphene::bind {

std::string architecture(py::handle arch) {
  std::string name = py::isinstance<py::str>(arch) ? printable_text(arch) : std::string();
  atoms::require_arch(name, shown(arch));
  return name;
}

void register_lower(py::module_& m) {
  py::class_<lower::Program, std::shared_ptr<lower::Program>>(m, "Program", R"(A kernel lowered for one architecture.)")
      .def_readonly("arch", &lower::Program::arch, "\"sm_90a\"")
      .def_property_readonly(
          "entry", [](const lower::Program& p) { return emit::entry_name(*p.kernel); }, "The extern \"C\" symbol.")
      .def_readonly("shared_bytes", &lower::Program::shared_bytes, "Shared memory of a block in bytes.")
      .def_readonly("block_threads", &lower::Program::block_threads, "Threads of a block.")
      .def(
          "cuda_source",
          [](const lower::Program& p) {
            const Stage stage("print");
            return emit::cuda_source(p);
          },
          "The kernel as header-free CUDA C++.")
      .def(
          "manifest",
          [](const lower::Program& p) {
            const Stage stage("manifest");
            return make_manifest(p);
          },
          "What the runtime needs for a launch.")
      .def(
          "manifest_json", [](const lower::Program& p) { return make_manifest(p).to_json(); },
          "The same as JSON text.");

  m.def("shared_limit_bytes", &lower::shared_limit_bytes, py::arg("arch"),
        "Bytes of shared memory that one block may have on an architecture; 0: unknown.");
  m.def("architecture", &architecture, py::arg("arch"), "The name again. Raises SelectError ARCH_UNKNOWN.");
  m.def(
      "lower",
      [](const std::shared_ptr<ir::Kernel>& kernel, const std::string& arch) {
        const Stage stage("lower");
        return std::const_pointer_cast<lower::Program>(lower::lower(kernel, arch, check_signals));
      },
      py::arg("kernel"), py::arg("arch"),
      "Verifies, matches and lowers. Raises every problem at once: VerifyError (VERIFY_*, LOWER_*), SelectError.");
  m.def(
      "lower_unverified",
      [](const std::shared_ptr<ir::Kernel>& kernel, const std::string& arch) {
        return std::const_pointer_cast<lower::Program>(lower::lower_unverified(kernel, arch, check_signals));
      },
      py::arg("kernel"), py::arg("arch"),
      "Lowers without the rules of `verify`: what the simulator finds where a rule fails to.");
  m.def(
      "verify",
      [](const ir::Kernel& kernel) {
        verify::Result r = verify::check(kernel);
        if (!r.problems.empty()) throw Error(std::move(r.problems));
      },
      py::arg("kernel"), "Checks the rules that hold for every architecture. Raises VerifyError with every problem.");
  m.def(
      "verify_rules",
      [] {
        py::list out;
        for (const verify::RuleInfo& r : verify::rules()) out.append(py::make_tuple(r.name, r.doc));
        return out;
      },
      "(name, what it asks) of every rule.");
}

}  // namespace graphene::bind
