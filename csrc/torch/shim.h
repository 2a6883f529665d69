// PyTorch's stable C interface, looked up in its libraries once it is loaded: nothing of PyTorch is needed to build.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace graphene::torch {

using TensorHandle = struct OpaqueTensor*;
using LibraryHandle = struct OpaqueLibrary*;
using StringHandle = struct OpaqueString*;
using ListHandle = struct OpaqueList*;
// What a boxed kernel finds on its stack: a number, a handle that it owns, or of an optional argument a pointer to
// either (null: none).
using StackValue = std::uint64_t;
using BoxedKernel = void (*)(StackValue* stack, std::uint64_t inputs, std::uint64_t outputs);

// The interface as of PyTorch 2.10. Every function returns 0 for success.
inline constexpr std::uint64_t kInterfaceVersion = (std::uint64_t{2} << 56) | (std::uint64_t{10} << 48);

struct Shim {
  int (*init_impl)(const char* space, const char* key, const char* file, std::uint32_t line, LibraryHandle* out);
  int (*library_impl)(LibraryHandle, const char* name, BoxedKernel, std::uint64_t version);
  int (*call_dispatcher)(const char* name, const char* overload, StackValue* stack, std::uint64_t version);
  int (*delete_tensor)(TensorHandle);
  int (*data_ptr)(TensorHandle, void**);
  int (*dim)(TensorHandle, std::int64_t*);
  int (*sizes)(TensorHandle, std::int64_t**);
  int (*strides)(TensorHandle, std::int64_t**);
  int (*dtype)(TensorHandle, std::int32_t*);
  int (*device_type)(TensorHandle, std::int32_t*);
  int (*device_index)(TensorHandle, std::int32_t*);
  int (*empty_strided)(std::int64_t ndim, const std::int64_t* sizes, const std::int64_t* strides, std::int32_t dtype,
                       std::int32_t device_type, std::int32_t device_index, TensorHandle* out);
  int (*copy)(TensorHandle to, TensorHandle from, std::int32_t non_blocking);
  int (*string_length)(StringHandle, std::size_t*);
  int (*string_chars)(StringHandle, const char**);
  int (*delete_string)(StringHandle);
  int (*list_size)(ListHandle, std::size_t*);
  int (*list_item)(ListHandle, std::size_t, StackValue*);
  int (*delete_list)(ListHandle);
  std::int32_t (*cuda_device_type)();
  int (*current_stream)(std::int32_t device, void** stream);
  int (*delete_value)(StackValue*);  // null before PyTorch 2.13, where `delete` is right
  const char* (*what)();             // null before PyTorch 2.13
};

// The functions, looked up once; null while one that is needed is missing, and `missing` names it.
[[nodiscard]] const Shim* shim(std::string& missing);

// What this thread is doing in PyTorch, asked without Python. Besides the C interface these are C++ functions of plain
// arguments; null where a version lacks one: then Python is asked.
struct ThreadState {
  static constexpr std::int8_t kCuda = 1;  // c10::DeviceType

  bool (*grad_enabled)();
  bool (*dispatch_modes)(bool skip_infrastructure);
  std::int64_t (*function_modes)();
  // The address of a shared pointer to the state, null inside where nothing traces: of PyTorch's own or, if it returns
  // a copy, of the 16 bytes at `room`.
  void* (*tracing_state)(void* room);
  bool (*requires_grad)(const void* tensor_impl);
  bool (*autocast)(std::int8_t device_type);

  [[nodiscard]] bool known() const {
    return grad_enabled != nullptr && dispatch_modes != nullptr && function_modes != nullptr &&
           tracing_state != nullptr && requires_grad != nullptr && autocast != nullptr;
  }
  [[nodiscard]] bool casts() const { return autocast(kCuda); }
  [[nodiscard]] bool traces() const {
    void* room[2] = {nullptr, nullptr};
    return *static_cast<void**>(tracing_state(room)) != nullptr;
  }
};
// Looked up in PyTorch's libraries as they are loaded now.
[[nodiscard]] ThreadState thread_state();

// What PyTorch knows of a tensor besides its storage: functions of its libraries, null where they are missing.
struct Versions {
  bool (*grad_enabled)();
  bool (*requires_grad)(const void* tensor_impl);
  bool (*is_inference)(const void* tensor);  // an at::Tensor's address
  void (*bump)(const void* tensor);
  bool (*is_neg)(const void* tensor);

  [[nodiscard]] bool known() const {
    return grad_enabled != nullptr && requires_grad != nullptr && is_inference != nullptr && bump != nullptr;
  }
};
[[nodiscard]] Versions versions();

// PyTorch's number of an element type; -1: none that kernels take.
[[nodiscard]] std::int32_t scalar_type(std::uint8_t code, std::uint8_t bits);
// DLPack's (code, bits) of PyTorch's number; false: none that kernels take.
[[nodiscard]] bool dlpack_type(std::int32_t scalar_type, std::uint8_t& code, std::uint8_t& bits);

}  // namespace graphene::torch
