#include "runtime/plans.h"

#include <nlohmann/json.hpp>

#include "runtime/compile.h"
#include "runtime/sha256.h"

namespace graphene::runtime {

using Json = nlohmann::json;

std::string why_no_plan(const std::string& key, const CacheFiles& files) {
  const auto file = files.find(std::string(kPlanFile));
  if (file == files.end() || files.size() != 1) return "it has other files than a plan";
  const Json plan = Json::parse(file->second, nullptr, false);
  const auto is_text = [&](const char* name) {
    const auto it = plan.find(name);
    return it != plan.end() && it->is_string();
  };
  if (!plan.is_object() || !is_text("request") || !is_text("arch")) return std::string(kPlanFile) + " is malformed";
  if (!key.starts_with(sha256_hex(plan["request"].get<std::string>()) + "-"))
    return "its request is not that of its key";
  return {};
}

std::optional<StoredPlan> plan_load(const std::string& request, const std::string& arch,
                                    const std::vector<std::string>& site_packages) {
  const std::string front = sha256_hex(request) + "-";
  auto keys = cache_keys(front);
  if (keys.empty()) return std::nullopt;  // whichever compiler there is: it need not be looked for
  const std::string digits = build_digits(arch, site_packages);
  if (!digits.empty()) keys = {front + digits};
  for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
    CacheFiles files;
    if (!cache_load(*key, files)) continue;
    if (why_no_plan(*key, files).empty()) return StoredPlan{*key, std::move(files[std::string(kPlanFile)])};
    cache_discard(*key);
  }
  return std::nullopt;
}

bool plan_store(const std::string& request, const std::string& arch, const std::vector<std::string>& site_packages,
                const std::string& text) {
  const std::string digits = build_digits(arch, site_packages);
  if (digits.empty()) return false;
  const std::string key = sha256_hex(request) + "-" + digits;
  const CacheFiles files = {{std::string(kPlanFile), text}};
  return why_no_plan(key, files).empty() && cache_store(key, files);
}

}  // namespace graphene::runtime
