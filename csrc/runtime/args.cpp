#include "runtime/args.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/scalars.h"
#include "runtime/strides.h"

namespace graphene::runtime {

namespace {

std::string join(const std::vector<std::string>& parts) {
  std::string s;
  for (const std::string& p : parts) s += (s.empty() ? "" : ",") + p;
  return "[" + s + "]";
}

std::string join(const std::int64_t* first, int n) {
  std::vector<std::string> parts;
  for (int i = 0; i < n; ++i) parts.push_back(std::to_string(first[i]));
  return join(parts);
}

std::string strides_text(const TensorArg& t) {
  std::vector<std::string> parts;
  for (int d = 0; d < t.ndim; ++d) parts.push_back(std::to_string(t.stride(d)));
  return join(parts);
}

// One tensor of the call with its declaration.
struct Tensor {
  const ArgSpec* spec;
  std::string name;  // "A", "A[3]"
  const TensorArg* value;
  const std::vector<Dim>* dims = nullptr;  // the accepted form of its rank; null: none
  bool failed = false;                     // already reported; later checks stay quiet
};

// coefficient * symbol / divisor + constant: what an extent or stride must look like to be solved for the symbol.
struct Linear {
  const sym::VarInfo* var;
  std::int64_t coefficient;
  std::int64_t constant;
  std::int64_t divisor = 1;
};

std::optional<Linear> linear(const Expr& e) {
  if (e.is_const()) return std::nullopt;
  if (e.is_var()) return Linear{&e.var(), 1, 0};
  const sym::Node& n = *e.node();
  if (n.op == sym::Op::Add && n.args.size() == 1 && n.args[0].is_var() && n.coef[0] != 0)
    return Linear{&n.args[0].var(), n.coef[0], n.constant};
  // Bytes of elements that share them: the symbol is a multiple.
  if (n.op == sym::Op::FloorDiv && n.args.size() == 2 && n.args[0].is_var() && n.args[1].is_const() &&
      n.args[1].value() > 0 && n.args[0].var().multiple_of % n.args[1].value() == 0)
    return Linear{&n.args[0].var(), 1, 0, n.args[1].value()};
  return std::nullopt;
}

class Binder {
 public:
  Binder(const LaunchManifest& m, const std::vector<ArgValue>& args, const DeviceLimits& limits)
      : m_(m), args_(args), limits_(limits) {}

  BoundCall run() {
    GR_ASSERT(args_.size() == m_.args.size(), "one value for every declared argument");
    collect();
    for (Tensor& t : tensors_) check_alone(t);
    check_devices();
    solve();
    check_symbols();
    for (Tensor& t : tensors_) check_shape(t);
    for (Tensor& t : tensors_) check_strides(t);
    check_overlap();
    stop_if_bad();
    check_facts();
    finish();
    stop_if_bad();
    return std::move(out_);
  }

 private:
  void problem(Code code, const std::string& what, std::vector<std::string> details, std::string fix) {
    problems_.push_back(launch_problem(code, m_.kernel_name, what, std::move(details), std::move(fix)));
  }

  void stop_if_bad() {
    if (!problems_.empty()) throw Error(std::move(problems_));
  }

  // Spells lists out and packs the scalars.
  void collect() {
    for (std::size_t i = 0; i < args_.size(); ++i) {
      const ArgSpec& spec = m_.args[i];
      const ArgValue& value = args_[i];
      if (value.problem) {
        problems_.push_back(*value.problem);
        unread_ = true;
        continue;
      }
      if (spec.kind == ArgKind::Scalar) {
        const auto bits = pack_scalar(spec.dtype, value.scalar);
        if (!bits)
          problem(Code::LAUNCH_SCALAR, "argument '" + spec.name + "': " + spec.dtype.name + " cannot hold the number",
                  {"got: " + value.scalar.str()}, "pass a number that " + spec.dtype.name + " represents");
        out_.scalars.push_back(bits.value_or(0));
        scalar_values_[spec.name] = value.scalar.i;
        continue;
      }
      for (std::size_t k = 0; k < value.tensors.size(); ++k) {
        const std::string name = spec.list_count == 0 ? spec.name : spec.name + "[" + std::to_string(k) + "]";
        tensors_.push_back({.spec = &spec, .name = name, .value = &value.tensors[k]});
      }
    }
  }

