// The binary interface of DLPack 1.x, as far as it is used: tensors, capsules and the exchange table that array
// libraries publish on their tensor types (`__dlpack_c_exchange_api__`).
#pragma once

#include <cstdint>

namespace graphene::bind::dlpack {

struct Version {
  std::uint32_t major, minor;
};
struct Device {
  std::int32_t type, id;
};
struct DataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

// Capsule "dltensor".
struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};
// Capsule "dltensor_versioned".
struct ManagedVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};
inline constexpr std::uint64_t kReadOnly = 1;

// Capsule "dlpack_exchange_api".
struct ExchangeApi {
  Version version;
  const void* previous;
  void* allocate;
  void* owned_from_object;
  void* object_from_owned;
  // Fills a view that lives as long as the object; nonzero: a Python error is set.
  int (*view_from_object)(void* object, Tensor* out);
  // The stream that the library works on now.
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** stream);
};

}  // namespace graphene::bind::dlpack
