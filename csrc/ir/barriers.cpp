#include "ir/barriers.h"

#include <algorithm>
#include <vector>

#include "ir/print.h"

namespace graphene::ir {

namespace {

[[noreturn]] void misused(std::string message, std::vector<std::string> details, std::string fix = {}) {
  fail(Code::VERIFY_BARRIER, std::move(message), std::move(details), std::move(fix));
}

std::string of(const TensorPtr& t) { return ref(t, true) + (t->buffer->name.empty() ? "" : " of " + t->buffer->name); }

bool on_barrier(const std::string& op) { return op == "arrive" || op == "wait_phase" || op == "sync"; }

// One element of a barrier.
void check_one(const TensorPtr& t, const std::string& who) {
  if (!is_barrier(t->dtype))
    misused(who + " names something that is not a barrier", {"got: " + of(t)},
            "declare it with gr.mbarrier(name, stages, arrivals) or gr.named_barrier(name, stages, threads)");
  if (!t->levels.empty())
    misused(who + " takes one barrier, not several", {"got: " + of(t)}, "index it, as in full[ring.index]");
}

void check_expected(const SyncStmt& s) {
  Expr bytes = s.expect_bytes;
  for (const TensorPtr& t : s.expect) {
    if (t->memory() != Memory::SH || is_barrier(t->dtype))
      misused("bytes are expected in a tensor in shared memory", {"got: " + of(t)},
              "name what the copies write: expect=[tile]");
    bytes = bytes + bytes_of_elems(t->size(), t->dtype);
  }
  if (sym::upper_bound(bytes) < 0 || sym::lower_bound(bytes) > kMaxArrivals)
    misused("more bytes than a phase can expect", {"want: 0 to " + std::to_string(kMaxArrivals), "got: " + bytes.str()},
            "let a stage be filled by fewer bytes, or give it two barriers");
}

void check_arrival(const SyncStmt& s) {
  const bool expects = !s.expect.empty() || !identical(s.expect_bytes, Expr(0));
  const bool named = s.barrier->dtype == ScalarType::bar;
  if (named && (expects || s.to || !s.atom.empty()))
    misused("an arrival at a named barrier expects nothing and is at this block's", {"barrier: " + of(s.barrier)},
            "use gr.mbarrier for copies and for other blocks");
  if (expects && !s.atom.empty())
    misused("an arrival that waits for this thread's copies expects no bytes", {"barrier: " + of(s.barrier)},
            "use two arrivals");
  if (s.to && s.to->unit != ThreadUnit::Block)
    misused("an arrival is at blocks of the cluster", {"got: " + s.to->type_str()}, "at=blocks[c], my cluster");
  check_expected(s);
}

void check_phase(const SyncStmt& s) {
  if (!s.phase) misused("a wait names no phase", {"barrier: " + of(s.barrier)}, "full[ring.index].wait(ring.phase)");
  if (sym::lower_bound(*s.phase) < 0 || sym::upper_bound(*s.phase) > 1)
    misused("a phase is a parity, 0 or 1", {"barrier: " + of(s.barrier), "got: " + s.phase->str()},
            "use the phase of a gr.ring, or a count of rounds % 2");
}

// What print and assert show is a thread's own: one register each, or an integer.
void check_shown(const SyncStmt& s) {
  const bool tells = s.op == kPrint || s.op == kAssert;
  const auto text = s.attrs.find("text");
  const bool has_text = text != s.attrs.end() && std::holds_alternative<std::string>(text->second);
  const auto condition = s.attrs.find("condition");
  const bool asks = condition != s.attrs.end() && std::holds_alternative<Expr>(condition->second);
  if (!tells && s.values.empty()) return;
  if (!tells || !has_text || asks != (s.op == kAssert) || s.attrs.size() != (asks ? 2U : 1U) || s.group)
    fail(Code::VERIFY_OPERANDS, s.op + "() shows a text and values" + (s.op == kAssert ? ", and has a condition" : ""),
         {"want: text=\"...\", values=(...)" + std::string(s.op == kAssert ? ", condition=..." : "")});
  for (const Operand& v : s.values) {
    const auto* t = std::get_if<TensorPtr>(&v);
    if (t == nullptr || ((*t)->memory() == Memory::RF && (*t)->levels.empty() && !(*t)->is_fragment())) continue;
    fail(Code::VERIFY_OPERANDS, s.op + "() shows registers of the executing thread, one by one", {"got: " + of(*t)},
         "move it to a register first, and index that down to one element");
  }
}

}  // namespace

bool is_barrier(ScalarType t) { return info(t).cls == ScalarInfo::Class::Barrier; }

Buffer barrier_buffer(const std::string& name, ScalarType dtype, std::int64_t stages, std::int64_t arrivals) {
  const bool named = dtype == ScalarType::bar;
  if (stages < 1 || (named && stages > kMaxNamedBarriers))
    misused(named ? "a block has 16 named barriers" : "a barrier has at least one stage",
            {"barrier: " + name, std::string("want: ") + (named ? "1 to 16 stages" : "1 stage or more"),
             "got: " + std::to_string(stages)});
  Buffer b;
  b.name = name;
  b.dtype = dtype;
  b.memory = Memory::SH;
  b.role = Role::Alloc;
  b.layout = Layout(stages, 1);
  b.arrivals = static_cast<int>(std::clamp<std::int64_t>(arrivals, -1, kMaxArrivals + 1));
  return b;
}

void check_barriers(const Buffer& b) {
  if (!is_barrier(b.dtype)) {
    if (b.arrivals != 0) misused("arrivals at something that is not a barrier", {"tensor: " + b.name});
    return;
  }
  const bool named = b.dtype == ScalarType::bar;
  const std::vector<Expr> stride = b.layout.stride().leaves();
  const bool side_by_side = stride.size() == 1 && (stride[0].is_const(1) || b.layout.size().is_const(1));
  if (b.memory != Memory::SH || b.role != Role::Alloc || !side_by_side || b.stages != 0 || !b.swizzle.trivial() ||
      !b.over.empty() || b.fragment)
    misused("barriers are declared by the number of their stages", {"tensor: " + b.name},
            "gr.mbarrier(name, stages, arrivals), gr.named_barrier(name, stages, threads)");
  if (named && (b.arrivals < 32 || b.arrivals > 1024 || b.arrivals % 32 != 0))
    misused("a named barrier is for whole warps",
            {"barrier: " + b.name, "want: 32 to 1024 threads, a multiple of 32", "got: " + std::to_string(b.arrivals)});
  if (!named && (b.arrivals < 1 || b.arrivals > kMaxArrivals))
    misused("a phase of an mbarrier waits for 1 to " + std::to_string(kMaxArrivals) + " arrivals",
            {"barrier: " + b.name, "got: " + std::to_string(b.arrivals)});
}

void check_sync(const SyncStmt& s, std::int64_t cluster) {
  check_shown(s);
  const bool whole_cluster = s.op == "barrier" && cluster > 1;
  if (s.group && s.group->unit != ThreadUnit::Thread && !whole_cluster)
    fail(Code::SPEC_GROUP, s.op + "() takes threads of the block", {"got: " + s.group->type_str()},
         "blocks of a grid cannot wait for each other: use two kernels");
  if (!on_barrier(s.op)) {
    if (s.barrier) misused(s.op + "() takes no barrier", {"got: " + of(s.barrier)});
    return;
  }
  if (!s.barrier) misused(s.op + "() needs a barrier", {"want: one element of an mbarrier or a named barrier"});
  check_one(s.barrier, s.op + "()");
  const std::string reach = s.op == "arrive" ? "release" : "acquire";
  const bool mbarrier = s.barrier->dtype == ScalarType::mbar;
  const auto known = [&](const auto& attr) {
    const auto* text = std::get_if<std::string>(&attr.second);
    return mbarrier && attr.first == reach && text != nullptr && *text == "cluster";
  };
  if (s.group || !std::all_of(s.attrs.begin(), s.attrs.end(), known))
    misused(s.op + "() of a barrier names neither threads nor attributes but " + reach + "=\"cluster\" of an mbarrier",
            {"barrier: " + of(s.barrier)});
  if (!s.attrs.empty() && (cluster == 1 || (s.op == "arrive" && !s.to)))
    misused(s.op + "() is for other blocks of the cluster, and there are none", {"barrier: " + of(s.barrier)},
            cluster == 1 ? "leave out " + reach + "=: within a block it is meant anyway"
                         : "name them: full[i].arrive(at=cluster, release=True)");
  const bool named = s.barrier->dtype == ScalarType::bar;
  if (s.op == "wait_phase" && named)
    misused("a named barrier has no phase to wait for", {"barrier: " + of(s.barrier)},
            "sync() arrives and waits; arrive() leaves the wait to others");
  if (s.op == "sync" && !named)
    misused("an mbarrier is waited for by its phase", {"barrier: " + of(s.barrier)}, "arrive(), then wait(phase)");
  if (s.op == "arrive") return check_arrival(s);
  if (!s.expect.empty() || !identical(s.expect_bytes, Expr(0)) || s.to || !s.atom.empty())
    misused(s.op + "() expects nothing and is at this block's barrier", {"barrier: " + of(s.barrier)});
  if (s.op == "wait_phase") check_phase(s);
}

void check_barrier_use(const SpecStmt& s) {
  const auto data = [](const TensorPtr& t) {
    if (is_barrier(t->dtype))
      misused("a barrier is not data", {"operand: " + of(t)},
              "use full[i].arrive(), full[i].wait(phase) and gr.move(..., done=full[i])");
  };
  for (const TensorPtr& t : s.outs) data(t);
  for (const Operand& o : s.ins)
    if (const auto* t = std::get_if<TensorPtr>(&o)) data(*t);
  if (s.to && !s.done)
    misused("a copy to several blocks completes on a barrier of each", {"to: " + s.to->type_str()},
            "name it: gr.move(..., done=full[i], to=cluster)");
  if (!s.done) return;
  if (s.kind != SpecKind::Move) misused("only a Move completes on a barrier", {std::string("got: ") + name(s.kind)});
  check_one(s.done, "done=");
  if (s.done->dtype != ScalarType::mbar)
    misused("a copy completes on an mbarrier", {"got: " + of(s.done)}, "declare it with gr.mbarrier");
  if (s.to && s.to->unit != ThreadUnit::Block)
    misused("a copy is to blocks of the cluster", {"got: " + s.to->type_str()}, "to=blocks[c], my cluster");
}

void check_rank(const Tensor& view, std::int64_t cluster) {
  if (!view.rank) return;
  const Expr& rank = *view.rank;
  const std::string tensor = "tensor: " + view.type_str() + " of " + view.buffer->name;
  if (cluster == 1)
    fail(Code::VERIFY_CLUSTER, "another block's shared memory, and this kernel has no clusters",
         {tensor, "rank: " + rank.str()}, "declare them before: gr.blocks(..., cluster=2)");
  if (sym::prove(sym::le(0, rank)) && sym::prove(sym::lt(rank, cluster))) return;
  fail(Code::VERIFY_CLUSTER, "a block that is not proven to be of the cluster",
       {tensor, "want: a rank from 0 to " + std::to_string(cluster - 1), "got: " + rank.str()},
       "count the blocks of a cluster from 0: r with c, r = blocks.indices(), or (r + 1) % " + std::to_string(cluster));
}

layout::Tiler cluster_tiler(const ThreadTensor& grid, std::int64_t cluster) {
  layout::Tiler tiler(static_cast<std::size_t>(grid.levels[0].rank()), Layout(1, 1));
  tiler[0] = Layout(cluster, 1);
  return tiler;
}

void check_cluster(const ThreadTensor& grid, std::int64_t cluster) {
  if (cluster < 1 || cluster > kMaxCluster)
    fail(Code::VERIFY_CLUSTER, "a cluster is 1 to " + std::to_string(kMaxCluster) + " blocks",
         {"got: " + std::to_string(cluster)});
  const Expr& first = grid.dims.at(0);
  if (cluster > 1 && !sym::prove(sym::eq(sym::mod(first, cluster), 0)))
    fail(Code::VERIFY_CLUSTER, "blocks that do not divide into clusters",
         {"grid: " + grid.type_str(), "want: a multiple of " + std::to_string(cluster) + " along the first dimension",
          "got: " + first.str()},
         "round the number of blocks up: gr.ceil_div(n, " + std::to_string(cluster) + ") * " + std::to_string(cluster));
}

}  // namespace graphene::ir