  // A copy is not where the caller looks for the result.
  static std::string and_back(const Tensor& t) {
    return t.spec->access == Access::Read ? "" : ", and copy the result back into " + t.name;
  }

  // What the caller of a tensor whose elements share bytes should know of its shape.
  static void add_packing(const Tensor& t, std::vector<std::string>& details) {
    if (!t.spec->packed.empty())
      details.push_back("a byte holds two elements of " + t.spec->packed +
                        ": bytes are counted along the mode of stride 1");
  }

  static std::string packing_fix(const Tensor& t) {
    return "pack two elements of " + t.spec->packed +
           " into each byte, the first one in its low bits, and pass the array of bytes" + and_back(t);
  }

  static std::string shape_fix(const Tensor& t) {
    return t.spec->packed.empty() ? "pass a tensor of the declared shape" : packing_fix(t);
  }

  // An array of NumPy's kind, and not a torch tensor.
  static bool array(const TensorArg& v) { return v.raw_bits; }

  void check_alone(Tensor& t) {
    const TensorArg& v = *t.value;
    const DType& want = t.spec->dtype;
    const bool as_bits =
        v.raw_bits && v.code == 1 && v.bits == want.bits && want.bits <= 16 && (want.code == 4 || want.code >= 7);
    // Truth values are bytes, 0 or 1; nothing else may be written to them.
    const bool truth = v.code == 6 && v.bits == 8 && want.code == 1 && want.bits == 8 && t.spec->access == Access::Read;
    if (!(v.code == want.code && v.bits == want.bits && v.lanes == 1) && !as_bits && !truth)
      problem(Code::LAUNCH_DTYPE, "argument '" + t.name + "' has the wrong dtype",
              {"want: " + want.name + (t.spec->packed.empty() ? "" : ", two elements of " + t.spec->packed + " a byte"),
               "got:  " + dtype_text(v.code, v.bits, v.lanes)},
              dtype_fix(t));
    const bool scalar = t.spec->dims.empty() && t.spec->flat.empty();  // else an empty list is a form that is not there
    for (const auto* form : {&t.spec->dims, &t.spec->flat})
      if (static_cast<int>(form->size()) == v.ndim && t.dims == nullptr && (!form->empty() || scalar)) t.dims = form;
    if (t.dims == nullptr) {
      t.failed = true;
      std::string want_ranks = std::to_string(t.spec->dims.empty() ? t.spec->flat.size() : t.spec->dims.size());
      if (!t.spec->dims.empty() && !t.spec->flat.empty() && t.spec->flat.size() != t.spec->dims.size())
        want_ranks += " or " + std::to_string(t.spec->flat.size());
      std::vector<std::string> details = {
          "want: rank " + want_ranks + ", shape " + shape_text(t.spec->dims.empty() ? t.spec->flat : t.spec->dims),
          "got:  rank " + std::to_string(v.ndim) + ", shape " + join(v.shape, v.ndim)};
      add_packing(t, details);
      problem(Code::LAUNCH_SHAPE, "argument '" + t.name + "' has the wrong rank", std::move(details),
              "reshape it; a hierarchical layout takes one dimension for each of its leaves");
    }
    if (v.numel() > 0 && v.data == nullptr)
      problem(Code::LAUNCH_NULL, "argument '" + t.name + "' has elements but a null address",
              {"shape: " + join(v.shape, v.ndim)}, "pass a tensor that owns memory");
    if (v.numel() > 0 && v.data != nullptr && reinterpret_cast<std::uintptr_t>(v.data) % t.spec->align_bytes != 0)
      problem(Code::LAUNCH_ALIGN, "argument '" + t.name + "' is not aligned",
              {"want: an address that is a multiple of " + std::to_string(t.spec->align_bytes) + " bytes",
               "got:  one that is " + std::to_string(reinterpret_cast<std::uintptr_t>(v.data) % t.spec->align_bytes) +
                   " beyond"},
              "pass a copy (" + t.name + (array(v) ? ".copy()" : ".clone()") + "), or slice at a multiple of " +
                  std::to_string(t.spec->align_bytes * 8 / std::max<int>(v.bits, 1)) + " elements");
    if (v.readonly && t.spec->access != Access::Read)
      problem(Code::LAUNCH_READONLY, "argument '" + t.name + "' is written by the kernel but read-only", {},
              "pass a writable copy");
  }

