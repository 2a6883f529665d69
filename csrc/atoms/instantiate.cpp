// The checks at registration: an Instance exists only if its strings make sense together.
#include <algorithm>
#include <numeric>

#include "atoms/parse.h"

namespace graphene::atoms {

namespace {

std::string where(const Atom& a, const OperandDef& o) { return a.name + ": operand `" + o.name + "`"; }

// Fills `value_of` and checks that it is a numbering of the values.
void number_values(const Atom& a, OperandInstance* o, const std::vector<bool>& strided) {
  const bool row_major = std::none_of(strided.begin(), strided.end(), [](bool b) { return b; });
  const bool registers = o->type.accepts(ir::Memory::RF);
  std::vector<std::int64_t> shape, stride;
  for (std::size_t l = 0; l < o->type.levels.size(); ++l) {
    const FlatLayout f = flatten(o->type.levels[l]);
    const std::size_t first = shape.size();
    shape.insert(shape.end(), f.shape.begin(), f.shape.end());
    stride.insert(stride.end(), f.stride.begin(), f.stride.end());
    if (!strided[l] || !registers) {  // a level without strides: row-major by itself
      std::int64_t s = 1;
      for (std::size_t i = shape.size(); i-- > first;) {
        stride[i] = s;
        s *= shape[i];
      }
    }
  }
  if (row_major && registers) {
    std::int64_t s = 1;
    for (std::size_t i = shape.size(); i-- > 0;) {
      stride[i] = s;
      s *= shape[i];
    }
  }
  if (!registers) {  // memory: v is the colexicographic coordinate
    std::int64_t s = 1;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      stride[i] = s;
      s *= shape[i];
    }
  }
  const FlatLayout order{shape, stride};
  const std::int64_t n = order.size();
  // A box of a tensor map, all of which one thread names, is as large as shared memory.
  const std::int64_t most = o->def.via == Via::TensorMap || !a.free.empty() ? 1 << 18 : 1 << 16;
  if (n > most) fail(Code::ATOM_DEFINITION, where(a, o->def) + ": a thread sees " + std::to_string(n) + " values");
  std::vector<bool> seen(static_cast<std::size_t>(n), false);
  o->value_of.resize(static_cast<std::size_t>(n));
  for (std::int64_t c = 0; c < n; ++c) {
    const std::int64_t v = order(c);
    if (v < 0 || v >= n || seen[static_cast<std::size_t>(v)]) {
      fail(Code::ATOM_DEFINITION, where(a, o->def) + ": the pattern's strides do not number the values 0 to " +
                                      std::to_string(n - 1) + ": \"" + o->def.pattern + "\"");
    }
    seen[static_cast<std::size_t>(v)] = true;
    o->value_of[static_cast<std::size_t>(c)] = static_cast<int>(v);
  }
  o->values = static_cast<int>(n);
}

void check_tv(const Atom& a, OperandInstance* o, int threads) {
  const std::string what = where(a, o->def);
  std::int64_t t_size = o->tv_thread.size();
  const std::int64_t v_size = o->tv_value.size();
  if (t_size != threads && !(t_size == 1 && threads == 1)) {
    fail(Code::ATOM_TV, what + ": the TV layout has " + std::to_string(t_size) + " threads, the collective " +
                            std::to_string(threads));
  }
  if (v_size != o->values) {
    const std::string n = std::to_string(o->values);
    fail(Code::ATOM_TV, what + ": the TV layout has " + std::to_string(v_size) + " values, the pattern " + n, {},
         o->def.tile.empty() ? "say which elements the registers hold: tile \"e" + n + "\", tv \"1:0;" + n +
                                   ":1\", one thread, value v element v"
                             : "");
  }
  // The largest element is the sum of the largest steps: no enumeration for the range.
  std::int64_t top = 0;
  for (const FlatLayout* f : {&o->tv_thread, &o->tv_value}) {
    for (std::size_t i = 0; i < f->shape.size(); ++i) top += (f->shape[i] - 1) * f->stride[i];
  }
  if (top >= o->tile_size) {
    fail(Code::ATOM_TV, what + ": the TV layout reaches element " + std::to_string(top) + " of a tile of " +
                            std::to_string(o->tile_size));
  }
  if (threads == 1 && v_size == o->tile_size && o->tv_value.shape.size() == 1 && o->tv_value.stride[0] == 1) return;
  const auto& steps = o->tv_thread.stride;
  if (std::ranges::all_of(steps, [](std::int64_t s) { return s == 0; })) t_size = 1;  // all see the same
  std::vector<bool> held(static_cast<std::size_t>(o->tile_size), false);
  std::vector<std::int64_t> values(static_cast<std::size_t>(v_size));
  for (std::int64_t v = 0; v < v_size; ++v) values[static_cast<std::size_t>(v)] = o->tv_value(v);
  for (std::int64_t t = 0; t < t_size; ++t) {
    const std::int64_t base = o->tv_thread(t);
    for (const std::int64_t v : values) held[static_cast<std::size_t>(base + v)] = true;
  }
  const auto hole = std::find(held.begin(), held.end(), false);
  if (hole != held.end()) {
    fail(Code::ATOM_TV, what + ": no thread holds element " + std::to_string(hole - held.begin()) + " of the tile");
  }
}

void derive_packing(const Atom& a, OperandInstance* o) {
  const int bits = ir::bits(o->type.dtypes.front());
  RegPacking p;
  if (o->def.reg.empty()) {
    const bool is_float =
        ir::info(o->type.dtypes.front()).cls == ir::ScalarInfo::Class::Float && o->type.dtypes.size() == 1;
    if (bits == 64) {
      p = {is_float ? 'd' : 'l', 1, o->values};
    } else if (bits == 32) {
      p = {is_float && o->type.dtypes.front() == ir::ScalarType::fp32 ? 'f' : 'r', 1, o->values};
    } else if (bits == 16) {
      p = o->values % 2 == 0 ? RegPacking{'r', 2, o->values / 2} : RegPacking{'h', 1, o->values};
    } else if (bits == 4) {
      const int per = o->values % 8 == 0 ? 8 : o->values % 4 == 0 ? 4 : 2;
      p = {per == 8 ? 'r' : 'h', per, o->values / per};
    } else if (o->values % 4 == 0) {
      p = {'r', 4, o->values / 4};
    } else {
      p = {'h', 2, o->values / 2};
    }
  } else {
    const std::string& r = o->def.reg;
    const std::string digits = r.size() > 1 ? r.substr(2) : "1";
    if (std::string("hrlfd").find(r[0]) == std::string::npos || (r.size() > 1 && r[1] != '/') || digits.empty() ||
        digits.size() > 2 || digits.find_first_not_of("0123456789") != std::string::npos || std::stoi(digits) < 1) {
      fail(Code::ATOM_SYNTAX, where(a, o->def) + ": register packing \"" + r + "\" (want h, r, l, f or d, then /n)");
    }
    const int per = std::stoi(digits);
    p = {r[0], per, o->values / per};
  }
  const int reg_bits = p.constraint == 'h' ? 16 : (p.constraint == 'l' || p.constraint == 'd') ? 64 : 32;
  const bool byte = bits == 4 && p.constraint == 'h' && p.per_reg == 2;  // no register has 8 bits
  if ((p.per_reg * bits != reg_bits && !byte) || p.regs * p.per_reg != o->values) {
    fail(Code::ATOM_DEFINITION, where(a, o->def) + ": " + std::to_string(o->values) + " values of " +
                                    std::to_string(bits) + " bits do not fill registers of " +
                                    std::to_string(reg_bits) + " bits, " + std::to_string(p.per_reg) + " each");
  }
  o->packing = p;
}

OperandInstance parse_operand(const Atom& a, const OperandDef& def, int threads, bool aux) {
  OperandInstance o;
  o.def = def;
  const std::string what = where(a, def);
  std::vector<bool> strided;
  o.type = parse_pattern(def.pattern, what, &strided);
  const bool registers = o.type.accepts(ir::Memory::RF);
  for (std::size_t l = 0; l < strided.size(); ++l) {
    if (!registers && !strided[l] && def.via != Via::Descriptor && def.via != Via::TensorMap && def.forms.empty()) {
      fail(Code::ATOM_DEFINITION, what + ": memory needs strides (\"_\": any): \"" + def.pattern + "\"");
    }
    if (registers && std::count(o.type.any_stride[l].begin(), o.type.any_stride[l].end(), true) > 0) {
      fail(Code::ATOM_DEFINITION, what + ": strides of registers number the values, \"_\" does not");
    }
  }
  if (registers && o.type.memories.size() > 1 && !o.type.levels.empty()) {
    fail(Code::ATOM_DEFINITION, what + ": only a scalar may be registers or memory");
  }
  number_values(a, &o, strided);
  parse_tile(def.tile, what, &o.axes, &o.extents);
  o.tile_size =
      static_cast<int>(std::accumulate(o.extents.begin(), o.extents.end(), std::int64_t{1},
                                       [](std::int64_t x, std::int64_t y) { return x > 1'000'000 ? x : x * y; }));
  if (o.tile_size > 1'000'000) fail(Code::ATOM_DEFINITION, what + ": tile \"" + def.tile + "\" is too large");
  if (def.tv.empty()) {
    if (threads != 1 && !aux) fail(Code::ATOM_DEFINITION, what + ": a collective's operand needs a TV layout");
    o.tv = Layout(IntTuple({IntTuple(1), IntTuple(o.tile_size)}), IntTuple({IntTuple(0), IntTuple(1)}));
  } else {
    o.tv = parse_tv(def.tv, what);
  }
  o.tv_thread = flatten(o.tv.mode(0));
  o.tv_value = flatten(o.tv.mode(1));
  if (!aux) check_tv(a, &o, threads);
  if (registers && !a.ptx.empty() && def.via == Via::Natural) derive_packing(a, &o);
  for (const std::string& fact : def.require) {
    const SizeFact f = parse_fact(fact, def.name, what);
    if (!f.of_size) o.align_bytes = std::max(o.align_bytes, f.bytes);
  }
  if (o.align_bytes > 0 && registers) fail(Code::ATOM_DEFINITION, what + ": registers have no address to align");
  return o;
}

// The axes of a collective's operands must mean one extent each, so that the kind can be interpreted over them.
void check_axes(const Instance& i) {
  std::vector<std::pair<std::string, std::int64_t>> seen;
  for (const auto* list : {&i.out, &i.in}) {
    for (const OperandInstance& o : *list) {
      for (std::size_t x = 0; x < o.axes.size(); ++x) {
        const auto it = std::find_if(seen.begin(), seen.end(), [&](const auto& s) { return s.first == o.axes[x]; });
        if (it == seen.end()) {
          seen.emplace_back(o.axes[x], o.extents[x]);
        } else if (it->second != o.extents[x]) {
          fail(Code::ATOM_DEFINITION, i.atom.name + ": axis `" + o.axes[x] + "` is " + std::to_string(it->second) +
                                          " and " + std::to_string(o.extents[x]) + " long");
        }
      }
    }
  }
}

void check_text(Instance* i) {
  std::vector<std::string> used;
  for (Piece& p : i->text.pieces) {
    if (p.kind == Piece::Kind::Text || p.kind == Piece::Kind::IfEnd) continue;
    if (p.kind == Piece::Kind::Bytes) {
      const bool input = std::any_of(i->in.begin(), i->in.end(), [&](const OperandInstance& x) {
        return x.def.name == p.text && !x.type.accepts(ir::Memory::RF);
      });
      if (!input || !i->text.is_ptx || i->atom.guard != Guard::Bytes) {
        fail(Code::ATOM_TEXT, i->atom.name + ": $" + p.text + ".bytes needs guard=bytes and an input in memory");
      }
      continue;
    }
    if (p.kind == Piece::Kind::Rank || p.kind == Piece::Kind::Major) {
      const bool rank = p.kind == Piece::Kind::Rank;
      const OperandInstance* o = i->operand(p.text);
      if (o == nullptr || !i->text.is_ptx || o->def.via != (rank ? Via::TensorMap : Via::Descriptor)) {
        fail(Code::ATOM_TEXT, i->atom.name + ": $" + p.text + (rank ? ".rank" : ".major") +
                                  " needs an operand via=" + (rank ? "tensor_map" : "descriptor"));
      }
      continue;
    }
    const OperandInstance* o = p.kind == Piece::Kind::Operand ? i->operand(p.text) : nullptr;
    if (o == nullptr) {
      const auto& attrs = i->atom.attrs;
      const bool known = p.text == "guard" || p.text == "to" ||
                         std::any_of(attrs.begin(), attrs.end(), [&](const AttrDef& d) { return d.name == p.text; });
      if (!known || p.element >= 0 || p.braces) {
        fail(Code::ATOM_TEXT,
             i->atom.name + ": the text names `" + p.text + "`, which is neither an operand nor an attribute");
      }
      if (p.kind == Piece::Kind::Operand) p.kind = Piece::Kind::Attr;
      continue;
    }
    used.push_back(p.text);
    const int regs = o->packing.regs;
    if (i->text.is_ptx && regs > 0) {
      if (p.element >= regs) {
        fail(Code::ATOM_TEXT, i->atom.name + ": $" + p.text + "[" + std::to_string(p.element) + "] of " +
                                  std::to_string(regs) + " registers");
      }
      if (p.element < 0 && !p.braces && regs != 1) {
        fail(Code::ATOM_TEXT, i->atom.name + ": $" + p.text + " is " + std::to_string(regs) + " registers: write {$" +
                                  p.text + "} or name one");
      }
    } else if (p.braces) {
      fail(Code::ATOM_TEXT, i->atom.name + ": {$" + p.text + "} is not a set of registers");
    }
  }
  for (const auto* list : {&i->out, &i->in, &i->aux}) {
    for (const OperandInstance& o : *list) {
      if (std::find(used.begin(), used.end(), o.def.name) == used.end()) {
        fail(Code::ATOM_TEXT, i->atom.name + ": the text never names operand `" + o.def.name + "`");
      }
    }
  }
}

// An entry whose meaning is its author's: the simulator gives a thread's values to a function, and takes others.
void check_own(const Instance& i) {
  const auto refuse = [&](const std::string& what, const std::string& fix) {
    fail(Code::ATOM_DEFINITION, i.atom.name + ": " + what, {}, fix);
  };
  if (i.atom.is_default) refuse("a Spec is reached by its name alone", "leave is_default out");
  if (i.thread_count != 1 || i.atom.converge != 1) refuse("a Spec is executed by one thread", "leave threads out");
  if (i.atom.done != "now" || !i.aux.empty()) refuse("a Spec is complete when it has executed", "leave done out");
  for (const auto* list : {&i.out, &i.in}) {
    for (const OperandInstance& o : *list) {
      const bool registers = o.type.memories == std::vector{ir::Memory::RF} && !o.type.immediate;
      if (!registers || o.type.dtypes.size() != 1)
        refuse("operand `" + o.def.name + "` of a Spec is not registers of one type",
               "load before, and store behind: its pattern is like \"[].u32.RF\"");
    }
  }
}

}  // namespace

