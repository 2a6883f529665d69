// What a leaf does to the tags of its operands (roundings.h): a pass of its own behind the leaf, where it is wanted.
#include <algorithm>
#include <bit>

#include "sim/interp.h"

namespace graphene::sim {

namespace {

using ir::ScalarType;

// Results are operands as they are, perhaps converted: the narrower of two values rounds as they do.
bool selects(const Leaf& f) {
  switch (f.kind) {
    case atoms::Kind::Move:
      return !f.atomic || f.op.op == Op::Max || f.op.op == Op::Min;
    case atoms::Kind::Shfl:
    case atoms::Kind::Init:
      return true;
    case atoms::Kind::MatMul:
    case atoms::Kind::Spec:
    case atoms::Kind::Sync:
      return false;
    default:
      return f.op.op == Op::Cast || f.op.op == Op::Neg || f.op.op == Op::Abs || f.op.op == Op::Max ||
             f.op.op == Op::Min || f.op.op == Op::Where;
  }
}

void take_lane(LaneTags& to, int to_lane, const LaneTags& from, int from_lane) {
  to[static_cast<std::size_t>(to_lane)] = from[static_cast<std::size_t>(from_lane)];
}

}  // namespace

void Interpreter::track_roundings() {
  tags_ = std::make_unique<TagState>();
  TagState& t = *tags_;
  t.registers.resize(warps_.size(), std::vector<LaneTags>(register_at_.size(), LaneTags{}));
  for (auto& registers : t.registers) {
    for (const auto& [r, bits] : code_.initial) {
      const auto i = static_cast<std::size_t>(r);
      registers[i].fill(t.roundings.native(code_.register_types[i]));
    }
  }
  t.memory.resize(arenas_.size());
  t.read.resize(arenas_.size());
  const auto is_read = [&](const Operand& o) {
    for (int rank = 0; rank < code_.cluster(); ++rank)
      t.read[static_cast<std::size_t>(place(o.buffer, rank).arena)] = 1;
  };
  std::size_t values = 1;
  for (const Leaf& f : code_.leaves) {
    for (const auto* list : {&f.in, &f.out}) {
      for (const Operand& o : *list) values = std::max(values, static_cast<std::size_t>(f.bulk ? 1 : o.values));
    }
    for (const Operand& o : f.in) {
      if (o.kind == Operand::Kind::Memory) is_read(o);
    }
    const Operand& out = f.out.front();
    if (out.kind == Operand::Kind::Memory && (out.access == atoms::Access::Update || f.atomic)) is_read(out);
    TagState::LeafTags leaf;
    leaf.selects = selects(f);
    ScalarType widest = out.dtype;
    for (const Operand& o : f.in) {
      if (is_float(o.dtype) && !t.roundings.fits(t.roundings.native(o.dtype), widest)) widest = o.dtype;
    }
    const bool same_bits = f.kind == atoms::Kind::Unary && f.op.op == Op::Bitcast;  // data that were packed
    if (!same_bits && is_float(out.dtype) && !t.roundings.fits(t.roundings.native(ScalarType::fp32), out.dtype)) {
      std::string name;
      if (out.kind == Operand::Kind::Memory) {
        name = code_.program->buffers[static_cast<std::size_t>(out.buffer)].buffer->name;
      } else {
        // The array that holds the first of its registers.
        const auto& first = code_.array_first;
        const auto it = std::upper_bound(first.begin(), first.end(), out.registers.front());
        name = code_.program->registers[static_cast<std::size_t>(it - first.begin()) - 1].buffer->name;
      }
      leaf.result = t.roundings.narrowed({.tensor = name, .from = widest, .to = out.dtype, .origin = f.origin});
    } else {
      leaf.result = t.roundings.native(out.dtype);
    }
    t.leaves.push_back(std::move(leaf));
  }
  for (auto& slot : t.values) slot.resize(values);
}

std::vector<Rounding> Interpreter::roundings() const {
  return tags_ != nullptr ? tags_->roundings.found() : std::vector<Rounding>{};
}

void Interpreter::fetch_tags(const Warp& w, const Leaf& f, const Operand& o, Mask lanes, std::size_t slot) {
  TagState& t = *tags_;
  auto& out = t.values[slot];
  if (o.kind == Operand::Kind::Registers) {
    const auto span = static_cast<std::size_t>(f.span);
    for (std::size_t i = 0; i < o.registers.size() * span; ++i) {
      out[i] = t.registers[static_cast<std::size_t>(w.id) + i % span][static_cast<std::size_t>(o.registers[i / span])];
    }
    return;
  }
  const auto values = static_cast<std::size_t>(o.values);
  if (o.kind != Operand::Kind::Memory) {
    std::fill_n(out.begin(), values, LaneTags{});
    return;
  }
  const Place& place = place_of(w, o);
  const CountedVector<Tag>& memory = t.memory[static_cast<std::size_t>(place.arena)];
  LaneTags unknown;
  unknown.fill(t.roundings.native(o.dtype));
  if (memory.empty()) {
    std::fill_n(out.begin(), values, unknown);
    return;
  }
  if (o.whole) {
    const auto first = place.first + static_cast<std::int32_t>(plans().at_lane(o.offset, w.ints, 0)) * place.ratio;
    for (std::size_t e = 0; e < o.deltas.size(); ++e) {
      const Tag tag = memory[static_cast<std::size_t>(first + o.deltas[e] * place.ratio)];
      out[e / kLanes][e % kLanes] = tag == TagState::kUnknown ? unknown[0] : tag;
    }
    return;
  }
  Address& a = t.address;
  address(w, f, o, lanes, a);
  for (std::size_t v = 0; v < values; ++v) {
    out[v] = {};
    Mask active = a.lanes;
    if (!o.lanes.empty()) active &= lanes_of_ranks(w, f, o.lanes[v]);
    if (o.cut && active != 0) active &= a.inside[v];
    for (Mask m = active; m != 0; m &= m - 1) {
      const auto l = static_cast<std::size_t>(std::countr_zero(m));
      const Tag tag = memory[static_cast<std::size_t>(place.first + (a.offset[l] + o.deltas[v]) * place.ratio)];
      out[v][l] = tag == TagState::kUnknown ? unknown[l] : tag;
    }
  }
}

void Interpreter::put_tags(const Warp& w, const Leaf& f, const Operand& o, Mask lanes) {
  TagState& t = *tags_;
  const auto& in = t.values[kResult];
  if (o.kind == Operand::Kind::Registers) {
    const auto span = static_cast<std::size_t>(f.span);
    for (std::size_t i = 0; i < o.registers.size() * span; ++i) {
      LaneTags& to =
          t.registers[static_cast<std::size_t>(w.id) + i % span][static_cast<std::size_t>(o.registers[i / span])];
      if (lanes == w.lanes) {
        to = in[i];
        continue;
      }
      for (Mask m = lanes; m != 0; m &= m - 1) take_lane(to, std::countr_zero(m), in[i], std::countr_zero(m));
    }
    return;
  }
  const Place& place = place_of(w, o);
  const auto arena = static_cast<std::size_t>(place.arena);
  if (t.read[arena] == 0) return;
  CountedVector<Tag>& memory = t.memory[arena];
  if (memory.empty()) memory.assign(static_cast<std::size_t>(arenas_[arena].granules), TagState::kUnknown);
  Address& a = t.address;
  address(w, f, o, lanes, a);
  for (std::size_t v = 0; v < static_cast<std::size_t>(o.values); ++v) {
    Mask active = a.lanes;
    if (!o.lanes.empty()) active &= lanes_of_ranks(w, f, o.lanes[v]);
    for (Mask m = active; m != 0; m &= m - 1) {
      const auto l = static_cast<std::size_t>(std::countr_zero(m));
      std::fill_n(memory.begin() + place.first + (a.offset[l] + o.deltas[v]) * place.ratio, place.ratio, in[v][l]);
    }
  }
}

// A value with this tag as one of the leaf's output.
Tag Interpreter::converted(Tag tag, std::size_t leaf, ScalarType to) {
  TagState::LeafTags& t = tags_->leaves[leaf];
  if (t.converted.size() <= tag) t.converted.resize(std::size_t{tag} + 1, TagState::kUnknown);
  Tag& known = t.converted[tag];
  if (known == TagState::kUnknown) {
    if (tags_->roundings.fits(tag, to)) {
      known = tag;
    } else {
      known = t.result;
      LaneTags lost{};  // it is rounded once more, which is not a move
      lost[0] = tag;
      tags_->roundings.read(lost, 1);
    }
  }
  return known;
}

void Interpreter::tag_leaf(const Warp& w, const Leaf& f, Mask lanes) {
  TagState& t = *tags_;
  const auto number = static_cast<std::size_t>(&f - code_.leaves.data());
  const Operand& o = f.out.front();
  const bool update = o.access == atoms::Access::Update || f.atomic;
  if (f.kind == atoms::Kind::Spec) {
    for (const auto* list : {&f.in, &f.out}) {
      for (const Operand& x : *list) {
        if (list == &f.out && x.access != atoms::Access::Update) continue;
        fetch_tags(w, f, x, lanes, 0);
        for (int v = 0; v < x.values; ++v) t.roundings.read(t.values[0][static_cast<std::size_t>(v)], lanes);
      }
    }
    LaneTags made;
    made.fill(t.leaves[number].result);
    for (const Operand& x : f.out) {
      std::fill_n(t.values[kResult].begin(), x.values, made);
      put_tags(w, f, x, lanes);
    }
    return;
  }
  for (std::size_t i = 0; i < f.in.size(); ++i) fetch_tags(w, f, f.in[i], lanes, i);
  if (update) fetch_tags(w, f, o, lanes, kOld);
  auto& results = t.values[kResult];
  const auto values = static_cast<std::size_t>(o.values);

  if (!t.leaves[number].selects) {
    Mask executes = lanes;
    if (f.span > 1) executes = ~Mask{0};
    const auto read = [&](const Operand& x, std::size_t slot) {
      for (std::size_t v = 0; v < static_cast<std::size_t>(x.values); ++v)
        t.roundings.read(t.values[slot][v], executes);
    };
    for (std::size_t i = 0; i < f.in.size(); ++i) read(f.in[i], i);
    if (update) read(o, kOld);
    LaneTags all;
    all.fill(t.leaves[number].result);
    std::fill_n(results.begin(), values, all);
    put_tags(w, f, o, lanes);
    // Lanes that share an element follow each other: the later ones read what the earlier ones made.
    if (f.atomic && t.address.lanes != 0 && !t.address.groups->distinct) t.roundings.read(all, t.address.lanes);
    return;
  }

  std::fill_n(results.begin(), values, LaneTags{});
  const auto join = [&](LaneTags& to, const LaneTags& from) {
    for (std::size_t l = 0; l < kLanes; ++l) to[l] = t.roundings.join(to[l], from[l]);
  };
  if (f.kind == atoms::Kind::Reduction) {
    tag_selection(w, f);
  } else if (f.kind == atoms::Kind::Shfl) {
    tag_exchange(w, f, lanes);
  } else if (f.collective != nullptr) {
    for (const auto& group : f.collective->groups[static_cast<std::size_t>(w.local)]) {
      for (std::size_t v = 0; v < values; ++v) {
        for (std::size_t r = 0; r < group.size(); ++r) {
          const Holder h = f.from[v][r];
          take_lane(results[v], group[r], t.values[0][static_cast<std::size_t>(h.value)],
                    group[static_cast<std::size_t>(h.rank)]);
        }
      }
    }
  } else {
    for (std::size_t v = 0; v < values; ++v) {
      for (std::size_t i = 0; i < f.in.size(); ++i)
        join(results[v], t.values[i][static_cast<std::size_t>(f.takes[i][v])]);
      if (update) join(results[v], t.values[kOld][v]);
    }
  }
  for (std::size_t v = 0; v < values; ++v) {
    for (Tag& tag : results[v]) tag = tag != 0 ? converted(tag, number, o.dtype) : tag;
  }
  put_tags(w, f, o, lanes);
}

void Interpreter::tag_exchange(const Warp& w, const Leaf& f, Mask lanes) {
  TagState& t = *tags_;
  Lanes arg;
  plans().lanes(f.arg, w.ints, lanes, arg);
  for (std::size_t v = 0; v < static_cast<std::size_t>(f.out.front().values); ++v) {
    for (const auto& group : f.collective->groups[static_cast<std::size_t>(w.local)]) {
      for (std::size_t r = 0; r < group.size(); ++r) {
        const std::int64_t source =
            exchange_source(f, static_cast<std::int64_t>(r), arg[static_cast<std::size_t>(group[r])]);
        take_lane(t.values[kResult][v], group[r], t.values[0][v], group[static_cast<std::size_t>(source)]);
      }
    }
  }
}

// Of a maximum or a minimum of several elements.
void Interpreter::tag_selection(const Warp& w, const Leaf& f) {
  TagState& t = *tags_;
  const bool update = f.out.front().access == atoms::Access::Update;
  const auto tag_of = [&](std::size_t slot, Holder h, const std::vector<int>& group) -> Tag& {
    return t.values[slot][static_cast<std::size_t>(h.value)]
                   [static_cast<std::size_t>(group[static_cast<std::size_t>(h.rank)])];
  };
  for (const auto& group : groups_of(w, f)) {
    for (std::size_t e = 0; e < f.reduced.size(); ++e) {
      if (f.holders[e].empty()) continue;
      Tag tag = update ? tag_of(kOld, f.holders[e].front(), group) : Tag{0};
      for (const Holder h : f.reduced[e]) tag = t.roundings.join(tag, tag_of(0, h, group));
      for (const Holder h : f.holders[e]) tag_of(kResult, h, group) = tag;
    }
  }
}

}  // namespace graphene::sim
