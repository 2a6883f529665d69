#include "bind/arguments.h"
#include "bind/ir_common.h"
#include "build/collective.h"

namespace graphene::bind {

using ir::Builder;
using ir::TensorPtr;
using ir::ThreadPtr;

namespace {

// What a spec call returns: entered with `with`, the spec is decomposed by hand.
struct SpecHandle {
  std::uint64_t builder;
  std::shared_ptr<ir::Stmt> stmt;
  std::size_t depth = 0;  // inside of it; 0: not entered
};

// An open block as Python holds it: which kernel's, and at which depth it lies.
using BlockRef = std::pair<std::uint64_t, std::size_t>;
BlockRef ref_here(const Builder& b) { return {b.serial(), b.depth()}; }

// A block of statements that a `with` or a `for` keeps open: leaving it also leaves what was left open inside.
void leave_to(Builder& b, std::size_t depth) {
  while (b.depth() > depth) b.leave();
}

Builder& active_or_closed(std::uint64_t expected) {
  Builder* b = Builder::active();
  if (b == nullptr || b->serial() != expected)
    fail(Code::KERNEL_CLOSED, "the kernel of this statement is closed", {}, "", python_location());
  return *b;
}

Expr condition_from_py(py::handle h) {
  return PyBool_Check(h.ptr()) ? Expr(h.ptr() == Py_True ? 1 : 0) : expr_from_py(h);
}

ir::Operand operand_from_py(py::handle h) {
  if (py::isinstance<ir::Tensor>(h)) return tensor_from_py(h, "an operand");
  if (PyFloat_Check(h.ptr()) || PyLong_Check(h.ptr())) {
    const ir::Constant c = constant_from_py(h);
    if (const auto* i = std::get_if<std::int64_t>(&c)) return Expr(*i);
    return std::get<double>(c);
  }
  return expr_from_py(h);
}

std::vector<TensorPtr> tensors_from_py(py::handle h, const char* what) {
  std::vector<TensorPtr> out;
  if (PyTuple_Check(h.ptr()) || PyList_Check(h.ptr())) {
    for (const py::handle item : h) out.push_back(tensor_from_py(item, what));
  } else if (!h.is_none()) {
    out.push_back(tensor_from_py(h, what));
  }
  return out;
}

// on=: threads, a pair (blocks, threads), or None.
void groups_from_py(py::handle on, ir::SpecStmt& s) {
  if (PyTuple_Check(on.ptr()) || PyList_Check(on.ptr())) {
    const auto pair = py::reinterpret_borrow<py::sequence>(on);
    if (pair.size() != 2) throw py::type_error("on= takes threads, or a pair (blocks, threads)");
    s.blocks = threads_from_py(pair[0], "on=");
    s.threads = threads_from_py(pair[1], "on=");
    return;
  }
  s.threads = threads_from_py(on, "on=");
  if (s.threads && s.threads->unit == ir::ThreadUnit::Block) std::swap(s.blocks, s.threads);
}

SpecHandle record_spec(const std::string& kind, const py::object& outs, const py::object& ins, const py::dict& attrs,
                       const py::object& on, const std::string& atom, const std::string& means, const py::object& tv,
                       const py::object& done, const py::object& to) {
  Builder& b = Builder::require_active("a spec");
  ir::SpecStmt s;
  const auto k = ir::spec_kind_from_name(kind);
  if (!k) throw py::value_error("no spec is called '" + kind + "'");
  s.kind = *k;
  s.outs = tensors_from_py(outs, "an output");
  if (PyTuple_Check(ins.ptr()) || PyList_Check(ins.ptr())) {
    for (const py::handle item : ins) s.ins.push_back(operand_from_py(item));
  } else {
    s.ins.push_back(operand_from_py(ins));
  }
  s.attrs = attrs_from_py(attrs);
  groups_from_py(on, s);
  s.atom = atom;
  s.means = means;
  if (!tv.is_none()) s.tv = value_from_py<Layout>(tv, "tv=");
  if (!done.is_none()) s.done = tensor_from_py(done, "done=");
  s.to = threads_from_py(to, "to=");
  return {b.serial(), b.spec(std::move(s))};
}

void bind_specs(py::module_& m) {
  py::class_<SpecHandle> c(m, "SpecHandle",
                           "A recorded spec. `with` it, at the place where it is made, decomposes it by hand.");
  c.attr("__module__") = "graphene";
  c.def("__enter__", [](const py::object& self) {
    auto& h = self.cast<SpecHandle&>();
    Builder& b = active_or_closed(h.builder);
    b.enter(h.stmt);
    h.depth = b.depth();
    return self;
  });
  c.def("__exit__", [](SpecHandle& h, const py::args&) {
    if (h.depth == 0)
      fail(Code::SPEC_ENTER, "a spec is left that was not entered", {}, "use `with` on the spec", python_location());
    Builder* b = Builder::active();
    if (b != nullptr && b->serial() == h.builder) leave_to(*b, h.depth - 1);
    h.depth = 0;
    return false;
  });
  m.def("record_spec", &record_spec, py::arg("kind"), py::arg("outs"), py::arg("ins"), py::arg("attrs"), py::arg("on"),
        py::arg("atom"), py::arg("means"), py::arg("tv") = py::none(), py::arg("done") = py::none(),
        py::arg("to") = py::none());
  m.def("constant", [](const py::object& number) { return constant_from_py(number); });
  m.def("record_tell",
        [](const std::string& op, const std::string& text, const py::object& condition, const py::list& values) {
          ir::SyncStmt s;
          s.op = op;
          s.attrs["text"] = text;
          if (!condition.is_none()) s.attrs["condition"] = condition_from_py(condition);
          for (const py::handle v : values) s.values.push_back(operand_from_py(v));
          Builder::require_active(op == ir::kPrint ? "gr.print()" : "gr.assert_()").sync(std::move(s));
        });
  m.def("record_sync", [](const std::string& op, const py::object& on, const std::string& atom, const py::dict& attrs) {
    ir::SyncStmt s;
    s.op = op;
    s.group = threads_from_py(on, "on=");
    s.atom = atom;
    s.attrs = attrs_from_py(attrs);
    Builder::require_active(op.c_str()).sync(std::move(s));
  });
  m.def("record_barrier_op",
        [](const std::string& op, const py::object& barrier, const py::object& phase, const py::object& expect,
           const py::object& bytes, const py::object& to, const std::string& after, bool cluster) {
          Builder& b = Builder::require_active(op.c_str());
          ir::SyncStmt s;
          s.op = op;
          s.barrier = tensor_from_py(barrier, "a barrier");
          if (!phase.is_none()) s.phase = expr_from_py(phase);
          s.expect = tensors_from_py(expect, "expect=");
          s.expect_bytes = expr_from_py(bytes);
          s.to = threads_from_py(to, "at=");
          s.atom = after;
          if (cluster) s.attrs[op == "arrive" ? "release" : "acquire"] = std::string("cluster");
          b.sync(std::move(s));
        });
}

void bind_declarations(py::module_& m) {
  m.def("record_arg", [](const std::string& role, const Arg<"name", std::string>& name, const py::object& layout,
                         const py::object& dtype, const py::object& align_bytes, const Arg<"n", int>& count) {
    Builder& b = Builder::require_active(("gr." + role + "()").c_str());
    const ir::Role r = role == "input" ? ir::Role::Input : role == "output" ? ir::Role::Output : ir::Role::InOut;
    return tensor_to_py(b.arg(name, r, data_layout_from_py(layout), dtype_from_py(dtype),
                              optional_int_from_py(align_bytes, "align_bytes=").value_or(0), count));
  });
  m.def("record_param", [](const Arg<"name", std::string>& name, const py::object& dtype) {
    const ir::ScalarParam& p = Builder::require_active("gr.param()").param(name, dtype_from_py(dtype));
    return p.tensor ? tensor_to_py(p.tensor) : expr_to_py(p.var);
  });
  m.def("record_alloc", [](const Arg<"name", std::string>& name, const py::object& layout, const py::object& dtype,
                           const py::object& memory, const py::object& stages, const py::object& swizzle,
                           const py::object& over, const py::object& align_bytes, const py::object& at) {
    Builder& b = Builder::require_active("gr.alloc()");
    ir::AllocOptions o;
    o.stages = optional_int_from_py(stages, "stages=");
    if (!swizzle.is_none()) o.swizzle = value_from_py<Swizzle>(swizzle, "swizzle=");
    o.over = tensors_from_py(over, "over=");
    o.align_bytes = optional_int_from_py(align_bytes, "align_bytes=").value_or(0);
    o.at_bytes = optional_int_from_py(at, "at=");
    return tensor_to_py(b.alloc(name, data_layout_from_py(layout), dtype_from_py(dtype), memory_from_py(memory), o));
  });
  m.def("record_barriers",
        [](const std::string& dtype, const Arg<"name", std::string>& name, const Arg<"stages", std::int64_t>& stages,
           const Arg<"arrivals", std::int64_t>& arrivals) {
          const bool named = dtype == "bar";
          Builder& b = Builder::require_active(named ? "gr.named_barrier()" : "gr.mbarrier()");
          return tensor_to_py(b.barriers(name, named ? ir::ScalarType::bar : ir::ScalarType::mbar, stages, arrivals));
        });
  m.def("record_fragment",
        [](const Arg<"name", std::string>& name, const Arg<"shape", std::vector<std::int64_t>>& shape,
           const py::object& dtype, const Layout& tv, const std::vector<std::int64_t>& extents,
           const std::string& label, const py::object& on, const py::object& stages) {
          Builder& b = Builder::require_active("gr.fragment()");
          const ThreadPtr group = threads_from_py(on, "on=");
          if (!group) throw py::type_error("a fragment needs the threads that hold it: on=");
          return tensor_to_py(b.fragment(name, shape, dtype_from_py(dtype), {tv, extents, label}, group,
                                         optional_int_from_py(stages, "stages=")));
        });
}

// Each begin_* opens a block and returns the depth to come back to, for end_block.
void bind_control(py::module_& m) {
  // A block that `with` or `for` is to enter, of the kernel that is open; what block_entered takes.
  m.def("announce_block", [](const Arg<"what", std::string>& what) {
    Builder* b = Builder::active();
    return b != nullptr ? BlockRef{b->serial(), b->announce(what.value)} : BlockRef{0, 0};
  });
  m.def("block_entered", [](const BlockRef& announced) {
    if (Builder* b = Builder::active(); b != nullptr && b->serial() == announced.first) b->entered(announced.second);
  });
  m.def(
      "begin_loop",
      [](const Arg<"name", std::string>& name, const py::object& start, const py::object& stop, const py::object& step,
         const Arg<"unroll", int>& unroll, const py::object& condition) {
        Builder& b = Builder::require_active(condition.is_none() ? "gr.loop()" : "gr.while_()");
        const BlockRef depth = ref_here(b);
        const Expr lasts = condition.is_none() ? Expr(1) : condition_from_py(condition);
        const Expr var = b.loop(name, expr_from_py(start), expr_from_py(stop), expr_from_py(step), unroll, lasts);
        return py::make_tuple(depth, expr_to_py(var));
      },
      py::arg("name"), py::arg("start"), py::arg("stop"), py::arg("step"), py::arg("unroll"),
      py::arg("condition") = py::none());
  m.def("unique_name",
        [](const std::string& wanted) { return Builder::require_active("a declaration").unique_name(wanted); });
  m.def("begin_if", [](const py::object& condition) {
    Builder& b = Builder::require_active("gr.if_()");
    const BlockRef depth = ref_here(b);
    b.if_(condition_from_py(condition));
    return depth;
  });
  m.def("begin_else", [] {
    Builder& b = Builder::require_active("gr.else_()");
    const BlockRef depth = ref_here(b);
    b.else_();
    return depth;
  });
  m.def("begin_only", [](const py::object& group) {
    Builder& b = Builder::require_active("gr.only()");
    const BlockRef depth = ref_here(b);
    if (py::isinstance<Elected>(group)) {
      b.only(group.cast<const Elected&>().group, true);
    } else {
      const ThreadPtr threads = threads_from_py(group, "only()");
      if (!threads) throw py::type_error("only() must be a thread tensor, got None");
      b.only(threads, false);
    }
    return depth;
  });
  // A block of a kernel that is closed meanwhile, or that another thread records, is left already.
  m.def("end_block", [](const BlockRef& at) {
    if (Builder* b = Builder::active(); b != nullptr && b->serial() == at.first) leave_to(*b, at.second);
  });
  // The block that is recorded now, for block_open; None where no kernel is open.
  m.def("block_here", []() -> std::optional<BlockRef> {
    const Builder* b = Builder::active();
    if (b == nullptr) return std::nullopt;
    return BlockRef{b->serial(), static_cast<std::size_t>(b->scope())};
  });
  // Whether that block is not left yet. Of another kernel none is known to be left: its tensors say that they are not
  // of this one.
  m.def("block_open", [](const BlockRef& at) {
    const Builder* b = Builder::active();
    return b == nullptr || b->serial() != at.first || b->open(static_cast<int>(at.second));
  });
  m.def("note_break", [](const BlockRef& at) {
    if (Builder* b = Builder::active(); b != nullptr && b->serial() == at.first) b->note_break(at.second);
  });
  m.def("record_exit_if", [](const py::object& condition) {
    Builder::require_active("gr.exit_if()").exit_if(condition_from_py(condition));
  });
  m.def("record_scalar",
        [](const Arg<"name", std::string>& name, const py::object& value,
           const Arg<"min", std::optional<std::int64_t>>& min, const Arg<"max", std::optional<std::int64_t>>& max,
           const Arg<"multiple_of", std::int64_t>& multiple_of, bool droppable) {
          Builder& b = Builder::require_active("gr.scalar()");
          return expr_to_py(b.scalar(name, expr_from_py(value), min, max, multiple_of, droppable));
        });
  m.def("check_ring", [](const Arg<"name", std::string>& name, const Arg<"stages", std::int64_t>& stages,
                         const Arg<"phase", std::int64_t>& phase) {
    Builder::require_active("gr.ring()");
    if (stages.value >= 1 && (phase.value == 0 || phase.value == 1)) return;
    fail(Code::RING_STAGES, "a ring has at least one stage, and phase 0 or 1",
         {"ring: " + name.value, "stages: " + std::to_string(stages.value), "phase: " + std::to_string(phase.value)},
         "", python_location());
  });
  m.def("record_index", [](const py::object& element, const Arg<"min", std::int64_t>& min,
                           const Arg<"max", std::int64_t>& max, const Arg<"multiple_of", std::int64_t>& multiple_of) {
    Builder& b = Builder::require_active("gr.index()");
    return expr_to_py(b.index(tensor_from_py(element, "an element"), min, max, multiple_of));
  });
  m.def("record_assign", [](const py::object& scalar, const py::object& value) {
    Builder::require_active("an assignment").assign(expr_from_py(scalar), expr_from_py(value));
  });
}

void bind_kernel(py::module_& m) {
  py::class_<ir::Kernel, std::shared_ptr<ir::Kernel>> k(m, "KernelIR", "A closed kernel, as the C++ core holds it.");
  k.def_readonly("name", &ir::Kernel::name);
  k.def_property_readonly("args", [](const ir::Kernel& kernel) {
    py::list out;
    for (const TensorPtr& t : kernel.args) out.append(tensor_to_py(t));
    return out;
  });
  k.def_property_readonly("symbols", [](const ir::Kernel& kernel) {
    py::list out;
    for (const Expr& e : kernel.symbols) out.append(expr_to_py(e));
    return out;
  });
  k.def_property_readonly("grid", [](const ir::Kernel& kernel) { return threads_to_py(kernel.grid); });
  k.def_property_readonly("block", [](const ir::Kernel& kernel) { return threads_to_py(kernel.block); });

  py::class_<Builder>(m, "Builder", "Records one kernel; active from its making until close() or abandon().")
      .def(py::init([](Arg<"name", std::string> name) {
        return std::make_unique<Builder>(std::move(name.value),
                                         ir::BuilderHooks{&python_location, &complete_spec, &build::expand});
      }))
      .def("close", [](Builder& b) { return std::const_pointer_cast<ir::Kernel>(b.close()); })
      .def("abandon", &Builder::abandon);
}

}  // namespace

void register_ir_builder(py::module_& m) {
  bind_kernel(m);
  bind_specs(m);
  bind_declarations(m);
  bind_control(m);
}

}  // namespace graphene::bind
