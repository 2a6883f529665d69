#include "ir/assemble.h"

#include <algorithm>
#include <array>

#include "ir/arity.h"
#include "ir/barriers.h"
#include "ir/builder.h"
#include "ir/declare.h"
#include "ir/levels.h"
#include "ir/lexer.h"
#include "layout/tv.h"

namespace graphene::ir {

namespace {

constexpr std::array<std::string_view, 11> kReserved = {"and", "or",   "not",   "min",  "max", "inf",
                                                        "nan", "true", "false", "expr", "_"};
constexpr std::array<std::string_view, 4> kHardware = {"tid", "bid.x", "bid.y", "bid.z"};

std::string count_str(std::size_t n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); }

bool fits(const std::vector<LevelDecl>& written, const std::vector<Layout>& levels) {
  return std::equal(written.begin(), written.end(), levels.begin(), levels.end(),
                    [](const LevelDecl& w, const Layout& l) {
                      return identical(w.shape, l.shape()) && (!w.stride || identical(*w.stride, l.stride()));
                    });
}

std::string written_levels(const std::vector<LevelDecl>& levels) {
  std::string s;
  for (const LevelDecl& l : levels) {
    if (!s.empty()) s += ".";
    s += level_str(l.stride ? Layout(l.shape, *l.stride) : Layout(l.shape), l.stride.has_value());
  }
  return s.empty() ? "[]" : s;
}

std::string written(const TypeDecl& t) {
  std::string s = written_levels(t.levels) + "." + name(t.dtype) + "." + name(t.memory);
  if (t.label) s += "<" + (is_plain_name(*t.label) ? *t.label : quote(*t.label)) + ">";
  return s;
}

[[noreturn]] void mismatch(const std::string& name, const std::string& want, const std::string& got) {
  fail(Code::IR_TYPE_MISMATCH, name + " has another type", {"want: " + want, "got:  " + got});
}

void check_type(const Tensor& t, const TypeDecl& type) {
  const bool label_fits = t.is_fragment() ? type.label == t.buffer->fragment->label : !type.label;
  if (fits(type.levels, t.levels) && type.dtype == t.dtype && type.memory == t.memory() && label_fits) return;
  mismatch("%" + std::to_string(t.id), t.type_str(), written(type));
}

void check_type(const ThreadTensor& t, const ThreadTypeDecl& type) {
  if (fits(type.levels, t.levels) && type.unit == t.unit) return;
  mismatch("#" + std::to_string(t.id), t.type_str(),
           written_levels(type.levels) + (type.unit == ThreadUnit::Block ? ".block" : ".thread"));
}

// A declared level without strides is row-major, as everywhere for data.
Layout data_layout(const LevelDecl& l) {
  if (l.stride) return {l.shape, *l.stride};
  return Layout::row_major(l.shape);
}

Layout data_layout(const std::vector<LevelDecl>& levels, std::size_t from) {
  if (levels.size() == from) return Layout(IntTuple(std::vector<IntTuple>{}));
  if (levels.size() != from + 1)
    fail(Code::TENSOR_TYPE,
         "an allocation or argument is declared by one level, below a level of stages if it has them",
         {"got: " + written_levels(levels)}, "declare the whole tensor and tile it");
  return data_layout(levels[from]);
}

void check_align(int bytes) {
  if (bytes < 0 || (bytes & (bytes - 1)) != 0)
    fail(Code::TENSOR_TYPE, "an alignment must be a power of two", {"got: " + std::to_string(bytes)});
}

}  // namespace

void FactsDecl::apply(sym::VarInfo& info) const {
  if (min) info.min = *min;
  if (max) info.max = *max;
  if (multiple_of) info.multiple_of = *multiple_of;
  if (lo) info.lo = *lo;
  if (hi) info.hi = *hi;
}

Assembler::Assembler(std::string kernel_name) {
  if (kernel_name.size() > kMostNameChars)
    fail(Code::KERNEL_NAME, "a kernel's name has at most " + std::to_string(kMostNameChars) + " characters",
         {"got: " + std::to_string(kernel_name.size()) + " characters"});
  if (!is_plain_name(kernel_name) || kernel_name.find('.') != std::string::npos)
    fail(Code::KERNEL_NAME, "a kernel's name must be an identifier", {"got: " + quote(kernel_name)});
  kernel_.name = std::move(kernel_name);
  scopes_.emplace_back();
}

// ---- names

