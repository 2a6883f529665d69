#include "emit/atom_text.h"

#include <algorithm>
#include <charconv>

#include "emit/literal.h"

namespace graphene::emit {

using lower::AtomCall;
using lower::MemRef;
using lower::RegRef;

namespace {

constexpr std::size_t kColumns = 110;
// Stand for asm operands until their numbers are known.
constexpr char kOutMark = '\x01';
constexpr char kInMark = '\x02';

std::string mark(char kind, std::size_t index) { return std::string(1, kind) + std::to_string(index) + kind; }

// Where all inputs are inside.
Expr inputs_inside(const AtomCall& call) {
  Expr all = 1;
  for (const lower::Operand& in : call.in) {
    if (const auto* m = std::get_if<MemRef>(&in)) all = sym::logical_and(all, m->inside);
  }
  return all;
}

// `lead` followed by comma-separated parts, broken at kColumns.
Lines wrap_list(const std::string& lead, const std::vector<std::string>& parts) {
  Lines out{lead};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string piece = parts[i] + (i + 1 < parts.size() ? "," : "");
    const bool first = out.back().size() == lead.size();
    if (!first && out.back().size() + 1 + piece.size() > kColumns) {
      out.push_back(std::string(lead.size(), ' ') + piece);
    } else {
      out.back() += (first ? "" : " ") + piece;
    }
  }
  return out;
}

std::string quoted(const std::string& ptx) {
  std::string out = "\"";
  for (const char c : ptx) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    out += c;
  }
  return out + "\"";
}

// The instruction as string literals of at most kColumns, cut between operands.
Lines wrap_text(const std::string& head, const std::string& ptx) {
  Lines out;
  std::size_t at = 0;
  while (at < ptx.size()) {
    std::size_t end = ptx.size();
    if (head.size() + ptx.size() - at + 2 > kColumns) {
      std::size_t cut = std::string::npos;
      for (std::size_t i = ptx.find(", ", at); i != std::string::npos && head.size() + i - at + 4 <= kColumns;
           i = ptx.find(", ", i + 1)) {
        const char next = i + 2 < ptx.size() ? ptx[i + 2] : ' ';
        if (next == '{' || next == '[') cut = i + 2;
      }
      // Nothing begins before the end of the line: between the registers of one operand.
      for (std::size_t i = cut == std::string::npos ? ptx.find(", ", at) : std::string::npos;
           i != std::string::npos && head.size() + i - at + 4 <= kColumns; i = ptx.find(", ", i + 1)) {
        cut = i + 2;
      }
      if (cut != std::string::npos) end = cut;
    }
    out.push_back((out.empty() ? head : std::string(head.size(), ' ')) + quoted(ptx.substr(at, end - at)));
    at = end;
  }
  return out;
}

// Instructions as string literals of at most kColumns, cut between them.
Lines wrap_literals(const std::vector<std::string>& instructions) {
  constexpr std::size_t kMost = 90;  // what stands in front of a line is not known here
  Lines out;
  std::string line;
  for (const std::string& i : instructions) {
    if (!line.empty() && line.size() + i.size() > kMost) {
      out.push_back(quoted(line));
      line.clear();
    }
    line += " " + i;
  }
  if (!line.empty()) out.push_back(quoted(line));
  return out;
}

// A line of C++ longer than kColumns, broken behind commas after its first parenthesis.
Lines wrap_call(const std::string& line) {
  const std::size_t open = line.find('(');
  if (line.size() <= kColumns || open == std::string::npos) return {line};
  std::vector<std::string> parts;
  std::size_t at = open + 1;
  for (std::size_t end = line.find(", ", at); end != std::string::npos; end = line.find(", ", at)) {
    parts.push_back(line.substr(at, end - at));
    at = end + 2;
  }
  parts.push_back(line.substr(at));
  Lines out = wrap_list(line.substr(0, open + 1), parts);
  const std::size_t space = open + 1;  // wrap_list sets the first part apart
  if (out.front().size() > space && out.front()[space] == ' ') out.front().erase(space, 1);
  return out;
}

