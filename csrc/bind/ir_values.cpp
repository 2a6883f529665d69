#include "bind/arguments.h"
#include "bind/ir_common.h"
#include "ir/barriers.h"
#include "ir/levels.h"

namespace graphene::bind {

using ir::Builder;
using ir::Tensor;
using ir::TensorPtr;
using ir::ThreadOp;
using ir::ThreadPtr;
using ir::ThreadTensor;
using ir::ViewOp;

namespace {

using TensorRef = std::shared_ptr<Tensor>;
using ThreadRef = std::shared_ptr<ThreadTensor>;

// A view of a tensor of the kernel that is being built becomes a statement of it.
py::object view(const TensorRef& source, ViewOp op, const std::function<void(ir::ViewStmt&)>& fill,
                const std::function<Tensor(const ir::ViewStmt&)>& make) {
  ir::ViewStmt v;
  v.source = source;
  v.op = op;
  fill(v);
  Builder* b = Builder::active();
  if (b != nullptr && b->owns(v.source)) return tensor_to_py(b->view(std::move(v)));
  return tensor_to_py(std::make_shared<const Tensor>(make(v)));
}

py::object thread_view(const ThreadRef& source, ThreadOp op, const std::function<void(ir::ThreadStmt&)>& fill,
                       const std::function<ThreadTensor(const ir::ThreadStmt&)>& make) {
  ir::ThreadStmt s;
  s.source = source;
  s.op = op;
  fill(s);
  Builder* b = Builder::active();
  if (b != nullptr && b->owns(s.source)) return threads_to_py(b->thread_view(std::move(s)));
  return threads_to_py(std::make_shared<const ThreadTensor>(make(s)));
}

py::tuple layouts(const std::vector<Layout>& levels) {
  py::tuple out(levels.size());
  for (std::size_t i = 0; i < levels.size(); ++i) out[i] = py::cast(levels[i]);
  return out;
}

py::tuple exprs(const std::vector<Expr>& es) {
  py::tuple out(es.size());
  for (std::size_t i = 0; i < es.size(); ++i) out[i] = expr_to_py(es[i]);
  return out;
}

// One level: a tuple over its modes. Several: a tuple over the levels, each a scalar (rank 1) or a tuple.
py::object coordinates(const std::vector<std::vector<Expr>>& coords) {
  if (coords.size() == 1) return exprs(coords[0]);
  py::tuple out(coords.size());
  for (std::size_t i = 0; i < coords.size(); ++i)
    out[i] = coords[i].size() == 1 ? expr_to_py(coords[i][0]) : py::object(exprs(coords[i]));
  return out;
}

py::object thread_indices(const ThreadRef& t, const py::object& names) {
  Builder* b = Builder::active();
  if (b == nullptr || !b->owns(ThreadPtr(t))) return coordinates(t->indices());
  std::vector<std::string> given;
  if (names.is_none()) {
    std::vector<std::vector<Expr>> modes;
    for (const Layout& l : t->levels) modes.emplace_back(static_cast<std::size_t>(l.rank()));
    given = assigned_names(modes);
  } else {
    given = value_from_py<std::vector<std::string>>(names, "names");
  }
  return coordinates(b->indices(t, given));
}

std::string tensor_str(const Tensor& t) {
  if (t.id >= 0) return "%" + std::to_string(t.id) + ":" + t.type_str();
  const bool declared = t.buffer->role == ir::Role::Free && t.offset.is_const(0) && t.levels.size() == 1 &&
                        identical(t.levels[0], ir::level_of(ir::modes_of(t.buffer->layout)));
  return (declared && !t.buffer->name.empty() ? "%" + t.buffer->name + ":" : "") + t.type_str();
}

std::string threads_str(const ThreadTensor& t) {
  return (t.id >= 0 ? "#" + std::to_string(t.id) + ":" : "") + t.type_str();
}

void bind_types(py::module_& m) {
  py::class_<DType> d(m, "DType",
                      "A scalar type: gr.fp16, gr.bf16, gr.fp32, gr.tf32, gr.i32, ...; compared by identity.");
  d.attr("__module__") = "graphene";
  d.def_property_readonly(
      "name", [](const DType& t) { return std::string(ir::name(t.type)); }, "Its name in the IR, such as \"fp16\".");
  d.def_property_readonly(
      "bits", [](const DType& t) { return ir::bits(t.type); }, "Bits of one element in memory (pred: 8).");
  d.def_property_readonly(
      "array_name", [](const DType& t) { return std::string(ir::info(t.type).array); },
      "The name of its arrays' type in NumPy and PyTorch, such as \"float16\" (tf32: \"float32\"); \"\" where there "
      "are no "
      "arrays of it.");
  d.def_property_readonly(
      "in_numpy", [](const DType& t) { return ir::info(t.type).in_numpy(); }, "Whether NumPy has a type of that name.");
  d.def("__str__", [](const DType& t) { return std::string(ir::name(t.type)); });
  d.def("__repr__", [](const DType& t) { return std::string("gr.") + ir::name(t.type); });
  d.def("__hash__", [](const DType& t) { return static_cast<int>(t.type); });
  d.def(
      "__eq__", [](const DType& a, const DType& b) { return a.type == b.type; }, py::is_operator());
  d.def("__reduce__", [](const DType& t) {
    return py::make_tuple(py::module_::import("graphene._core").attr("dtype"), py::make_tuple(ir::name(t.type)));
  });
  m.def(
      "dtype",
      [](const std::string& name) {
        const auto t = ir::scalar_type_from_name(name);
        if (!t) throw py::value_error("no scalar type is called '" + name + "'");
        return DType{*t};
      },
      py::arg("name"));
  m.def(
      "dtype_of_array",
      [](const std::string& name) -> std::optional<DType> {
        const Scalar* s = find_array_scalar(name);
        if (s == nullptr) return std::nullopt;
        return DType{*ir::scalar_type_from_name(s->name)};
      },
      py::arg("name"),
      "The type of the elements of arrays whose type NumPy or PyTorch calls so; None where there is none.");

  py::class_<MemoryObject> mem(
      m, "Memory",
      "Where a tensor lives: gr.GL global, gr.SH shared by a block, gr.RF registers, gr.DSM shared "
      "memory of another block of the cluster.");
  mem.attr("__module__") = "graphene";
  mem.def_property_readonly(
      "name", [](const MemoryObject& o) { return std::string(ir::name(o.memory)); },
      "\"GL\", \"SH\", \"RF\" or \"DSM\".");
  mem.def("__str__", [](const MemoryObject& o) { return std::string(ir::name(o.memory)); });
  mem.def("__repr__", [](const MemoryObject& o) { return std::string("gr.") + ir::name(o.memory); });
  mem.def("__hash__", [](const MemoryObject& o) { return static_cast<int>(o.memory); });
  mem.def(
      "__eq__", [](const MemoryObject& a, const MemoryObject& b) { return a.memory == b.memory; }, py::is_operator());
  mem.def("__reduce__", [](const MemoryObject& o) {
    return py::make_tuple(py::module_::import("graphene._core").attr("memory"), py::make_tuple(ir::name(o.memory)));
  });
  m.def(
      "memory",
      [](const std::string& name) {
        const auto k = ir::memory_from_name(name);
        if (!k) throw py::value_error("no memory is called '" + name + "'");
        return MemoryObject{*k};
      },
      py::arg("name"));
}

void bind_tensor(py::module_& m) {
  py::class_<Tensor, TensorRef> c(m, "Tensor", R"doc(A data tensor: a view of a buffer with one layout per tiling level.

Views never move data: ``tile``, indexing, ``T``, ``permute``, ``reshape``, ``window``, ``of`` and ``values`` return new tensors.
Offsets and strides count elements of the buffer. ``str(t)`` is its type as in the IR's text (paper section 3).)doc");
  c.attr("__module__") = "graphene";
  c.def(
      "tile",
      [](const TensorRef& t, const py::object& sizes) {
        return view(
            t, ViewOp::Tile, [&](ir::ViewStmt& v) { v.tiler = sizes_from_py(sizes); },
            [](const ir::ViewStmt& v) { return ir::tile(*v.source, v.tiler); });
      },
      py::arg("sizes"),
      R"doc(Cuts the outermost level into tiles (paper 3.3, Fig. 4): ``[4,8].tile([2,4])`` is ``[2,2].[2,4]``.

``sizes``: one entry per dimension. A size takes neighbours; ``gr.Layout(2, 2)`` takes every other element; None keeps the
dimension whole. The elements of a level are the tiles of the next; a fragment's sizes count its logical elements. A size
that does not divide rounds the number of tiles up: accesses past the end are predicated.

Raises LayoutError TENSOR_TILE.)doc");
  c.def(
      "__getitem__",
      [](const TensorRef& t, const py::object& index) {
        return view(
            t, ViewOp::Index, [&](ir::ViewStmt& v) { v.index = index_from_py(index, t->levels); },
            [](const ir::ViewStmt& v) { return ir::index(*v.source, v.index); });
      },
      py::arg("index"),
      R"doc(Indexes the outermost level, one entry per mode: an integer, a symbolic integer, ``start:stop`` or ``:``.

A hierarchical mode takes a colexicographic index or a tuple, as in ``C[0, (1, 1)]``. Indices do not wrap around. A tile
index past the end is an empty tile. Raises LayoutError TENSOR_INDEX.)doc");
  c.def_property_readonly(
      "T",
      [](const TensorRef& t) {
        return view(
            t, ViewOp::Transpose, [](ir::ViewStmt&) {}, [](const ir::ViewStmt& v) { return ir::transpose(*v.source); });
      },
      "The two modes of every level swapped. Raises LayoutError TENSOR_RANK for other ranks.");
  c.def(
      "permute",
      [](const TensorRef& t, const py::args& order) {
        return view(
            t, ViewOp::Permute,
            [&](ir::ViewStmt& v) {
              const bool one = order.size() == 1 && py::isinstance<py::sequence>(order[0]);
              for (const py::handle o : one ? py::object(order[0]) : py::object(order))
                v.order.push_back(value_from_py<int>(o, "the number of a mode"));
            },
            [](const ir::ViewStmt& v) { return ir::permute(*v.source, v.order); });
      },
      "The modes of every level in another order, as NumPy's transpose. Raises LayoutError TENSOR_RANK.");
  c.def(
      "reshape",
      [](const TensorRef& t, const Arg<"level", int>& level, const py::object& shape) {
        return view(
            t, ViewOp::Reshape,
            [&](ir::ViewStmt& v) {
              v.level = level;
              v.shape = column_layout_from_py(shape);
            },
            [](const ir::ViewStmt& v) { return ir::reshape(*v.source, v.level, v.shape); });
      },
      py::arg("level"), py::arg("shape"),
      "Arranges a level's elements in another shape: the level composed with a Layout (a list is column-major). Raises "
      "LayoutError TENSOR_RESHAPE unless the number of elements stays.");
  c.def(
      "window",
      [](const TensorRef& t, const py::object& start, const py::object& size) {
        return view(
            t, ViewOp::Window,
            [&](ir::ViewStmt& v) {
              v.index = {{ir::IndexArg::Kind::Slice, expr_from_py(start), expr_from_py(size)}};
            },
            [](const ir::ViewStmt& v) { return ir::window(*v.source, v.index[0].at, v.index[0].stop); });
      },
      py::arg("start"), py::arg("size"),
      "`size` elements of mode 0 of the outermost level from `start` on; both may be known at run time only. Raises "
      "LayoutError TENSOR_WINDOW.");
  c.def(
      "of",
      [](const TensorRef& t, const py::object& rank) {
        return view(
            t, ViewOp::Of,
            [&](ir::ViewStmt& v) {
              v.index = {{ir::IndexArg::Kind::At, expr_from_py(rank), {}}};
            },
            [](const ir::ViewStmt& v) { return ir::of(*v.source, v.index[0].at); });
      },
      py::arg("rank"),
      R"doc(Of a tensor in shared memory: the same place in block number ``rank`` of the cluster (distributed shared memory).

``rank``: an integer, or a symbolic one that is proven to be from 0 to the cluster's size - 1. Threads load and store
what it names; a barrier of the cluster stands before the first access and behind the last one. Raises LayoutError
TENSOR_TYPE for other memory and for barriers, VerifyError VERIFY_CLUSTER for a rank that is not of the cluster.)doc");
  c.def_property_readonly(
      "values",
      [](const TensorRef& t) {
        return view(
            t, ViewOp::Values, [](ir::ViewStmt&) {}, [](const ir::ViewStmt& v) { return ir::values(*v.source); });
      },
      "Of a fragment: the executing thread's own registers, rank 1, in register order. Raises LayoutError "
      "TENSOR_VALUES.");
  c.def_property_readonly(
      "levels", [](const Tensor& t) { return layouts(t.levels); }, "The layouts of the levels, outermost first.");
  c.def_property_readonly(
      "shape", [](const Tensor& t) { return exprs(t.logical_shape()); },
      "Elements per dimension over all levels. Raises LayoutError TENSOR_RANK when levels differ in rank.");
  c.def_property_readonly(
      "offset", [](const Tensor& t) { return expr_to_py(t.offset); },
      "Of the first element, in elements of the buffer.");
  c.def_property_readonly(
      "size", [](const Tensor& t) { return expr_to_py(t.size()); }, "Number of elements over all levels.");
  c.def_property_readonly(
      "dtype", [](const Tensor& t) { return DType{t.dtype}; }, "Type of an element.");
  c.def_property_readonly(
      "memory", [](const Tensor& t) { return MemoryObject{t.memory()}; },
      "gr.GL, gr.SH, gr.RF, or gr.DSM of what t.of(rank) views.");
  c.def_property_readonly(
      "name", [](const Tensor& t) { return t.buffer->name; }, "Name of the buffer.");
  c.def_property_readonly("is_fragment", &Tensor::is_fragment, "Whether a group of threads holds it together.");
  c.def_property_readonly(
      "tv", [](const Tensor& t) { return t.is_fragment() ? py::cast(t.buffer->fragment->tv) : py::object(py::none()); },
      "Of a fragment's buffer: (thread of the group, register) -> colexicographic element of fragment_shape; else "
      "None.");
  c.def_property_readonly(
      "fragment_shape",
      [](const Tensor& t) {
        return t.is_fragment() ? py::object(py::tuple(py::cast(t.buffer->fragment->shape))) : py::object(py::none());
      },
      "Of a fragment's buffer: the logical extents of one stage; else None.");
  c.def_property_readonly(
      "base_layout", [](const Tensor& t) { return t.buffer->layout; }, "Layout of the whole buffer, of one stage.");
  c.def_property_readonly(
      "bounds",
      [](const Tensor& t) {
        py::list out;
        for (const ir::DimBound& b : t.bounds)
          out.append(py::make_tuple(expr_to_py(b.base), layouts(b.levels), expr_to_py(b.extent)));
        return out;
      },
      "What is not proven inside: (base, levels, extent) each; an element is inside if base + the sum of the levels at "
      "its "
      "coordinates is below extent, for all of them.");
  c.attr("__iter__") = py::none();  // an index past the end of a tiled tensor is an empty tile: iterating has no end
  c.def("__str__", &tensor_str);
  c.def("__repr__", &tensor_str);
}

void bind_threads(py::module_& m) {
  py::class_<ThreadTensor, ThreadRef> c(m, "ThreadTensor", R"doc(Blocks or threads as a tiled tensor (paper section 4).

Levels map coordinates to the linear hardware index. Indexed by its own coordinates a tensor is "my group"; by constants
or slices it is a subset, legal inside ``with gr.only(group):``.)doc");
  c.attr("__module__") = "graphene";
  c.def(
      "tile",
      [](const ThreadRef& t, const py::object& sizes) {
        return thread_view(
            t, ThreadOp::Tile, [&](ir::ThreadStmt& s) { s.tiler = sizes_from_py(sizes); },
            [](const ir::ThreadStmt& s) { return ir::tile(*s.source, s.tiler); });
      },
      py::arg("sizes"),
      "Cuts the innermost level evenly: ``gr.threads(32).tile(8)`` is ``[4:8].[8]``. Raises LayoutError THREAD_TILE.");
  c.def(
      "reshape",
      [](const ThreadRef& t, const Arg<"level", int>& level, const py::object& shape) {
        return thread_view(
            t, ThreadOp::Reshape,
            [&](ir::ThreadStmt& s) {
              s.level = level;
              s.shape = column_layout_from_py(shape);
            },
            [](const ir::ThreadStmt& s) { return ir::reshape(*s.source, s.level, s.shape); });
      },
      py::arg("level"), py::arg("shape"),
      "Arranges a level's groups in another shape: the level composed with a Layout (a list is column-major). Raises "
      "LayoutError THREAD_RESHAPE unless the number of members stays.");
  c.def(
      "__getitem__",
      [](const ThreadRef& t, const py::object& index) {
        return thread_view(
            t, ThreadOp::Index, [&](ir::ThreadStmt& s) { s.index = index_from_py(index, t->levels); },
            [](const ir::ThreadStmt& s) { return ir::index(*s.source, s.index); });
      },
      py::arg("index"),
      "By its own coordinates: my group. By constants or slices: a subset. Raises LayoutError THREAD_INDEX.");
  c.def(
      "scalar",
      [](const ThreadRef& t) {
        return thread_view(
            t, ThreadOp::Scalar, [](ir::ThreadStmt&) {}, [](const ir::ThreadStmt& s) { return ir::scalar(*s.source); });
      },
      "Each member for itself: ``[].thread`` or ``[].block``.");
  py::class_<Elected> e(m, "Elected", "One thread of a group: what group.elect() gives to gr.only().");
  e.attr("__module__") = "graphene";
  e.def_property_readonly(
      "group", [](const Elected& x) { return threads_to_py(x.group); }, "The group.");
  c.def(
      "elect", [](const ThreadRef& t) { return Elected{t}; }, "One thread of the group, for ``with gr.only(...)``.");
  c.def("indices", &thread_indices, py::arg("names") = py::none(), R"doc(Coordinates of the executing block or thread.

With one level a tuple over its modes, with several a tuple over the levels, each a scalar (rank 1) or a tuple. They are
derived from the hardware index: ``(tid / stride) % shape``. Inside a kernel they are named after the variables that they
are assigned to, or by ``names``. Raises LayoutError THREAD_NOT_INJECTIVE.)doc");
  c.def_property_readonly(
      "levels", [](const ThreadTensor& t) { return layouts(t.levels); }, "The layouts of the levels, outermost first.");
  c.def_property_readonly(
      "size", [](const ThreadTensor& t) { return expr_to_py(t.size()); }, "Number of members.");
  c.def_property_readonly(
      "offset", [](const ThreadTensor& t) { return expr_to_py(t.offset); }, "Linear index of the first member.");
  c.def_property_readonly(
      "unit", [](const ThreadTensor& t) { return t.unit == ir::ThreadUnit::Block ? "block" : "thread"; },
      "\"block\" or \"thread\".");
  c.def_readonly("subset", &ThreadTensor::subset, "Whether only some members of the launch take part.");
  c.attr("__iter__") = py::none();
  c.def("__str__", &threads_str);
  c.def("__repr__", &threads_str);

  m.def(
      "blocks",
      [](const py::args& sizes, const py::object& of_cluster) {
        const auto cluster = value_from_py<std::int64_t>(of_cluster, "cluster");
        Builder* b = Builder::active();
        if (b != nullptr) return threads_to_py(b->blocks(exprs_from_py(sizes), cluster));
        ThreadTensor t = ir::make_blocks(exprs_from_py(sizes));
        ir::check_cluster(t, cluster);
        if (cluster > 1) t = ir::tile(t, ir::cluster_tiler(t, cluster));
        return threads_to_py(std::make_shared<const ThreadTensor>(std::move(t)));
      },
      py::arg("cluster") = 1);
  m.def("threads", [](const py::args& sizes) {
    Builder* b = Builder::active();
    if (b != nullptr) return threads_to_py(b->threads(exprs_from_py(sizes)));
    return threads_to_py(std::make_shared<const ThreadTensor>(ir::make_threads(exprs_from_py(sizes))));
  });
  m.def("tensor", [](const Arg<"name", std::string>& name, const py::object& layout, const py::object& dtype,
                     const py::object& memory) {
    ir::Buffer buffer;
    buffer.name = name;
    buffer.layout = data_layout_from_py(layout);
    buffer.dtype = dtype_from_py(dtype);
    buffer.memory = memory_from_py(memory);
    return tensor_to_py(std::make_shared<const Tensor>(ir::declare(std::move(buffer))));
  });
}

}  // namespace

void register_ir_values(py::module_& m) {
  bind_types(m);
  bind_tensor(m);
  bind_threads(m);
}

}  // namespace graphene::bind
