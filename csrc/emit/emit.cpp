#include "emit/emit.h"

#include <algorithm>
#include <map>

#include "emit/atom_text.h"
#include "emit/expressions.h"
#include "emit/literal.h"
#include "emit/names.h"
#include "emit/prelude.h"
#include "emit/registers.h"
#include "ir/print.h"
#include "lower/in_flight.h"
#include "lower/outside.h"

namespace graphene::emit {

using lower::AtomCall;
using lower::ExitIf;
using lower::If;
using lower::Loop;
using lower::Node;
using lower::Program;
using lower::ScalarSet;
using lower::SpecScope;

namespace {

// Static shared memory ends here; more is asked for at launch.
constexpr std::int64_t kStaticSharedBytes = 48 * 1024;

class KernelPrinter {
 public:
  explicit KernelPrinter(const Program& program) : program_(program), expressions_(names_) {}

  std::string print() {
    names_ = {};
    registers_.emplace(program_.registers, lower::sums_in_flight(program_), names_);
    std::vector<std::string> buffers;
    for (const lower::MemBuffer& b : program_.buffers) {
      buffers.push_back(b.list_index > 0 ? buffers.back() : names_.fresh(b.c_name));
    }
    buffers_ = buffers;
    for (std::size_t i = 0; i < program_.fill_rows.size(); ++i) fill_rows_.push_back(names_.fresh("outside"));
    name_parameters();
    for (const lower::TensorMap& m : program_.maps) {
      map_names_.push_back(names_.fresh("map_" + buffers_[static_cast<std::size_t>(m.argument)]));
    }
    AtomText atoms(program_, expressions_, *registers_, buffers, fill_rows_, map_names_);
    atoms_ = &atoms;

    sym::Substitution same;
    std::map<const sym::Node*, Expr> first;
    unify_coordinates(program_.kernel->body, first, same);
    expressions_.unify(std::move(same), std::move(first));
    if (has_matrices(program_.body)) expressions_.share_in_warps();
    const Names names = names_;
    pass(true);
    names_ = names;
    Lines body = pass(false);

    Lines inner;
    append(inner, shared_memory());
    append(inner, registers_->declarations());
    append(inner, prologue());
    append(inner, write_fill_rows());
    Lines definitions = expressions_.close();
    append(inner, definitions);
    if (!inner.empty() && !body.empty() && !body.front().empty()) inner.emplace_back();
    append(inner, body);

    std::string text = signature();
    for (const std::string& l : inner) text += l.empty() ? "\n" : "  " + l + "\n";
    text += "}\n";
    std::vector<std::string> helpers;
    collect_helpers(program_.body, helpers);
    text.insert(0, used_helpers(helpers, text));
    return prelude(text) + text;
  }

 private:
  Lines pass(bool counting) {
    expressions_.start_pass(counting);
    for (const auto& [var, name, wide] : parameters_) expressions_.declare(var, name, wide);
    last_comment_ = nullptr;
    if (!counting) declare_coordinates(program_.kernel->body);
    return block(program_.body);
  }

  static void unify_coordinates(const ir::Block& statements, std::map<const sym::Node*, Expr>& first,
                                sym::Substitution& same) {
    for (const ir::StmtPtr& s : statements) {
      if (const auto* indices = s->as<ir::IndicesStmt>()) {
        for (const std::vector<Expr>& level : indices->vars) {
          for (const Expr& v : level) {
            if (!v.is_var() || !v.var().def) continue;
            const Expr def = sym::expand_coords(v);
            if (def.is_const()) continue;
            const auto [it, fresh] = first.emplace(def.node(), v);
            if (!fresh && !identical(it->second, v)) same[v.node()] = it->second;
          }
        }
      } else if (const auto* spec = s->as<ir::SpecStmt>()) {
        unify_coordinates(spec->body, first, same);
      } else if (const auto* loop = s->as<ir::LoopStmt>()) {
        unify_coordinates(loop->body, first, same);
      } else if (const auto* only = s->as<ir::OnlyStmt>()) {
        unify_coordinates(only->body, first, same);
      } else if (const auto* branch = s->as<ir::IfStmt>()) {
        unify_coordinates(branch->then_body, first, same);
        unify_coordinates(branch->else_body, first, same);
      }
    }
  }

