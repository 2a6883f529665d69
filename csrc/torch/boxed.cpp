#include "torch/boxed.h"

#include <array>
#include <stdexcept>
#include <utility>

#include "call/reader.h"

namespace graphene::torch {

namespace rt = graphene::runtime;
using call::Param;
using call::ParamKind;
using call::Read;

namespace {

// PyTorch calls a boxed kernel without saying which: every registration has a function of its own.
constexpr std::size_t kSlots = 256;
struct Slot {
  call::Operator* op = nullptr;
  std::string own;
  Interpreter interpreter{};
};
std::array<Slot, kSlots>& slots() {
  static std::array<Slot, kSlots> s;
  return s;
}
const Shim* the_shim = nullptr;

void check(int result, const char* call) {
  if (result == 0) return;
  std::string text = std::string(call) + " failed";
  if (the_shim->what != nullptr) text = the_shim->what();
  throw std::runtime_error(text);
}

class Owned {
 public:
  Owned() = default;
  explicit Owned(TensorHandle h) : handle_(h) {}
  Owned(Owned&& o) noexcept : handle_(std::exchange(o.handle_, nullptr)) {}
  Owned& operator=(Owned&& o) noexcept {
    std::swap(handle_, o.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_ != nullptr) the_shim->delete_tensor(handle_);
  }
  [[nodiscard]] TensorHandle get() const { return handle_; }
  TensorHandle release() { return std::exchange(handle_, nullptr); }

 private:
  TensorHandle handle_ = nullptr;
};

TensorHandle as_tensor(StackValue v) { return reinterpret_cast<TensorHandle>(v); }

// A device in PyTorch's numbers.
struct TorchDevice {
  std::int32_t type = 0;
  std::int32_t index = 0;
};

void describe(TensorHandle h, rt::TensorArg& t, TorchDevice& device) {
  t = {};
  std::int64_t ndim = 0, *sizes = nullptr, *strides = nullptr;
  std::int32_t dtype = 0;
  check(the_shim->dim(h, &ndim), "aoti_torch_get_dim");
  check(the_shim->sizes(h, &sizes), "aoti_torch_get_sizes");
  check(the_shim->strides(h, &strides), "aoti_torch_get_strides");
  check(the_shim->dtype(h, &dtype), "aoti_torch_get_dtype");
  check(the_shim->device_type(h, &device.type), "aoti_torch_get_device_type");
  check(the_shim->device_index(h, &device.index), "aoti_torch_get_device_index");
  check(the_shim->data_ptr(h, &t.data), "aoti_torch_get_data_ptr");
  if (!dlpack_type(dtype, t.code, t.bits)) {
    t.code = 0xff;  // the configuration says that no kernel takes it
    t.bits = static_cast<std::uint8_t>(dtype);
  }
  t.device = {device.type == the_shim->cuda_device_type() ? rt::kCuda : rt::kCpu, std::max(device.index, 0)};
  t.ndim = static_cast<int>(ndim);
  t.shape = sizes;
  t.strides = strides;
}

// A row-major tensor of the same elements.
Owned row_major(const rt::TensorArg& t, TensorHandle from, TorchDevice device) {
  std::vector<std::int64_t> strides(static_cast<std::size_t>(t.ndim));
  std::int64_t stride = 1;
  for (int d = t.ndim - 1; d >= 0; --d) {
    strides[static_cast<std::size_t>(d)] = stride;
    stride *= std::max<std::int64_t>(t.shape[d], 1);
  }
  TensorHandle h = nullptr;
  check(the_shim->empty_strided(t.ndim, t.shape, strides.data(), scalar_type(t.code, t.bits), device.type, device.index,
                                &h),
        "aoti_torch_empty_strided");
  Owned out(h);
  check(the_shim->copy(h, from, 0), "aoti_torch_copy_");
  return out;
}

// The arguments on the stack, which the kernel owns until it hands them on: a source of the one reader.
class StackSource {
 public:
  StackSource(const std::vector<call::Param>& params, StackValue* stack) : params_(params), stack_(stack) {}
  ~StackSource() { destroy(); }
  StackSource(const StackSource&) = delete;
  StackSource& operator=(const StackSource&) = delete;
  void hand_on() { owned_ = false; }
  void destroy() {
    if (!std::exchange(owned_, false)) return;
    for (std::size_t i = 0; i < params_.size(); ++i) destroy(params_[i].kind, stack_[i]);
  }

  [[nodiscard]] TorchDevice device() const { return device_; }
  // Row-major tensors stand for those of the mask from the next reading on.
  void copy(const call::Arguments& call, const call::TensorMask& mask) {
    copies_.resize(tensors_.size());
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      if (mask[i]) copies_[i] = row_major(call.tensor(i), tensors_[i], device_);
    tensors_.clear();
  }

