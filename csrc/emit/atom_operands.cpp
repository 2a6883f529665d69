// Operands of an instruction's text: registers as the instruction wants them, addresses, descriptors.
#include <cstdio>

#include "emit/atom_text.h"
#include "emit/literal.h"

namespace graphene::emit {

using lower::AtomCall;
using lower::ExprRef;
using lower::ImmRef;
using lower::MemRef;
using lower::RegRef;

namespace {

std::string hexadecimal(std::uint64_t bits) {
  char text[24];
  const int length = std::snprintf(text, sizeof text, "0x%llxu", static_cast<unsigned long long>(bits));
  return {text, static_cast<std::size_t>(length)};
}

// The constant elements of an address that is not constant as a whole.
std::int64_t constant_distance(const MemRef& ref) {
  const Expr first = ref.offset + Expr(ref.deltas.empty() ? 0 : ref.deltas.front());
  return !first.is_const() && first.op() == sym::Op::Add ? first.node()->constant : 0;
}

}  // namespace

// Several values in one 32-bit register; those that are not a word of their array are packed around the instruction.
std::string AtomText::packed_register(const RegRef& regs, const std::vector<int>& values, const Slot& s, Asm& ptx) {
  if (const auto word = registers_.word(regs.array, values)) return add_register("r", *word, s, ptx);
  const ir::ScalarType dtype = registers_.array(regs.array).dtype;
  const int bits = ir::bits(dtype);
  std::vector<std::string> parts;
  for (const int v : values) parts.push_back(registers_.value(regs.array, v));
  const std::string packed =
      parts.size() == 1 ? "(u32)" + parts.front() : "gr_pack" + std::to_string(bits) + "(" + join(parts, ", ") + ")";
  if (!s.is_out) return add_register("r", packed, s, ptx);
  const std::string temp = "t" + std::to_string(ptx.before.size());
  ptx.before.push_back("u32 " + temp + (s.def->def.access == atoms::Access::Update ? " = " + packed : "") + ";");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string shift = i == 0 ? temp : temp + " >> " + std::to_string(bits * static_cast<int>(i));
    ptx.after.push_back(parts[i] + " = (" + (bits == 16 ? "u16" : "u8") + ")" + (i == 0 ? shift : "(" + shift + ")") +
                        ";");
  }
  return add_register("r", temp, s, ptx);
}

// Two bytes in one 16-bit register, or two or four elements of 4 bits.
std::string AtomText::packed_half(const RegRef& regs, const std::vector<int>& values, const Slot& s, Asm& ptx) {
  const int bits = ir::bits(registers_.array(regs.array).dtype);
  std::vector<std::string> parts;
  std::string packed;
  for (const int v : values) {
    const std::string part = registers_.value(regs.array, v);
    const std::string number = bits == 8 ? "(u8)" + part : "(" + part + " & 15)";
    packed += parts.empty() ? number : " | " + number + " << " + std::to_string(bits * std::ssize(parts));
    parts.push_back(part);
  }
  packed = "(u16)(" + packed + ")";
  if (!s.is_out) return add_register("h", packed, s, ptx);
  const std::string temp = "t" + std::to_string(ptx.before.size());
  ptx.before.push_back("u16 " + temp + (s.def->def.access == atoms::Access::Update ? " = " + packed : "") + ";");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string shift = std::to_string(static_cast<std::size_t>(bits) * i);
    ptx.after.push_back(parts[i] + " = (u8)" + (i == 0 ? temp : "(" + temp + " >> " + shift + ")") + ";");
  }
  return add_register("h", temp, s, ptx);
}

