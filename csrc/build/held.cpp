#include "build/held.h"

#include <algorithm>
#include <optional>

#include "atoms/fragment.h"
#include "atoms/parse.h"
#include "build/nest.h"
#include "ir/levels.h"

namespace graphene::build {

namespace {

// The element that the view starts at, the executing group's own part subtracted when it is one.
struct Start {
  std::int64_t element = 0;
  bool whole_group = true;
};

Start find_start(const ir::SpecStmt& spec, const ir::Tensor& view) {
  const ir::Fragment& f = *view.buffer->fragment;
  const Expr offset = sym::expand_coords(view.offset);
  if (offset.is_const()) return {offset.value(), true};
  const std::optional<Expr> rank = atoms::own_rank(*f.group, *f.group);
  if (rank) {
    if (const auto c = atoms::constant_difference(offset, f.tv.mode(0)(*rank))) return {*c, false};
  }
  refuse(spec, Code::COLLECTIVE_FRAGMENT,
         "the place of the view in its fragment is not a constant of the executing group",
         {"offset: " + view.offset.str(), "fragment: " + view.type_str(false) + " on " + f.group->type_str()},
         "index the fragment by its group's own coordinates and by constants (a Python range)");
}

}  // namespace

Held enumerate(const ir::SpecStmt& spec, const ir::Tensor& view) {
  const ir::Fragment& f = *view.buffer->fragment;
  Held h;
  h.shape = static_shape(view);
  if (h.shape.empty()) {
    refuse(spec, Code::COLLECTIVE_FRAGMENT, "a view of a fragment needs levels of one rank",
           {"got: " + view.type_str(false)}, "index its outer level");
  }
  const std::size_t rank = h.shape.size();
  std::int64_t own = 1;
  for (const std::int64_t s : f.shape) own *= s;
  const std::int64_t elements = f.covered_elems();
  const Start start = find_start(spec, view);
  h.stage = start.element / elements;
  const std::int64_t first = start.element % elements;

  // Element of the stage -> number of the coordinate in the view.
  std::vector<atoms::FlatLayout> dims(rank);
  for (std::size_t l = view.levels.size(); l-- > 0;) {
    const std::vector<Layout> modes = ir::modes_of(view.levels[l]);
    for (std::size_t d = 0; d < rank; ++d) {
      const atoms::FlatLayout m = atoms::flatten(modes[d]);
      dims[d].shape.insert(dims[d].shape.end(), m.shape.begin(), m.shape.end());
      dims[d].stride.insert(dims[d].stride.end(), m.stride.begin(), m.stride.end());
    }
  }
  std::int64_t size = 1;
  for (const std::int64_t s : h.shape) size *= s;
  // Elements past the end have coordinates past the end of the last dimension.
  const bool reaches_past = elements != own;
  if (reaches_past && (size != own || first != 0)) {
    refuse(spec, Code::COLLECTIVE_FRAGMENT, "a part of a fragment whose TV layout reaches past its end",
           {"got: " + view.type_str(false)}, "take the whole fragment");
  }
  if (reaches_past) size = elements;
  // Places along each dimension are listed once, and coordinates counted up, since divisions for every element took
  // half of the time in which expressions on registers are built.
  std::vector<std::vector<std::int64_t>> places(rank);
  for (std::size_t d = 0; d < rank; ++d) {
    for (std::int64_t i = 0; i < h.shape[d]; ++i) places[d].push_back(dims[d](i));
  }
  std::vector<std::int64_t> at(static_cast<std::size_t>(elements), -1);
  std::vector<std::int64_t> coord(rank, 0), coords;
  coords.reserve(static_cast<std::size_t>(std::min(size, elements)) * rank);
  for (std::int64_t c = 0; c < size; ++c) {
    std::int64_t e = reaches_past ? c : first;
    for (std::size_t d = 0; d < rank && !reaches_past; ++d) e += places[d][static_cast<std::size_t>(coord[d])];
    if (e < 0 || e >= elements) {
      refuse(spec, Code::COLLECTIVE_FRAGMENT, "the view spans more than one stage of its fragment",
             {"got: " + view.type_str(false)}, "index the stage first");
    }
    at[static_cast<std::size_t>(e)] = c;
    coords.insert(coords.end(), coord.begin(), coord.end());
    for (std::size_t d = 0; d < rank; ++d) {
      if (++coord[d] < h.shape[d] || (reaches_past && d + 1 == rank)) break;
      coord[d] = 0;
    }
  }

  const atoms::FlatLayout thread = atoms::flatten(f.tv.mode(0));
  const atoms::FlatLayout value = atoms::flatten(f.tv.mode(1));
  h.whole_group = start.whole_group;
  h.threads = start.whole_group ? thread.size() : f.group->levels.back().size().value();
  std::vector<std::int64_t> of_value(static_cast<std::size_t>(value.size()));
  for (std::int64_t r = 0; r < value.size(); ++r) of_value[static_cast<std::size_t>(r)] = value(r);
  const std::int64_t lane0 = thread(0);
  for (std::int64_t r = 0; r < value.size(); ++r) {
    if (at[static_cast<std::size_t>(lane0 + of_value[static_cast<std::size_t>(r)])] >= 0) h.registers.push_back(r);
  }
  if (h.registers.empty()) {
    refuse(spec, Code::COLLECTIVE_FRAGMENT, "a thread holds nothing of this view",
           {"thread 0 of: " + f.group->type_str(), "fragment: " + view.type_str(false)},
           "take a view that every thread holds with the same registers");
  }
  h.coords_.resize(static_cast<std::size_t>(h.threads) * h.registers.size() * rank);
  std::int64_t* out = h.coords_.data();
  for (std::int64_t t = 0; t < h.threads; ++t) {
    const std::int64_t base = thread(t);
    for (const std::int64_t r : h.registers) {
      const std::int64_t c = at[static_cast<std::size_t>(base + of_value[static_cast<std::size_t>(r)])];
      if (c < 0) {
        refuse(spec, Code::COLLECTIVE_FRAGMENT, "the threads hold parts of different form of this view",
               {"thread " + std::to_string(t) + " holds nothing of it in register " + std::to_string(r),
                "fragment: " + view.type_str(false) + " on " + f.group->type_str()},
               "take a view that every thread holds with the same registers");
      }
      out = std::copy_n(coords.data() + static_cast<std::size_t>(c) * rank, rank, out);
    }
  }
  return h;
}

}  // namespace graphene::build