  // Coordinates that the text uses, in the order of the IR.
  void declare_coordinates(const ir::Block& statements) {
    for (const ir::StmtPtr& s : statements) {
      if (const auto* indices = s->as<ir::IndicesStmt>()) {
        for (const std::vector<Expr>& level : indices->vars) {
          for (const Expr& v : level) expressions_.define_if_used(v);
        }
      } else if (const auto* spec = s->as<ir::SpecStmt>()) {
        declare_coordinates(spec->body);
      }
    }
  }

  void name_parameters() {
    for (const ir::ScalarParam& p : program_.kernel->params) {
      const std::string name = p.tensor ? registers_->name_of(p.tensor->buffer->id) : names_.fresh(p.name);
      scalar_names_.push_back(name);
      if (p.var.is_var()) parameters_.push_back({p.var, name, ir::bits(p.dtype) > 32});
    }
    for (const Expr& s : program_.kernel->symbols) {
      parameters_.push_back({s, names_.fresh(s.var().name), lower::symbol_bits(s) > 32});
      symbol_names_.push_back(parameters_.back().c_name);
    }
  }

  std::string signature() const {
    std::vector<std::string> params;
    for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
      const lower::MemBuffer& b = program_.buffers[i];
      if (b.argument < 0 || b.list_index > 0) continue;
      const std::string constant = b.buffer->role == ir::Role::Input ? "const " : "";
      if (b.buffer->count > 0) {
        params.push_back("const __grid_constant__ gr_list<" + constant + c_type(b.dtype) + ", " +
                         std::to_string(b.buffer->count) + "> " + buffers_[i]);
        continue;
      }
      params.push_back(constant + c_type(b.dtype) + "* __restrict__ " + buffers_[i]);
    }
    for (std::size_t i = 0; i < program_.kernel->params.size(); ++i) {
      params.push_back(c_type(program_.kernel->params[i].dtype) + " " + scalar_names_[i]);
    }
    for (std::size_t i = 0; i < program_.kernel->symbols.size(); ++i) {
      params.push_back((lower::symbol_bits(program_.kernel->symbols[i]) > 32 ? "i64 " : "int ") + symbol_names_[i]);
    }
    for (const std::string& m : map_names_) params.push_back("const __grid_constant__ gr_map " + m);
    // Where shared memory leaves room for few small blocks, the compiler need not save registers to make room for more.
    // Of large ones, three instead of one are worth more than registers.
    constexpr std::int64_t kSmall = 256;  // threads
    const bool few = program_.shared_bytes > kStaticSharedBytes && program_.block_threads <= kSmall;
    // Without a number of blocks the assembler may ignore changes of the number of registers.
    const std::string blocks = few || changes_registers(program_.body) ? ", 1" : "";
    const std::string cluster =
        program_.cluster > 1 ? "__cluster_dims__(" + std::to_string(program_.cluster) + ", 1, 1) " : "";
    std::string text = "extern \"C\" __global__ void " + cluster + "__launch_bounds__(" +
                       std::to_string(program_.block_threads) + blocks + ")\n" + entry_name(*program_.kernel) + "(";
    const std::string pad(entry_name(*program_.kernel).size() + 1, ' ');
    std::size_t column = pad.size();
    for (std::size_t i = 0; i < params.size(); ++i) {
      const std::string piece = params[i] + (i + 1 < params.size() ? "," : ") {");
      if (i > 0 && column + 1 + piece.size() > 110) {
        text += "\n" + pad;
        column = pad.size();
      } else if (i > 0) {
        text += " ";
        ++column;
      }
      text += piece;
      column += piece.size();
    }
    return text + (params.empty() ? ") {\n" : "\n");
  }

  static bool changes_registers(const lower::Block& block) {
    return std::ranges::any_of(block, [](const lower::NodePtr& n) {
      if (const auto* call = n->as<AtomCall>()) return call->attrs.contains("registers");
      if (const auto* loop = n->as<Loop>()) return changes_registers(loop->body);
      if (const auto* branch = n->as<If>())
        return changes_registers(branch->then_body) || changes_registers(branch->else_body);
      const auto* scope = n->as<SpecScope>();
      return scope != nullptr && changes_registers(scope->body);
    });
  }

  // What one thread does before anything else. The kernel's own barrier behind it lets the others rely on it.
  Lines prologue() {
    if (program_.prologue.empty()) return {};
    Lines out{"if (threadIdx.x == 0) {"};
    append(out, block(program_.prologue), "  ");
    out.emplace_back("}");
    return out;
  }

