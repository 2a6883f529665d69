// C identifiers: IR names made legal and unique within the kernel.
#pragma once

#include <set>
#include <string>
#include <string_view>

namespace graphene::emit {

class Names {
 public:
  // The hint itself when it is a legal, unused identifier; else the nearest one ("m", "m_2", ...).
  std::string fresh(std::string_view hint);
  void release(std::string_view name);  // a loop counter, when its loop is over

 private:
  std::set<std::string, std::less<>> used_;
};

// The name of a function with C linkage: such names meet those of the libraries that NVRTC declares.
[[nodiscard]] std::string function_name(std::string_view hint);

}  // namespace graphene::emit