namespace {

void check_name(const std::string& name, const char* what) {
  const auto among = [&](const auto& names) { return std::find(names.begin(), names.end(), name) != names.end(); };
  if (!is_plain_name(name) || name.find('.') != std::string::npos || among(kReserved))
    fail(Code::KERNEL_NAME, quote(name) + " cannot be the name of " + what, {},
         "use letters, digits and '_'; words of the grammar are not names");
}

}  // namespace

Expr Assembler::define(const sym::VarInfo& info) {
  check_name(info.name, "an integer");
  const Expr e = sym::make_var(info);
  const std::optional<Expr> taken = variable(info.name);
  // `.indices()` of the same threads names the same coordinates again.
  if (taken && info.kind == sym::VarKind::Coord && identical(*taken, e)) return e;
  if (taken || args_.count(info.name) > 0) fail(Code::IR_DUPLICATE, "the name '" + info.name + "' is taken");
  scopes_.back().variables.emplace(info.name, e);
  return e;
}

void Assembler::take_id(char sigil, int id) {
  if (!ids_.insert(id).second)
    fail(Code::IR_DUPLICATE, "the number " + std::to_string(id) + " is taken", {},
         std::string("give '") + sigil + std::to_string(id) + "' a number that no other tensor or thread tensor has");
}

void Assembler::define(const TensorPtr& t) {
  tensors_.emplace(t->id, t);
  scopes_.back().tensors.push_back(t->id);
}

void Assembler::define(const ThreadPtr& t) {
  threads_.emplace(t->id, t);
  scopes_.back().threads.push_back(t->id);
}

std::optional<Expr> Assembler::variable(std::string_view name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
    if (const auto it = scope->variables.find(name); it != scope->variables.end()) return it->second;
  if (name == kHardware[0] && kernel_.block) return kernel_.block->linear_index();
  for (std::size_t i = 1; i < kHardware.size(); ++i)
    if (name == kHardware.at(i) && kernel_.grid && i <= kernel_.grid->dims.size())
      return bid_var(static_cast<int>(i) - 1, kernel_.grid->dims[i - 1]);
  return std::nullopt;
}

TensorPtr Assembler::tensor(int id) const {
  const auto it = tensors_.find(id);
  if (it == tensors_.end()) fail(Code::IR_UNDEFINED, "no tensor '%" + std::to_string(id) + "' here");
  return it->second;
}

ThreadPtr Assembler::threads(int id) const {
  const auto it = threads_.find(id);
  if (it == threads_.end()) fail(Code::IR_UNDEFINED, "no thread tensor '#" + std::to_string(id) + "' here");
  return it->second;
}

ThreadPtr Assembler::each(ThreadUnit unit) const {
  const ThreadPtr& launch = unit == ThreadUnit::Block ? kernel_.grid : kernel_.block;
  if (!launch)
    fail(Code::IR_UNDEFINED, unit == ThreadUnit::Block ? "no blocks are declared" : "no threads are declared");
  return std::make_shared<const ThreadTensor>(ir::scalar(*launch));
}

void Assembler::argument_name(const std::string& name, const char* what) {
  check_name(name, what);
  if (variable(name) || !args_.insert(name).second) fail(Code::IR_DUPLICATE, "the name '" + name + "' is taken");
}

// ---- declarations

void Assembler::symbol(const std::string& name, const FactsDecl& facts) {
  sym::VarInfo info;
  info.name = name;
  info.kind = sym::VarKind::Size;
  facts.apply(info);
  kernel_.symbols.push_back(define(info));
}

void Assembler::param(const std::string& name, ScalarType dtype, const FactsDecl& facts, std::optional<int> id) {
  ScalarParam p{.name = name,
                .dtype = dtype,
                .var = 0,
                .tensor = nullptr,
                .position = static_cast<int>(kernel_.args.size() + kernel_.params.size())};
  const ScalarInfo::Class cls = info(dtype).cls;
  const bool integer = cls == ScalarInfo::Class::Signed || cls == ScalarInfo::Class::Unsigned;
  if (integer == id.has_value())
    fail(Code::IR_PARSE, integer ? "an integer parameter is not a tensor" : "the number of the parameter's register",
         {"parameter: " + name + ":" + ir::name(dtype)},
         integer ? "" : "write: param " + name + ":" + ir::name(dtype) + " = %3");
  if (integer) {
    sym::VarInfo v = param_info(name, dtype);
    facts.apply(v);
    p.var = define(v);
    args_.insert(name);
  } else {
    argument_name(name, "a parameter");
    take_id('%', *id);
    p.tensor = std::make_shared<const Tensor>(declare_param(*id, name, dtype));
    define(p.tensor);
  }
  kernel_.params.push_back(std::move(p));
}

