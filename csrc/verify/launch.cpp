// Rules about the launch and the arguments.
#include <algorithm>
#include <set>

#include "base/grid.h"
#include "ir/print.h"
#include "verify/rule.h"

namespace graphene::verify {

namespace {

void declared(Context& c) {
  if (c.kernel().grid != nullptr && c.kernel().block != nullptr) return;
  const std::string missing = c.kernel().grid == nullptr ? "blocks" : "threads";
  c.problem({.code = Code::VERIFY_LAUNCH,
             .where = {},
             .message = "the kernel declares no " + missing,
             .ir = {},
             .details = {"kernel: " + c.kernel().name},
             .fix = "call gr." + missing + "(...) in the kernel"});
}

void grid_size(Context& c) {
  if (c.kernel().grid == nullptr) return;
  const std::vector<Expr>& dims = c.kernel().grid->dims;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (sym::lower_bound(dims[i]) <= kGridLimit[i == 0 ? 0 : 1]) continue;
    c.problem({.code = Code::VERIFY_GRID,
               .where = {},
               .message = i == 0 ? "a grid is at most 2147483647 blocks along its first dimension"
                                 : "a grid is at most 65535 blocks along its second and third dimension",
               .ir = {ir::ref(c.kernel().grid, true)},
               .details = {"got: " + dims[i].str() + " along dimension " + std::to_string(i)},
               .fix = i == 0 ? "give each block more to do" : "put the largest dimension first"});
  }
}

void add_sizes(const Expr& e, std::set<const sym::Node*>& out) {
  for (const Expr& v : sym::free_vars(e)) {
    if (v.var().kind == sym::VarKind::Size) out.insert(v.node());
  }
}

// A size is read off an argument's shape or stride that is a * size + b.
void symbols_known(Context& c) {
  std::set<const sym::Node*> solved;
  for (const ir::TensorPtr& t : c.kernel().args) {
    for (const IntTuple& tuple : {t->buffer->layout.shape(), t->buffer->layout.stride()}) {
      for (const Expr& leaf : tuple.leaves()) {
        const std::vector<Expr> vars = sym::free_vars(leaf);
        const bool linear =
            vars.size() == 1 && (leaf.is_var() || (leaf.op() == sym::Op::Add && leaf.node()->args.size() == 1 &&
                                                   leaf.node()->args[0].is_var()));
        if (linear) add_sizes(leaf, solved);
      }
    }
  }
  for (const Expr& s : c.kernel().symbols) {
    if (solved.contains(s.node()) || s.var().name == "sm_count") continue;
    c.problem({.code = Code::VERIFY_SYMBOL,
               .where = {},
               .message = "a size that no argument tells",
               .ir = {},
               .details = {"kernel: " + c.kernel().name, "symbol: " + s.str(),
                           "want: an argument with " + s.str() +
                               " (or a multiple of it, plus a constant) as a size or stride"},
               .fix = "declare an argument with this size, or pass it as gr.param"});
  }
}

void written(const ir::Block& block, std::set<int>& out) {
  for (const ir::StmtPtr& s : block) {
    if (const auto* spec = s->as<ir::SpecStmt>()) {
      if (!spec->decomposed) {
        for (const ir::TensorPtr& t : spec->outs) out.insert(t->buffer->id);
      }
      written(spec->body, out);
    } else if (const auto* loop = s->as<ir::LoopStmt>()) {
      written(loop->body, out);
    } else if (const auto* only = s->as<ir::OnlyStmt>()) {
      written(only->body, out);
    } else if (const auto* branch = s->as<ir::IfStmt>()) {
      written(branch->then_body, out);
      written(branch->else_body, out);
    }
  }
}

void outputs_written(Context& c) {
  std::set<int> out;
  written(c.kernel().body, out);
  for (const ir::TensorPtr& t : c.kernel().args) {
    if (t->buffer->role != ir::Role::Output || out.contains(t->buffer->id)) continue;
    c.problem({.code = Code::VERIFY_OUTPUT,
               .where = t->buffer->loc,
               .message = "an output that nothing writes",
               .ir = {ir::ref(t, true)},
               .details = {"output: " + t->buffer->name},
               .fix = "write it in a leaf, or declare it as gr.input"});
  }
}

void inputs_kept(Context& c, const ir::Stmt& s) {
  const auto* spec = s.as<ir::SpecStmt>();
  if (spec == nullptr) return;
  for (const ir::TensorPtr& t : spec->outs) {
    if (t->buffer->role != ir::Role::Input) continue;
    c.problem(s, Code::VERIFY_READ_ONLY, "an input is written", {"input: " + t->buffer->name},
              "declare it with gr.inout or gr.output");
  }
}

// Where a kernel waits for those before it, nothing stands ahead that needs them to have ended, nor anything that keeps
// a thread from waiting: the next kernel takes the end of this one for the end of all before it.
struct Waiting {
  Context& c;
  const ir::Stmt* before = nullptr;  // the first access of global memory, or exit
  bool waits = false;