// Blocks of the executing one's cluster, which is verified: the first one's number in it, and the others' from there.
struct Ranks {
  Expr first;
  std::vector<std::int64_t> apart;
};
Ranks ranks(const ir::ThreadTensor& blocks, std::int64_t cluster) {
  Ranks out{sym::mod(sym::expand_coords(blocks.offset), cluster), {0}};
  for (const Layout& level : blocks.levels) {
    std::vector<std::int64_t> all;
    for (const std::int64_t a : out.apart) {
      for (std::int64_t i = 0; i < level.size().value(); ++i) all.push_back(a + level(Expr(i)).value());
    }
    out.apart = std::move(all);
  }
  return out;
}

}  // namespace

std::string join(const std::vector<std::string>& parts, const std::string& separator) {
  std::string out;
  for (const std::string& p : parts) out += (out.empty() ? "" : separator) + p;
  return out;
}

void append(Lines& out, const Lines& lines, const std::string& indent) {
  for (const std::string& l : lines) out.push_back(l.empty() ? l : indent + l);
}

AtomText::Slot AtomText::slot(const AtomCall& call, const std::string& name) const {
  const auto search = [&](const std::vector<atoms::OperandInstance>& defs, const std::vector<lower::Operand>& values,
                          bool is_out) -> Slot {
    for (std::size_t i = 0; i < defs.size() && i < values.size(); ++i) {
      if (defs[i].def.name == name) return {&defs[i], &values[i], is_out};
    }
    return {};
  };
  Slot s = search(call.atom->out, call.out, true);
  if (s.def == nullptr) s = search(call.atom->in, call.in, false);
  if (s.def == nullptr) s = search(call.atom->aux, call.aux, false);
  return s;
}

// Whether an optional part of the text is printed: the attribute says something else than its kind's default.
bool AtomText::present(const std::string& what, const AtomCall& call) const {
  if (what == "to") return call.to != nullptr;
  if (what == "guard") {
    return std::ranges::any_of(call.in, [](const lower::Operand& o) {
      const auto* m = std::get_if<MemRef>(&o);
      return m != nullptr && (!m->inside.is_const(1) || m->valid_values.has_value());
    });
  }
  const auto it = call.attrs.find(what);
  if (it == call.attrs.end()) return false;
  std::string fallback;
  if (const auto kind = ir::spec_kind_from_name(atoms::name(call.atom->atom.kind))) {
    for (const atoms::KindAttr& a : atoms::kind_attrs(*kind)) {
      if (a.name == what) fallback = a.fallback;
    }
  }
  if (const auto* s = std::get_if<std::string>(&it->second)) return *s != fallback;
  if (const auto* b = std::get_if<bool>(&it->second)) return (*b ? "true" : "false") != fallback;
  if (const auto* i = std::get_if<std::int64_t>(&it->second)) return std::to_string(*i) != fallback;
  if (const auto* d = std::get_if<double>(&it->second)) {
    double usual = 0;  // by from_chars: a locale has no say in it
    const auto read = std::from_chars(fallback.data(), fallback.data() + fallback.size(), usual);
    return read.ec != std::errc() || *d != usual;
  }
  return true;
}

std::string AtomText::fill_text(const AtomCall& call, Asm* ptx) {
  std::string out;
  std::vector<bool> shown{true};  // of the optional parts that are open
  for (const atoms::Piece& p : call.atom->text.pieces) {
    switch (p.kind) {
      case atoms::Piece::Kind::IfBegin:
        shown.push_back(shown.back() && present(p.text, call));
        continue;
      case atoms::Piece::Kind::IfEnd:
        shown.pop_back();
        continue;
      default:
        break;
    }
    if (!shown.back()) continue;
    if (p.kind == atoms::Piece::Kind::Operand) {
      out += operand(p, call, ptx);
    } else if (p.kind == atoms::Piece::Kind::Bytes) {
      out += add_input(*ptx, "r", bytes_inside(std::get<MemRef>(*slot(call, p.text).value)));
    } else if (p.kind == atoms::Piece::Kind::Rank) {
      out += std::to_string(std::get<MemRef>(*slot(call, p.text).value).boxed->at.size()) + "d";
    } else if (p.kind == atoms::Piece::Kind::Major) {
      out += std::get<MemRef>(*slot(call, p.text).value).descriptor->mn_major ? "1" : "0";
    } else if (p.kind == atoms::Piece::Kind::Attr && p.text == "to") {
      out += blocks_text(call, *ptx);
    } else if (p.kind == atoms::Piece::Kind::Attr) {
      out += attribute(p, call, ptx);
    } else {
      for (const char c : p.text) {
        out += c;
        if (c == '%' && ptx != nullptr) out += c;  // asm's own escape
      }
    }
  }
  return out;
}

