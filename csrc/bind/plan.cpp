#include <array>
#include <utility>
#include <vector>

#include "bind/bind.h"
#include "layout/banks.h"
#include "plan/eliminate.h"
#include "plan/pack.h"
#include "plan/slots.h"
#include "plan/swizzle.h"

namespace graphene::bind {

namespace {

plan::TileAccess access_from_py(const std::pair<int, std::vector<std::vector<std::array<std::int64_t, 3>>>>& given) {
  plan::TileAccess out{given.first, {}};
  for (const auto& request : given.second) {
    std::vector<plan::Spot>& spots = out.requests.emplace_back();
    for (const auto& [lane, row, column] : request) spots.push_back({static_cast<int>(lane), row, column});
  }
  return out;
}

}  // namespace

// graphene/arrange.py checks the types of arguments, and names what comes back.
void register_plan(py::module_& m) {
  m.def(
      "count_access",
      [](const Layout& tile, const Layout& tv, int element_bits, const Swizzle& swizzle) {
        const layout::AccessCount n = layout::count_access(tile, tv, element_bits, swizzle);
        return py::make_tuple(n.requests, n.bytes, n.vector_bytes, n.wavefronts, n.conflicts, n.ways, n.sectors,
                              n.ideal_sectors);
      },
      py::arg("tile"), py::arg("tv"), py::arg("element_bits"), py::arg("swizzle"));
  m.def(
      "plan_swizzles",
      [](std::int64_t rows, std::int64_t columns, int element_bits,
         const std::vector<std::pair<int, std::vector<std::vector<std::array<std::int64_t, 3>>>>>& accesses,
         int most_padding) {
        std::vector<plan::TileAccess> given;
        for (const auto& a : accesses) given.push_back(access_from_py(a));
        py::list out;
        for (const plan::Arrangement& a : plan::arrangements(rows, columns, element_bits, given, most_padding)) {
          out.append(py::make_tuple(a.swizzle, a.row_elems, a.bytes, a.wavefronts, a.conflicts));
        }
        return out;
      },
      py::arg("rows"), py::arg("columns"), py::arg("element_bits"), py::arg("accesses"), py::arg("most_padding"));
  m.def(
      "plan_slots",
      [](int operations, const std::vector<std::array<int, 4>>& edges, const std::vector<int>& early) {
        std::vector<plan::Dependence> given;
        for (const auto& [from, to, weight, distance] : edges) given.push_back({from, to, weight, distance});
        const plan::Slots s = plan::fewest_barriers(operations, given, early);
        return py::make_tuple(s.barriers, s.slot);
      },
      py::arg("operations"), py::arg("edges"), py::arg("early"));
  m.def(
      "plan_pack",
      [](const std::vector<std::array<std::int64_t, 4>>& objects, std::int64_t most_nodes) {
        std::vector<plan::Object> given;
        for (const auto& [bytes, align, first, end] : objects) given.push_back({bytes, align, first, end});
        const plan::Packing p = plan::pack(given, most_nodes);
        return py::make_tuple(p.bytes, p.bound, p.at, p.optimal);
      },
      py::arg("objects"), py::arg("most_nodes"));
  m.def(
      "plan_eliminate",
      [](const std::vector<int>& sizes, const std::vector<std::pair<std::vector<int>, std::vector<double>>>& factors,
         std::int64_t most_entries) {
        std::vector<plan::Factor> given;
        for (const auto& [scope, table] : factors) given.push_back({scope, table});
        const plan::Choice c = plan::eliminate(sizes, given, most_entries);
        return py::make_tuple(c.cost, c.values, c.largest_table);
      },
      py::arg("sizes"), py::arg("factors"), py::arg("most_entries"));
}

}  // namespace graphene::bind