  void look(const ir::Block& block, const ir::Stmt* inside) {  // `inside`: a branch or loop around the block
    for (const ir::StmtPtr& s : block) statement(*s, inside);
  }

  void statement(const ir::Stmt& s, const ir::Stmt* inside) {
    if (const auto* spec = s.as<ir::SpecStmt>()) {
      const auto global = [](const ir::TensorPtr& t) { return t->memory() == ir::Memory::GL; };
      const bool reads = std::ranges::any_of(spec->ins, [&](const ir::Operand& o) {
        const auto* t = std::get_if<ir::TensorPtr>(&o);
        return t != nullptr && global(*t);
      });
      if (!spec->decomposed && (reads || std::ranges::any_of(spec->outs, global))) ahead(s);
      look(spec->body, inside);
    } else if (const auto* loop = s.as<ir::LoopStmt>()) {
      look(loop->body, &s);
    } else if (const auto* only = s.as<ir::OnlyStmt>()) {
      look(only->body, &s);
    } else if (const auto* branch = s.as<ir::IfStmt>()) {
      look(branch->then_body, &s);
      look(branch->else_body, &s);
    } else if (s.as<ir::ExitIfStmt>() != nullptr) {
      ahead(s);
    } else if (const auto* sync = s.as<ir::SyncStmt>(); sync != nullptr && sync->op == ir::kWaitKernels) {
      wait(s, inside);
    }
  }

  void ahead(const ir::Stmt& s) {
    if (before == nullptr && !waits) before = &s;
  }

  void wait(const ir::Stmt& s, const ir::Stmt* inside) {
    waits = true;
    const ir::Stmt* const wrong = inside != nullptr ? inside : before;
    if (wrong == nullptr) return;
    c.problem(
        s, Code::VERIFY_WAIT,
        inside != nullptr ? "not every thread waits for the kernels before this one"
                          : "the kernels before this one are waited for too late",
        {(inside != nullptr ? "within: " : "before it: ") + ir::head_line(*wrong, true) + " at " + wrong->loc.str()},
        "let gr.wait_kernels() follow gr.blocks() and gr.threads()");
  }
};

void kernels_waited_for(Context& c) { Waiting{c}.look(c.kernel().body, nullptr); }

}  // namespace

const std::vector<Rule>& launch_rules() {
  static const std::vector<Rule> table = {
      {"launch.declared", "A kernel declares its blocks and its threads.", declared, nullptr},
      {"launch.grid_size", "A grid has at most 2147483647 blocks along its first dimension, 65535 along the others.",
       grid_size, nullptr},
      {"launch.symbols", "Every size is read off the shape or stride of an argument.", symbols_known, nullptr},
      {"launch.outputs", "Every output is written by some leaf.", outputs_written, nullptr},
      {"launch.inputs", "No spec writes an input.", nullptr, inputs_kept},
      {"launch.waits",
       "Every thread waits for earlier kernels, if any does, before it accesses global memory or exits.",
       kernels_waited_for, nullptr},
  };
  return table;
}

}  // namespace graphene::verify