void Assembler::argument(int id, Buffer buffer, const TypeDecl& type) {
  argument_name(buffer.name, "an argument");
  if (type.memory != Memory::GL)
    fail(Code::TENSOR_TYPE, "a kernel's arguments are in global memory", {"got: " + written(type)});
  take_id('%', id);
  check_align(buffer.align_bytes);
  buffer.id = id;
  buffer.dtype = type.dtype;
  buffer.memory = type.memory;
  if (buffer.count > 0 &&
      (type.levels.empty() || !type.levels[0].shape.is_leaf() || !type.levels[0].shape.leaf().is_const(buffer.count)))
    fail(Code::IR_TYPE_MISMATCH, "the outermost level must be the list",
         {"want: [" + std::to_string(buffer.count) + ":0]...", "got:  " + written_levels(type.levels)});
  buffer.layout = data_layout(type.levels, buffer.count > 0 ? 1 : 0);
  auto t = std::make_shared<const Tensor>(declare(std::move(buffer)));
  kernel_.args.push_back(t);
  define(t);
}

void Assembler::launch(int id, const ThreadTypeDecl& type, std::int64_t cluster) {
  const bool blocks = type.unit == ThreadUnit::Block;
  ThreadPtr& slot = blocks ? kernel_.grid : kernel_.block;
  if (slot)
    fail(Code::IR_DUPLICATE, std::string("a second launch of ") + (blocks ? "blocks" : "threads"),
         {"the first: #" + std::to_string(slot->id) + ":" + slot->type_str()}, "tile the first one");
  if (type.levels.size() != 1) fail(Code::THREAD_SHAPE, "a launch is declared by one level");
  take_id('#', id);
  std::vector<Expr> dims =
      type.levels[0].shape.is_leaf() ? std::vector<Expr>{type.levels[0].shape.leaf()} : std::vector<Expr>{};
  if (dims.empty()) {
    for (const IntTuple& m : type.levels[0].shape.modes()) {
      if (!m.is_leaf()) fail(Code::THREAD_SHAPE, "a launch has plain sizes", {"got: " + written_levels(type.levels)});
      dims.push_back(m.leaf());
    }
  }
  ThreadTensor t = blocks ? make_blocks(std::move(dims)) : make_threads(std::move(dims));
  t.id = id;
  t.root = id;
  check_type(t, type);
  if (blocks) check_cluster(t, cluster);
  if (blocks) kernel_.cluster = cluster;
  slot = std::make_shared<const ThreadTensor>(std::move(t));
  define(slot);
}

// ---- statements

void Assembler::open() { scopes_.emplace_back(); }

Block Assembler::close() {
  Scope scope = std::move(scopes_.back());
  scopes_.pop_back();
  for (const int id : scope.tensors) tensors_.erase(id);
  for (const int id : scope.threads) threads_.erase(id);
  return std::move(scope.block);
}

ViewStmt Assembler::view(int id, ViewStmt v, const std::optional<TypeDecl>& type) {
  take_id('%', id);
  Tensor t = result_of(v);
  t.id = id;
  if (v.op == ViewOp::Of) check_rank(t, kernel_.cluster);
  if (type) check_type(t, *type);
  v.result = std::make_shared<const Tensor>(std::move(t));
  define(v.result);
  return v;
}

ThreadStmt Assembler::thread_view(int id, ThreadStmt t, const std::optional<ThreadTypeDecl>& type) {
  take_id('#', id);
  ThreadTensor r = result_of(t);
  r.id = id;
  if (type) check_type(r, *type);
  t.result = std::make_shared<const ThreadTensor>(std::move(r));
  define(t.result);
  return t;
}

