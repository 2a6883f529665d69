#include "torch/operator.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace graphene::torch {

namespace rt = graphene::runtime;

namespace {

constexpr std::size_t kMaxForms = 4096;
constexpr std::size_t kMaxOutputs = 8;
constexpr std::size_t kMaxKernelTensors = kMaxTensors + kMaxOutputs;
constexpr std::size_t kMaxKernelParams = 64;
constexpr std::int64_t kCopyAlign = 16;  // bytes; allocators align to more, which no class tells apart
constexpr std::size_t kMaxRecipes = 8;   // of a class: kernels that take only some of its sizes

std::string text_of(const std::vector<std::int64_t>& words) {
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(std::int64_t)};
}

// All tensors of a call are on one device.
rt::Device device_of(const Call& call) {
  for (std::size_t i = 0; i < call.tensor_count(); ++i)
    if (call.present(i)) return call.tensors()[i].device;
  return {};
}

// What an output is before it is allocated: aligned as PyTorch's allocator aligns, far from every argument.
void* stand_in(std::size_t output) { return reinterpret_cast<void*>((std::uintptr_t{1} << 61) + (output << 56)); }

rt::TensorArg tensor_of(const Call& call, const std::vector<Output>& outputs, int source, const Shaped& view,
                        void* address) {
  rt::TensorArg t;
  const auto inputs = static_cast<int>(call.tensor_count());
  if (source < inputs) {
    t = call.tensors()[source];
  } else {
    const Output& o = outputs[static_cast<std::size_t>(source - inputs)];
    t.code = o.dtype.code;
    t.bits = o.dtype.bits;
    t.device = device_of(call);
  }
  t.data = address;
  t.ndim = static_cast<int>(view.shape.size());
  t.shape = view.shape.data();
  t.strides = view.strides.data();
  return t;
}

// An operator that writes an argument has no lists.
bool written(const std::vector<Param>& params, int tensor) {
  for (const Param& p : params)
    if (p.is_tensor() && tensor-- == 0) return p.written;
  return false;
}

bool is_row_major(const rt::TensorArg& t) {
  std::int64_t next = 1;
  for (int d = t.ndim - 1; d >= 0; --d) {
    if (t.shape[d] == 0) return true;
    if (t.shape[d] != 1 && t.stride(d) != next) return false;
    next *= t.shape[d];
  }
  return true;
}

// Whether all that the recipe wants copied lies as a copy does: asked again, it would want the same again.
bool changes_nothing(const Recipe& r, const Call& call) {
  if (r.outcome != Outcome::Copy) return false;
  for (std::size_t i = 0; i < call.tensor_count(); ++i)
    if (r.copy_mask[i] && call.present(i) &&
        !(is_row_major(call.tensors()[i]) && alignment_of(call.tensors()[i].data) >= kCopyAlign))
      return false;
  return true;
}

bool too_large(const Error& e) {
  return std::ranges::all_of(
      e.diagnostics(), [](const Diagnostic& d) { return d.code == Code::LAUNCH_GRID || d.code == Code::LAUNCH_FACT; });
}

class Depth {
 public:
  explicit Depth(int& depth) : depth_(depth) { ++depth_; }
  ~Depth() { --depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  int& depth_;
};

}  // namespace

bool Operator::Form::is_of(const Call& call) const {
  return key.size() == call.key_size() &&
         std::memcmp(key.data(), call.key(), call.key_size() * sizeof(std::int64_t)) == 0;
}

Operator::Form* Operator::find(const Call& call, Host& host) {
  if (last_ != nullptr && last_->is_of(call)) return last_;
  const std::uint64_t hash = call.hash();
  if (const auto it = forms_.find(hash); it != forms_.end())
    for (const auto& f : it->second)
      if (f->is_of(call)) return last_ = f.get();
  return prepare(call, hash, host);
}

