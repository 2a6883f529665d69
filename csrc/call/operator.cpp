#include "call/operator.h"

#include <algorithm>

namespace graphene::call {

namespace rt = graphene::runtime;

namespace {

constexpr std::size_t kMaxOutputs = 8;
constexpr std::int64_t kCopyAlign = 16;  // bytes; allocators align to more, which no class tells apart
constexpr std::size_t kMaxRecipes = 8;   // of a class: kernels that take only some of its sizes

std::string text_of(const std::vector<std::int64_t>& words) {
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(std::int64_t)};
}

// All tensors of a call are on one device.
rt::Device device_of(const Arguments& call) {
  for (std::size_t i = 0; i < call.tensor_count(); ++i)
    if (call.present(i)) return call.tensor(i).device;
  return {};
}

// What an output is before it is allocated: aligned as PyTorch's allocator aligns, far from every argument.
void* stand_in(std::size_t output) { return reinterpret_cast<void*>((std::uintptr_t{1} << 61) + (output << 56)); }

rt::TensorArg tensor_of(const Arguments& call, const std::vector<Output>& outputs, int source, const Shaped& view,
                        void* address) {
  rt::TensorArg t;
  const auto inputs = static_cast<int>(call.tensor_count());
  if (source < inputs) {
    t = call.tensor(source);
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
bool changes_nothing(const Recipe& r, const Arguments& call) {
  if (r.outcome != Outcome::Copy) return false;
  for (std::size_t i = 0; i < call.tensor_count(); ++i)
    if (r.copy_mask[i] && call.present(i) &&
        !(is_row_major(call.tensor(i)) && alignment_of(call.tensor(i).data) >= kCopyAlign))
      return false;
  return true;
}

bool too_large(const Error& e) {
  return std::ranges::all_of(
      e.diagnostics(), [](const Diagnostic& d) { return d.code == Code::LAUNCH_GRID || d.code == Code::LAUNCH_FACT; });
}

}  // namespace

std::shared_ptr<const Recipe> Operator::choose(const Arguments& call, const std::function<void(const Recipe&)>& take) {
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

std::shared_ptr<const Recipe> Operator::recipe(const Arguments& call) {
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

Operator::Bound Operator::bind(const KernelCall& k, const Arguments& call, const std::vector<Output>& outputs,
                               const std::string& arch, const rt::DeviceLimits& limits) const {
  Bound b;
  b.manifest = k.kernel->manifest(arch.empty() ? k.kernel->simulated_arch() : arch);
  GR_ASSERT(b.manifest->args.size() == k.args.size(), name_ + ": one argument for each of " + b.manifest->kernel_name);
  std::vector<rt::ScalarArg> scalars;
  std::vector<Shaped> shaped;
  for (const Output& o : outputs) shaped.push_back(o.form);
  for (const auto& a : k.args) {
    if (std::holds_alternative<rt::ScalarArg>(a)) {
      scalars.push_back(std::get<rt::ScalarArg>(a));
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
  const auto written = written_tensors(call, params_);
  const auto inputs = static_cast<int>(call.tensor_count());
  for (const rt::ArgSpec& spec : b.manifest->args) {
    rt::ArgValue value;
    if (spec.kind == rt::ArgKind::Scalar) {
      value.scalar = scalars.at(scalar++);
    } else {
      for (int k = 0; k < std::max(spec.list_count, 1); ++k, ++tensor) {
        const int s = b.sources.at(tensor);
        void* address = s < inputs ? call.tensor(s).data : stand_in(static_cast<std::size_t>(s - inputs));
        value.tensors.push_back(tensor_of(call, outputs, s, b.views[tensor], address));
        GR_ASSERT(s >= inputs || spec.access == rt::Access::Read || written[static_cast<std::size_t>(s)],
                  name_ + ": a kernel writes an argument that the operator does not");
      }
    }
    b.values.push_back(std::move(value));
  }
  b.call = rt::bind_args(*b.manifest, b.values, limits);
  return b;
}

std::unique_ptr<Form> Operator::instantiate(const Recipe& r, const Arguments& call, Host& host) {
  auto form = std::make_unique<Form>();
  form->outcome = r.outcome;
  form->copy_mask = r.copy_mask;
  form->device = device_of(call).id;
  if (writes_) form->reach = Reach(call, params_);
  for (const OutputSpec& o : r.outputs) form->outputs.push_back({o.dtype, evaluate(o, call), nullptr});
  if (r.outcome != Outcome::Launch) return form;
  const rt::DeviceInfo& info = rt::device(form->device);
  for (const KernelCall& k : r.launches) {
    Bound b = bind(k, call, form->outputs, info.arch, info.limits);
    const bool empty = b.call.empty();
    Step step(b.manifest, b.values, b.sources);
    step.numbers.emplace(b.call.scalars.begin(), b.call.scalars.end());
    step.prepared = std::make_shared<rt::PreparedLaunch>(*step.manifest, std::move(b.call));
    if (!empty)
      step.prepared->attach(k.kernel->function(*step.manifest, form->device, host.stream(form->device)),
                            *step.manifest);
    form->steps.push_back(std::move(step));
  }
  GR_ASSERT(form->outputs.size() <= kMaxOutputs, name_ + ": the outputs of an operator are few");
  return form;
}

Form* Operator::prepare(const Arguments& call, Host& host) {
  std::unique_ptr<Form> form;
  (void)choose(call, [&](const Recipe& r) { form = instantiate(r, call, host); });
  return forms_.keep(call, std::move(form));
}

Outcome Operator::run(const Arguments& call, Host& host, TensorMask& copy_mask) {
  if (call.tensor_count() > kMaxTensors) return Outcome::Torch;
  const Memo<Form>::Hold hold(forms_);
  Form* form = forms_.find(call);
  if (form == nullptr || !form->reach.apart(call)) {
    if (writes_) check_written(call, params_, name_);
    if (form == nullptr) form = prepare(call, host);
  }
  if (form->outcome != Outcome::Launch) {
    copy_mask = form->copy_mask;
    return form->outcome;
  }
  void* made[kMaxOutputs];
  for (std::size_t i = 0; i < form->outputs.size(); ++i) {
    made[i] = host.allocate(form->outputs[i], form->device);
    if ((reinterpret_cast<std::uintptr_t>(made[i]) & 15U) != 0)
      fail(Code::LAUNCH_ALIGN, name_ + ": PyTorch's allocator returned an address that is not a multiple of 16 bytes",
           {}, "use an allocator that aligns to 16 bytes");
  }
  const rt::CuStream stream = host.stream(form->device);
  for (const Step& step : form->steps) step.launch(call, made, stream);
  return Outcome::Launch;
}

}  // namespace graphene::call
