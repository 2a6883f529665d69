#include "lower/memory.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "atoms/arch.h"
#include "ir/print.h"

namespace graphene::lower {

namespace {

void collect_allocs(const ir::Block& block, std::vector<const ir::Stmt*>& out) {
  for (const ir::StmtPtr& s : block) {
    if (s->as<ir::AllocStmt>() != nullptr) {
      out.push_back(s.get());
    } else if (const auto* spec = s->as<ir::SpecStmt>()) {
      collect_allocs(spec->body, out);
    } else if (const auto* loop = s->as<ir::LoopStmt>()) {
      collect_allocs(loop->body, out);
    } else if (const auto* branch = s->as<ir::IfStmt>()) {
      collect_allocs(branch->then_body, out);
      collect_allocs(branch->else_body, out);
    } else if (const auto* only = s->as<ir::OnlyStmt>()) {
      collect_allocs(only->body, out);
    }
  }
}

std::int64_t round_up(std::int64_t v, std::int64_t to) { return (v + to - 1) / to * to; }

struct SharedAlloc {
  const ir::Stmt* stmt;
  ir::BufferPtr buffer;
  std::int64_t bytes, align;
  std::int64_t offset = -1;
  int group = 0;  // buffers that reuse each other's bytes, directly or not
};

// Buffers of one group stand together: first those that reuse nothing, in order, then the others over them.
class SharedLayout {
 public:
  SharedLayout(std::vector<SharedAlloc>& allocs, std::vector<Diagnostic>& problems)
      : allocs_(allocs), problems_(problems) {
    for (std::size_t i = 0; i < allocs_.size(); ++i) index_[allocs_[i].buffer->id] = i;
    std::vector<std::size_t> parent(allocs_.size());
    std::iota(parent.begin(), parent.end(), 0);
    const auto find = [&](std::size_t i) {
      while (parent[i] != i) i = parent[i];
      return i;
    };
    for (std::size_t i = 0; i < allocs_.size(); ++i) {
      for (const int id : allocs_[i].buffer->over) {
        const auto it = index_.find(id);
        if (it != index_.end()) parent[std::max(find(i), find(it->second))] = std::min(find(i), find(it->second));
      }
    }
    for (std::size_t i = 0; i < allocs_.size(); ++i) allocs_[i].group = static_cast<int>(find(i));
  }

  std::int64_t place() {
    std::int64_t end = place_fixed();
    for (std::size_t leader = 0; leader < allocs_.size(); ++leader) {
      if (allocs_[leader].group != static_cast<int>(leader)) continue;
      end = place_group(static_cast<int>(leader), end);
    }
    check_fixed();
    return end;
  }

 private:
  // Allocations whose place is given. Everything else lies behind them, or over what it names.
  std::int64_t place_fixed() {
    std::int64_t end = 0;
    for (SharedAlloc& a : allocs_) {
      if (a.buffer->at_bytes < 0) continue;
      a.offset = a.buffer->at_bytes;
      end = std::max(end, a.offset + a.bytes);
      if (a.offset % a.align == 0) continue;
      problems_.push_back({.code = Code::LOWER_OVER,
                           .where = a.stmt->loc,
                           .message = "an allocation at a place that is not aligned",
                           .ir = {ir::head_line(*a.stmt)},
                           .details = {"want: a multiple of " + std::to_string(a.align) + " bytes",
                                       "got: at=" + std::to_string(a.offset)},
                           .fix = "a swizzled tensor starts at a multiple of 1024 bytes, another one of 16"});
    }
    return end;
  }

  static bool names(const SharedAlloc& a, const SharedAlloc& b) {
    return std::ranges::find(a.buffer->over, b.buffer->id) != a.buffer->over.end();
  }

  // What has a place of its own shares bytes only with what it names, or what names it.
  void check_fixed() {
    for (std::size_t i = 0; i < allocs_.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const SharedAlloc& a = allocs_[i];
        const SharedAlloc& b = allocs_[j];
        if (a.buffer->at_bytes < 0 && b.buffer->at_bytes < 0) continue;
        if (a.offset >= b.offset + b.bytes || b.offset >= a.offset + a.bytes || names(a, b) || names(b, a)) continue;
        problems_.push_back({.code = Code::LOWER_OVER,
                             .where = a.stmt->loc,
                             .message = "allocations that share bytes without saying so",
                             .ir = {ir::head_line(*b.stmt), ir::head_line(*a.stmt)},
                             .details = {b.buffer->name + ": bytes " + std::to_string(b.offset) + " to " +
                                             std::to_string(b.offset + b.bytes - 1),
                                         a.buffer->name + ": bytes " + std::to_string(a.offset) + " to " +
                                             std::to_string(a.offset + a.bytes - 1)},
                             .fix = "name " + b.buffer->name + " in over= of " + a.buffer->name});
      }
    }
  }

  std::int64_t place_group(int group, std::int64_t begin) {
    std::int64_t end = begin;
    for (SharedAlloc& a : allocs_) {
      if (a.group != group || !a.buffer->over.empty() || a.buffer->at_bytes >= 0) continue;
      a.offset = round_up(end, a.align);
      end = a.offset + a.bytes;
    }
    for (SharedAlloc& a : allocs_) {
      if (a.group == group && !a.buffer->over.empty() && a.buffer->at_bytes < 0)
        end = std::max(end, place_over(a, end));
    }
    return end;
  }