std::shared_ptr<const Recipe> Operator::choose(const Call& call, const std::function<void(const Recipe&)>& take) {
  const std::string key = text_of(class_key(call, params_));
  const auto known = classes_[key];  // a copy: loading a kernel may run Python
  for (const auto& r : known) {
    if (changes_nothing(*r, call)) continue;
    try {
      take(*r);
      return r;
    } catch (const Error& e) {
      // A kernel of the class that does not take these sizes: another one is asked for.
      if (e.diagnostics().front().code == Code::LAUNCH_CAPTURE) throw;
    }
  }
  ++configured_;
  const auto r = configure_(call);
  std::string reason = r->reason + ", and a copy lies as the argument does";
  if (!changes_nothing(*r, call)) {
    try {
      take(*r);
      auto& recipes = classes_[key];
      recipes.insert(recipes.begin(), r);
      if (recipes.size() > kMaxRecipes) recipes.pop_back();
      return r;
    } catch (const Error& e) {
      // More than a kernel counts, or blocks than a grid may have: PyTorch has a way.
      if (!too_large(e)) throw;
      reason = e.what();
    }
  }
  const auto torchs = std::make_shared<const Recipe>(Recipe{.outcome = Outcome::Torch, .reason = reason});
  take(*torchs);
  return torchs;
}

std::shared_ptr<const Recipe> Operator::recipe(const Call& call) {
  const rt::Device device = device_of(call);
  const rt::DeviceInfo* const info = device.on_host() ? nullptr : &rt::device(device.id);
  return choose(call, [&](const Recipe& r) {
    std::vector<Output> outputs;
    for (const OutputSpec& o : r.outputs) outputs.push_back({o.dtype, evaluate(o, call), nullptr});
    for (const KernelCall& k : r.launches)
      (void)bind(k, call, outputs, info != nullptr ? info->arch : "",
                 info != nullptr ? info->limits : rt::DeviceLimits{});
  });
}

Operator::Bound Operator::bind(const KernelCall& k, const Call& call, const std::vector<Output>& outputs,
                               const std::string& arch, const rt::DeviceLimits& limits) const {
  Bound b;
  b.manifest = k.kernel->manifest(arch);
  GR_ASSERT(b.manifest->args.size() == k.args.size(), name_ + ": one argument for each of " + b.manifest->kernel_name);
  std::vector<rt::Scalar> scalars;
  std::vector<Shaped> shaped;
  for (const Output& o : outputs) shaped.push_back(o.form);
  for (const auto& a : k.args) {
    if (std::holds_alternative<rt::Scalar>(a)) {
      scalars.push_back(std::get<rt::Scalar>(a));
      continue;
    }
    const auto add = [&](const View& v) {
      auto view = evaluate(v, call, shaped);
      if (!view) fail(Code::INTERNAL, name_ + ": a recipe merges dimensions that do not lie one after the other");
      b.sources.push_back(v.source);
      b.views.push_back(std::move(*view));
    };
    if (std::holds_alternative<View>(a))
      add(std::get<View>(a));
    else
      for (const View& v : std::get<std::vector<View>>(a)) add(v);
  }
  std::size_t tensor = 0, scalar = 0;
  const auto inputs = static_cast<int>(call.tensor_count());
  for (const rt::ArgSpec& spec : b.manifest->args) {
    rt::ArgValue value;
    if (spec.kind == rt::ArgKind::Scalar) {
      value.scalar = scalars.at(scalar++);
    } else {
      for (int k = 0; k < std::max(spec.list_count, 1); ++k, ++tensor) {
        const int s = b.sources.at(tensor);
        void* address = s < inputs ? call.tensors()[s].data : stand_in(static_cast<std::size_t>(s - inputs));
        value.tensors.push_back(tensor_of(call, outputs, s, b.views[tensor], address));
        GR_ASSERT(s >= inputs || spec.access == rt::Access::Read || (writes_ && written(params_, s)),
                  name_ + ": a kernel writes an argument that the operator does not");
      }
    }
    b.values.push_back(std::move(value));
  }
  b.call = rt::bind_args(*b.manifest, b.values, limits);
  return b;
}