std::string AtomText::operand(const atoms::Piece& piece, const AtomCall& call, Asm* ptx) {
  const Slot s = slot(call, piece.text);
  GR_ASSERT(s.def != nullptr, "the text of " + call.atom->atom.name + " names no operand $" + piece.text);
  if (ptx == nullptr) return cxx_operand(piece, call, s);
  const std::string registers = ptx_operand(piece, call, s, *ptx);
  return piece.braces ? "{" + registers + "}" : registers;
}

// Of a copy the blocks of the cluster that it goes to, a bit each; of a statement on an mbarrier one of them.
std::string AtomText::blocks_text(const AtomCall& call, Asm& ptx) {
  if (call.atom->atom.kind == atoms::Kind::Sync) {
    const CText rank = expressions_.text(to_, "rank");
    return to_.is_const() ? rank.text : add_input(ptx, "r", rank.wide ? "(u32)" + rank.in(Prec::Unary) : rank.text);
  }
  const Ranks blocks = ranks(*call.to, program_.cluster);
  std::uint64_t mask = 0;
  for (const std::int64_t apart : blocks.apart) mask |= std::uint64_t{1} << static_cast<unsigned>(apart);
  if (blocks.first.is_const()) return add_input(ptx, "h", "(u16)" + std::to_string(mask << blocks.first.value()));
  return add_input(
      ptx, "h", "(u16)(" + std::to_string(mask) + " << " + expressions_.text(blocks.first, "rank").in(Prec::Add) + ")");
}

// Registers that a wait completes are its operands, read and written: the compiler touches them neither before nor
// while they are in use. Of sums that products keep in registers of the text, it gets copies.
void AtomText::completed(const AtomCall& call, Asm& ptx) {
  for (const RegRef& r : call.completes) {
    const ir::ScalarType dtype = registers_.array(r.array).dtype;
    const int per = std::max(1, 32 / ir::bits(dtype));
    const std::string letter = dtype == ir::ScalarType::fp32 ? "f" : "r";
    std::vector<int> left = r.values;
    while (!left.empty()) {
      std::vector<int> word;
      const int first = left.front() / per * per;
      for (int v = first; v < first + per; ++v) word.push_back(v);
      std::erase_if(left, [&](int v) { return v / per * per == first; });
      const auto name = per > 1 ? registers_.word(r.array, word) : std::optional(registers_.value(r.array, first));
      GR_ASSERT(name.has_value(), "registers in flight are whole words");
      const auto kept = registers_.in_flight(r.array, first);
      if (kept) ptx.copies.push_back("mov.b32 " + mark(kOutMark, ptx.outs.size()) + ", " + *kept + ";");
      ptx.outs.push_back({(kept ? "=" : "+") + letter, *name});
    }
  }
}

std::string AtomText::attribute(const atoms::Piece& piece, const AtomCall& call, Asm* ptx) {
  const auto it = call.attrs.find(piece.text);
  GR_ASSERT(it != call.attrs.end(), "the text of " + call.atom->atom.name + " needs the attribute $" + piece.text);
  const ir::AttrValue& value = it->second;
  if (const auto* s = std::get_if<std::string>(&value)) return *s;
  if (const auto* i = std::get_if<std::int64_t>(&value)) {
    const ir::Constant c = ir::constant_of(*i);
    return std::holds_alternative<double>(c) ? std::to_string(*i) : c_literal(c, call.dtype);
  }
  if (const auto* b = std::get_if<bool>(&value)) return *b ? "1" : "0";
  if (const auto* d = std::get_if<double>(&value)) return c_literal(*d, call.dtype);
  const Expr& e = std::get<Expr>(value);
  const CText text = expressions_.text(e, piece.text);
  if (ptx == nullptr || e.is_const()) return text.text;
  if (sym::is_condition(e)) return add_input(*ptx, "r", "(int)" + text.in(Prec::Unary));  // no operand is a bool
  const bool small = sym::lower_bound(e) >= -0x80000000LL && sym::upper_bound(e) <= 0x7fffffffLL;
  if (text.wide && small) return add_input(*ptx, "r", "(int)" + text.in(Prec::Unary));  // of a wide counter: k % 2
  return add_input(*ptx, text.wide ? "l" : "r", text.text);
}

