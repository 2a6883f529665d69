// Where the time of a first call goes: named stages, timed where GRAPHENE_TIMINGS asks for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace graphene {

struct StageTime {
  std::string name;
  double ms = 0;  // spent in it, less what stages within it took
  std::int64_t calls = 0;
};

// Whether stages are timed: GRAPHENE_TIMINGS was set, and not to 0, when the process first asked, or time_stages(true).
bool stages_timed() noexcept;
void time_stages(bool on) noexcept;

// In the order in which stages were first entered, by any thread.
std::vector<StageTime> stage_times();
void forget_stage_times();

// One stage, from construction to destruction, in one thread. Costs a load where nothing is timed.
class Stage {
 public:
  explicit Stage(std::string_view name);
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

 private:
  std::string name_;  // empty: nothing is timed
  std::chrono::steady_clock::time_point begin_;
  double within_ms_ = 0;  // of stages inside of this one
  Stage* outer_ = nullptr;
};

}  // namespace graphene
