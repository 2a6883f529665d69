#include "emit/registers.h"

#include "emit/literal.h"

namespace graphene::emit {

Registers::Registers(const std::vector<lower::RegArray>& arrays, std::vector<bool> in_flight, Names& names)
    : arrays_(arrays), in_flight_(std::move(in_flight)), uses_(arrays.size()) {
  for (const lower::RegArray& a : arrays) names_.push_back(names.fresh(a.c_name));
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const char last = names_[i].back();
    const std::string base = last >= '0' && last <= '9' ? names_[i] + "_" : names_[i];
    std::vector<std::string>& elements = elements_.emplace_back();
    if (arrays[i].regs == 1) {
      elements.push_back(names_[i]);
      continue;
    }
    for (int r = 0; r < arrays[i].regs; ++r) elements.push_back(names.fresh(base + std::to_string(r)));
  }
}

const std::string& Registers::name_of(int buffer) const {
  for (std::size_t i = 0; i < arrays_.size(); ++i) {
    if (arrays_[i].buffer->id == buffer) return names_[i];
  }
  internal_error(__FILE__, __LINE__, "no registers of this buffer");
}

bool Registers::both(int array) const {
  if (ir::is_packed(arrays_[static_cast<std::size_t>(array)].dtype)) return true;
  const Use& use = uses_[static_cast<std::size_t>(array)];
  return use.values && use.words;
}

std::string Registers::value(int array, int index) {
  const auto i = static_cast<std::size_t>(array);
  uses_[i].values = true;
  if (ir::is_packed(arrays_[i].dtype))
    return names_[i] + ".v[" + std::to_string(index / 8) + "].e" + std::to_string(index % 8);
  if (both(array)) return names_[i] + ".v[" + std::to_string(index) + "]";
  return elements_[i].at(static_cast<std::size_t>(index));
}

std::optional<std::string> Registers::in_flight(int array, int index) {
  const auto i = static_cast<std::size_t>(array);
  if (!in_flight_.at(i)) return std::nullopt;
  uses_[i].in_flight = true;
  return "gr_" + names_[i] + "_" + std::to_string(index);
}

std::optional<std::string> Registers::word(int array, const std::vector<int>& values) {
  const auto i = static_cast<std::size_t>(array);
  const int per = 32 / ir::bits(arrays_[i].dtype);
  if (static_cast<int>(values.size()) != per || values.front() % per != 0) return std::nullopt;
  for (int k = 1; k < per; ++k) {
    if (values[static_cast<std::size_t>(k)] != values.front() + k) return std::nullopt;
  }
  uses_[i].words = true;
  const int index = values.front() / per;
  if (both(array)) return names_[i] + ".w[" + std::to_string(index) + "]";
  return elements_[i].at(static_cast<std::size_t>(index));
}

std::vector<std::string> Registers::variables(const std::string& type, std::size_t array, int count) const {
  constexpr std::size_t kColumns = 108;
  std::vector<std::string> lines;
  std::string line = type + " ";
  for (int r = 0; r < count; ++r) {
    const std::string& name = elements_[array].at(static_cast<std::size_t>(r));
    if (line.size() + name.size() + 2 > kColumns) {
      lines.push_back(line.substr(0, line.size() - 1));
      line = std::string(4, ' ');
    }
    line += name + (r + 1 < count ? ", " : ";");
  }
  lines.push_back(line);
  return lines;
}

std::vector<std::string> Registers::declarations() const {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < arrays_.size(); ++i) {
    const lower::RegArray& a = arrays_[i];
    const Use& use = uses_[i];
    if (use.in_flight)
      out.push_back("asm volatile(\".reg .b32 gr_" + names_[i] + "_<" + std::to_string(a.regs) + ">;\");");
    if (a.param >= 0 || (!use.values && !use.words)) continue;  // a scalar argument is declared by the signature
    const std::string type = c_type(a.dtype);
    const int per = std::max(1, 32 / ir::bits(a.dtype));
    const int words = (a.regs + per - 1) / per;
    if (ir::is_packed(a.dtype)) {
      const std::string n = std::to_string(words);
      const std::string fields = a.dtype == ir::ScalarType::i4 ? "gr_i4x8" : "gr_u4x8";
      out.push_back("union { u32 w[" + n + "]; " + fields + " v[" + n + "]; } " + names_[i] + ";");
      continue;
    }
    if (both(static_cast<int>(i))) {
      out.push_back("union { u32 w[" + std::to_string(words) + "]; " + type + " v[" + std::to_string(a.regs) + "]; } " +
                    names_[i] + ";");
      continue;
    }
    for (std::string& line : use.words ? variables("u32", i, words) : variables(type, i, a.regs))
      out.push_back(std::move(line));
  }
  return out;
}

}  // namespace graphene::emit