std::string AtomText::add_input(Asm& ptx, const std::string& constraint, const std::string& text) {
  for (std::size_t i = 0; i < ptx.ins.size(); ++i) {
    if (ptx.ins[i].constraint == constraint && ptx.ins[i].text == text) return mark(kInMark, i);
  }
  ptx.ins.push_back({constraint, text});
  return mark(kInMark, ptx.ins.size() - 1);
}

std::string AtomText::add_register(const std::string& constraint, const std::string& text, const Slot& s, Asm& ptx) {
  if (!s.is_out) return add_input(ptx, constraint, text);
  const std::string c = (s.def->def.access == atoms::Access::Update ? "+" : "=") + constraint;
  for (std::size_t i = 0; i < ptx.outs.size(); ++i) {
    if (ptx.outs[i].text == text) return mark(kOutMark, i);
  }
  ptx.outs.push_back({c, text});
  return mark(kOutMark, ptx.outs.size() - 1);
}

bool AtomText::touches_memory(const AtomCall& call) const {
  const auto is_memory = [](const lower::Operand& o) { return std::holds_alternative<MemRef>(o); };
  return std::ranges::any_of(call.out, is_memory) || std::ranges::any_of(call.in, is_memory) ||
         std::ranges::any_of(call.aux, is_memory);
}

// Whether the compiler must know that the text reads or writes memory it cannot see. Arguments that the kernel only
// reads are never written by anybody, so loads from them need no such fence.
bool AtomText::clobbers_memory(const AtomCall& call) const {
  if (call.atom->atom.kind == atoms::Kind::Sync) return true;
  const auto visible = [&](const lower::Operand& o) {
    const auto* m = std::get_if<MemRef>(&o);
    if (m == nullptr) return false;
    const lower::MemBuffer& b = program_.buffers[static_cast<std::size_t>(m->buffer)];
    return b.memory != ir::Memory::GL || b.buffer->role != ir::Role::Input;
  };
  return std::ranges::any_of(call.out, visible) || std::ranges::any_of(call.in, visible) ||
         std::ranges::any_of(call.aux, visible);
}

Lines AtomText::asm_statement(const AtomCall& call) {
  const atoms::Kind kind = call.atom->atom.kind;
  Asm ptx;
  ptx.untyped = kind == atoms::Kind::Move || kind == atoms::Kind::Shfl || kind == atoms::Kind::Init;
  ptx.flies = call.atom->atom.done.starts_with("group:");
  const std::string text = fill_text(call, &ptx);
  completed(call, ptx);
  const auto numbered = [&](const std::string& marked) {
    std::string out;
    for (std::size_t i = 0; i < marked.size(); ++i) {
      if (marked[i] != kOutMark && marked[i] != kInMark) {
        out += marked[i];
        continue;
      }
      const std::size_t end = marked.find(marked[i], i + 1);
      std::size_t index = std::stoul(marked.substr(i + 1, end - i - 1));
      if (marked[i] == kInMark) index += ptx.outs.size();
      out += "%" + std::to_string(index);
      i = end;
    }
    return out;
  };
  const bool is_volatile = touches_memory(call) || call.atom->thread_count > 1 || call.atom->atom.converge > 1 ||
                           call.atom->atom.kind == atoms::Kind::Sync;
  const std::string head = is_volatile ? "asm volatile(" : "asm(";
  const std::string clobber = clobbers_memory(call) ? "\"memory\"" : "";
  const std::string pad(head.size(), ' ');
  const auto list = [](const std::vector<AsmOperand>& operands) {
    std::vector<std::string> out;
    for (const AsmOperand& o : operands) out.push_back("\"" + o.constraint + "\"(" + o.text + ")");
    return out;
  };
  Lines lines = wrap_text(head, numbered(text));
  std::vector<std::string> copies;
  for (const std::string& c : ptx.copies) copies.push_back(numbered(c));
  append(lines, wrap_literals(copies), pad);
  if (ptx.outs.empty() && ptx.ins.empty()) {
    lines.back() += clobber.empty() ? "" : " ::: " + clobber;
  } else {
    append(lines, wrap_list(pad + (ptx.outs.empty() ? ":" : ": "), list(ptx.outs)));
    append(lines, wrap_list(pad + (ptx.ins.empty() ? ":" : ": "), list(ptx.ins)));
    if (ptx.ins.empty() && clobber.empty()) lines.pop_back();
    if (!clobber.empty()) lines.push_back(pad + ": " + clobber);
  }
  lines.back() += ");";
  if (ptx.before.empty()) return lines;
  Lines scoped{"{"};
  append(scoped, ptx.before, "  ");
  append(scoped, lines, "  ");
  append(scoped, ptx.after, "  ");
  scoped.emplace_back("}");
  return scoped;
}

