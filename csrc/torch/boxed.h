// Operators as kernels of PyTorch's dispatcher.
#pragma once

#include <string>

#include "call/operator.h"
#include "torch/shim.h"

namespace graphene::torch {

// What a kernel needs of the language it was configured in. `rethrow` is called while an exception is handled, and
// throws one that derives from std::exception and outlives the lock.
struct Interpreter {
  int (*lock)();
  void (*unlock)(int);
  void (*rethrow)();
};

// Registers `op` as the kernel of "space::name" for a dispatch key ("CUDA"); `op` must live for good. "space::own" is
// called, with the same arguments, where no kernel of ours is right. The name of a symbol that this PyTorch lacks, or
// empty. Throws OP_TORCH when PyTorch refuses the registration.
[[nodiscard]] std::string register_kernel(call::Operator& op, const std::string& space, const std::string& name,
                                          const std::string& own, const std::string& key, Interpreter interpreter);

}  // namespace graphene::torch