  void check_devices() {
    const Tensor* first = nullptr;
    for (const Tensor& t : tensors_) {
      const Device d = t.value->device;
      if (!d.on_host() && !d.on_cuda()) {
        problem(Code::LAUNCH_DEVICE, "argument '" + t.name + "' is on a device that kernels do not run on",
                {"got:  " + d.str()}, "pass CUDA tensors, or CPU tensors and NumPy arrays for the simulator");
        continue;
      }
      if (first == nullptr) first = &t;
      const Device f = first->value->device;
      if (d.on_cuda() != f.on_cuda() || (d.on_cuda() && d.id != f.id))
        problem(Code::LAUNCH_DEVICE, "argument '" + t.name + "' is on another device",
                {"want: " + f.str() + ", as '" + first->name + "'", "got:  " + d.str()},
                "move all arguments to one device");
    }
  }

  // Reads every symbol off the first extent that gives it, else off a stride: of a dimension with several elements if
  // there is one, since the stride of a single element means nothing.
  void solve() {
    for (const SymbolSpec& s : m_.symbols)
      if (s.from == SymbolFrom::SmCount) values_[s.name] = {limits_.sm_count, "the device's multiprocessors"};
    for (const bool strides : {false, true})
      for (const Tensor& t : tensors_) {
        if (t.dims == nullptr) continue;
        for (int d = 0; d < t.value->ndim; ++d) {
          if (strides && (t.value->shape[d] <= 1 || t.value->numel() == 0)) continue;
          solve_one(t, d, strides);
        }
      }
    // Strides of single elements only: any value that the facts allow addresses the same memory.
    for (const Tensor& t : tensors_)
      for (int d = 0; t.dims != nullptr && d < t.value->ndim; ++d) {
        const auto l = linear((*t.dims)[static_cast<std::size_t>(d)].stride);
        const SymbolSpec* s = l ? spec_of(l->var->name) : nullptr;
        if (s != nullptr && values_.count(s->name) == 0)
          values_[s->name] = {
              (std::max<std::int64_t>(s->min, 0) + s->multiple_of - 1) / s->multiple_of * s->multiple_of,
              "the stride of a single element"};
      }
  }

  void solve_one(const Tensor& t, int d, bool stride) {
    const Dim& dim = (*t.dims)[static_cast<std::size_t>(d)];
    const auto l = linear(stride ? dim.stride : dim.extent);
    if (!l || l->var->kind == sym::VarKind::Param || values_.count(l->var->name) != 0) return;
    const std::int64_t got = stride ? t.value->stride(d) : t.value->shape[d];
    std::int64_t rest = 0;
    if (__builtin_sub_overflow(got, l->constant, &rest) || rest % l->coefficient != 0) return;
    std::int64_t value = 0;
    if (__builtin_mul_overflow(rest / l->coefficient, l->divisor, &value)) return;
    values_[l->var->name] = {value, (stride ? "stride of dimension " : "dimension ") + std::to_string(d) + " of '" +
                                        t.name + "'" +
                                        (l->divisor == 1 ? "" : ", two elements of " + t.spec->packed + " a byte")};
  }

  [[nodiscard]] const SymbolSpec* spec_of(const std::string& name) const {
    for (const SymbolSpec& s : m_.symbols)
      if (s.name == name) return &s;
    return nullptr;
  }