IndicesStmt Assembler::indices(const ThreadPtr& group, const std::vector<std::vector<CoordDecl>>& vars) {
  const std::vector<std::vector<Expr>> values = group->indices();
  const auto wrong = [&](std::size_t want, std::size_t got, const std::string& where) {
    fail(Code::IR_OPERANDS, "a coordinate for every mode" + where + " is needed",
         {"threads: " + group->type_str(), "want: " + std::to_string(want), "got:  " + std::to_string(got)});
  };
  if (vars.size() != values.size())
    fail(Code::IR_OPERANDS, "coordinates for every level are needed",
         {"threads: " + group->type_str(), "want: " + count_str(values.size(), "level"),
          "got:  " + count_str(vars.size(), "level")});
  IndicesStmt s{.group = group, .vars = {}};
  for (std::size_t l = 0; l < vars.size(); ++l) {
    if (vars[l].size() != values[l].size())
      wrong(values[l].size(), vars[l].size(), vars.size() == 1 ? "" : " of level " + std::to_string(l));
    std::vector<Expr> level;
    for (std::size_t m = 0; m < vars[l].size(); ++m) {
      const CoordDecl& d = vars[l][m];
      if (d.value && !identical(*d.value, values[l][m]))
        fail(Code::IR_TYPE_MISMATCH, "the index is another expression",
             {"want: " + values[l][m].str(), "got:  " + d.value->str()});
      if (d.name.empty()) {
        if (!d.value) fail(Code::IR_OPERANDS, "a coordinate without a name");
        level.push_back(*d.value);
        continue;
      }
      sym::VarInfo info = coord_info(d.name, values[l][m]);
      d.facts.apply(info);
      level.push_back(define(info));
    }
    s.vars.push_back(std::move(level));
  }
  return s;
}

namespace {

// What a fragment's levels and TV layout promise each other.
void check_fragment(const Fragment& f, const std::vector<LevelDecl>& levels) {
  const std::vector<std::string> details = {"levels: " + written_levels(levels), "on: " + f.group->type_str(),
                                            "tv: " + f.tv.str()};
  std::int64_t elems = 1;
  for (const std::int64_t s : f.shape) {
    if (s < 1) fail(Code::FRAGMENT_SHAPE, "a fragment's sizes must be positive", details);
    elems = (Expr(elems) * Expr(s)).value();
  }
  if (f.shape.empty()) fail(Code::FRAGMENT_SHAPE, "a fragment needs a shape", details);
  layout::require_two_modes(f.tv, "a fragment");
  if (!identical(f.group->size(), f.tv.mode(0).size()))
    fail(Code::FRAGMENT_GROUP, "the TV layout is for another number of threads", details);
  Expr size = 1;
  Expr reach = 1;
  for (const LevelDecl& l : levels) {
    const Layout level = data_layout(l);
    size = size * level.size();
    reach = reach + (level.cosize() - 1);
  }
  if (!size.is_const(elems) || !reach.is_const(elems))
    fail(Code::FRAGMENT_SHAPE, "the levels do not name each of the fragment's elements once", details);
}

}  // namespace

namespace {

void check_private(const Buffer& b) {
  for (const Expr& e : b.layout.shape().leaves())
    if (!e.is_const() || e.value() < 1)
      fail(Code::TENSOR_TYPE, "a kernel's own tensors have constant, positive sizes", {"got: " + level_str(b.layout)});
  for (const Expr& e : b.layout.stride().leaves())
    if (!e.is_const() || e.value() < 0)
      fail(Code::TENSOR_TYPE, "a kernel's own tensors have constant strides that are not negative",
           {"got: " + level_str(b.layout)});
  if (b.memory == Memory::RF && (!b.swizzle.trivial() || b.align_bytes > 0))
    fail(Code::TENSOR_TYPE, "registers have neither swizzle nor alignment");
}

}  // namespace

