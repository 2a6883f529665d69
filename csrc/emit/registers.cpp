#include "emit/registers.h"

#include "emit/literal.h"

namespace graphene::emit {

Registers::Registers(const std::vector<lower::RegArray>& arrays, Names& names) : arrays_(arrays), uses_(arrays.size()) {
  for (const lower::RegArray& a : arrays) names_.push_back(names.fresh(a.c_name));
}

const std::string& Registers::name_of(int buffer) const {
  for (std::size_t i = 0; i < arrays_.size(); ++i) {
    if (arrays_[i].buffer->id == buffer) return names_[i];
  }
  internal_error(__FILE__, __LINE__, "no registers of this buffer");
}

bool Registers::both(int array) const {
  const Use& use = uses_[static_cast<std::size_t>(array)];
  return use.values && use.words;
}

std::string Registers::value(int array, int index) {
  const auto i = static_cast<std::size_t>(array);
  uses_[i].values = true;
  if (both(array)) return names_[i] + ".v[" + std::to_string(index) + "]";
  return arrays_[i].regs == 1 ? names_[i] : names_[i] + "[" + std::to_string(index) + "]";
}

std::optional<std::string> Registers::word(int array, const std::vector<int>& values) {
  const auto i = static_cast<std::size_t>(array);
  const int per = 32 / ir::bits(arrays_[i].dtype);
  if (static_cast<int>(values.size()) != per || values.front() % per != 0) return std::nullopt;
  for (int k = 1; k < per; ++k) {
    if (values[static_cast<std::size_t>(k)] != values.front() + k) return std::nullopt;
  }
  uses_[i].words = true;
  const std::string index = "[" + std::to_string(values.front() / per) + "]";
  return both(array) ? names_[i] + ".w" + index : names_[i] + index;
}

std::vector<std::string> Registers::declarations() const {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < arrays_.size(); ++i) {
    const lower::RegArray& a = arrays_[i];
    const Use& use = uses_[i];
    if (a.param >= 0 || (!use.values && !use.words)) continue;  // a scalar argument is declared by the signature
    const std::string type = c_type(a.dtype);
    const std::string values = a.regs == 1 && !use.words ? "" : "[" + std::to_string(a.regs) + "]";
    const int per = std::max(1, 32 / ir::bits(a.dtype));
    const std::string words = "[" + std::to_string((a.regs + per - 1) / per) + "]";
    if (both(static_cast<int>(i))) {
      out.push_back("union { u32 w" + words + "; " + type + " v[" + std::to_string(a.regs) + "]; } " + names_[i] + ";");
    } else if (use.words) {
      out.push_back("u32 " + names_[i] + words + ";");
    } else {
      out.push_back(type + " " + names_[i] + values + ";");
    }
  }
  return out;
}

}  // namespace graphene::emit
