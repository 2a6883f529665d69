// What a cubin and the assembler's log say about a kernel's resources. The ELF reader trusts nothing: any offset or
// size outside the file ends the reading.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace graphene::runtime {

struct Resources {
  int registers = 0;              // per thread
  std::int64_t spill_bytes = 0;   // stores + loads per thread, of registers that did not fit
  std::int64_t shared_bytes = 0;  // static shared memory per block, without what the system reserves
  std::int64_t local_bytes = 0;   // stack frame per thread: arrays that are not in registers, and spills
  bool known = false;
};

// From the ELF file. spill_bytes is not in it (0). `known` is false when `entry` is not a kernel of the file.
[[nodiscard]] Resources read_cubin(std::string_view cubin, std::string_view entry);

// From the log that `--ptxas-options=-v` leaves; `known` is false when it does not speak of `entry`.
[[nodiscard]] Resources read_ptxas_log(std::string_view log, std::string_view entry);

// Bytes of each of the kernel's parameters, in order; nullopt when the file names none.
[[nodiscard]] std::optional<std::vector<std::int64_t>> param_bytes(std::string_view cubin, std::string_view entry);

// Whether the kernel has a copy to shared memory (LDGSTS) whose descriptor lies in an odd register, which no GPU
// decodes: the assembler of CUDA 13.0 writes such for some cp.async with a cache hint.
[[nodiscard]] bool has_illegal_copy(std::string_view cubin, std::string_view entry);

[[nodiscard]] bool is_elf(std::string_view bytes);

}  // namespace graphene::runtime
