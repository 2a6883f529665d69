#include "base/stages.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/fork.h"

namespace graphene {

namespace {

std::atomic<bool>& timed() {
  static std::atomic<bool> on = [] {
    const char* asked = std::getenv("GRAPHENE_TIMINGS");
    return asked != nullptr && *asked != '\0' && std::strcmp(asked, "0") != 0;
  }();
  return on;
}

ForkMutex times_mutex(ForkMutex::kTimes);

std::vector<StageTime>& times() {
  static std::vector<StageTime> all;
  return all;
}

thread_local Stage* innermost = nullptr;

}  // namespace

bool stages_timed() noexcept { return timed().load(std::memory_order_relaxed); }

void time_stages(bool on) noexcept { timed().store(on, std::memory_order_relaxed); }

std::vector<StageTime> stage_times() {
  const std::lock_guard lock(times_mutex);
  return times();
}

void forget_stage_times() {
  const std::lock_guard lock(times_mutex);
  times().clear();
}

Stage::Stage(std::string_view name) {
  if (!stages_timed()) return;
  name_ = name;
  outer_ = innermost;
  innermost = this;
  begin_ = std::chrono::steady_clock::now();
}

Stage::~Stage() {
  if (name_.empty()) return;
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin_).count();
  innermost = outer_;
  if (outer_ != nullptr) outer_->within_ms_ += ms;
  const std::lock_guard lock(times_mutex);
  auto& all = times();
  auto it = std::find_if(all.begin(), all.end(), [&](const StageTime& t) { return t.name == name_; });
  if (it == all.end()) it = all.insert(all.end(), {name_, 0, 0});
  it->ms += ms - within_ms_;
  ++it->calls;
}

}  // namespace graphene
