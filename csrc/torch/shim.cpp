#include "torch/shim.h"

#include <dlfcn.h>

#include <array>

namespace graphene::torch {

namespace {

// Of a library that the process has loaded; it is not loaded for this.
void* find(const char* library, const char* symbol) {
  void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return nullptr;
  void* found = dlsym(handle, symbol);
  dlclose(handle);
  return found;
}

template <class F>
void look_up(F*& to, const char* symbol, std::string& missing, bool needed = true,
             const char* library = "libtorch_cpu.so") {
  to = reinterpret_cast<F*>(find(library, symbol));
  if (to == nullptr && needed && missing.empty()) missing = symbol;
}

struct TypeNumber {
  std::int32_t number;  // c10::ScalarType, fixed because it is written into checkpoints
  std::uint8_t code, bits;
};
constexpr std::array<TypeNumber, 12> kTypes = {{{0, 1, 8},
                                                {1, 0, 8},
                                                {2, 0, 16},
                                                {3, 0, 32},
                                                {4, 0, 64},
                                                {5, 2, 16},
                                                {6, 2, 32},
                                                {7, 2, 64},
                                                {11, 6, 8},
                                                {15, 4, 16},
                                                {23, 12, 8},
                                                {24, 10, 8}}};

}  // namespace

const Shim* shim(std::string& missing) {
  static Shim s;
  static bool found = false;
  if (found) return &s;
  missing.clear();
  look_up(s.init_impl, "aoti_torch_library_init_impl", missing);
  look_up(s.library_impl, "torch_library_impl", missing);
  look_up(s.call_dispatcher, "torch_call_dispatcher", missing);
  look_up(s.delete_tensor, "aoti_torch_delete_tensor_object", missing);
  look_up(s.data_ptr, "aoti_torch_get_data_ptr", missing);
  look_up(s.dim, "aoti_torch_get_dim", missing);
  look_up(s.sizes, "aoti_torch_get_sizes", missing);
  look_up(s.strides, "aoti_torch_get_strides", missing);
  look_up(s.dtype, "aoti_torch_get_dtype", missing);
  look_up(s.device_type, "aoti_torch_get_device_type", missing);
  look_up(s.device_index, "aoti_torch_get_device_index", missing);
  look_up(s.empty_strided, "aoti_torch_empty_strided", missing);
  look_up(s.copy, "aoti_torch_copy_", missing);
  look_up(s.string_length, "torch_string_length", missing);
  look_up(s.string_chars, "torch_string_c_str", missing);
  look_up(s.delete_string, "torch_delete_string", missing);
  look_up(s.list_size, "torch_list_size", missing);
  look_up(s.list_item, "torch_list_get_item", missing);
  look_up(s.delete_list, "torch_delete_list", missing);
  look_up(s.cuda_device_type, "aoti_torch_device_type_cuda", missing);
  look_up(s.delete_value, "torch_delete_stable_ivalue", missing, false);
  look_up(s.what, "torch_exception_get_what_without_backtrace", missing, false);
  // A PyTorch without CUDA has no streams; its kernels are registered, and never called.
  look_up(s.current_stream, "aoti_torch_get_current_cuda_stream", missing, false, "libtorch_cuda.so");
  found = missing.empty();
  return found ? &s : nullptr;
}

ThreadState thread_state() {
  ThreadState s{};
  std::string missing;
  look_up(s.grad_enabled, "aoti_torch_grad_mode_is_enabled", missing);
  look_up(s.dispatch_modes, "_ZN3c104impl20TorchDispatchModeTLS13any_modes_setEb", missing, true, "libc10.so");
  look_up(s.function_modes, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", missing);
  look_up(s.tracing_state, "_ZN5torch3jit6tracer15getTracingStateEv", missing);
  look_up(s.requires_grad, "_ZNK3c1010TensorImpl13requires_gradEv", missing, true, "libc10.so");
  look_up(s.autocast, "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE", missing);
  return s;
}

Versions versions() {
  Versions v{};
  std::string missing;
  look_up(v.grad_enabled, "aoti_torch_grad_mode_is_enabled", missing);
  look_up(v.requires_grad, "_ZNK3c1010TensorImpl13requires_gradEv", missing, true, "libc10.so");
  look_up(v.is_inference, "_ZN2at6native12is_inferenceERKNS_6TensorE", missing);
  look_up(v.bump, "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE", missing);
  look_up(v.is_neg, "_ZN2at6native6is_negERKNS_6TensorE", missing, false);
  return v;
}

std::int32_t scalar_type(std::uint8_t code, std::uint8_t bits) {
  for (const TypeNumber& t : kTypes)
    if (t.code == code && t.bits == bits) return t.number;
  return -1;
}

bool dlpack_type(std::int32_t scalar_type, std::uint8_t& code, std::uint8_t& bits) {
  for (const TypeNumber& t : kTypes)
    if (t.number == scalar_type) {
      code = t.code;
      bits = t.bits;
      return true;
    }
  return false;
}

}  // namespace graphene::torch