std::vector<std::string> AtomText::ptx_registers(const RegRef& regs, const Slot& s, Asm& ptx) {
  const ir::ScalarType dtype = registers_.array(regs.array).dtype;
  const int bits = ir::bits(dtype);
  const int count = static_cast<int>(regs.values.size());
  auto [constraint, per, unused] = s.def->packing;
  if (ptx.flies && s.is_out && registers_.in_flight(regs.array, regs.values.front())) {
    std::vector<std::string> own;
    for (const int v : regs.values) own.push_back(*registers_.in_flight(regs.array, v));
    return own;
  }
  GR_ASSERT(per > 0 && count % per == 0, "register packing of " + s.def->def.name);
  // Untyped instructions take floating-point registers as they are.
  if (ptx.untyped && dtype == ir::ScalarType::fp32 && constraint == 'r') constraint = 'f';
  if (ptx.untyped && dtype == ir::ScalarType::fp64 && constraint == 'l') constraint = 'd';
  std::vector<std::string> out;
  if (bits < 32 && constraint == 'r' && (per > 1 || dtype != ir::ScalarType::pred)) {
    for (int v = 0; v < count; v += per) {
      out.push_back(packed_register(regs, {regs.values.begin() + v, regs.values.begin() + v + per}, s, ptx));
    }
    return out;
  }
  if (constraint == 'h' && per > 1) {
    for (int v = 0; v < count; v += per)
      out.push_back(packed_half(regs, {regs.values.begin() + v, regs.values.begin() + v + per}, s, ptx));
    return out;
  }
  GR_ASSERT(per == 1, "register packing of " + s.def->def.name);
  for (const int v : regs.values)
    out.push_back(single_register(registers_.value(regs.array, v), dtype, constraint, s, ptx));
  return out;
}

// One value in one register of the kind the instruction wants.
std::string AtomText::single_register(const std::string& value, ir::ScalarType dtype, char constraint, const Slot& s,
                                      Asm& ptx) {
  const std::string letter(1, constraint);
  const std::string natural = c_type(dtype);
  static const std::map<char, std::string> kTypes = {
      {'h', "u16"}, {'r', "u32"}, {'l', "u64"}, {'f', "float"}, {'d', "double"}};
  const std::string& wanted = kTypes.at(constraint);
  const bool stored_as_bits = ir::info(dtype).cls == ir::ScalarInfo::Class::Float && ir::bits(dtype) <= 16;
  const bool integer =
      (ir::info(dtype).cls != ir::ScalarInfo::Class::Float || stored_as_bits) && dtype != ir::ScalarType::pred;
  const bool same_size = ir::bits(dtype) == (constraint == 'h' ? 16 : constraint == 'r' || constraint == 'f' ? 32 : 64);
  if (natural == wanted || (integer && same_size && constraint != 'f' && constraint != 'd')) {
    return add_register(letter, value, s, ptx);
  }
  if (same_size) return add_register(letter, "reinterpret_cast<" + wanted + "&>(" + value + ")", s, ptx);
  // Predicates and 8-bit values travel in a wider register.
  if (!s.is_out) return add_register(letter, "(" + wanted + ")" + value, s, ptx);
  const std::string temp = "t" + std::to_string(ptx.before.size());
  const bool update = s.def->def.access == atoms::Access::Update;
  ptx.before.push_back(wanted + " " + temp + (update ? " = " + value : "") + ";");
  ptx.after.push_back(value + " = " + (dtype == ir::ScalarType::pred ? temp + " != 0" : "(" + natural + ")" + temp) +
                      ";");
  return add_register(letter, temp, s, ptx);
}

// Of elements that share bytes: the byte.
Expr AtomText::unit_of(const MemRef& ref, std::int64_t delta) const {
  const Expr index = ref.offset + Expr(delta);
  return ir::is_packed(program_.buffers[static_cast<std::size_t>(ref.buffer)].dtype) ? sym::floor_div(index, 2) : index;
}

std::string AtomText::element(const MemRef& ref, std::int64_t delta) {
  const auto b = static_cast<std::size_t>(ref.buffer);
  const Expr index = unit_of(ref, delta);
  std::string base = buffers_[b];
  if (program_.buffers[b].buffer->count > 0) base += ".at[" + expressions_.text(ref.member, "which").text + "]";
  if (ref.rank) base = "gr_there(" + base + ", " + expressions_.text(*ref.rank, "rank").text + ")";
  return base + "[" + expressions_.text(index, buffers_[b]).text + "]";
}

