// The launch manifest of a lowered kernel: the one place where the lowered tree and the runtime meet.
#pragma once

#include "lower/lowered.h"
#include "runtime/manifest.h"

namespace graphene::bind {

[[nodiscard]] runtime::LaunchManifest make_manifest(const lower::Program& program);

}  // namespace graphene::bind
