// What the bindings of the IR share: conversions between Python values and the structs of csrc/ir.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bind/bind.h"
#include "ir/builder.h"
#include "ir/constant.h"
#include "ir/stmt.h"

namespace graphene::bind {

// The types, such as graphene.fp16; the memories, such as graphene.GL.
struct DType {
  ir::ScalarType type;
};
struct MemoryObject {
  ir::Memory memory;
};

struct Elected {  // one thread of a group, for gr.only
  ir::ThreadPtr group;
};

// pybind11 holds mutable pointers; nothing that Python can reach changes a tensor.
py::object tensor_to_py(const ir::TensorPtr& t);
py::object threads_to_py(const ir::ThreadPtr& t);
ir::TensorPtr tensor_from_py(py::handle h, const char* what);
ir::ThreadPtr threads_from_py(py::handle h, const char* what);  // null for None

// A Layout or its text; a size; a list of sizes, row-major for data and column-major for threads and reshapes.
Layout data_layout_from_py(py::handle h);
Layout column_layout_from_py(py::handle h);
layout::Tiler sizes_from_py(py::handle h);  // one entry per dimension: a size, a Layout or None
std::vector<ir::IndexArg> index_from_py(py::handle h, const std::vector<Layout>& levels);
// What is not an integer, or none of 32 bits, is refused by the name of the argument.
std::optional<int> optional_int_from_py(py::handle h, const char* what);  // nothing for None
std::vector<Expr> exprs_from_py(const py::args& args);
ir::ScalarType dtype_from_py(py::handle h);
ir::Memory memory_from_py(py::handle h);
ir::AttrValue attr_from_py(py::handle h);
// A number as the IR holds it: an integer that no double equals stays one. CONSTANT_RANGE: past 64 bits.
ir::Constant constant_from_py(py::handle h);
ir::Attrs attrs_from_py(const py::dict& d);

// The first frame outside of the package, as a location.
SourceLoc python_location();
void set_package_directory(std::string directory);
// Names for the modes of `indices()`, read off the assignment that is being executed; "" where there is none.
std::vector<std::string> assigned_names(const std::vector<std::vector<Expr>>& coords);

void register_ir_values(py::module_& m);   // types, Tensor, ThreadTensor
void register_ir_builder(py::module_& m);  // Builder, specs, control flow, KernelIR

}  // namespace graphene::bind
