// Barriers, commits, waits and fences: Sync entries are picked by operation, scope and domain.
#include <algorithm>

#include "atoms/attempt.h"
#include "atoms/fragment.h"
#include "atoms/registry.h"

namespace graphene::atoms {

namespace {

std::string describe(const ir::SyncStmt& s) {
  std::string text = s.op + "(" + s.atom;
  if (s.group != nullptr) text += (s.atom.empty() ? "" : ", ") + s.group->type_str();
  for (const auto& [name, value] : s.attrs) text += ", " + name + "=" + attr_text(value);
  return text + ")";
}

[[noreturn]] void refuse(const ir::SyncStmt& s, Code code, std::string message, std::string fix,
                         const SourceLoc& where) {
  Diagnostic d;
  d.code = code;
  d.where = where;
  d.message = std::move(message);
  d.ir.push_back(describe(s));
  d.fix = std::move(fix);
  throw Error(std::move(d));
}

// The scope of a barrier: "block", "warps" (several whole ones), "warp" (one, or a part of it: the mask counts from the
// group's first lane).
std::string scope_of(const ir::SyncStmt& s, std::int64_t block_threads, ir::Attrs* attrs, const SourceLoc& where) {
  const ir::ThreadTensor* g = s.group.get();
  if (g == nullptr) return "block";
  const Expr size = g->size();
  if (!size.is_const()) refuse(s, Code::NO_ATOM, "a barrier needs a constant number of threads", "", where);
  const std::int64_t n = size.value();
  if (g->unit == ir::ThreadUnit::Block) return "cluster";
  const std::int64_t all = g->launch_size().is_const() ? g->launch_size().value() : block_threads;
  if (n == all && !g->subset) return "block";
  if (!g->levels.empty()) {
    const FlatLayout f = [&] {
      FlatLayout x;
      for (std::size_t l = g->levels.size(); l-- > 0;) {
        for (const Expr& e : g->levels[l].shape().leaves()) x.shape.push_back(e.is_const() ? e.value() : 1);
        for (const Expr& e : g->levels[l].stride().leaves()) x.stride.push_back(e.is_const() ? e.value() : 0);
      }
      return x;
    }();
    std::vector<std::int64_t> members;
    for (std::int64_t i = 0; i < n; ++i) members.push_back(f(i));
    std::sort(members.begin(), members.end());
    const Expr first = sym::expand_coords(g->offset);
    const std::int64_t d = first.is_const() ? first.value() : sym::divisor(first);
    const bool run = members.back() == n - 1;
    if (run && n % 32 == 0 && d % 32 == 0) {
      if (n == 32) {
        (*attrs)["mask"] = std::int64_t{0xffffffff};
        return "warp";
      }
      (*attrs)["threads"] = n;
      (*attrs)["id"] = std::int64_t{0};
      return "warps";
    }
    if (n < 32 && members.back() < 32) {
      std::int64_t mask = 0;
      for (const std::int64_t m : members) mask |= std::int64_t{1} << m;
      const std::int64_t top = members.back() + 1;
      std::int64_t span = 1;
      while (span < top) span *= 2;
      const bool inside = first.is_const() ? first.value() % 32 + members.back() < 32 : d % span == 0;
      if (inside) {
        (*attrs)["mask"] = mask;
        return "warp";
      }
    }
  } else {
    refuse(s, Code::NO_ATOM, "a barrier of single threads synchronises nothing", "name the group: barrier(on=...)",
           where);
  }
  refuse(s, Code::NO_ATOM, "no barrier synchronises " + g->type_str(),
         "synchronise whole warps, or threads of one warp", where);
}

// How many of the youngest groups a wait leaves unfinished is part of the instruction.
void check_pending(const ir::SyncStmt& s, const SourceLoc& where) {
  const auto it = s.attrs.find("pending");
  if (it == s.attrs.end()) return;
  const auto* number = std::get_if<std::int64_t>(&it->second);
  const auto* e = std::get_if<Expr>(&it->second);
  const bool constant = number != nullptr || (e != nullptr && e->is_const());
  const std::int64_t n = !constant ? -1 : number != nullptr ? *number : e->value();
  if (n >= 0 && n <= 0x7fffffff) return;
  refuse(s, Code::ATOM_ATTR,
         n > 0 ? "pending: want at most 2147483647, got " + attr_text(it->second)
               : "pending: want a constant, 0 or more, got " + attr_text(it->second),
         "unroll the loop that changes it, or wait for more", where);
}

// A statement on an element of an mbarrier, or on a named barrier, is told from others by its attributes.
std::string of_barrier(const ir::SyncStmt& s, Match* m, const SourceLoc& where) {
  const ir::Tensor& t = *s.barrier;
  if (t.dtype == ir::ScalarType::bar) {
    m->attrs["id"] = std::int64_t{0};  // the lowering's
    m->attrs["threads"] = static_cast<std::int64_t>(t.buffer->arrivals);
    return "named";
  }
  OperandBinding b;
  b.kind = OperandBinding::Kind::Memory;
  b.tensor = s.barrier;
  b.dtype = t.dtype;
  b.deltas = {0};
  m->aux.push_back(std::move(b));
  if (s.phase) m->attrs["phase"] = *s.phase;
  if (s.to != nullptr) m->attrs["to"] = std::string("cluster");
  if (!s.atom.empty()) {
    const std::string& done = require_family(s.atom, where, {describe(s)}).front()->atom.done;
    m->attrs["after"] = done.substr(done.find(':') + 1);
  }
  Expr bytes = s.expect_bytes;
  for (const ir::TensorPtr& e : s.expect) bytes = bytes + ir::bytes_of_elems(e->size(), e->dtype);
  if (!s.expect.empty() || !bytes.is_const(0)) m->attrs["expect_bytes"] = bytes;
  return "mbarrier";
}

// What every thread has at the launch: the compiler gives equal shares of the 65,536 registers, in steps of 8.
bool raises_registers(const ir::SyncStmt& s, std::int64_t block_threads) {
  const auto it = s.attrs.find("registers");
  const auto* n = it == s.attrs.end() ? nullptr : std::get_if<std::int64_t>(&it->second);
  constexpr std::int64_t kRegisters = 65'536;
  const std::int64_t share = kRegisters / std::max<std::int64_t>(block_threads, 1) / 8 * 8;
  return n != nullptr && *n > share;
}

// The statement says what the entry lists, no more and no less.
bool takes(const Instance& e, const ir::Attrs& attrs) {
  const std::vector<AttrDef>& defs = e.atom.attrs;
  if (defs.size() != attrs.size()) return false;
  return std::all_of(defs.begin(), defs.end(), [&](const AttrDef& d) {
    const auto it = attrs.find(d.name);
    if (it == attrs.end()) return false;
    const std::string got = attr_text(it->second);
    return std::any_of(d.accepts.begin(), d.accepts.end(),
                       [&](const std::string& s) { return s[0] == '*' || s == got; });
  });
}

}  // namespace

Match match_sync(const ir::SyncStmt& sync, const std::string& arch, std::int64_t block_threads,
                 const SourceLoc& where) {
  Match m;
  m.attrs = sync.attrs;
  std::string scope;
  if (sync.op == "barrier") {
    scope = scope_of(sync, block_threads, &m.attrs, where);
  } else if (sync.barrier != nullptr) {
    scope = of_barrier(sync, &m, where);
  } else if (sync.op == "setmaxnreg") {
    scope = "registers";
    m.attrs["change"] = std::string(raises_registers(sync, block_threads) ? "inc" : "dec");
  } else if (sync.op == "fence" && sync.atom.starts_with("async.")) {
    scope = sync.atom;  // a proxy
  } else if (sync.op == ir::kWaitKernels || sync.op == ir::kStartKernels) {
    scope = "stream";
  } else {
    // The completion domain of the atom it names: "group:cp_async" -> "cp_async".
    const std::vector<InstancePtr> named = require_family(sync.atom, where, {describe(sync)});
    const std::string& done = named.front()->atom.done;
    if (done.starts_with("mbarrier:")) {
      refuse(sync, Code::VERIFY_BARRIER, sync.atom + " completes on an mbarrier: there is nothing to " + sync.op,
             "wait for the phase of its mbarrier: full[i].wait(phase)", where);
    }
    if (done == "now") {
      refuse(sync, Code::NO_ATOM, sync.atom + " is complete when it has executed: there is nothing to " + sync.op,
             "remove this " + sync.op, where);
    }
    scope = done.substr(done.find(':') + 1);
  }
  check_pending(sync, where);
  m.attrs["op"] = sync.op;
  m.attrs["scope"] = scope;
  InstancePtr other_arch;
  for (const InstancePtr& e : Registry::get().of_kind(Kind::Sync)) {
    if (!takes(*e, m.attrs)) continue;
    if (!e->runs_on(arch)) {
      other_arch = e;
      continue;
    }
    m.instance = e;
    return m;
  }
  if (other_arch != nullptr) {
    const Atom& atom = other_arch->atom;
    throw OtherArch({.code = Code::NO_ATOM,
                     .where = where,
                     .message = atom.name + " needs " + atom.arch + ", got " + arch,
                     .ir = {describe(sync)},
                     .details = {},
                     .fix = ""},
                    atom.name, atom.arch);
  }
  std::string with;
  for (const auto& [name, value] : sync.attrs) with += (with.empty() ? " with " : ", ") + name + "=" + attr_text(value);
  refuse(sync, Code::NO_ATOM, "no atomic spec implements " + sync.op + " of " + scope + with + " on " + arch, "",
         where);
}

}  // namespace graphene::atoms