  // One array when there is one allocation; else one block of bytes, laid out as the program says.
  Lines shared_memory() const {
    std::vector<std::size_t> shared;
    for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
      if (program_.buffers[i].memory == ir::Memory::SH) shared.push_back(i);
    }
    Lines out;
    if (shared.empty()) return out;
    const bool dynamic = program_.shared_bytes > kStaticSharedBytes;
    if (shared.size() == 1 && program_.fill_rows.empty() && !dynamic) {
      const lower::MemBuffer& b = program_.buffers[shared.front()];
      const std::int64_t elems = program_.shared_bytes * 8 / std::max(ir::bits(b.dtype), 8);
      out.push_back("__shared__ __align__(" + std::to_string(alignment(b)) + ") " + c_type(b.dtype) + " " +
                    buffers_[shared.front()] + "[" + std::to_string(elems) + "];");
      return out;
    }
    int align = 16;
    for (const std::size_t i : shared) align = std::max(align, alignment(program_.buffers[i]));
    const std::string bytes = dynamic ? "" : std::to_string(program_.shared_bytes);
    out.push_back((dynamic ? "extern __shared__ __align__(1024) u8 gr_smem[];"
                           : "__shared__ __align__(" + std::to_string(align) + ") u8 gr_smem[" + bytes + "];"));
    for (const std::size_t i : shared) {
      const lower::MemBuffer& b = program_.buffers[i];
      const std::string at =
          b.shared_offset_bytes == 0 ? "gr_smem" : "(gr_smem + " + std::to_string(b.shared_offset_bytes) + ")";
      out.push_back(c_type(b.dtype) + "* const " + buffers_[i] + " = (" + c_type(b.dtype) + "*)" + at + ";");
    }
    for (std::size_t i = 0; i < fill_rows_.size(); ++i) {
      out.push_back("u64* const " + fill_rows_[i] + " = (u64*)(gr_smem + " +
                    std::to_string(program_.fill_rows[i].shared_offset_bytes) + ");");
    }
    return out;
  }

  // What a lane outside of a partial tile reads, by one thread before anything else.
  Lines write_fill_rows() const {
    if (fill_rows_.empty()) return {};
    Lines out{"// The fill, for lanes outside of partial tiles.", "if (threadIdx.x == 0) {"};
    for (std::size_t i = 0; i < fill_rows_.size(); ++i) {
      const lower::FillRow& r = program_.fill_rows[i];
      std::uint64_t word = ir::constant_bits(r.value, r.dtype);
      for (int bits = ir::bits(r.dtype); bits < 64; bits *= 2) word |= word << static_cast<unsigned>(bits);
      std::string line = " ";
      for (std::int64_t w = 0; w < r.bytes / 8; ++w) {
        line += " " + fill_rows_[i] + "[" + std::to_string(w) + "] = " + std::to_string(word) + "u;";
      }
      out.push_back(line);
    }
    out.emplace_back("}");
    out.emplace_back("__syncthreads();");
    return out;
  }

  [[nodiscard]] int alignment(const lower::MemBuffer& b) const {
    return std::max(static_cast<int>(program_.shared_align_bytes), b.buffer->align_bytes);
  }

  // Whether some operand is a matrix in shared memory that a descriptor addresses.
  static bool has_matrices(const lower::Block& block) {
    return std::ranges::any_of(block, [](const lower::NodePtr& n) {
      if (const auto* call = n->as<AtomCall>()) {
        return std::ranges::any_of(call->in, [](const lower::Operand& o) {
          const auto* mem = std::get_if<lower::MemRef>(&o);
          return mem != nullptr && mem->descriptor.has_value();
        });
      }
      if (const auto* loop = n->as<Loop>()) return has_matrices(loop->body);
      if (const auto* branch = n->as<If>()) return has_matrices(branch->then_body) || has_matrices(branch->else_body);
      const auto* scope = n->as<SpecScope>();
      return scope != nullptr && has_matrices(scope->body);
    });
  }

  static void collect_helpers(const lower::Block& block, std::vector<std::string>& seen) {
    for (const lower::NodePtr& n : block) {
      if (const auto* call = n->as<AtomCall>()) {
        const std::string& h = call->atom->atom.helper;
        if (!h.empty() && std::ranges::find(seen, h) == seen.end()) seen.push_back(h);
      } else if (const auto* loop = n->as<Loop>()) {
        collect_helpers(loop->body, seen);
      } else if (const auto* branch = n->as<If>()) {
        collect_helpers(branch->then_body, seen);
        collect_helpers(branch->else_body, seen);
      } else if (const auto* scope = n->as<SpecScope>()) {
        collect_helpers(scope->body, seen);
      }
    }
  }

