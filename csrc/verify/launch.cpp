// Rules about the launch and the arguments.
#include <algorithm>
#include <set>

#include "ir/print.h"
#include "verify/rule.h"

namespace graphene::verify {

namespace {

constexpr std::int64_t kMaxGridX = 0x7fffffff;
constexpr std::int64_t kMaxGridYZ = 65535;

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
    if (sym::lower_bound(dims[i]) <= (i == 0 ? kMaxGridX : kMaxGridYZ)) continue;
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

}  // namespace

const std::vector<Rule>& launch_rules() {
  static const std::vector<Rule> table = {
      {"launch.declared", "A kernel declares its blocks and its threads.", declared, nullptr},
      {"launch.grid_size", "A grid has at most 2147483647 blocks along its first dimension, 65535 along the others.",
       grid_size, nullptr},
      {"launch.symbols", "Every size is read off the shape or stride of an argument.", symbols_known, nullptr},
      {"launch.outputs", "Every output is written by some leaf.", outputs_written, nullptr},
      {"launch.inputs", "No spec writes an input.", nullptr, inputs_kept},
  };
  return table;
}

}  // namespace graphene::verify
