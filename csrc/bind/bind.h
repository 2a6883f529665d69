// What the binding files share. Each layer has one file here with one register function.
#pragma once

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "base/diag.h"
#include "layout/layout.h"
#include "sym/expr.h"

namespace graphene::ir {
struct SpecStmt;
}

namespace graphene::bind {

namespace py = pybind11;

// Sets the Python error that `e` becomes: for functions that pybind11 does not wrap.
void set_python_error(const Error& e) noexcept;

// Text of the core as Python's: bytes that are not UTF-8 (a file's name may be any bytes) as Python has them in names.
py::str text_to_py(const std::string& text);

// A string as UTF-8, with what has none (a lone surrogate) as \udcNN.
std::string printable_text(py::handle text);

// What a message calls an object: its repr, as far as it is short; its type where it has none that works.
std::string shown(py::handle object);

// Raises what a signal handler raised, KeyboardInterrupt among them: what long work calls now and then.
void check_signals();

void register_base(py::module_& m);       // exceptions and the error catalogue
void register_sym(py::module_& m);        // IntExpr and its facts
void register_layout(py::module_& m);     // Layout, Swizzle, ComposedLayout, the algebra
void register_plan(py::module_& m);       // choices by algorithm: layouts, swizzles, barriers, shared memory
void register_ir(py::module_& m);         // tensors, threads, the tracing builder
void register_pointwise(py::module_& m);  // expressions and reductions on registers
void register_ir_text(py::module_& m);    // the text and JSON forms of kernels
void register_atoms(py::module_& m);      // the registry of atomic specs
void register_lower(py::module_& m);      // verifying, lowering, printing CUDA C++
void register_sim(py::module_& m);        // running on the CPU
void register_runtime(py::module_& m);    // compiling, the disk cache, launching
void register_torch(py::module_& m);      // operators on PyTorch's tensors

// The Python class graphene.IntExpr. Constants never become one: they are Python ints.
struct PyIntExpr {
  Expr e;
};

// A Python int or an IntExpr as an expression; anything else with __index__ only if `convert`. nullopt: none of them.
// Throws SYM_OVERFLOW for an int past 64 bits.
std::optional<Expr> try_expr_from_py(py::handle h, bool convert = true);
Expr expr_from_py(py::handle h);            // TypeError in place of nullopt
py::object expr_to_py(const Expr& e);       // a constant comes back as a Python int
py::object condition_to_py(const Expr& e);  // ... as a Python bool

// What is checked and filled in of a spec that is recorded or read: its attributes. Throws ATOM_ATTR.
void complete_spec(ir::SpecStmt& s);

// The name of an architecture that kernels are lowered for. Throws ARCH_UNKNOWN for anything else.
std::string architecture(py::handle arch);

IntTuple int_tuple_from_py(py::handle h);       // integers and nested tuples or lists of them
py::object int_tuple_to_py(const IntTuple& t);  // integers and nested tuples

}  // namespace graphene::bind

// Expr as an argument or result of a bound function: int or IntExpr.
template <>
struct pybind11::detail::type_caster<graphene::Expr> {
  PYBIND11_TYPE_CASTER(graphene::Expr, const_name("IntExpr | int"));
  bool load(handle src, bool convert) {
    const auto e = graphene::bind::try_expr_from_py(src, convert);
    if (e) value = *e;
    return e.has_value();
  }
  static handle cast(const graphene::Expr& e, return_value_policy, handle) {
    return graphene::bind::expr_to_py(e).release();
  }
};
