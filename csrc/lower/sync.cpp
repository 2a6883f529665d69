#include "lower/sync.h"

#include "lower/operands.h"

namespace graphene::lower {

namespace {

constexpr int kHardwareBarriers = 16;

// 2^e for 0 <= e < 32: one factor per bit of e.
Expr power_of_two(const Expr& e) {
  Expr out = 1;
  for (unsigned bit = 0; bit < 5; ++bit) {
    const std::int64_t weight = std::int64_t{1} << bit;
    const Expr digit = sym::mod(sym::floor_div(e, weight), 2);
    out = out * (Expr(1) + digit * Expr((std::int64_t{1} << (1U << bit)) - 1));
  }
  return out;
}

// One barrier per set of threads: those of "my group" are numbered by the group.
Expr barrier_id(const ir::ThreadTensor& group, std::int64_t threads, SyncState& state) {
  const Expr offset = sym::expand_coords(group.offset);
  const std::int64_t first = sym::lower_bound(offset);
  const std::int64_t last = sym::upper_bound(offset);
  const Expr relative = offset - Expr(first);
  GR_ASSERT(first != sym::kMinInt && last != sym::kMaxInt && sym::divisor(relative) % threads == 0,
            "the groups that a barrier is for are tiles of the block's threads, one after the other");
  const std::int64_t count = (last - first) / threads + 1;
  const auto [it, fresh] = state.first_id.insert({{offset.str(), threads}, state.next_id});
  if (fresh) {
    if (state.next_id + count > kHardwareBarriers) {
      fail(Code::LOWER_BARRIERS, "more barriers than a block has",
           {"want: at most " + std::to_string(kHardwareBarriers - 1) + " groups of threads besides the block",
            "got: " + std::to_string(state.next_id + count - 1)},
           "let groups share a barrier, or use whole warps: a barrier within a warp needs none");
    }
    state.next_id += static_cast<int>(count);
  }
  return Expr(it->second) + sym::floor_div(relative, threads);
}

// A named barrier has one hardware barrier for each stage.
Expr named_barrier_id(const ir::Tensor& barrier, SyncState& state) {
  const ir::Buffer& b = *barrier.buffer;
  const auto stages = static_cast<int>(b.size_elems().value());
  const auto [it, fresh] = state.named.insert({b.id, state.next_id});
  if (fresh) {
    if (state.next_id + stages > kHardwareBarriers) {
      fail(Code::LOWER_BARRIERS, "more barriers than a block has",
           {"want: at most " + std::to_string(kHardwareBarriers - 1) + " besides the block's",
            "got: " + std::to_string(state.next_id + stages - 1) + " with " + b.name},
           "let groups share a barrier, or use mbarriers: shared memory holds many");
    }
    state.next_id += stages;
  }
  return Expr(it->second) + barrier.offset;
}

}  // namespace

AtomCall lower_sync(const ir::SyncStmt& sync, const std::string& arch, const SourceLoc& where, const Buffers& buffers,
                    SyncState& state) {
  const atoms::Match match = atoms::match_sync(sync, arch, state.block_threads, where);
  AtomCall call;
  call.atom = match.instance;
  call.dtype = ir::ScalarType::i32;
  call.attrs = match.attrs;
  call.threads = sync.group;
  call.to = sync.to;
  for (const atoms::OperandBinding& b : match.aux) call.aux.push_back(resolve(b, buffers, *match.instance, false));
  if (sync.barrier != nullptr && sync.barrier->dtype == ir::ScalarType::bar) {
    call.attrs["id"] = named_barrier_id(*sync.barrier, state);
    return call;
  }
  if (sync.op != "barrier" || sync.group == nullptr) return call;
  if (const auto it = call.attrs.find("threads"); it != call.attrs.end()) {
    call.attrs["id"] = barrier_id(*sync.group, std::get<std::int64_t>(it->second), state);
  } else if (const auto mask = call.attrs.find("mask"); mask != call.attrs.end()) {
    // The mask counts from the group's first lane.
    const Expr lane = sym::mod(sym::expand_coords(sync.group->offset), 32);
    const Expr bits = Expr(std::get<std::int64_t>(mask->second)) * power_of_two(lane);
    mask->second = bits.is_const() ? ir::AttrValue(bits.value()) : ir::AttrValue(bits);
  }
  return call;
}

}  // namespace graphene::lower