// A block's shared memory ends below 2^18, so of an address its bits 4 to 17 are wanted. Outside of clusters that is
// what is left of it without the lowest four; in a cluster, bits from 24 on are the block's rank, which would be added
// to a distance of the layout. A constant distance from where the stage begins is added to the address.
std::string AtomText::descriptor(const MemRef& ref) {
  const std::int64_t bytes = ir::bits(program_.buffers[static_cast<std::size_t>(ref.buffer)].dtype) / 8;
  const Expr first = ref.offset + Expr(ref.deltas.front());
  const std::int64_t distance = first.is_const()             ? first.value()
                                : first.op() == sym::Op::Add ? first.node()->constant
                                                             : 0;
  const bool apart = distance > 0 && distance * bytes % 16 == 0;
  const std::uint64_t low = (ref.descriptor->bits & 0xffffffffU) + (apart ? distance * bytes / 16 : 0);
  return "gr_matrix(" + hexadecimal(ref.descriptor->bits >> 32U) + ", " + hexadecimal(low) + ", &" +
         element(ref, ref.deltas.front() - (apart ? distance : 0)) + ")";
}

// Of value 0, or as many elements before it: what an instruction gets.
std::string AtomText::address(const MemRef& ref, std::int64_t before) {
  const auto b = static_cast<std::size_t>(ref.buffer);
  const bool shared = program_.buffers[b].memory == ir::Memory::SH;
  if (ref.rank) {  // where the buffer begins there is the same for all accesses
    const Expr index = unit_of(ref, ref.deltas.empty() ? 0 : ref.deltas.front());
    return "gr_of(" + buffers_[b] + ", " + expressions_.text(*ref.rank, "rank").text + ", " +
           expressions_.text(index, buffers_[b]).text + ")";
  }
  const std::string pointer = "&" + element(ref, (ref.deltas.empty() ? 0 : ref.deltas.front()) - before);
  const std::string text = shared ? "gr_shared(" + pointer + ")" : pointer;
  if (ref.fill_row < 0) return text;
  return expressions_.text(ref.inside, buffers_[b]).in(Prec::Or) + " ? " + text + " : gr_shared(" +
         fill_rows_[static_cast<std::size_t>(ref.fill_row)] + ")";
}

std::string AtomText::bytes_inside(const MemRef& ref) {
  const auto b = static_cast<std::size_t>(ref.buffer);
  const ir::ScalarType type = program_.buffers[b].dtype;
  std::string text = std::to_string(ir::bytes_of_elems(type, static_cast<std::int64_t>(ref.deltas.size())));
  if (ref.valid_values) {
    const CText valid = expressions_.text(ir::bytes_of_elems(*ref.valid_values, type), buffers_[b]);
    text = valid.wide ? "(int)" + valid.in(Prec::Unary) : valid.text;
  }
  if (ref.inside.is_const(1)) return text;
  return expressions_.text(ref.inside, buffers_[b]).in(Prec::Or) + " ? " + text + " : 0";
}

