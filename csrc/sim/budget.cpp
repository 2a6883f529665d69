#include "sim/budget.h"

#include <string>

#include "base/diag.h"

namespace graphene::sim {

namespace {

thread_local Budget* current = nullptr;

std::string mebibytes(std::int64_t bytes) {
  return bytes > 0 && bytes < 1 << 20 ? std::to_string(bytes) + " bytes" : std::to_string(bytes >> 20) + " MiB";
}

}  // namespace

Budget::Budget(std::int64_t limit_bytes) : limit_bytes_(limit_bytes), outer_(current) { current = this; }

Budget::~Budget() { current = outer_; }

void Budget::take(std::size_t bytes) {
  if (current == nullptr) return;
  const std::int64_t left = current->limit_bytes_ - current->held_bytes_;
  if (left < 0 || bytes > static_cast<std::size_t>(left)) {
    const std::int64_t more = static_cast<std::int64_t>(std::min<std::size_t>(bytes, std::size_t{1} << 60));
    fail(Code::SIM_MEMORY, "the call needs more memory than its simulation may hold",
         {"want: at most " + mebibytes(current->limit_bytes_),
          "got: " + mebibytes(current->held_bytes_) + ", and " + mebibytes(more) + " more"},
         "pass smaller sizes, or a larger memory_bytes=");
  }
  current->held_bytes_ += static_cast<std::int64_t>(bytes);
}

void Budget::give(std::size_t bytes) noexcept {
  if (current != nullptr) current->held_bytes_ -= static_cast<std::int64_t>(bytes);
}

}  // namespace graphene::sim