  bool absent(std::size_t i) {
    if (stack_[i] != 0) return false;
    if (params_[i].kind == ParamKind::OptionalTensor) tensors_.push(nullptr);
    return true;
  }
  Read tensor(std::size_t i, const Param& p, rt::TensorArg& out) {
    return add(as_tensor(p.kind == ParamKind::OptionalTensor ? inner(i) : stack_[i]), out);
  }
  Read list(std::size_t i, const Param&, std::size_t& out) {
    out = length(list_at(i));
    return Read::Yes;
  }
  Read item(std::size_t i, std::size_t k, const Param&, rt::TensorArg& out) {
    return add(as_tensor(item(list_at(i), k)), out);
  }
  Read item(std::size_t i, std::size_t k, const Param& p, std::int64_t& out) {
    const StackValue v = item(list_at(i), k);
    out = static_cast<std::int64_t>(p.kind == ParamKind::BoolList ? v & 0xff : v);
    return Read::Yes;
  }
  Read item(std::size_t i, std::size_t k, const Param&, std::string_view& out) {
    return text_of(reinterpret_cast<StringHandle>(item(list_at(i), k)), out);
  }
  Read integer(std::size_t i, const Param&, std::int64_t& out) {
    out = static_cast<std::int64_t>(stack_[i]);
    return Read::Yes;
  }
  Read boolean(std::size_t i, const Param&, std::int64_t& out) {
    out = static_cast<std::int64_t>(stack_[i] & 0xff);
    return Read::Yes;
  }
  Read dtype(std::size_t i, const Param&, std::int64_t& out) {
    out = static_cast<std::int64_t>(static_cast<std::int32_t>(inner(i)));
    return Read::Yes;
  }
  Read number(std::size_t i, const Param& p, double& out) {
    out = std::bit_cast<double>(p.kind == ParamKind::OptionalFloat ? inner(i) : stack_[i]);
    return Read::Yes;
  }
  Read text(std::size_t i, const Param&, std::string_view& out) {
    return text_of(reinterpret_cast<StringHandle>(inner(i)), out);
  }
  static Read packed(std::size_t, const Param&, std::uint64_t&) { return Read::NotHere; }  // only kernels declare it

 private:
  // What an optional argument points to.
  [[nodiscard]] StackValue inner(std::size_t i) const { return *reinterpret_cast<const StackValue*>(stack_[i]); }
  [[nodiscard]] ListHandle list_at(std::size_t i) const { return reinterpret_cast<ListHandle>(stack_[i]); }
  [[nodiscard]] static std::size_t length(ListHandle list) {
    std::size_t n = 0;
    check(the_shim->list_size(list, &n), "torch_list_size");
    return n;
  }
  [[nodiscard]] static StackValue item(ListHandle list, std::size_t k) {
    StackValue v = 0;
    check(the_shim->list_item(list, k, &v), "torch_list_get_item");
    return v;
  }
  Read add(TensorHandle h, rt::TensorArg& out) {
    const std::size_t at = tensors_.size();
    if (at < copies_.size() && copies_[at].get() != nullptr) h = copies_[at].get();
    tensors_.push(h);
    describe(h, out, device_);
    return Read::Yes;
  }
  static Read text_of(StringHandle s, std::string_view& out) {
    std::size_t n = 0;
    const char* text = nullptr;
    check(the_shim->string_length(s, &n), "torch_string_length");
    check(the_shim->string_chars(s, &text), "torch_string_c_str");
    out = {text, n};
    return Read::Yes;
  }

  static void destroy(ParamKind kind, StackValue v) {
    const bool optional = kind == ParamKind::OptionalTensor || kind == ParamKind::OptionalFloat ||
                          kind == ParamKind::OptionalString || kind == ParamKind::OptionalDtype;
    auto* inner = reinterpret_cast<StackValue*>(v);
    if (optional && inner == nullptr) return;
    const StackValue x = optional ? *inner : v;
    const auto list = reinterpret_cast<ListHandle>(x);
    switch (kind) {
      case ParamKind::Tensor:
      case ParamKind::OptionalTensor:
        the_shim->delete_tensor(as_tensor(x));
        break;
      case ParamKind::OptionalString:
        the_shim->delete_string(reinterpret_cast<StringHandle>(x));
        break;
      case ParamKind::TensorList:  // a list does not own its items
        for (std::size_t k = 0; k < length(list); ++k) the_shim->delete_tensor(as_tensor(item(list, k)));
        the_shim->delete_list(list);
        break;
      case ParamKind::StringList:
        for (std::size_t k = 0; k < length(list); ++k)
          the_shim->delete_string(reinterpret_cast<StringHandle>(item(list, k)));
        the_shim->delete_list(list);
        break;
      case ParamKind::IntList:
      case ParamKind::BoolList:
        the_shim->delete_list(list);
        break;
      default:
        break;
    }
    if (!optional) return;
    if (the_shim->delete_value != nullptr)
      the_shim->delete_value(inner);
    else
      delete inner;
  }

