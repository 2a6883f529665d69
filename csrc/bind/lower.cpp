// Verifying, lowering and printing kernels, seen from Python.
#include "atoms/arch.h"
#include "base/stages.h"
#include "bind/bind.h"
#include "bind/manifest.h"
#include "bind/record.h"
#include "emit/emit.h"
#include "lower/lowered.h"
#include "lower/memory.h"
#include "verify/verify.h"

namespace graphene::bind {

namespace {

struct ArchitectureRecord {
  std::string name;
  std::int64_t shared_bytes = 0;
  int warps = 0, blocks = 0;
  std::int64_t sm_shared_bytes = 0;
  int reserved_bytes = 0, shared_unit = 0;
};

struct VerifyRule {
  std::string name, doc;
};

}  // namespace

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

  using A = ArchitectureRecord;
  register_record<A>(m, "Architecture", R"doc(An architecture, without the suffix of an exact one.

``shared_bytes``: of shared memory, what one block may have. ``warps``, ``blocks``, ``sm_shared_bytes``: what a
multiprocessor holds at a time. ``reserved_bytes``: what the system takes of each block's shared memory, which is given
out in steps of ``shared_unit`` bytes. 0 is what is not published.)doc",
                     field("name", &A::name), field("shared_bytes", &A::shared_bytes), field("warps", &A::warps),
                     field("blocks", &A::blocks), field("sm_shared_bytes", &A::sm_shared_bytes),
                     field("reserved_bytes", &A::reserved_bytes), field("shared_unit", &A::shared_unit));
  m.def(
      "find_architecture",
      [](const std::string& name) -> std::optional<A> {
        const atoms::Arch* a = atoms::find_arch(name);
        if (a == nullptr) return std::nullopt;
        return A{a->name,          a->shared_kib << 10,    a->sm.warps,
                 a->sm.blocks,     a->sm.shared_kib << 10, a->sm.reserved_bytes,
                 a->sm.shared_unit};
      },
      py::arg("name"), "The row of an architecture, with or without a suffix; None where there is none.");
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
  register_record<VerifyRule>(m, "VerifyRule", "A rule of `verify`, and what it asks.",
                              field("name", &VerifyRule::name), field("doc", &VerifyRule::doc));
  m.def(
      "verify_rules",
      [] {
        std::vector<VerifyRule> out;
        for (const verify::RuleInfo& r : verify::rules()) out.push_back({r.name, r.doc});
        return out;
      },
      "The rules of `verify`.");
}

}  // namespace graphene::bind
