// Plans on disk: what is launched for a problem, so that a new process neither selects nor builds. What a plan says is
// its writer's business; here it is a text, kept as an entry of the cache under the hash of a request, another text,
// and the NVRTC build that compiled its kernels. It says its own request and its architecture.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/cache.h"

namespace graphene::runtime {

struct StoredPlan {
  std::string key;  // of its entry, for cache_discard
  std::string text;
};

// The plan of a request: that of the NVRTC which serves `arch`; where none does, of whichever compiled one.
[[nodiscard]] std::optional<StoredPlan> plan_load(const std::string& request, const std::string& arch,
                                                  const std::vector<std::string>& site_packages);

// False where there is no NVRTC, or no cache. `text`: a JSON object with the members "request" and "arch".
bool plan_store(const std::string& request, const std::string& arch, const std::vector<std::string>& site_packages,
                const std::string& text);

// Why `files` are not what the cache keeps of a plan under `key`. Empty when they are.
[[nodiscard]] std::string why_no_plan(const std::string& key, const CacheFiles& files);

}  // namespace graphene::runtime
