// What rules see and say.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ir/print.h"
#include "ir/stmt.h"
#include "verify/verify.h"

namespace graphene::verify {

// A declaration or assignment of a mutable scalar, with the branches and loops between its declaration and itself.
struct Assigned {
  const sym::Node* var;
  Expr value;
  bool from_data = false;  // read from what differs between threads
  std::vector<const ir::Stmt*> between;
};

// A thread of the block that belongs to a group. Several groups may be meant ("my warp"): `of` numbers them.
struct Member {
  std::int64_t thread;
  std::size_t of;
};

class Context {
 public:
  explicit Context(const ir::Kernel& kernel) : kernel_(kernel) {}

  [[nodiscard]] const ir::Kernel& kernel() const { return kernel_; }
  // Loops, branches, only() and decomposed specs around the statement, outermost first.
  [[nodiscard]] const std::vector<const ir::Stmt*>& enclosing() const { return enclosing_; }

  void problem(const ir::Stmt& s, Code code, std::string message, std::vector<std::string> details = {},
               std::string fix = {});
  void problem(Diagnostic d) { result_.problems.push_back(std::move(d)); }

  // Mutable scalars, and those read from data, whose value differs between threads.
  [[nodiscard]] bool thread_dependent(const Expr& e) const;
  std::set<const sym::Node*> divergent_scalars;
  std::vector<Assigned> assigned;                                   // all of them
  std::map<std::string, bool> varies;                               // conditions and groups that were compared
  std::map<std::string, std::set<const sym::Node*>> divergent_in;   // of a group: scalars that differ inside of it
  std::map<std::string, std::vector<Member>> members;               // of a group
  std::map<std::pair<std::string, const sym::Node*>, bool> differ;  // within a group: the value of an expression
  std::map<std::string, bool> covered;                              // a group, and the statements that let threads by

  std::vector<const ir::Stmt*> enclosing_;
  Result result_;

 private:
  const ir::Kernel& kernel_;
};

// A detail of a problem: the statement around it.
[[nodiscard]] inline std::string within(const ir::Stmt& s) {
  return "inside: " + ir::head_line(s) + (s.loc.known() ? "  at " + s.loc.str() : "");
}

[[nodiscard]] inline bool launched(const Context& c) {
  return c.kernel().block != nullptr && c.kernel().grid != nullptr;
}

struct Rule {
  const char* name;
  const char* doc;
  void (*kernel)(Context&);                      // once, may be null
  void (*statement)(Context&, const ir::Stmt&);  // at every statement, may be null
};

// The tables, one per file.
[[nodiscard]] const std::vector<Rule>& launch_rules();
[[nodiscard]] const std::vector<Rule>& shape_rules();
[[nodiscard]] const std::vector<Rule>& thread_rules();
[[nodiscard]] const std::vector<Rule>& barrier_rules();

}  // namespace graphene::verify