// The fill is a number of the type that is read; what is written takes its bits.
Lines AtomText::fill_outputs(const AtomCall& call) {
  Lines out;
  std::uint64_t fill = 0;
  for (const lower::Operand& o : call.in) {
    if (const auto* m = std::get_if<MemRef>(&o)) {
      const ir::ScalarType dtype = program_.buffers[static_cast<std::size_t>(m->buffer)].dtype;
      fill = ir::constant_bits(ir::constant_attr(call.attrs, "fill"), dtype);
    }
  }
  for (const lower::Operand& o : call.out) {
    if (const auto* regs = std::get_if<RegRef>(&o)) {
      const ir::ScalarType dtype = registers_.array(regs->array).dtype;
      const int per = std::max(1, 32 / ir::bits(dtype));
      std::uint64_t word = 0;
      for (int i = 0; i < per; ++i) word |= fill << static_cast<unsigned>(ir::bits(dtype) * i);
      for (std::size_t v = 0; v < regs->values.size();) {
        const std::size_t end = std::min(regs->values.size(), v + static_cast<std::size_t>(per));
        const auto name = per > 1
                              ? registers_.word(regs->array, {regs->values.begin() + static_cast<std::ptrdiff_t>(v),
                                                              regs->values.begin() + static_cast<std::ptrdiff_t>(end)})
                              : std::nullopt;
        if (name) {
          out.push_back(*name + " = " + std::to_string(word) + ";");
          v = end;
        } else {
          out.push_back(registers_.value(regs->array, regs->values[v]) + " = " + c_literal_of_bits(fill, dtype) + ";");
          ++v;
        }
      }
    } else if (const auto* mem = std::get_if<MemRef>(&o)) {
      const ir::ScalarType dtype = program_.buffers[static_cast<std::size_t>(mem->buffer)].dtype;
      for (const std::int64_t delta : mem->deltas)
        out.push_back(element(*mem, delta) + " = " + c_literal_of_bits(fill, dtype) + ";");
    }
  }
  return out;
}

Lines AtomText::statement(const AtomCall& call) {
  const atoms::Atom& atom = call.atom->atom;
  Lines lines;
  if (!call.atom->text.is_ptx) {
    std::string text = fill_text(call, nullptr);
    for (std::size_t at = 0; at != std::string::npos;) {
      const std::size_t end = text.find('\n', at);
      append(lines, wrap_call(text.substr(at, end == std::string::npos ? end : end - at)));
      at = end == std::string::npos ? end : end + 1;
    }
  } else if (call.to != nullptr && atom.kind == atoms::Kind::Sync) {
    const Ranks blocks = ranks(*call.to, program_.cluster);
    for (const std::int64_t apart : blocks.apart) {
      to_ = blocks.first + Expr(apart);
      append(lines, asm_statement(call));
    }
  } else {
    lines = asm_statement(call);
    const Expr inside = inputs_inside(call);
    const bool together = atom.guard == atoms::Guard::Bytes || atom.guard == atoms::Guard::Redirect;
    if (!inside.is_const(1) && !together) {
      Lines guarded{"if (" + expressions_.text(inside, "load").text + ") {"};
      append(guarded, lines, "  ");
      guarded.emplace_back("} else {");
      append(guarded, fill_outputs(call), "  ");
      guarded.emplace_back("}");
      lines = std::move(guarded);
    }
  }
  if (!call.predicate.is_const(1)) {
    Lines guarded{"if (" + expressions_.text(call.predicate, "store").text + ") {"};
    append(guarded, lines, "  ");
    guarded.emplace_back("}");
    lines = std::move(guarded);
  }
  return lines;
}

}  // namespace graphene::emit