  void check_symbols() {
    for (const SymbolSpec& s : m_.symbols) {
      const auto it = values_.find(s.name);
      if (it == values_.end()) {
        out_.symbols.push_back(0);
        const bool reported =
            unread_ || std::any_of(tensors_.begin(), tensors_.end(), [](const Tensor& t) { return t.failed; });
        if (!reported) unsolved(s);
        continue;
      }
      const auto& [value, from] = it->second;
      out_.symbols.push_back(value);
      const std::string text = s.name + " = " + std::to_string(value) + " (" + from + ")";
      if (value < s.min || value > s.max)
        problem(Code::LAUNCH_FACT, text + " is out of its bounds",
                {"want: " + std::to_string(s.min) + " <= " + s.name +
                 (s.max == sym::kMaxInt ? "" : " <= " + std::to_string(s.max))},
                "pass a size within the bounds, or declare wider ones");
      else if (value % s.multiple_of != 0)
        problem(Code::LAUNCH_FACT, text + " is not a multiple of " + std::to_string(s.multiple_of), {},
                "pad it, or declare the symbol without multiple_of=" + std::to_string(s.multiple_of));
      else if (s.is_param && s.bits == 32 && (value > INT32_MAX || value < INT32_MIN))
        problem(Code::LAUNCH_FACT, text + " does not fit the kernel's 32-bit parameter", {},
                "declare a larger max so that the kernel takes it as a 64-bit integer");
    }
  }

  void unsolved(const SymbolSpec& s) {
    for (Tensor& t : tensors_) {
      if (t.dims == nullptr) continue;
      for (int d = 0; d < t.value->ndim; ++d) {
        const auto l = linear((*t.dims)[static_cast<std::size_t>(d)].extent);
        if (!l || l->var->name != s.name) continue;
        t.failed = true;
        std::vector<std::string> details = {"want: " + shape_text(*t.dims),
                                            "got:  " + join(t.value->shape, t.value->ndim),
                                            "no integer " + s.name + " gives dimension " + std::to_string(d)};
        add_packing(t, details);
        problem(Code::LAUNCH_SHAPE, "argument '" + t.name + "' has the wrong shape", std::move(details), shape_fix(t));
        return;
      }
    }
    problem(Code::LAUNCH_SYMBOL, "no argument's shape or strides decide '" + s.name + "'", {},
            "give some argument an extent or stride that is " + s.name + " itself");
  }

  // nullopt when it depends on a symbol that is not known.
  std::optional<std::int64_t> value_of(const Expr& e) const {
    bool unknown = false;
    if (e.is_const()) return e.value();
    const std::int64_t v = sym::evaluate(e, [&](const sym::VarInfo& info) -> std::int64_t {
      if (const auto it = values_.find(info.name); it != values_.end()) return it->second.first;
      if (const auto it = scalar_values_.find(info.name); it != scalar_values_.end()) return it->second;
      unknown = true;
      return 1;
    });
    return unknown ? std::nullopt : std::optional(v);
  }

  std::string shape_text(const std::vector<Dim>& dims) const {
    std::vector<std::string> parts;
    for (const Dim& d : dims) parts.push_back(d.extent.str());
    return join(parts);
  }

  // "[M,64] = [128,64]", or only the text when it is made of numbers or not known.
  std::string with_values(const std::vector<Dim>& dims, Expr Dim::*field) const {
    std::vector<std::string> texts, numbers;
    for (const Dim& d : dims) {
      texts.push_back((d.*field).str());
      const auto v = value_of(d.*field);
      numbers.push_back(v ? std::to_string(*v) : "?");
    }
    const std::string text = join(texts), number = join(numbers);
    return text == number || number.find('?') != std::string::npos ? text : text + " = " + number;
  }

  // "M = 128 (dimension 0 of 'A')" for the symbols of an expression.
  void add_origins(const Expr& e, std::vector<std::string>& details) const {
    if (e.is_const()) return;
    for (const Expr& v : sym::free_vars(e)) {
      const auto it = values_.find(v.var().name);
      if (it == values_.end()) continue;
      const std::string line = it->first + " = " + std::to_string(it->second.first) + " (" + it->second.second + ")";
      if (std::find(details.begin(), details.end(), line) == details.end()) details.push_back(line);
    }
  }