AllocStmt Assembler::allocate(int id, Buffer buffer, const TypeDecl& type) {
  take_id('%', id);
  if (type.memory == Memory::GL)
    fail(Code::TENSOR_TYPE, "global memory is not allocated by a kernel", {"got: " + written(type)},
         "declare it as an argument");
  if (type.memory == Memory::DSM)
    fail(Code::TENSOR_TYPE, "a kernel allocates its own block's shared memory", {"got: " + written(type)},
         "allocate it in SH, and view it in another block: .of(rank)");
  check_name(buffer.name, "an allocation");
  buffer.id = id;
  buffer.role = Role::Alloc;
  buffer.dtype = type.dtype;
  buffer.memory = type.memory;
  for (const int other : buffer.over) {
    const TensorPtr t = tensor(other);
    if (type.memory != Memory::SH || t->memory() != Memory::SH || t->id != t->buffer->id || is_barrier(t->dtype))
      fail(Code::TENSOR_TYPE, "'over' is for allocations in shared memory",
           {"got: %" + std::to_string(other) + ":" + t->type_str()});
  }
  check_align(buffer.align_bytes);
  if (buffer.at_bytes >= 0 && type.memory != Memory::SH)
    fail(Code::TENSOR_TYPE, "'at' is for allocations in shared memory", {"got: " + written(type)});
  std::size_t staged = 0;
  if (buffer.stages > 0) {
    if (type.levels.empty() || !type.levels[0].shape.is_leaf() || !type.levels[0].shape.leaf().is_const(buffer.stages))
      fail(Code::IR_TYPE_MISMATCH, "the outermost level must be the stages",
           {"want: [" + std::to_string(buffer.stages) + "...]", "got:  " + written_levels(type.levels)});
    staged = 1;
  }
  Tensor t;
  if (buffer.fragment) {
    Fragment& f = *buffer.fragment;
    f.label = type.label.value_or("");
    const std::vector<LevelDecl> own(type.levels.begin() + static_cast<std::ptrdiff_t>(staged), type.levels.end());
    check_barriers(buffer);
    check_fragment(f, own);
    buffer.layout = Layout(IntTuple(std::vector<IntTuple>(f.shape.begin(), f.shape.end())));
    check_fragment_capacity(buffer);
    check_capacity(buffer);
    check_holders(buffer);
    buffer.stage_elems = usual_stage_elems(buffer);
    if (staged > 0) t.levels.emplace_back(buffer.stages, buffer.stage_elems);
    for (const LevelDecl& l : own) t.levels.push_back(data_layout(l));
    t.id = id;
    t.dtype = buffer.dtype;
    t.buffer = std::make_shared<const Buffer>(std::move(buffer));
  } else {
    buffer.layout = data_layout(type.levels, staged);
    check_private(buffer);
    t = declare(std::move(buffer));
  }
  check_type(t, type);
  AllocStmt s{std::make_shared<const Tensor>(std::move(t))};
  define(s.tensor);
  return s;
}

Expr Assembler::counter(const std::string& name, const FactsDecl& facts, const Expr& start, const Expr& stop,
                        const Expr& step) {
  if (!steps_forward(step, kernel_.grid, kernel_.cluster))
    fail(Code::LOOP_STEP, "a loop's step must be known to be positive", {"got: " + step.str()});
  sym::VarInfo info = loop_info(name, start, stop, step);
  facts.apply(info);
  return define(info);
}

Expr Assembler::index(const std::string& name, const FactsDecl& facts, const TensorPtr& from) {
  const ScalarInfo::Class cls = info(from->dtype).cls;
  const bool integer = cls == ScalarInfo::Class::Signed || cls == ScalarInfo::Class::Unsigned;
  if (!integer || !from->levels.empty() || from->memory() != Memory::RF || !from->offset.is_const())
    fail(Code::TENSOR_TYPE, "an index is read from one integer register",
         {"got: %" + std::to_string(from->id) + ":" + from->type_str()});
  sym::VarInfo info;
  info.name = name;
  info.kind = sym::VarKind::Data;
  facts.apply(info);
  return define(info);
}

Expr Assembler::scalar(const std::string& name, const FactsDecl& facts) {
  sym::VarInfo info;
  info.name = name;
  info.kind = sym::VarKind::Scalar;
  facts.apply(info);
  return define(info);
}

void Assembler::complete(SpecStmt& s) {
  const std::optional<Arity> want = arity(s.kind);
  if (want && !want->fits(s.outs.size(), s.ins.size()))
    fail(Code::IR_OPERANDS, std::string("a wrong number of operands of ") + name(s.kind),
         {"want: " + count_str(want->outs, "output") + ", " + count_str(want->ins, "input"),
          "got:  " + count_str(s.outs.size(), "output") + ", " + count_str(s.ins.size(), "input")});
  if (s.blocks->unit != ThreadUnit::Block || s.threads->unit != ThreadUnit::Thread)
    fail(Code::SPEC_GROUP, "an execution configuration is <<<blocks, threads>>>",
         {"blocks:  " + s.blocks->type_str(), "threads: " + s.threads->type_str()});
  check_barrier_use(s);
  for (const auto& [key, value] : default_attrs(s.kind)) s.attrs.emplace(key, value);
}

Kernel Assembler::finish() {
  kernel_.body = close();
  return std::move(kernel_);
}

}  // namespace graphene::ir
