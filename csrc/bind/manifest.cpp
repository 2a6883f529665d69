#include "bind/manifest.h"

#include <algorithm>
#include <map>

#include "emit/emit.h"
#include "ir/levels.h"

namespace graphene::bind {

namespace rt = graphene::runtime;

namespace {

std::vector<rt::Dim> leaves_of(const Layout& l) {
  std::vector<rt::Dim> out;
  const std::vector<Expr> shape = l.shape().leaves();
  const std::vector<Expr> stride = l.stride().leaves();
  for (std::size_t i = 0; i < shape.size(); ++i) out.push_back({shape[i], stride[i]});
  return out;
}

// One dimension per mode, where every mode is one stride.
std::vector<rt::Dim> modes_as_dims(const Layout& l) {
  std::vector<rt::Dim> out;
  for (const Layout& mode : ir::modes_of(l)) {
    const Layout flat = mode.shape().is_leaf() ? mode : layout::coalesce(mode);
    const std::vector<rt::Dim> leaves = leaves_of(flat);
    if (leaves.size() != 1) return {};
    out.push_back(leaves.front());
  }
  return out;
}

// Elements of 4 bits are passed as an array of bytes, two to a byte, half as many along the mode of stride 1. A mode of
// one element may have that stride, too: it is no line, and keeps its one element.
void count_bytes(std::vector<rt::Dim>& dims) {
  for (rt::Dim& d : dims) {
    if (d.extent.is_const(1)) continue;
    Expr& halved = d.stride.is_const(1) ? d.extent : d.stride;
    halved = sym::floor_div(halved, 2);
  }
}

bool same(const std::vector<rt::Dim>& a, const std::vector<rt::Dim>& b) {
  return std::ranges::equal(a, b, [](const rt::Dim& x, const rt::Dim& y) {
    return identical(x.extent, y.extent) && identical(x.stride, y.stride);
  });
}

rt::ArgSpec tensor_arg(const ir::Buffer& b) {
  rt::ArgSpec a;
  a.name = b.name;
  a.dtype = rt::dtype_of(ir::is_packed(b.dtype) ? "u8" : ir::name(b.dtype));
  a.access = b.role == ir::Role::Input    ? rt::Access::Read
             : b.role == ir::Role::Output ? rt::Access::Write
                                          : rt::Access::ReadWrite;
  a.dims = modes_as_dims(b.layout);
  a.flat = leaves_of(b.layout);
  if (same(a.dims, a.flat)) a.flat.clear();
  if (ir::is_packed(b.dtype)) {
    a.packed = ir::name(b.dtype);
    count_bytes(a.dims);
    count_bytes(a.flat);
  }
  a.align_bytes = std::max(b.align_bytes, 1);
  a.list_count = b.count;
  return a;
}

rt::ArgSpec scalar_arg(const ir::ScalarParam& p) {
  rt::ArgSpec a;
  a.name = p.name;
  a.kind = rt::ArgKind::Scalar;
  a.dtype = rt::dtype_of(ir::name(p.dtype));
  return a;
}

rt::SymbolSpec symbol(const Expr& e) {
  const sym::VarInfo& v = e.var();
  return {.name = v.name,
          .min = v.min,
          .max = v.max,
          .multiple_of = v.multiple_of,
          .from = v.name == "sm_count" ? rt::SymbolFrom::SmCount : rt::SymbolFrom::Shape,
          .is_param = true,
          .bits = lower::symbol_bits(e)};
}

// Whether the kernel says itself when it needs the kernels before it to have ended: outside of branches and loops, as
// is verified.
bool waits_itself(const ir::Block& block) {
  return std::ranges::any_of(block, [](const ir::StmtPtr& s) {
    if (const auto* spec = s->as<ir::SpecStmt>()) return waits_itself(spec->body);
    const auto* sync = s->as<ir::SyncStmt>();
    return sync != nullptr && sync->op == ir::kWaitKernels;
  });
}

}  // namespace

rt::LaunchManifest make_manifest(const lower::Program& program) {
  const ir::Kernel& kernel = *program.kernel;
  rt::LaunchManifest m;
  m.kernel_name = kernel.name;
  m.entry = emit::entry_name(kernel);
  std::map<int, std::size_t> of_buffer;
  for (const ir::ArgumentRef& a : ir::arguments(kernel)) {
    if (a.tensor != nullptr) of_buffer[(*a.tensor)->buffer->id] = m.args.size();
    m.args.push_back(a.tensor != nullptr ? tensor_arg(*(*a.tensor)->buffer) : scalar_arg(*a.scalar));
  }
  for (const Expr& s : kernel.symbols) m.symbols.push_back(symbol(s));
  for (const lower::Fact& f : program.facts) {
    if (f.fact.align_bytes > 0) {
      if (const auto it = of_buffer.find(f.fact.buffer); it != of_buffer.end()) {
        rt::ArgSpec& a = m.args[it->second];
        a.align_bytes = std::max<std::int64_t>(a.align_bytes, f.fact.align_bytes);
      }
    }
    if (!f.fact.condition.is_const(1)) {
      m.facts.push_back({f.fact.condition, f.fact.text, f.origin == nullptr ? "" : f.origin->loc.str()});
    }
  }
  for (const lower::TensorMap& map : program.maps) {
    const lower::MemBuffer& b = program.buffers[static_cast<std::size_t>(map.argument)];
    rt::MapSpec spec{.arg = static_cast<int>(of_buffer.at(b.buffer->id)), .dims = {}, .box = map.box};
    spec.swizzle_bytes = map.swizzle_bytes;
    for (const lower::TensorMap::Dim& d : map.dims) spec.dims.push_back({d.extent, d.stride_elems});
    m.maps.push_back(std::move(spec));
  }
  m.cluster[0] = static_cast<int>(program.cluster);
  for (std::size_t i = 0; i < program.grid.size() && i < m.grid.size(); ++i) m.grid.at(i) = program.grid[i];
  m.block_threads = static_cast<int>(program.block_threads);
  m.dynamic_shared_bytes = emit::dynamic_shared_bytes(program);
  m.waits_itself = waits_itself(kernel.body);
  return m;
}

}  // namespace graphene::bind