  void check_shape(Tensor& t) {
    if (t.failed || t.dims == nullptr) return;
    std::vector<std::string> origins;
    bool wrong = false;
    for (int d = 0; d < t.value->ndim; ++d) {
      const Expr& e = (*t.dims)[static_cast<std::size_t>(d)].extent;
      const auto want = value_of(e);
      if (!want || *want == t.value->shape[d]) continue;
      wrong = true;
      add_origins(e, origins);
    }
    if (!wrong) return;
    t.failed = true;
    std::vector<std::string> details = {"want: " + with_values(*t.dims, &Dim::extent),
                                        "got:  " + join(t.value->shape, t.value->ndim)};
    details.insert(details.end(), origins.begin(), origins.end());
    add_packing(t, details);
    problem(Code::LAUNCH_SHAPE, "argument '" + t.name + "' has the wrong shape", std::move(details), shape_fix(t));
  }

  void check_strides(Tensor& t) {
    if (t.failed || t.dims == nullptr || t.value->numel() == 0) return;
    bool wrong = false;
    std::vector<std::string> origins;
    for (int d = 0; d < t.value->ndim; ++d) {
      if (t.value->shape[d] == 1) continue;
      const Expr& e = (*t.dims)[static_cast<std::size_t>(d)].stride;
      const auto want = value_of(e);
      if (!want || *want == t.value->stride(d)) continue;
      wrong = true;
      add_origins(e, origins);
    }
    if (!wrong) return;
    t.failed = true;
    std::vector<std::string> details = {"want: " + with_values(*t.dims, &Dim::stride),
                                        "got:  " + strides_text(*t.value)};
    details.insert(details.end(), origins.begin(), origins.end());
    problem(Code::LAUNCH_STRIDE, "argument '" + t.name + "' has the wrong strides", std::move(details), stride_fix(t));
  }

  std::string dtype_fix(const Tensor& t) const {
    if (!t.spec->packed.empty()) return packing_fix(t);
    const bool of_array = array(*t.value);
    const Scalar* s = find_scalar(t.spec->dtype.name);
    if (s != nullptr && (of_array ? s->in_numpy() : s->in_arrays()) && s->cls != Scalar::Class::Pred) {
      const std::string module = of_array ? "np." : "torch.";
      return "pass " + t.name + (of_array ? ".astype(" : ".to(") + module + s->array + ")" + and_back(t) +
             "; or build the kernel for this dtype";
    }
    return "convert it, or build the kernel for this dtype";
  }

  std::string stride_fix(const Tensor& t) const {
    bool rows = true, columns = true;
    std::int64_t r = 1, c = 1;
    const int n = t.value->ndim;
    for (int i = 0; i < n; ++i) {
      const int last = n - 1 - i;
      const auto at = [&](int d) { return value_of((*t.dims)[static_cast<std::size_t>(d)].stride); };
      if (t.value->shape[last] != 1) rows = rows && at(last) == r;
      if (t.value->shape[i] != 1) columns = columns && at(i) == c;
      r *= t.value->shape[last];
      c *= t.value->shape[i];
    }
    const std::string module = t.value->device.on_host() ? "np" : "cupy";
    const auto copy = [&](const char* function, const char* method) {
      return "pass " + (array(*t.value) ? module + function + "(" + t.name + ")" : t.name + method);
    };
    if (rows) return copy(".ascontiguousarray", ".contiguous()") + and_back(t) + "; or declare the strides as symbols";
    if (columns)
      return "the kernel takes it column-major: " + copy(".asfortranarray", ".mT.contiguous().mT") + and_back(t) +
             "; or declare it row-major";
    return "pass a tensor with the declared strides, or declare the strides as symbols";
  }

