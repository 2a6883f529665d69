#include "runtime/cubin.h"

#include <charconv>
#include <cstring>
#include <map>
#include <optional>

namespace graphene::runtime {

namespace {

// A read that stays inside the file, little-endian.
template <class T>
std::optional<T> get(std::string_view bytes, std::uint64_t at) {
  if (at > bytes.size() || bytes.size() - at < sizeof(T)) return std::nullopt;
  T v;
  std::memcpy(&v, bytes.data() + at, sizeof v);
  return v;
}

std::string_view slice(std::string_view bytes, std::uint64_t at, std::uint64_t size) {
  if (at > bytes.size() || bytes.size() - at < size) return {};
  return bytes.substr(at, size);
}

std::string_view c_string(std::string_view table, std::uint64_t at) {
  if (at >= table.size()) return {};
  const auto end = table.find('\0', at);
  return table.substr(at, end == std::string_view::npos ? std::string_view::npos : end - at);
}

struct Section {
  std::string_view name;
  std::uint32_t type = 0;
  std::uint32_t link = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::uint64_t entry_bytes = 0;
};

// ELF64: e_shoff at 40, e_shentsize at 58, e_shnum at 60, e_shstrndx at 62.
std::vector<Section> sections_of(std::string_view elf) {
  std::vector<Section> out;
  const auto table = get<std::uint64_t>(elf, 40);
  const auto entry = get<std::uint16_t>(elf, 58), count = get<std::uint16_t>(elf, 60),
             names = get<std::uint16_t>(elf, 62);
  if (!is_elf(elf) || !table || !entry || !count || !names || *entry < 64) return out;
  std::vector<std::uint32_t> name_at;
  for (std::uint64_t i = 0; i < *count; ++i) {
    const std::uint64_t at = *table + i * *entry;
    if (at < *table || !get<std::uint64_t>(elf, at + 56)) return {};
    out.push_back({.name = {},
                   .type = *get<std::uint32_t>(elf, at + 4),
                   .link = *get<std::uint32_t>(elf, at + 40),
                   .offset = *get<std::uint64_t>(elf, at + 24),
                   .size = *get<std::uint64_t>(elf, at + 32),
                   .entry_bytes = *get<std::uint64_t>(elf, at + 56)});
    name_at.push_back(*get<std::uint32_t>(elf, at));
  }
  if (*names >= out.size()) return {};
  const std::string_view strings = slice(elf, out[*names].offset, out[*names].size);
  for (std::size_t i = 0; i < out.size(); ++i) out[i].name = c_string(strings, name_at[i]);
  return out;
}

// The symbol's number in .symtab: .nv.info attributes refer to kernels by it.
std::optional<std::uint32_t> symbol_number(std::string_view elf, const std::vector<Section>& sections,
                                           std::string_view name) {
  constexpr std::uint32_t kSymtab = 2;
  for (const Section& s : sections) {
    if (s.type != kSymtab || s.entry_bytes < 24 || s.link >= sections.size()) continue;
    const std::string_view strings = slice(elf, sections[s.link].offset, sections[s.link].size);
    for (std::uint64_t i = 0; i < s.size / s.entry_bytes; ++i) {
      const auto at = get<std::uint32_t>(elf, s.offset + i * s.entry_bytes);
      if (!at) break;
      if (c_string(strings, *at) == name) return static_cast<std::uint32_t>(i);
    }
  }
  return std::nullopt;
}

// Every attribute with a payload in the section `name`. The encoding: a format byte, an attribute byte, then a 16-bit
// value, or (format 4) a 16-bit size and that many bytes.
template <class F>
void for_attributes(std::string_view elf, const std::vector<Section>& sections, std::string_view name, F visit) {
  constexpr std::uint8_t kSized = 4;
  for (const Section& s : sections) {
    if (s.name != name) continue;
    const std::string_view info = slice(elf, s.offset, s.size);
    for (std::uint64_t at = 0; at + 4 <= info.size();) {
      const auto format = *get<std::uint8_t>(info, at), attribute = *get<std::uint8_t>(info, at + 1);
      const auto size = format == kSized ? *get<std::uint16_t>(info, at + 2) : std::uint16_t{0};
      if (size != 0) visit(attribute, slice(info, at + 4, size));
      at += 4U + size;
    }
  }
}

// An integer printed before `unit`, as in "72 registers".
std::int64_t number_before(std::string_view text, std::string_view unit) {
  const auto at = text.find(unit);
  if (at == std::string_view::npos) return 0;
  std::size_t first = at;
  while (first > 0 && text[first - 1] >= '0' && text[first - 1] <= '9') --first;
  std::int64_t v = 0;
  std::from_chars(text.data() + first, text.data() + at, v);
  return v;
}

}  // namespace

bool is_elf(std::string_view bytes) {
  return bytes.starts_with(
      "\x7f"
      "ELF\x02");
}

Resources read_cubin(std::string_view cubin, std::string_view entry) {
  Resources r;
  const auto sections = sections_of(cubin);
  const auto number = symbol_number(cubin, sections, entry);
  if (!number) return r;
  const std::string text = ".text." + std::string(entry), shared = ".nv.shared." + std::string(entry);
  bool reserved = false;
  for (const Section& s : sections) {
    if (s.name == text) r.known = true;
    if (s.name == shared) r.shared_bytes = static_cast<std::int64_t>(s.size);
    if (s.name.starts_with(".nv.shared.reserved")) reserved = true;
  }
  // From sm_90 on the first 1024 bytes of a block's shared memory belong to the system.
  if (reserved && r.shared_bytes >= 1024) r.shared_bytes -= 1024;
  constexpr std::uint8_t kFrameBytes = 0x11, kRegisters = 0x2f;
  for_attributes(cubin, sections, ".nv.info", [&](std::uint8_t attribute, std::string_view payload) {
    const auto symbol = get<std::uint32_t>(payload, 0), value = get<std::uint32_t>(payload, 4);
    if (symbol != number || !value) return;
    if (attribute == kRegisters) r.registers = static_cast<int>(*value);
    if (attribute == kFrameBytes) r.local_bytes = *value;
  });
  return r;
}

bool has_illegal_copy(std::string_view cubin, std::string_view entry) {
  // Of an instruction's 16 bytes the lowest 12 bits are the operation, with the form of its operands. In this form one
  // field, from bit 64 on, names the uniform register that is added to the address and, as the next one, the
  // descriptor, which takes a pair of registers.
  constexpr std::uint64_t kOperation = 0xfff, kCopyWithUniformOffset = 0xdae, kInstructionBytes = 16;
  const std::string text = ".text." + std::string(entry);
  for (const Section& s : sections_of(cubin)) {
    if (s.name != text) continue;
    const std::string_view code = slice(cubin, s.offset, s.size);
    for (std::uint64_t at = 0; at + kInstructionBytes <= code.size(); at += kInstructionBytes)
      if ((*get<std::uint64_t>(code, at) & kOperation) == kCopyWithUniformOffset &&
          (*get<std::uint64_t>(code, at + 8) & 1) == 0)
        return true;
  }
  return false;
}

std::optional<std::vector<std::int64_t>> param_bytes(std::string_view cubin, std::string_view entry) {
  // Payload: index (32 bits), ordinal (16), offset (16), and a word whose upper 14 bits are the size.
  constexpr std::uint8_t kParam = 0x17;
  std::map<std::uint16_t, std::int64_t> by_ordinal;
  const auto sections = sections_of(cubin);
  for_attributes(cubin, sections, ".nv.info." + std::string(entry), [&](std::uint8_t attribute, std::string_view p) {
    const auto ordinal = get<std::uint16_t>(p, 4);
    const auto word = get<std::uint32_t>(p, 8);
    if (attribute == kParam && ordinal && word) by_ordinal[*ordinal] = *word >> 18;
  });
  if (by_ordinal.empty()) return std::nullopt;
  std::vector<std::int64_t> out;
  for (const auto& [ordinal, bytes] : by_ordinal) {
    if (ordinal != out.size()) return std::nullopt;
    out.push_back(bytes);
  }
  return out;
}

Resources read_ptxas_log(std::string_view log, std::string_view entry) {
  Resources r;
  const std::string begin = "Compiling entry function '" + std::string(entry) + "'";
  auto at = log.find(begin);
  if (at == std::string_view::npos) return r;
  std::string_view part = log.substr(at + begin.size());
  part = part.substr(0, part.find("Compiling entry function"));
  const std::string properties = "Function properties for " + std::string(entry) + "\n";
  at = part.find(properties);
  if (at == std::string_view::npos) return r;
  part = part.substr(at + properties.size());
  const std::string_view frame = part.substr(0, part.find('\n'));
  r.local_bytes = number_before(frame, " bytes stack frame");
  r.spill_bytes = number_before(frame, " bytes spill stores") + number_before(frame, " bytes spill loads");
  at = part.find("Used ");
  if (at == std::string_view::npos) return r;
  const std::string_view used = part.substr(at, part.find('\n', at) - at);
  r.registers = static_cast<int>(number_before(used, " registers"));
  r.shared_bytes = number_before(used, " bytes smem");
  r.known = r.registers > 0;
  return r;
}

}  // namespace graphene::runtime