std::string AtomText::ptx_operand(const atoms::Piece& piece, const AtomCall& call, const Slot& s, Asm& ptx) {
  if (const auto* regs = std::get_if<RegRef>(s.value)) {
    const std::vector<std::string> all = ptx_registers(*regs, s, ptx);
    if (piece.element >= 0) {
      GR_ASSERT(static_cast<std::size_t>(piece.element) < all.size(),
                "hole $" + piece.text + " of " + call.atom->atom.name);
      return all[static_cast<std::size_t>(piece.element)];
    }
    return join(all, ", ");
  }
  if (const auto* mem = std::get_if<MemRef>(s.value)) {
    if (mem->boxed) {
      std::vector<std::string> at;
      for (const Expr& e : mem->boxed->at) {
        const CText text = expressions_.text(e, "at");
        // A quotient of at most one is printed as a comparison, which is a bool: no register takes that.
        const bool is_bool =
            text.prec == Prec::Less || text.prec == Prec::Equal || text.prec == Prec::And || text.prec == Prec::Or;
        at.push_back(add_input(ptx, "r", text.wide || is_bool ? "(int)" + text.in(Prec::Unary) : text.text));
      }
      const std::string map = add_input(ptx, "l", "&" + maps_[static_cast<std::size_t>(mem->boxed->map)]);
      return map + ", {" + join(at, ", ") + "}";
    }
    if (mem->descriptor) return add_input(ptx, "l", descriptor(*mem));
    const bool shared = program_.buffers[static_cast<std::size_t>(mem->buffer)].memory == ir::Memory::SH;
    // A matrix store's constant distance stands in the instruction: of a sum the compiler keeps each address of an
    // epilogue in a register for the whole kernel, beside sums that fill the registers.
    const bool of_warp = s.is_out && call.atom->atom.converge > 1;
    const std::int64_t before = shared && of_warp && !mem->rank && mem->fill_row < 0 ? constant_distance(*mem) : 0;
    const std::int64_t bits = before * ir::bits(program_.buffers[static_cast<std::size_t>(mem->buffer)].dtype);
    if (bits > 0 && bits % 8 == 0) return add_input(ptx, "r", address(*mem, before)) + "+" + std::to_string(bits / 8);
    return add_input(ptx, shared ? "r" : "l", address(*mem, 0));
  }
  // An immediate: one register per word, all alike.
  if (const auto* imm = std::get_if<ImmRef>(s.value)) {
    const ir::ScalarType dtype = imm->dtype;
    const int bits = ir::bits(dtype);
    const auto [constraint, per, unused] = s.def->packing;
    std::string text = c_literal(imm->value, dtype);
    if (constraint == 'r' && (bits < 32 || ir::info(dtype).cls == ir::ScalarInfo::Class::Float)) {
      std::uint64_t word = 0;
      for (int i = 0; i < per; ++i) word |= ir::constant_bits(imm->value, dtype) << static_cast<unsigned>(bits * i);
      text = std::to_string(word) + "u";
    } else if (constraint == 'h') {
      text = "(u16)" + std::to_string(ir::constant_bits(imm->value, dtype));
    }
    const std::string one = add_input(ptx, std::string(1, constraint), text);
    const int count = piece.element >= 0 ? 1 : std::max(1, s.def->values / std::max(per, 1));
    return join(std::vector<std::string>(static_cast<std::size_t>(count), one), ", ");
  }
  const CText text = expressions_.text(std::get<ExprRef>(*s.value).value, piece.text);
  return add_input(ptx, text.wide ? "l" : "r", text.text);
}

std::string AtomText::cxx_operand(const atoms::Piece& piece, const AtomCall& call, const Slot& s) {
  if (piece.element == atoms::Piece::kEach) {
    std::vector<std::string> all;
    atoms::Piece one = piece;
    for (one.element = 0; one.element < s.def->values; ++one.element) all.push_back(cxx_operand(one, call, s));
    return join(all, ", ");
  }
  const auto i = static_cast<std::size_t>(std::max(piece.element, 0));
  if (const auto* regs = std::get_if<RegRef>(s.value)) return registers_.value(regs->array, regs->values.at(i));
  if (const auto* mem = std::get_if<MemRef>(s.value)) {
    const ir::ScalarType dtype = program_.buffers[static_cast<std::size_t>(mem->buffer)].dtype;
    const std::string value = element(*mem, mem->deltas.at(i));
    if (s.is_out || mem->inside.is_const(1)) return value;
    const auto b = static_cast<std::size_t>(mem->buffer);
    return "(" + expressions_.text(mem->inside, buffers_[b]).in(Prec::Or) + " ? " + value + " : " +
           c_literal(ir::constant_attr(call.attrs, "fill"), dtype) + ")";
  }
  if (const auto* imm = std::get_if<ImmRef>(s.value)) return c_literal(imm->value, imm->dtype);
  return expressions_.text(std::get<ExprRef>(*s.value).value, piece.text).in(Prec::Unary);
}

}  // namespace graphene::emit