  void check_overlap() {
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      for (std::size_t k = i + 1; k < tensors_.size(); ++k) {
        const Tensor &a = tensors_[i], &b = tensors_[k];
        const bool a_written = a.spec->access != Access::Read, b_written = b.spec->access != Access::Read;
        if ((!a_written && !b_written) || !(a.value->device == b.value->device) || !overlap(*a.value, *b.value))
          continue;
        problem(Code::LAUNCH_OVERLAP,
                "arguments '" + a.name + "' and '" + b.name + "' share memory, and the kernel writes " +
                    (a_written && b_written ? "both" : "'" + (a_written ? a.name : b.name) + "'"),
                {}, "pass a copy, or build the kernel with one gr.inout tensor in place of the two");
      }
  }

  void check_facts() {
    for (const FactSpec& f : m_.facts) {
      const auto v = value_of(f.condition);
      if (v && *v != 0) continue;
      std::vector<std::string> details = {"want: " + f.condition.str()};
      if (!f.where.empty()) details.push_back("needed at: " + f.where);
      add_origins(f.condition, details);
      problem(Code::LAUNCH_FACT, "the arguments break a fact the kernel was built on: " + f.text, std::move(details),
              "pass sizes for which it holds, or build the kernel without the wider access");
    }
  }

  // What a map cannot describe. A launch without blocks needs none.
  void bind_maps() {
    constexpr std::int64_t kMostStride = std::int64_t{1} << 40, kMostExtent = std::int64_t{1} << 31, kUnit = 16;
    if (out_.empty()) return;
    for (const MapSpec& spec : m_.maps) {
      const ArgSpec& arg = m_.args[static_cast<std::size_t>(spec.arg)];
      BoundMap map{.dtype = arg.dtype, .rank = static_cast<unsigned>(spec.dims.size())};
      map.swizzle_bytes = spec.swizzle_bytes;
      for (int i = 0; i < spec.arg; ++i)
        map.tensor += m_.args[static_cast<std::size_t>(i)].kind == ArgKind::Tensor ? 1 : 0;
      const std::int64_t bytes = arg.dtype.bits / 8;
      std::int64_t behind = kUnit;  // a stride that would do
      for (std::size_t d = 0; d < spec.dims.size(); ++d) {
        const auto extent = value_of(spec.dims[d].extent), stride = value_of(spec.dims[d].stride);
        if (!extent || !stride) return;  // reported with the arguments
        const auto refuse = [&](const std::string& want, const std::string& got, const std::string& fix) {
          std::vector<std::string> details = {"want: " + want, "got:  " + got};
          add_origins(spec.dims[d].extent, details);
          add_origins(spec.dims[d].stride, details);
          problem(Code::LAUNCH_MAP, "no tensor map describes argument '" + arg.name + "'", std::move(details), fix);
        };
        if (*extent < 1)
          refuse("elements along every dimension", "none along " + spec.dims[d].extent.str(),
                 "fill the outputs without the kernel; min=1 on the size says so in it");
        if (*extent + spec.box[d] >= kMostExtent)
          refuse("fewer than 2^31 elements along a dimension", std::to_string(*extent), "split the tensor");
        const std::int64_t step = *extent == 1 && d > 0 ? behind : *stride * bytes;
        if (d > 0 && (step % kUnit != 0 || step < 0 || step >= kMostStride))
          refuse("lines a multiple of 16 bytes apart, below 2^40", std::to_string(step) + " bytes",
                 "pass a tensor whose rows are padded to 16 bytes");
        map.extents.at(d) = static_cast<std::uint64_t>(std::max<std::int64_t>(*extent, 1));
        map.stride_bytes.at(d) = static_cast<std::uint64_t>(std::max<std::int64_t>(step, 0));
        map.box.at(d) = static_cast<std::uint32_t>(spec.box[d]);
        behind = std::max(behind, (step * std::max<std::int64_t>(*extent, 1) + kUnit - 1) / kUnit * kUnit);
        if (behind >= kMostStride) behind = kUnit;
      }
      out_.maps.push_back(map);
    }
  }

