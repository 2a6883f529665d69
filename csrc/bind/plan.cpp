#include <array>
#include <utility>
#include <vector>

#include "bind/bind.h"
#include "bind/record.h"
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

void register_plan_records(py::module_& m) {
  using N = layout::AccessCount;
  register_record<N>(m, "AccessCount",
                     R"doc(What the memory system makes of one access of a tile, by the rules of ``kernel.report()``.

``requests``: instructions of warps, each of one vector a lane; ``bytes``: that all lanes move; ``vector_bytes``: of the
widest vector. Shared memory: ``wavefronts``, of which ``conflicts`` are more than the fewest, and ``ways``, the most
different words of one bank. Global memory: ``sectors`` of 32 bytes, and the fewest, ``ideal_sectors``.)doc",
                     field("requests", &N::requests), field("bytes", &N::bytes),
                     field("vector_bytes", &N::vector_bytes), field("wavefronts", &N::wavefronts),
                     field("conflicts", &N::conflicts), field("ways", &N::ways), field("sectors", &N::sectors),
                     field("ideal_sectors", &N::ideal_sectors));
  using A = plan::Arrangement;
  register_record<A>(m, "PlannedSwizzle",
                     "A way to lay out a tile; `graphene.arrange.Arrangement` says what its fields are.",
                     field("swizzle", &A::swizzle), field("row_elems", &A::row_elems), field("bytes", &A::bytes),
                     field("wavefronts", &A::wavefronts), field("conflicts", &A::conflicts));
  using S = plan::Slots;
  register_record<S>(m, "PlannedSlots", "Barriers of an iteration, and the slot of each operation by its number.",
                     field("barriers", &S::barriers), field("slot", &S::slot));
  using P = plan::Packing;
  register_record<P>(
      m, "PlannedPacking",
      "Where objects start, by number, and the bytes of all; at least `bound`; `optimal`: proven to be least.",
      field("bytes", &P::bytes), field("bound", &P::bound), field("at", &P::at), field("optimal", &P::optimal));
  using C = plan::Choice;
  register_record<C>(m, "PlannedChoice",
                     "The least cost, the value of each variable, and entries of the largest table.",
                     field("cost", &C::cost), field("values", &C::values), field("largest_table", &C::largest_table));
}

}  // namespace

// graphene/arrange.py checks the types of arguments, and says what came back by the caller's names.
void register_plan(py::module_& m) {
  register_plan_records(m);
  m.def(
      "count_access",
      [](const Layout& tile, const Layout& tv, int element_bits, const Swizzle& swizzle) {
        return layout::count_access(tile, tv, element_bits, swizzle);
      },
      py::arg("tile"), py::arg("tv"), py::arg("element_bits"), py::arg("swizzle"));
  m.def(
      "plan_swizzles",
      [](std::int64_t rows, std::int64_t columns, int element_bits,
         const std::vector<std::pair<int, std::vector<std::vector<std::array<std::int64_t, 3>>>>>& accesses,
         int most_padding) {
        std::vector<plan::TileAccess> given;
        for (const auto& a : accesses) given.push_back(access_from_py(a));
        return plan::arrangements(rows, columns, element_bits, given, most_padding);
      },
      py::arg("rows"), py::arg("columns"), py::arg("element_bits"), py::arg("accesses"), py::arg("most_padding"));
  m.def(
      "plan_slots",
      [](int operations, const std::vector<std::array<int, 4>>& edges, const std::vector<int>& early) {
        std::vector<plan::Dependence> given;
        for (const auto& [from, to, weight, distance] : edges) given.push_back({from, to, weight, distance});
        return plan::fewest_barriers(operations, given, early);
      },
      py::arg("operations"), py::arg("edges"), py::arg("early"));
  m.def(
      "plan_pack",
      [](const std::vector<std::array<std::int64_t, 4>>& objects, std::int64_t most_nodes) {
        std::vector<plan::Object> given;
        for (const auto& [bytes, align, first, end] : objects) given.push_back({bytes, align, first, end});
        return plan::pack(given, most_nodes);
      },
      py::arg("objects"), py::arg("most_nodes"));
  m.def(
      "plan_eliminate",
      [](const std::vector<int>& sizes, const std::vector<std::pair<std::vector<int>, std::vector<double>>>& factors,
         std::int64_t most_entries) {
        std::vector<plan::Factor> given;
        for (const auto& [scope, table] : factors) given.push_back({scope, table});
        return plan::eliminate(sizes, given, most_entries);
      },
      py::arg("sizes"), py::arg("factors"), py::arg("most_entries"));
}

}  // namespace graphene::bind
