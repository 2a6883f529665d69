#include "ir/statements.h"

#include "ir/print.h"

namespace graphene::ir {

namespace {

std::vector<StatementView> views_of(const Block& block);

// What each kind of statement adds to its kind, text and place.
struct Fill {
  StatementView& v;

  void operator()(const ViewStmt& s) const { made("view", s.result, s.source); }
  void operator()(const ThreadStmt&) const { v.kind = "threads"; }
  void operator()(const IndicesStmt&) const { v.kind = "indices"; }
  void operator()(const AllocStmt& s) const { made("allocate", s.tensor, nullptr); }
  void operator()(const SpecStmt& s) const {
    v.kind = "spec";
    v.what = name(s.kind);
    v.atom = s.atom;
    v.outs = s.outs;
    v.operands = operand_texts(s, Refs::Names);
    for (const Operand& in : s.ins)
      if (const auto* t = std::get_if<TensorPtr>(&in)) v.ins.push_back(*t);
    if (const auto it = s.attrs.find("op"); it != s.attrs.end())
      if (const auto* op = std::get_if<std::string>(&it->second)) v.op = *op;
    v.body = views_of(s.body);
  }
  void operator()(const LoopStmt& s) const {
    v.kind = "for";
    v.body = views_of(s.body);
  }
  void operator()(const IfStmt& s) const {
    v.kind = "if";
    v.body = views_of(s.then_body);
    v.otherwise = views_of(s.else_body);
  }
  void operator()(const OnlyStmt& s) const {
    v.kind = "only";
    v.body = views_of(s.body);
  }
  void operator()(const ExitIfStmt&) const { v.kind = "exit_if"; }
  void operator()(const ScalarStmt& s) const {
    v.kind = s.from ? "index" : s.declare ? "scalar" : "assign";
    if (s.from) v.ins = {s.from};
  }
  void operator()(const SyncStmt& s) const {
    v.kind = "sync";
    v.what = s.op;
    v.atom = s.atom;
    if (s.barrier) v.ins = {s.barrier};
    v.ins.insert(v.ins.end(), s.expect.begin(), s.expect.end());
  }

 private:
  void made(const char* kind, const TensorPtr& result, const TensorPtr& of) const {
    v.kind = kind;
    v.outs = {result};
    if (of) v.ins = {of};
  }
};

std::vector<StatementView> views_of(const Block& block) {
  std::vector<StatementView> out;
  for (const StmtPtr& s : block) {
    StatementView& v = out.emplace_back();
    v.id = s->id;
    v.text = head_line(*s);
    v.named = head_line(*s, Refs::Names);
    v.loc = s->loc;
    std::visit(Fill{v}, s->node);
  }
  return out;
}

}  // namespace

std::vector<StatementView> statements(const Kernel& kernel) { return views_of(kernel.body); }

}  // namespace graphene::ir
