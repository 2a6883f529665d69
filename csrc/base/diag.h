// Diagnostics: one error type, one catalogue of stable codes (codes.def), one way to print them.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace graphene {

// Where the Python that built a node stands. `file` is shared: thousands of nodes come from one file.
struct SourceLoc {
  std::shared_ptr<const std::string> file;
  int line = 0;

  [[nodiscard]] bool known() const { return file != nullptr && line > 0; }
  [[nodiscard]] std::string str() const;  // "gemm.py:41" (base name), "" when unknown
};

// The exception class a diagnostic becomes in Python.
enum class ErrorClass : std::uint8_t { Layout, Verify, Select, Compile, Launch, Simulation, Internal };

enum class Code : std::uint16_t {
#define GR_ERROR(name, cls, summary) name,
#include "base/codes.def"
#undef GR_ERROR
};

struct CodeInfo {
  const char* name;
  ErrorClass cls;
  const char* summary;
};
[[nodiscard]] const CodeInfo& code_info(Code code);
[[nodiscard]] const std::vector<CodeInfo>& all_codes();

// One problem: where, what (IR syntax), want/got lines, the fix.
//
//   gemm.py:41: no atomic spec implements this on sm_80   [NO_ATOM]
//       %11:[2,2].[1,2].fp16.RF <- Move<<<...>>>(%10:[1,8].fp32.SH)
//     nearest: ldmatrix.x4   src dtype: want a 16-bit type, got fp32
//     fix: stage %10 as fp16, or write the Move yourself
struct Diagnostic {
  Code code;
  SourceLoc where;
  std::string message;               // one line, no final stop
  std::vector<std::string> ir;       // IR lines, printed with four spaces of indentation
  std::vector<std::string> details;  // "label: text" lines, printed with two
  std::string fix;                   // printed as "  fix: ..."

  [[nodiscard]] std::string str() const;
};

class Error : public std::exception {
 public:
  explicit Error(Diagnostic d) : Error(std::vector<Diagnostic>{std::move(d)}) {}
  explicit Error(std::vector<Diagnostic> ds);
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }
  [[nodiscard]] ErrorClass error_class() const { return code_info(diagnostics_.front().code).cls; }

 private:
  std::vector<Diagnostic> diagnostics_;
  std::string text_;
};

// Throws Error with one diagnostic.
[[noreturn]] void fail(Code code, std::string message, std::vector<std::string> details = {}, std::string fix = {},
                       SourceLoc where = {});

// Our own bug: throws Error with Code::INTERNAL. Never for bad input.
[[noreturn]] void internal_error(const char* file, int line, const std::string& what);
#define GR_ASSERT(cond, what) ((cond) ? static_cast<void>(0) : ::graphene::internal_error(__FILE__, __LINE__, (what)))

}  // namespace graphene