const OperandInstance* Instance::operand(const std::string& operand_name) const {
  for (const auto* list : {&out, &in, &aux}) {
    for (const OperandInstance& o : *list) {
      if (o.def.name == operand_name) return &o;
    }
  }
  return nullptr;
}

bool Instance::runs_on(const std::string& arch) const {
  if (arch_min == 0) return arch == atom.arch;
  if (arch.rfind("sm_", 0) != 0) return false;
  int number = 0;
  for (std::size_t i = 3; i < arch.size() && std::isdigit(static_cast<unsigned char>(arch[i])); ++i) {
    number = number * 10 + (arch[i] - '0');
  }
  return number >= arch_min;
}

Instance instantiate(Atom atom) {
  Instance i;
  i.atom = std::move(atom);
  const Atom& a = i.atom;
  check_definition(a);
  i.family = a.name.substr(0, a.name.find('/'));
  i.arch_min = parse_arch(a.arch, a.name);
  i.threads = parse_threads(a.threads, a.name + ": threads");
  i.thread_count = static_cast<int>(i.threads.size().value());
  check_collective(i);
  for (const OperandDef& o : a.out) i.out.push_back(parse_operand(a, o, i.thread_count, false));
  for (const OperandDef& o : a.in) i.in.push_back(parse_operand(a, o, i.thread_count, false));
  for (const OperandDef& o : a.aux) i.aux.push_back(parse_operand(a, o, i.thread_count, true));
  if (a.kind == Kind::Spec) check_own(i);
  if (a.kind != Kind::Sync && i.out.empty()) fail(Code::ATOM_DEFINITION, a.name + ": no output");
  for (const OperandInstance& o : i.out) {
    if (o.def.access == Access::Read)
      fail(Code::ATOM_DEFINITION, a.name + ": output `" + o.def.name + "` is only read");
  }
  for (const OperandInstance& o : i.in) {
    if (o.def.access != Access::Read) fail(Code::ATOM_DEFINITION, a.name + ": input `" + o.def.name + "` is written");
  }
  check_axes(i);
  i.text = parse_text(a.ptx.empty() ? a.cxx : a.ptx, a.cxx.empty(), a.name);
  check_text(&i);
  return i;
}

}  // namespace graphene::atoms
