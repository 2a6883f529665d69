#include "lower/other_arch.h"

#include <algorithm>
#include <utility>

namespace graphene::lower {

void OtherArchs::report(std::vector<Diagnostic>& problems) {
  if (found_.empty()) return;
  constexpr std::size_t kMostPlaces = 3;
  std::vector<std::pair<std::string, std::vector<std::string>>> wanted;  // and where, in the order of statements
  for (const Found& f : found_) {
    auto at = std::find_if(wanted.begin(), wanted.end(), [&](const auto& w) { return w.first == f.want; });
    if (at == wanted.end()) at = wanted.insert(wanted.end(), {f.want, {}});
    const std::string place = f.problem.where.str();
    auto& places = at->second;
    if (!place.empty() && std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
  }
  Diagnostic d = std::move(found_.front().problem);
  if (found_.size() > 1) {
    d.message = std::to_string(found_.size()) + " statements need another architecture than " + arch_;
    d.ir.clear();
    d.details.clear();
    for (const auto& [want, places] : wanted) {
      std::string line = want;
      for (std::size_t i = 0; i < std::min(places.size(), kMostPlaces); ++i) {
        line += (i == 0 ? ", at " : ", ") + places[i];
      }
      if (places.size() > kMostPlaces) line += " and " + std::to_string(places.size() - kMostPlaces) + " more places";
      d.details.push_back(std::move(line));
    }
    d.fix = "compile for an architecture that has them";
  }
  problems.insert(problems.begin(), std::move(d));
}

}  // namespace graphene::lower