  std::int64_t place_over(SharedAlloc& a, std::int64_t group_end) {
    std::int64_t first = group_end;
    std::int64_t last = 0;
    for (const int id : a.buffer->over) {
      const auto it = index_.find(id);
      if (it == index_.end() || allocs_[it->second].offset < 0) continue;
      first = std::min(first, allocs_[it->second].offset);
      last = std::max(last, allocs_[it->second].offset + allocs_[it->second].bytes);
    }
    a.offset = round_up(first, a.align);
    const std::int64_t end = a.offset + a.bytes;
    // At the end of its group it may be longer than what it reuses; nothing else may lie under it.
    std::string under;
    for (const SharedAlloc& other : allocs_) {
      const bool named = std::ranges::find(a.buffer->over, other.buffer->id) != a.buffer->over.end();
      const bool rests_on_named = std::ranges::any_of(
          other.buffer->over, [&](int id) { return std::ranges::find(a.buffer->over, id) != a.buffer->over.end(); });
      if (&other == &a || other.offset < 0 || other.group != a.group || named || rests_on_named) continue;
      if (other.offset < end && a.offset < other.offset + other.bytes)
        under += (under.empty() ? "" : ", ") + other.buffer->name;
    }
    if (!under.empty()) {
      problems_.push_back({.code = Code::LOWER_OVER,
                           .where = a.stmt->loc,
                           .message = "an allocation larger than the bytes it reuses",
                           .ir = {ir::head_line(*a.stmt)},
                           .details = {"want: at most " + std::to_string(last - a.offset) + " bytes",
                                       "got: " + std::to_string(a.bytes) + ", which reaches into " + under},
                           .fix = "name " + under + " in over=, too"});
    }
    return std::max(end, last);
  }

  std::vector<SharedAlloc>& allocs_;
  std::vector<Diagnostic>& problems_;
  std::map<int, std::size_t> index_;
};

}  // namespace

std::int64_t shared_limit_bytes(const std::string& arch) {
  const atoms::Arch* known = atoms::find_arch(arch);
  return known == nullptr ? 0 : known->shared_kib * 1024;
}

Buffers place_buffers(const ir::Kernel& kernel, std::vector<Diagnostic>& problems,
                      const std::map<int, std::int64_t>& align_bytes) {
  Buffers out;
  for (const ir::TensorPtr& t : kernel.args) {
    const ir::BufferPtr& b = t->buffer;
    out.memory_of[b->id] = static_cast<int>(out.memory.size());
    for (int i = 0; i < std::max(b->count, 1); ++i) {
      out.memory.push_back({.buffer = b,
                            .c_name = b->name,
                            .dtype = b->dtype,
                            .memory = b->memory,
                            .size_elems = b->size_elems(),
                            .argument = static_cast<int>(out.memory.size()),
                            .list_index = i});
    }
  }
  for (std::size_t i = 0; i < kernel.params.size(); ++i) {
    const ir::TensorPtr& t = kernel.params[i].tensor;
    if (t == nullptr) continue;
    out.array_of[t->buffer->id] = static_cast<int>(out.registers.size());
    out.registers.push_back(
        {.buffer = t->buffer, .c_name = t->buffer->name, .dtype = t->dtype, .regs = 1, .param = static_cast<int>(i)});
  }
  std::vector<const ir::Stmt*> stmts;
  collect_allocs(kernel.body, stmts);
  std::vector<SharedAlloc> shared;
  for (const ir::Stmt* s : stmts) {
    const ir::BufferPtr& b = s->as<ir::AllocStmt>()->tensor->buffer;
    const Expr size = b->size_elems();
    GR_ASSERT(size.is_const(), "a kernel's own tensors have constant sizes");
    if (b->memory == ir::Memory::RF) {
      out.array_of[b->id] = static_cast<int>(out.registers.size());
      out.registers.push_back({.buffer = b,
                               .c_name = b->name,
                               .dtype = b->dtype,
                               .regs = static_cast<int>(std::max<std::int64_t>(size.value(), 1))});
      continue;
    }
    if (b->dtype == ir::ScalarType::bar) continue;  // the hardware's own
    const auto needed = align_bytes.find(b->id);
    const std::int64_t usual =
        std::max<std::int64_t>(b->swizzle.trivial() ? 16 : 1024, needed == align_bytes.end() ? 0 : needed->second);
    shared.push_back({.stmt = s,
                      .buffer = b,
                      .bytes = ir::bytes_of_elems(b->dtype, size.value()),
                      .align = std::max<std::int64_t>(usual, b->align_bytes)});
  }
  out.shared_bytes = SharedLayout(shared, problems).place();
  for (const SharedAlloc& a : shared) {
    out.memory_of[a.buffer->id] = static_cast<int>(out.memory.size());
    out.memory.push_back({.buffer = a.buffer,
                          .c_name = a.buffer->name,
                          .dtype = a.buffer->dtype,
                          .memory = a.buffer->memory,
                          .size_elems = a.buffer->size_elems(),
                          .shared_offset_bytes = a.offset});
  }
  return out;
}

}  // namespace graphene::lower
