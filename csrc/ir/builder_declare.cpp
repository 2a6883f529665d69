// The builder: declarations and views.
#include "ir/barriers.h"
#include "ir/builder_impl.h"
#include "ir/levels.h"

namespace graphene::ir {

namespace {

struct TypeCheck {
  const std::string& name;
  std::function<void(std::string, std::vector<std::string>, std::string)> refuse;

  void dtype(ScalarType t) const {
    if (info(t).cls == ScalarInfo::Class::Bits)
      refuse("untyped bits are for patterns, not for tensors", {"tensor: " + name, std::string("got: ") + ir::name(t)},
             "");
  }
  void align(int bytes) const {
    if (bytes < 0 || (bytes & (bytes - 1)) != 0)
      refuse("an alignment must be a power of two", {"tensor: " + name, "got: " + std::to_string(bytes)}, "");
  }
  void stages(std::optional<int> n) const {
    if (n && *n < 1)
      refuse("the number of stages must be positive", {"tensor: " + name, "got: " + std::to_string(*n)},
             "leave out stages= for a tensor without stages");
  }
};

}  // namespace

TensorPtr Builder::arg(const std::string& name, Role role, const Layout& layout, ScalarType dtype, int align_bytes,
                       int count) {
  ready();
  const TypeCheck check{name, [this](std::string m, std::vector<std::string> d, std::string f) {
                          refuse(Code::TENSOR_TYPE, std::move(m), std::move(d), std::move(f));
                        }};
  check.dtype(dtype);
  check.align(align_bytes);
  if (frames_.size() > 1)
    refuse(Code::KERNEL_SCOPE, "arguments are declared at the top of the kernel", {"tensor: " + name});
  use(layout);
  take_name(name, "an argument");
  Buffer b;
  b.id = next_tensor_id_++;
  b.name = name;
  b.dtype = dtype;
  b.memory = Memory::GL;
  b.role = role;
  b.layout = layout;
  b.align_bytes = align_bytes;
  b.count = count;
  b.loc = here();
  auto t = std::make_shared<const Tensor>(located([&] { return declare(std::move(b)); }));
  own(t);
  kernel_.args.push_back(t);
  return t;
}

const ScalarParam& Builder::param(const std::string& name, ScalarType dtype) {
  ready();
  if (info(dtype).cls == ScalarInfo::Class::Bits)
    refuse(Code::TENSOR_TYPE, "untyped bits are for patterns, not for parameters", {"parameter: " + name});
  if (is_packed(dtype))
    refuse(Code::TENSOR_TYPE, "a scalar argument takes at least a byte",
           {"parameter: " + name, std::string("got: ") + ir::name(dtype)}, "declare it as gr.i32 or gr.fp32");
  if (frames_.size() > 1)
    refuse(Code::KERNEL_SCOPE, "parameters are declared at the top of the kernel", {"parameter: " + name});
  take_name(name, "a parameter");
  ScalarParam p{name, dtype, 0, nullptr, static_cast<int>(kernel_.args.size() + kernel_.params.size())};
  const auto cls = info(dtype).cls;
  if (cls == ScalarInfo::Class::Signed || cls == ScalarInfo::Class::Unsigned) {
    p.var = declare_var(param_info(name, dtype));
  } else {
    p.tensor = std::make_shared<const Tensor>(declare_param(next_tensor_id_++, name, dtype));
    own(p.tensor);
  }
  kernel_.params.push_back(p);
  return kernel_.params.back();
}

ThreadPtr Builder::launch(ThreadTensor t, ThreadPtr& slot, const char* call) {
  if (slot)
    refuse(Code::KERNEL_LAUNCH, std::string(call) + " is declared already, by a call or by the first statement",
           {"declared: " + slot->type_str()},
           "declare it once, before the statements; tile and reshape the one there is");
  t.id = next_tensor_id_++;
  t.root = t.id;
  slot = std::make_shared<const ThreadTensor>(std::move(t));
  threads_.emplace(slot.get(), 0);
  return slot;
}

ThreadPtr Builder::blocks(std::vector<Expr> dims, std::int64_t cluster) {
  ready();
  for (const Expr& d : dims) use(d);
  ThreadTensor grid = located([&] { return make_blocks(std::move(dims)); });
  located([&] { check_cluster(grid, cluster); });
  ThreadPtr all = launch(std::move(grid), kernel_.grid, "blocks()");
  if (cluster == 1) return all;
  kernel_.cluster = cluster;
  return thread_view({.result = nullptr,
                      .source = all,
                      .op = ThreadOp::Tile,
                      .tiler = cluster_tiler(*all, cluster),
                      .index = {},
                      .level = 0,
                      .shape = {}});
}

ThreadPtr Builder::threads(std::vector<Expr> dims) {
  ready();
  return launch(located([&] { return make_threads(std::move(dims)); }), kernel_.block, "threads()");
}

TensorPtr Builder::record_alloc(Tensor t) {
  auto p = std::make_shared<const Tensor>(std::move(t));
  own(p);
  append({0, here(), AllocStmt{p}});
  return p;
}

TensorPtr Builder::alloc(const std::string& name, const Layout& layout, ScalarType dtype, Memory memory,
                         const AllocOptions& options) {
  ready();
  check_name(name, "a tensor");
  const TypeCheck check{name, [this](std::string m, std::vector<std::string> d, std::string f) {
                          refuse(Code::TENSOR_TYPE, std::move(m), std::move(d), std::move(f));
                        }};
  check.dtype(dtype);
  check.align(options.align_bytes);
  check.stages(options.stages);
  if (memory == Memory::GL)
    check.refuse("global memory is not allocated inside a kernel", {"tensor: " + name},
                 "declare it with gr.input, gr.output or gr.inout");
  if (!layout.is_static())
    check.refuse("a kernel's own tensors have constant sizes and strides",
                 {"tensor: " + name, "got: " + level_str(layout)}, "allocate for the largest tile");
  for (const Expr& s : layout.stride().leaves())
    if (s.value() < 0) check.refuse("a stride is negative", {"tensor: " + name, "got: " + level_str(layout)}, "");
  for (const Expr& s : layout.shape().leaves())
    if (s.value() < 1) check.refuse("a size must be positive", {"tensor: " + name, "got: " + level_str(layout)}, "");
  if (options.at_bytes && (memory != Memory::SH || *options.at_bytes < 0))
    check.refuse("at= is a number of bytes from the start of the block's shared memory",
                 {"tensor: " + name, "got: " + std::to_string(*options.at_bytes)}, "");
  if (memory == Memory::RF && (!options.swizzle.trivial() || options.align_bytes > 0))
    check.refuse("registers have neither swizzle nor alignment", {"tensor: " + name}, "");
  Buffer b;
  b.name = name;
  b.dtype = dtype;
  b.memory = memory;
  b.role = Role::Alloc;
  b.layout = layout;
  b.swizzle = options.swizzle;
  b.stages = options.stages.value_or(0);
  b.align_bytes = options.align_bytes;
  b.at_bytes = options.at_bytes.value_or(-1);
  b.loc = here();
  for (const TensorPtr& o : options.over) {
    use(o, "over");
    if (o->memory() != Memory::SH || memory != Memory::SH || o->id != o->buffer->id || is_barrier(o->dtype))
      check.refuse("over= takes tensors that gr.alloc made in shared memory",
                   {"tensor: " + name, "got: " + o->type_str()}, "");
    b.over.push_back(o->id);
  }
  b.id = next_tensor_id_++;
  return record_alloc(located([&] { return declare(std::move(b)); }));
}

TensorPtr Builder::barriers(const std::string& name, ScalarType dtype, std::int64_t stages, std::int64_t arrivals) {
  ready();
  check_name(name, "a barrier");
  Buffer b = located([&] { return barrier_buffer(name, dtype, stages, arrivals); });
  b.loc = here();
  b.id = next_tensor_id_;
  Tensor t = located([&] { return declare(std::move(b)); });
  ++next_tensor_id_;
  return record_alloc(std::move(t));
}

TensorPtr Builder::fragment(const std::string& name, const std::vector<std::int64_t>& shape, ScalarType dtype,
                            const FragmentSpec& spec, const ThreadPtr& group, std::optional<int> stages) {
  ready();
  check_name(name, "a fragment");
  const TypeCheck check{name, [this](std::string m, std::vector<std::string> d, std::string f) {
                          refuse(Code::TENSOR_TYPE, std::move(m), std::move(d), std::move(f));
                        }};
  check.dtype(dtype);
  check.stages(stages);
  use(group, "on");
  if (group->unit != ThreadUnit::Thread)
    refuse(Code::FRAGMENT_GROUP, "a fragment lives in the registers of threads", {"on: " + group->type_str()});
  Buffer b;
  b.name = name;
  b.dtype = dtype;
  b.role = Role::Alloc;
  b.stages = stages.value_or(0);
  b.loc = here();
  b.id = next_tensor_id_;
  Tensor t = located([&] { return declare_fragment(std::move(b), shape, spec, group); });
  ++next_tensor_id_;
  return record_alloc(std::move(t));
}

TensorPtr Builder::declared(int buffer) const {
  for (const TensorPtr& t : keep_tensors_)
    if (t->id == buffer) return t;
  internal_error(__FILE__, __LINE__, "no tensor declares the buffer");
}

TensorPtr Builder::view(ViewStmt v) {
  ready();
  use(v.source, "view of");
  use(v.tiler);
  use(v.index);
  if (v.op == ViewOp::Reshape) use(v.shape);
  Tensor t = located([&] { return result_of(v); });
  if (v.op == ViewOp::Of) located([&] { check_rank(t, kernel_.cluster); });
  t.id = next_tensor_id_++;
  v.result = std::make_shared<const Tensor>(std::move(t));
  own(v.result);
  const TensorPtr result = v.result;
  append({0, here(), std::move(v)});
  return result;
}

ThreadPtr Builder::thread_view(ThreadStmt s) {
  ready();
  use(s.source, "view of");
  use(s.tiler);
  use(s.index);
  if (s.op == ThreadOp::Reshape) use(s.shape);
  ThreadTensor t = located([&] { return result_of(s); });
  t.id = next_tensor_id_++;
  s.result = std::make_shared<const ThreadTensor>(std::move(t));
  own(s.result);
  const ThreadPtr result = s.result;
  append({0, here(), std::move(s)});
  return result;
}

std::vector<std::vector<Expr>> Builder::indices(const ThreadPtr& group, const std::vector<std::string>& names) {
  ready();
  use(group, "indices of");
  const std::vector<std::vector<Expr>> defs = located([&] { return group->indices(); });
  IndicesStmt s{group, {}};
  std::size_t n = 0;
  for (const auto& level : defs) {
    auto& out = s.vars.emplace_back();
    for (const Expr& def : level) {
      const std::string fallback = (group->unit == ThreadUnit::Block ? "b" : "t") + std::to_string(n);
      const bool given = n < names.size() && is_identifier(names[n]) && names[n] != "_";
      out.push_back(declare_var(coord_info(unique_name(given ? names[n] : fallback), def)));
      ++n;
    }
  }
  auto vars = s.vars;
  append({0, here(), std::move(s)});
  return vars;
}

}  // namespace graphene::ir
