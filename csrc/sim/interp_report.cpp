// What the simulator says: both sides of a hazard with statement, Python line, thread and element.
#include <algorithm>
#include <array>
#include <charconv>

#include "sim/elements.h"
#include "sim/interp.h"

namespace graphene::sim {

namespace {

std::string value_text(ir::ScalarType t, std::uint64_t bits) {
  if (!is_float(t)) return std::to_string(decode_int(t, bits));
  std::array<char, 40> text;  // by to_chars: a locale has no say in it
  const auto end = std::to_chars(text.begin(), text.end(), decode(t, bits), std::chars_format::general, 6).ptr;
  return {text.begin(), end};
}

}  // namespace

std::string Interpreter::thread_text(std::int64_t block, int thread) const {
  return "thread " + std::to_string(thread) + " (warp " + std::to_string(thread / kLanes) + ", lane " +
         std::to_string(thread % kLanes) + ") of block " + block_text(block);
}

std::string Interpreter::element_text(int buffer, std::int64_t element) const {
  return describe_element(*code_.program->buffers[static_cast<std::size_t>(buffer)].buffer, element, code_);
}

std::int64_t Interpreter::block_of(Epoch e) const {
  const auto it = std::upper_bound(block_epochs_.begin(), block_epochs_.end(), e,
                                   [](Epoch x, const auto& b) { return x < b.first; });
  return it == block_epochs_.begin() ? -1 : std::prev(it)->second;
}

std::string Interpreter::earlier_text(const Conflict& c) const {
  const std::uint32_t owner = owner_of(c.earlier);
  if (owner >= order_->agent(0)) {
    const int warp = static_cast<int>(owner - order_->agent(0)) * kWarpgroup;
    const int first = warp % code_.warps();
    return "a product of warps " + std::to_string(first) + " to " + std::to_string(first + kWarpgroup - 1) +
           " of block " + block_text(block_ + warp / code_.warps());
  }
  if (!order_->is_thread(owner)) {
    return "a copy that completes on " + mbarrier_text(static_cast<int>(owner - order_->phase_of(0)));
  }
  const int warp = order_->warp_of(owner);
  const std::int64_t first = c.other_block ? block_of(epoch_of(c.earlier)) : block_;
  const std::uint32_t site = site_of(c.earlier);
  if ((site == 0 || site >= kMaxSite) && first < 0) return "a thread of another block";
  return (order_->domain_of(owner) >= 0 ? "a copy of " : "") +
         thread_text(first + warp / code_.warps(), warp % code_.warps() * kLanes + lane_of(c.earlier));
}

// As commits and waits name it: reads and writes of a copy have one name.
std::string Interpreter::domain_text(std::size_t domain) const {
  const std::string& name = code_.copy_domains[domain];
  return name.substr(0, name.find('.'));
}

void Interpreter::race(const At& at, const Conflict& c, std::int64_t element, bool writes) const {
  const std::uint32_t site = site_of(c.earlier);
  const Leaf* earlier = site > 0 && site < kMaxSite ? &code_.leaves[site - 1] : nullptr;
  const std::uint32_t owner = owner_of(c.earlier);
  const bool of_phase = !order_->is_thread(owner);
  const bool copied = of_phase || order_->domain_of(owner) >= 0;
  const bool copies = at.leaf.domain >= 0 || at.leaf.bulk;
  const bool product = owner >= order_->agent(0);
  const std::string unordered = product ? "a product in flight" : copied ? "a copy in flight" : "an unordered thread";
  Diagnostic d;
  d.code = Code::SIM_RACE;
  d.where = at.leaf.origin != nullptr ? at.leaf.origin->loc : SourceLoc{};
  d.message = c.earlier_wrote ? (writes ? std::string("two unordered writes of ")
                                        : "a read of a value that " + unordered + " writes: ")
                              : "a write over a value that " + unordered + " reads: ";
  switch (c.why) {
    case Conflict::Why::Unordered:
      break;
    case Conflict::Why::Kinds:
      d.message = "atomic updates that combine differently, in no order: ";
      break;
    case Conflict::Why::Scope:
      d.message = "several blocks update what is atomic for the threads of one block alone: ";
      break;
    case Conflict::Why::Incoherent:
      d.message = writes ? "a write over a value that the non-coherent cache has read: "
                         : "a read through the non-coherent cache of what the kernel has written: ";
      break;
    case Conflict::Why::Unfenced:
      d.code = Code::SIM_PROXY;
      d.message = std::string(at.leaf.product ? "a product of what threads "
                              : writes        ? "a copy over what threads "
                                              : "a copy of what threads ") +
                  (c.earlier_wrote ? "wrote" : "read") + ", without a proxy fence: ";
  }
  d.message += element_text(at.operand.buffer, element);
  if (at.operand.remote) d.message += " of block " + block_text(block_ + remote_rank_);
  d.ir.push_back(statement_text(at.leaf.origin));
  if (earlier != nullptr && earlier->origin != at.leaf.origin) d.ir.push_back(statement_text(earlier->origin));
  d.details.push_back(std::string(writes ? "write by " : "read by ") +
                      (copies            ? "a copy of "
                       : at.leaf.product ? "a product of "
                                         : "") +
                      thread_text(at.warp, c.lane) + ", " + location_text(at.leaf.origin));
  std::string there = (c.earlier_wrote ? "write by " : "read by ") + earlier_text(c);
  if (earlier != nullptr) there += ", " + location_text(earlier->origin);
  d.details.push_back(std::move(there));
  const int thread = at.warp.id * kLanes + c.lane;
  const int other = of_phase ? -1 : order_->warp_of(owner) * kLanes + lane_of(c.earlier);
  if (c.why == Conflict::Why::Incoherent) {
    d.fix = "that cache is for memory that nobody writes while the kernel runs: load by ld.global";
  } else if (c.why == Conflict::Why::Scope) {
    d.fix = "atomic=\"relaxed.gpu\" is atomic for all threads of the device";
  } else if (c.why == Conflict::Why::Kinds) {
    d.fix = c.other_block ? "blocks run in any order: combine by one operation, or in two kernels"
                          : "combine by one operation, or put a barrier between the two";
  } else if (c.other_block) {
    d.fix = "blocks run in any order: let each block write its own elements, and no other block read them";
  } else if (c.why == Conflict::Why::Unfenced) {
    const Operand& o = at.operand;
    const bool shared = code_.program->buffers[static_cast<std::size_t>(o.buffer)].memory == ir::Memory::SH;
    d.fix = std::string("let the threads fence before they tell of it: gr.fence(\"async.") +
            (shared ? "shared" : "global") + "\")";
  } else if (owner >= order_->agent(0)) {
    d.fix = "let the warpgroup wait for the group of that product first, and tell of it behind the wait";
  } else if (of_phase) {
    const std::string name = mbarrier_text(static_cast<int>(owner - order_->phase_of(0)));
    d.fix = c.earlier_wrote
                ? "let the thread wait for the phase of " + name + " that the copy completes, or learn of it"
                : "overwrite what the copy reads behind the phase of " + name + " that it completes";
  } else if (at.leaf.bulk && !copied) {
    d.fix = "let the thread that issues the copy learn of it before: by a barrier, or an arrival that it waits for";
  } else if (copied) {
    const std::string domain = domain_text(static_cast<std::size_t>(order_->domain_of(owner)));
    const bool landed = epoch_of(c.earlier) <=
                        order_->copies_done(order_->warp_of(owner), lane_of(c.earlier), order_->domain_of(owner));
    if (landed) {
      d.fix = "the copy has been waited for by its own thread alone: put a barrier behind that wait";
    } else {
      d.fix = "let thread " + std::to_string(other % (code_.warps() * kLanes)) + " commit and wait for its " + domain +
              " copies first" +
              (thread == other ? "" : ", then put a barrier in between: a wait covers the waiting thread's own copies");
    }
  } else if (thread / kLanes == other / kLanes) {
    d.fix = "lanes of a warp are not ordered by themselves: put a barrier on their warp between the two";
    if (code_.warps() > 1) d.fix += ", or gr.barrier() where other warps access what they do";
  } else if (other >= 0 && thread / kLanes / code_.warps() != other / kLanes / code_.warps()) {
    d.fix =
        "put a barrier of the cluster between the two, or an arrival with release=True that a wait with acquire=True "
        "waits for";
  } else {
    d.fix = "put a barrier that both threads take part in between the two";
  }
  throw Error(std::move(d));
}

void Interpreter::check_unfinished() const {
  for (std::size_t w = 0; w < warp_data_.size(); ++w) {
    for (std::size_t domain = 0; domain < warp_data_[w].reads_shared.size(); ++domain) {
      for (std::size_t l = 0; l < kLanes; ++l) {
        const Epoch last = warp_data_[w].reads_shared[domain][l];
        const auto warp = static_cast<int>(w);
        const auto lane = static_cast<int>(l);
        if (last <= order_->copies_done(warp, lane, static_cast<int>(domain))) continue;
        Diagnostic d;
        d.code = Code::SIM_UNFINISHED_COPY;
        d.message = "the block ends while a copy still reads its shared memory";
        for (const Leaf& f : code_.leaves) {
          if ((f.bulk ? f.reads : f.domain) != static_cast<int>(domain)) continue;
          if (!d.where.known() && f.origin != nullptr) d.where = f.origin->loc;
          if (d.ir.empty() || d.ir.back() != statement_text(f.origin)) d.ir.push_back(statement_text(f.origin));
        }
        d.details = {"copy of " + thread_text(warps_[w], lane)};
        d.fix = "commit and wait for the " + domain_text(domain) + " copies before the end";
        throw Error(std::move(d));
      }
    }
  }
}

void Interpreter::out_of_bounds(const At& at, int lane, std::int64_t element) const {
  const lower::MemBuffer& b = code_.program->buffers[static_cast<std::size_t>(at.operand.buffer)];
  Diagnostic d;
  d.code = Code::SIM_OUT_OF_BOUNDS;
  d.where = at.leaf.origin != nullptr ? at.leaf.origin->loc : SourceLoc{};
  d.message = "an access outside " + b.buffer->name;
  d.ir = {statement_text(at.leaf.origin)};
  d.details = {"want: an element number from 0 to " +
                   std::to_string(code_.buffer_elems[static_cast<std::size_t>(at.operand.buffer)] - 1),
               "got: " + std::to_string(element), "by " + thread_text(at.warp, lane)};
  d.fix = "check the tile sizes and indices of this access";
  throw Error(std::move(d));
}

void Interpreter::claim_broken(const At& at, const Claim& claim, int lane, std::int64_t index,
                               std::int64_t size) const {
  const std::string name = code_.program->buffers[static_cast<std::size_t>(at.operand.buffer)].buffer->name;
  Diagnostic d;
  d.code = Code::SIM_OUT_OF_BOUNDS;
  d.where = at.leaf.origin != nullptr ? at.leaf.origin->loc : SourceLoc{};
  d.message = claim.past ? "an index past the end of a view of " + name : "a negative index of a view of " + name;
  d.ir = {statement_text(at.leaf.origin)};
  d.details = {"index: " + claim.origin->at.str(),
               claim.past ? "want: at most " + std::to_string(size - 1) : "want: at least 0",
               "got: " + std::to_string(index), "by " + thread_text(at.warp, lane)};
  d.fix =
      "keep the index inside, or let only those threads access it whose index is inside: "
      "gr.if_(...)";
  throw Error(std::move(d));
}

void Interpreter::misaligned(const At& at, int lane, std::int64_t element) const {
  Diagnostic d;
  d.code = Code::SIM_MISALIGNED;
  d.where = at.leaf.origin != nullptr ? at.leaf.origin->loc : SourceLoc{};
  d.message = "a vector that does not start at a multiple of its size: " + element_text(at.operand.buffer, element);
  d.ir = {statement_text(at.leaf.origin)};
  d.details = {"want: an element number that is a multiple of " + std::to_string(at.operand.align_elems),
               "got: " + std::to_string(element), "by " + thread_text(at.warp, lane)};
  d.fix = "use a narrower access, or pad the rows";
  throw Error(std::move(d));
}

void Interpreter::undefined_store(const At& at, int lane, std::int64_t element, std::uint32_t cause) {
  if (undefined_) return;
  Diagnostic d;
  d.code = Code::SIM_UNDEFINED;
  d.where = at.leaf.origin != nullptr ? at.leaf.origin->loc : SourceLoc{};
  d.message = "a value that was never written is stored to " + element_text(at.operand.buffer, element);
  d.ir = {statement_text(at.leaf.origin)};
  d.details = {"by " + thread_text(at.warp, lane)};
  if (cause > 0 && cause < kMaxSite) {
    const Leaf& f = code_.leaves[cause - 1];
    if (f.origin != at.leaf.origin) d.ir.push_back(statement_text(f.origin));
    std::string source;
    for (const Operand& o : f.in) {
      if (o.kind != Operand::Kind::Memory) continue;
      source = " of " + code_.program->buffers[static_cast<std::size_t>(o.buffer)].buffer->name;
    }
    d.details.push_back("it comes from a read" + source + " at " + location_text(f.origin));
  } else {
    d.details.push_back("it comes from a register that nothing has written");
  }
  d.fix = "write it before: gr.init, or a copy that covers the whole tile";
  const ir::Buffer& place = *code_.program->buffers[static_cast<std::size_t>(at.operand.buffer)].buffer;
  if (at.leaf.atomic && place.role == ir::Role::Output) {
    d.details.back() = "an atomic update combines with what is there, and a gr.output holds nothing";
    d.fix = "declare " + place.name + " with gr.inout, and pass it with the numbers to begin with, such as zeros";
  }
  undefined_ = std::move(d);
}

void Interpreter::write_conflict(const At& at, int lane, int other, std::int64_t element, std::uint64_t bits,
                                 std::uint64_t other_bits) const {
  Diagnostic d;
  d.code = Code::SIM_WRITE_CONFLICT;
  d.where = at.leaf.origin != nullptr ? at.leaf.origin->loc : SourceLoc{};
  d.message = "two threads of one instruction write different values to " + element_text(at.operand.buffer, element);
  d.ir = {statement_text(at.leaf.origin)};
  d.details = {value_text(at.operand.dtype, bits) + " by " + thread_text(at.warp, lane),
               value_text(at.operand.dtype, other_bits) + " by " + thread_text(at.warp, other)};
  d.fix = "let one of them write, or give each its own element";
  throw Error(std::move(d));
}

void Interpreter::check_outputs() const {
  for (std::size_t i = 0; i < code_.program->buffers.size(); ++i) {
    const lower::MemBuffer& b = code_.program->buffers[i];
    if (b.buffer->role != ir::Role::Output) continue;
    const Place& place = places_[i];
    const Arena& arena = arenas_[static_cast<std::size_t>(place.arena)];
    std::int64_t missing = 0;
    std::int64_t first = -1;
    const std::vector<std::int64_t> elements = layout_elements(b.buffer->layout, code_);
    for (const std::int64_t e : elements) {
      if (!arena.shadow.is_undefined(place.first + static_cast<std::int32_t>(e * place.ratio))) continue;
      if (first < 0) first = e;
      ++missing;
    }
    if (missing == 0) continue;
    Diagnostic d;
    d.code = Code::SIM_OUTPUT_UNWRITTEN;
    d.where = b.buffer->loc;
    d.message = "output " + b.buffer->name + " is not written completely";
    d.details = {"unwritten: " + std::to_string(missing) + " of " + std::to_string(elements.size()) + " elements",
                 "the first: " + element_text(static_cast<int>(i), first)};
    d.fix = "check the grid and the tiles that cover it, or declare it gr.inout";
    throw Error(std::move(d));
  }
}

}  // namespace graphene::sim