  const std::vector<Param>& params_;
  StackValue* stack_;
  bool owned_ = true;
  TorchDevice device_;  // of the arguments
  call::Room<TensorHandle, 10> tensors_;
  std::vector<Owned> copies_;
};

class ShimHost : public call::Host {
 public:
  explicit ShimHost(const StackSource& source) : source_(source) {}
  void* allocate(call::Output& o, int) override {
    TensorHandle h = nullptr;
    check(the_shim->empty_strided(static_cast<std::int64_t>(o.form.shape.size()), o.form.shape.data(),
                                  o.form.strides.data(), scalar_type(o.dtype.code, o.dtype.bits), source_.device().type,
                                  source_.device().index, &h),
          "aoti_torch_empty_strided");
    made.emplace_back(h);
    void* data = nullptr;
    check(the_shim->data_ptr(h, &data), "aoti_torch_get_data_ptr");
    return data;
  }
  rt::CuStream stream(int device) override {
    void* s = nullptr;
    if (the_shim->current_stream != nullptr)
      check(the_shim->current_stream(device, &s), "aoti_torch_get_current_cuda_stream");
    return static_cast<rt::CuStream>(s);
  }
  std::vector<Owned> made;

 private:
  const StackSource& source_;
};

void run_boxed(Slot& slot, StackValue* stack, std::uint64_t outputs) {
  call::Operator& op = *slot.op;
  StackSource source(op.params(), stack);
  ShimHost host(source);
  for (;;) {
    call::Arguments call;
    const Read r = call::read(op.params(), source, call, op.name());
    GR_ASSERT(r == Read::Yes, op.name() + ": the stack holds what the schema says");
    call::TensorMask mask;
    const call::Outcome outcome = op.run(call, host, mask);
    if (outcome == call::Outcome::Launch) break;
    if (outcome == call::Outcome::Torch) {
      source.hand_on();
      check(the_shim->call_dispatcher(slot.own.c_str(), "", stack, kInterfaceVersion), slot.own.c_str());
      return;
    }
    source.copy(call, mask);
  }
  GR_ASSERT(host.made.size() >= outputs, op.name() + ": as many results as the schema says");
  source.destroy();  // the arguments leave the stack before the results come onto it
  for (std::uint64_t i = 0; i < outputs; ++i) stack[i] = reinterpret_cast<StackValue>(host.made[i].release());
}

template <std::size_t I>
void kernel(StackValue* stack, std::uint64_t, std::uint64_t outputs) {
  Slot& slot = slots()[I];
  const int state = slot.interpreter.lock();
  try {
    try {
      run_boxed(slot, stack, outputs);
    } catch (...) {
      slot.interpreter.rethrow();
    }
  } catch (...) {
    slot.interpreter.unlock(state);
    throw;
  }
  slot.interpreter.unlock(state);
}

template <std::size_t... I>
std::array<BoxedKernel, sizeof...(I)> kernels(std::index_sequence<I...>) {
  return {&kernel<I>...};
}

}  // namespace

std::string register_kernel(call::Operator& op, const std::string& space, const std::string& name,
                            const std::string& own, const std::string& key, Interpreter interpreter) {
  static const auto all = kernels(std::make_index_sequence<kSlots>());
  static std::size_t next = 0;
  std::string missing;
  the_shim = shim(missing);
  if (the_shim == nullptr) return missing;
  GR_ASSERT(next < kSlots, "more operators than slots");
  slots()[next] = {&op, space + "::" + own, interpreter};
  LibraryHandle library = nullptr;  // lives for good, as the operator does
  const char* failed = nullptr;
  if (the_shim->init_impl(space.c_str(), key.c_str(), __FILE__, __LINE__, &library) != 0)
    failed = "aoti_torch_library_init_impl";
  else if (the_shim->library_impl(library, name.c_str(), all[next], kInterfaceVersion) != 0)
    failed = "torch_library_impl";
  if (failed != nullptr)
    fail(Code::OP_TORCH, "PyTorch refuses a kernel for " + space + "::" + name, {std::string("call: ") + failed},
         "use a supported PyTorch (docs/operators.md)");
  ++next;
  return "";
}

}  // namespace graphene::torch
