#include "torch/boxed.h"

#include <array>
#include <stdexcept>
#include <utility>

namespace graphene::torch {

namespace rt = graphene::runtime;

namespace {

// PyTorch calls a boxed kernel without saying which: every registration has a function of its own.
constexpr std::size_t kSlots = 64;
struct Slot {
  Operator* op = nullptr;
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

// The arguments on the stack, which the kernel owns until it hands them on.
class Arguments {
 public:
  Arguments(const Operator& op, StackValue* stack) : op_(op), stack_(stack) {}
  ~Arguments() {
    if (owned_)
      for (std::size_t i = 0; i < op_.params().size(); ++i) destroy(op_.params()[i].kind, stack_[i]);
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;
  void hand_on() { owned_ = false; }

  [[nodiscard]] ListHandle list(std::size_t i) const { return reinterpret_cast<ListHandle>(stack_[i]); }
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

  // Null: an absent tensor.
  [[nodiscard]] TensorHandle tensor(std::size_t i) const {
    if (op_.params()[i].kind == ParamKind::Tensor) return as_tensor(stack_[i]);
    const auto* inner = reinterpret_cast<const StackValue*>(stack_[i]);
    return inner == nullptr ? nullptr : as_tensor(*inner);
  }

  void add_scalar(std::size_t i, Call& call) const {
    const Param& p = op_.params()[i];
    const StackValue v = stack_[i];
    const auto* inner = reinterpret_cast<const StackValue*>(v);
    switch (p.kind) {
      case ParamKind::Int:
        call.add(static_cast<std::int64_t>(v));
        return;
      case ParamKind::Float:
        call.add(std::bit_cast<double>(v));
        return;
      case ParamKind::OptionalFloat:
        if (inner == nullptr) return call.add(kNone);
        return call.add(std::bit_cast<double>(*inner));
      case ParamKind::Bool:
        call.add(static_cast<std::int64_t>(v & 0xff));
        return;
      case ParamKind::OptionalDtype:
        call.add(inner == nullptr ? kNone : static_cast<std::int64_t>(static_cast<std::int32_t>(*inner)));
        return;
      case ParamKind::OptionalString: {
        if (inner == nullptr) return call.add(kNone);
        return call.add(p, text_of(reinterpret_cast<StringHandle>(*inner)), op_.name());
      }
      case ParamKind::IntList:
      case ParamKind::BoolList: {
        const std::size_t n = length(list(i));
        std::vector<std::int64_t> values(n);
        for (std::size_t k = 0; k < n; ++k) {
          const StackValue x = item(list(i), k);
          values[k] = static_cast<std::int64_t>(p.kind == ParamKind::BoolList ? x & 0xff : x);
        }
        return call.add(values.data(), n);
      }
      case ParamKind::StringList: {
        const std::size_t n = length(list(i));
        call.add_length(n);
        for (std::size_t k = 0; k < n; ++k) {
          call.add_text(text_of(reinterpret_cast<StringHandle>(item(list(i), k))));
        }
        return;
      }
      default:
        return;
    }
  }

 private:
  static std::string_view text_of(StringHandle s) {
    std::size_t n = 0;
    const char* text = nullptr;
    check(the_shim->string_length(s, &n), "torch_string_length");
    check(the_shim->string_chars(s, &text), "torch_string_c_str");
    return {text, n};
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

  const Operator& op_;
  StackValue* stack_;
  bool owned_ = true;
};

// A device in PyTorch's numbers.
struct Place {
  std::int32_t type = 0;
  std::int32_t index = 0;
};

rt::TensorArg describe(TensorHandle h, Place& place) {
  rt::TensorArg t;
  std::int64_t ndim = 0, *sizes = nullptr, *strides = nullptr;
  std::int32_t dtype = 0;
  check(the_shim->dim(h, &ndim), "aoti_torch_get_dim");
  check(the_shim->sizes(h, &sizes), "aoti_torch_get_sizes");
  check(the_shim->strides(h, &strides), "aoti_torch_get_strides");
  check(the_shim->dtype(h, &dtype), "aoti_torch_get_dtype");
  check(the_shim->device_type(h, &place.type), "aoti_torch_get_device_type");
  check(the_shim->device_index(h, &place.index), "aoti_torch_get_device_index");
  check(the_shim->data_ptr(h, &t.data), "aoti_torch_get_data_ptr");
  if (!dlpack_type(dtype, t.code, t.bits)) {
    t.code = 0xff;  // the configuration says that no kernel takes it
    t.bits = static_cast<std::uint8_t>(dtype);
  }
  t.device = {place.type == the_shim->cuda_device_type() ? rt::kCuda : rt::kCpu, std::max(place.index, 0)};
  t.ndim = static_cast<int>(ndim);
  t.shape = sizes;
  t.strides = strides;
  return t;
}

class ShimHost : public Host {
 public:
  void* allocate(Output& o, int) override {
    TensorHandle h = nullptr;
    check(the_shim->empty_strided(static_cast<std::int64_t>(o.form.shape.size()), o.form.shape.data(),
                                  o.form.strides.data(), scalar_type(o.dtype.code, o.dtype.bits), place.type,
                                  place.index, &h),
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
  Place place;  // of the arguments
  std::vector<Owned> made;
};

// A row-major tensor of the same elements.
Owned row_major(const rt::TensorArg& t, TensorHandle from, Place place) {
  std::vector<std::int64_t> strides(static_cast<std::size_t>(t.ndim));
  std::int64_t stride = 1;
  for (int d = t.ndim - 1; d >= 0; --d) {
    strides[static_cast<std::size_t>(d)] = stride;
    stride *= std::max<std::int64_t>(t.shape[d], 1);
  }
  TensorHandle h = nullptr;
  check(the_shim->empty_strided(t.ndim, t.shape, strides.data(), scalar_type(t.code, t.bits), place.type, place.index,
                                &h),
        "aoti_torch_empty_strided");
  Owned out(h);
  check(the_shim->copy(h, from, 0), "aoti_torch_copy_");
  return out;
}

void run_boxed(Slot& slot, StackValue* stack, std::uint64_t outputs) {
  Operator& op = *slot.op;
  Arguments arguments(op, stack);
  ShimHost host;
  std::vector<Owned> copies;
  for (;;) {
    Call call;
    std::vector<TensorHandle> tensors;
    const auto add = [&](TensorHandle h) {
      if (h != nullptr && tensors.size() < copies.size() && copies[tensors.size()].get() != nullptr)
        h = copies[tensors.size()].get();
      tensors.push_back(h);
      if (h == nullptr)
        call.add_absent();
      else
        call.add(describe(h, host.place));
    };
    for (std::size_t i = 0; i < op.params().size(); ++i) {
      if (!op.params()[i].holds_tensors()) {
        arguments.add_scalar(i, call);
      } else if (op.params()[i].is_tensor()) {
        add(arguments.tensor(i));
      } else {
        const ListHandle list = arguments.list(i);
        const std::size_t n = Arguments::length(list);
        call.add_length(n);
        for (std::size_t k = 0; k < n; ++k) add(as_tensor(Arguments::item(list, k)));
      }
    }
    TensorMask mask;
    const Outcome outcome = call.fits() ? op.run(call, host, mask) : Outcome::Torch;
    if (outcome == Outcome::Launch) break;
    if (outcome == Outcome::Torch) {
      arguments.hand_on();
      check(the_shim->call_dispatcher(slot.own.c_str(), "", stack, kInterfaceVersion), slot.own.c_str());
      return;
    }
    copies.resize(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (mask[i]) copies[i] = row_major(call.tensors()[i], tensors[i], host.place);
  }
  GR_ASSERT(host.made.size() >= outputs, op.name() + ": as many results as the schema says");
  std::vector<TensorHandle> results;
  for (std::uint64_t i = 0; i < outputs; ++i) results.push_back(host.made[i].release());
  {
    const Arguments done(op, stack);  // the arguments leave the stack before the results come onto it
    arguments.hand_on();
  }
  for (std::uint64_t i = 0; i < outputs; ++i) stack[i] = reinterpret_cast<StackValue>(results[i]);
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

std::string register_kernel(Operator& op, const std::string& space, const std::string& name, const std::string& own,
                            const std::string& key, Interpreter interpreter) {
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