  void finish() {
    for (std::size_t d = 0; d < 3; ++d) {
      const auto v = value_of(m_.grid[d]);
      out_.grid[d] = v.value_or(0);
      if (v && *v >= 0 && *v <= limits_.grid[d]) continue;
      problem(
          Code::LAUNCH_GRID, std::string("the grid is too large in ") + "xyz" [d],
          {
            "want: at most " + std::to_string(limits_.grid[d]) + " blocks",
                "got:  " + m_.grid[d].str() + " = " + (v ? std::to_string(*v) : "?")
          },
          "use larger tiles, or put the long dimension first in gr.blocks");
    }
    for (std::size_t d = 0; d < 3; ++d) {
      if (out_.grid[d] % m_.cluster[d] == 0) continue;
      problem(Code::LAUNCH_GRID, "the grid is not a whole number of clusters",
              {"want: a multiple of " + std::to_string(m_.cluster[d]) + " blocks",
               "got:  " + m_.grid[d].str() + " = " + std::to_string(out_.grid[d])},
              "declare the number of blocks as a multiple of the cluster's");
    }
    bind_maps();
    if (m_.block_threads > limits_.block_threads)
      problem(Code::LAUNCH_GRID, "too many threads in a block",
              {"want: at most " + std::to_string(limits_.block_threads), "got:  " + std::to_string(m_.block_threads)},
              "use fewer threads");
    const auto shared = value_of(m_.dynamic_shared_bytes);
    out_.dynamic_shared_bytes = shared.value_or(0);
    if (!shared || *shared < 0 || *shared > limits_.shared_bytes)
      problem(Code::LAUNCH_GRID, "too much shared memory in a block",
              {"want: at most " + std::to_string(limits_.shared_bytes) + " bytes",
               "got:  " + (shared ? std::to_string(*shared) : "?")},
              "use smaller tiles or fewer stages");
    for (const Tensor& t : tensors_) out_.flat.push_back(t.dims == &t.spec->flat);
  }

  const LaunchManifest& m_;
  const std::vector<ArgValue>& args_;
  const DeviceLimits& limits_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::pair<std::int64_t, std::string>> values_;  // symbol -> value, where it was read
  std::map<std::string, std::int64_t> scalar_values_;
  std::vector<Diagnostic> problems_;
  bool unread_ = false;
  BoundCall out_;
};

}  // namespace

std::string Device::str() const {
  switch (type) {
    case kCpu:
    case kCudaHost:
      return "cpu";
    case kCuda:
    case kCudaManaged:
      return "cuda:" + std::to_string(id);
    case kRocm:
      return "rocm:" + std::to_string(id);
    default:
      return "DLPack device type " + std::to_string(type);
  }
}

std::int64_t TensorArg::numel() const {
  std::int64_t n = 1;
  for (int d = 0; d < ndim; ++d) n *= shape[d];
  return n;
}

std::int64_t TensorArg::stride(int dim) const {
  if (strides != nullptr) return strides[dim];
  std::int64_t s = 1;
  for (int d = ndim - 1; d > dim; --d) s *= shape[d];
  return s;
}

std::string dtype_text(std::uint8_t code, std::uint8_t bits, std::uint16_t lanes) {
  const std::string n = std::to_string(bits), many = lanes == 1 ? "" : "x" + std::to_string(lanes);
  switch (code) {
    case 0:
      return "int" + n + many;
    case 1:
      return "uint" + n + many;
    case 2:
      return "float" + n + many;
    case 4:
      return "bfloat" + n + many;
    case 5:
      return "complex" + n + many;
    case 6:
      return "bool" + many;
    case 10:
      return "float8_e4m3fn" + many;
    case 12:
      return "float8_e5m2" + many;
    default:
      return "DLPack type " + std::to_string(code) + " of " + n + " bits" + many;
  }
}

Diagnostic launch_problem(Code code, const std::string& kernel, const std::string& what,
                          std::vector<std::string> details, std::string fix) {
  return {.code = code,
          .where = {},
          .message = kernel + ": " + what + "; nothing was launched",
          .ir = {},
          .details = std::move(details),
          .fix = std::move(fix)};
}

BoundCall bind_args(const LaunchManifest& m, const std::vector<ArgValue>& args, const DeviceLimits& limits) {
  return Binder(m, args, limits).run();
}

}  // namespace graphene::runtime