std::unique_ptr<Operator::Form> Operator::instantiate(const Recipe& r, const Call& call, Host& host) {
  auto form = std::make_unique<Form>();
  form->key.assign(call.key(), call.key() + call.key_size());
  form->outcome = r.outcome;
  form->copy_mask = r.copy_mask;
  form->device = device_of(call).id;
  for (const OutputSpec& o : r.outputs) form->outputs.push_back({o.dtype, evaluate(o, call), nullptr});
  if (r.outcome != Outcome::Launch) return form;
  const rt::DeviceInfo& info = rt::device(form->device);
  for (const KernelCall& k : r.launches) {
    Bound b = bind(k, call, form->outputs, info.arch, info.limits);
    Launch l;
    l.manifest = b.manifest;
    l.sources = std::move(b.sources);
    l.scalars = b.call.scalars;
    std::size_t first = 0;
    for (const rt::ArgValue& v : b.values)
      if (!v.tensors.empty()) l.firsts.push_back(std::exchange(first, first + v.tensors.size()));
    const bool empty = b.call.empty();
    l.plan = std::make_shared<rt::Plan>(*l.manifest, b.values, std::move(b.call), rt::scalars_in_sizes(*l.manifest));
    if (!empty) l.plan->attach(k.kernel->function(*l.manifest, form->device, host.stream(form->device)), *l.manifest);
    GR_ASSERT(l.sources.size() <= kMaxKernelTensors &&
                  l.firsts.size() + l.scalars.size() + l.plan->symbol_count() <= kMaxKernelParams,
              name_ + ": a kernel of so many parameters");
    form->launches.push_back(std::move(l));
  }
  GR_ASSERT(form->outputs.size() <= kMaxOutputs, name_ + ": an operator of so many outputs");
  return form;
}

Operator::Form* Operator::prepare(const Call& call, std::uint64_t hash, Host& host) {
  std::unique_ptr<Form> form;
  (void)choose(call, [&](const Recipe& r) { form = instantiate(r, call, host); });
  if (form_count_ >= kMaxForms && depth_ == 1) {
    forms_.clear();
    form_count_ = 0;
  }
  last_ = form.get();
  forms_[hash].push_back(std::move(form));
  ++form_count_;
  return last_;
}

void Operator::launch(Launch& l, const Call& call, void* const* addresses, rt::CuStream stream) {
  if (l.plan->empty()) return;
  const auto inputs = call.tensor_count();
  void* data[kMaxKernelTensors];
  void* params[kMaxKernelParams];
  std::size_t n = 0;
  for (const int s : l.sources) {
    const auto i = static_cast<std::size_t>(s);
    data[n++] = i < inputs ? call.tensors()[i].data : addresses[i - inputs];
  }
  n = 0;
  for (const std::size_t first : l.firsts) params[n++] = &data[first];
  for (std::uint64_t& x : l.scalars) params[n++] = &x;
  const int r = l.plan->launch(rt::driver(), stream, params, n);
  if (r != rt::kCudaSuccess) throw Error(rt::driver_problem(r, l.manifest->kernel_name, "the launch"));
}

Outcome Operator::run(const Call& call, Host& host, TensorMask& copy_mask) {
  if (writes_) check_written(call, params_, name_);
  const Depth depth(depth_);
  Form* const form = find(call, host);
  if (form->outcome != Outcome::Launch) {
    copy_mask = form->copy_mask;
    return form->outcome;
  }
  void* addresses[kMaxOutputs];
  for (std::size_t i = 0; i < form->outputs.size(); ++i) {
    addresses[i] = host.allocate(form->outputs[i], form->device);
    if ((reinterpret_cast<std::uintptr_t>(addresses[i]) & 15U) != 0)
      fail(Code::LAUNCH_ALIGN, name_ + ": PyTorch's allocator returned an address that is no multiple of 16 bytes", {},
           "use an allocator that aligns to 16 bytes");
  }
  const rt::CuStream stream = host.stream(form->device);
  for (Launch& l : form->launches) launch(l, call, addresses, stream);
  return Outcome::Launch;
}

}  // namespace graphene::torch