  // The IR line above what implements it; once for the instructions of one statement.
  void comment(Lines& out, const Node& n) {
    if (n.origin == nullptr || n.origin == last_comment_) return;
    out.push_back("// " + ir::head_line(*n.origin));
    last_comment_ = n.origin;
  }

  Lines block(const lower::Block& nodes) {
    Lines out;
    for (const lower::NodePtr& n : nodes) statement(out, *n);
    return out;
  }

  void statement(Lines& out, const Node& n) {
    if (const auto* call = n.as<AtomCall>()) {
      const bool first = n.origin != last_comment_;
      comment(out, n);
      const Lines lines = atoms_->statement(*call);
      // Short statements of one spec share a line.
      const bool short_line = lines.size() == 1 && lines.front().size() <= 28;
      if (short_line && !first && out.back().size() + 1 + lines.front().size() <= 110) {
        out.back() += " " + lines.front();
      } else {
        append(out, lines);
      }
    } else if (const auto* loop = n.as<Loop>()) {
      append(out, print_loop(*loop));
    } else if (const auto* branch = n.as<If>()) {
      append(out, print_if(*branch));
    } else if (const auto* exit = n.as<ExitIf>()) {
      out.push_back("if (" + expressions_.text(exit->condition, "exit").text + ") return;");
    } else if (const auto* tell = n.as<lower::Tell>()) {
      append(out, print_tell(*tell, n.origin));
    } else if (const auto* set = n.as<ScalarSet>()) {
      out.push_back(print_set(*set));
    } else if (const auto* scope = n.as<SpecScope>()) {
      comment(out, n);
      append(out, block(scope->body));
    }
  }

  std::string print_set(const ScalarSet& set) {
    if (set.from) return print_index(set);
    const CText value = expressions_.text(set.value, set.var.var().name);
    if (!set.declare) return expressions_.text(set.var, "").text + " = " + value.text + ";";
    const bool wide = !fits_32(set.var);
    const std::string name = names_.fresh(set.var.var().name);
    expressions_.declare(set.var, name, wide);
    return std::string(wide ? "i64 " : "int ") + name + " = " + value.text + ";";
  }

  std::string print_index(const ScalarSet& set) {
    const bool wide = !fits_32(set.var);
    const std::string name = names_.fresh(set.var.var().name);
    expressions_.declare(set.var, name, wide);
    return std::string("const ") + (wide ? "i64 " : "int ") + name + " = " +
           registers_->value(set.from->array, set.from->values.front()) + ";";
  }

  // A line of printf: where in Python, block and thread, the text, the values. A broken assertion also ends the kernel.
  Lines print_tell(const lower::Tell& tell, const ir::Stmt* origin) {
    std::string format = tell.condition ? "assertion failed: " + tell.condition->str() + ": " : "";
    if (origin != nullptr && origin->loc.known()) format = origin->loc.str() + ": " + format;
    const auto literally = [](const std::string& s) {
      std::string out;
      for (const char c : s) out += c == '%' ? std::string("%%") : std::string(1, c);
      return out;
    };
    std::string quoted = literally(format) + "block %d,%d,%d thread %d:";
    if (!tell.text.empty()) quoted += " " + literally(tell.text);
    std::vector<std::string> args = {"(int)blockIdx.x", "(int)blockIdx.y", "(int)blockIdx.z", "(int)threadIdx.x"};
    for (const lower::Operand& v : tell.values) {
      const auto [conversion, arg] = print_value(v);
      quoted += " " + conversion;
      args.push_back(arg);
    }
    std::string call = "printf(" + c_string(quoted + "\n");
    for (const std::string& a : args) call += ", " + a;
    call += ");";
    if (!tell.condition) return {call};
    return {"if (!(" + expressions_.text(*tell.condition, "asserted").text + ")) {", "  " + call, "  __trap();", "}"};
  }

  static std::string c_string(const std::string& s) {
    std::string out = "\"";
    for (const char c : s) {
      if (c == '"' || c == '\\') out += '\\';
      out += c == '\n' ? "\\n" : std::string(1, c);
    }
    return out + "\"";
  }

  // How printf converts a value, and what it is given.
  std::pair<std::string, std::string> print_value(const lower::Operand& v) {
    if (const auto* e = std::get_if<lower::ExprRef>(&v))
      return {"%lld", "(i64)" + expressions_.text(e->value, "shown").in(Prec::Unary)};
    if (const auto* i = std::get_if<lower::ImmRef>(&v)) return {"%g", c_literal(i->value, i->dtype)};
    const auto& r = std::get<lower::RegRef>(v);
    const std::string value = registers_->value(r.array, r.values.front());
    const ir::ScalarType t = registers_->array(r.array).dtype;
    switch (ir::info(t).cls) {
      case ir::ScalarInfo::Class::Float:
        if (t == ir::ScalarType::fp32 || t == ir::ScalarType::fp64 || t == ir::ScalarType::tf32)
          return {"%.9g", "(double)" + value};
        if (t == ir::ScalarType::bf16) return {"%.9g", "(double)__uint_as_float((u32)" + value + " << 16)"};
        return {"0x%x", "(u32)" + value};
      case ir::ScalarInfo::Class::Signed:
        return {"%lld", "(i64)" + value};
      default:
        return {"%llu", "(u64)" + value};
    }
  }

  Lines print_loop(const Loop& loop) {
    const bool wide = !fits_32(loop.var) || !fits_32(loop.stop) || !fits_32(loop.var + loop.step);
    const CText start = expressions_.text(loop.start, loop.var.var().name);
    const CText stop = expressions_.text(loop.stop, loop.var.var().name);
    const CText step = expressions_.text(loop.step, loop.var.var().name);
    const std::string name = names_.fresh(loop.var.var().name);
    expressions_.open_loop(loop.var, name, wide);
    last_comment_ = nullptr;
    const Lines body = block(loop.body);
    const Lines definitions = expressions_.close();
    names_.release(name);
    last_comment_ = nullptr;

    std::string lasts;
    if (!loop.condition.is_const(1)) lasts = " && " + expressions_.text(loop.condition, "lasts").in(Prec::And);
    const bool down = loop.step.is_const() && loop.step.value() < 0;
    std::string advance = step.text == "1" ? "++" + name : name + " += " + step.text;
    if (down) advance = name + " -= " + step.text.substr(1);
    Lines out;
    out.push_back("#pragma unroll " + std::to_string(std::max(loop.unroll, 1)));
    out.push_back(std::string("for (") + (wide ? "i64 " : "int ") + name + " = " + start.text + "; " + name +
                  (down ? " > " : " < ") + stop.in(Prec::Less) + lasts + "; " + advance + ") {");
    append(out, definitions, "  ");
    append(out, body, "  ");
    out.emplace_back("}");
    return out;
  }

  Lines print_if(const If& branch) {
    Lines out{"if (" + expressions_.text(branch.condition, "cond").text + ") {"};
    last_comment_ = nullptr;
    const bool role = branch.uniform_for != nullptr && changes_registers(branch.then_body);
    if (role) expressions_.open_role();
    const Lines body = block(branch.then_body);
    if (role) append(out, expressions_.close_role(), "  ");
    append(out, body, "  ");
    if (!branch.else_body.empty()) {
      out.emplace_back("} else {");
      last_comment_ = nullptr;
      append(out, block(branch.else_body), "  ");
    }
    last_comment_ = nullptr;
    out.emplace_back("}");
    return out;
  }

  struct Parameter {
    Expr var;
    std::string c_name;
    bool wide;
  };

  const Program& program_;
  Names names_;
  Expressions expressions_;
  std::optional<Registers> registers_;
  std::vector<std::string> buffers_, fill_rows_, map_names_;
  std::vector<Parameter> parameters_;
  std::vector<std::string> scalar_names_, symbol_names_;
  AtomText* atoms_ = nullptr;
  const ir::Stmt* last_comment_ = nullptr;
};

}  // namespace

std::string entry_name(const ir::Kernel& kernel) { return function_name(kernel.name); }

std::int64_t dynamic_shared_bytes(const Program& program) {
  return program.shared_bytes > kStaticSharedBytes ? program.shared_bytes : 0;
}

std::string cuda_source(const Program& program) {
  if (std::vector<Diagnostic> outside = lower::certainly_outside(program); !outside.empty())
    throw Error(std::move(outside));
  return KernelPrinter(program).print();
}

}  // namespace graphene::emit
