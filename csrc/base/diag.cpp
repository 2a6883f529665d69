#include "base/diag.h"

namespace graphene {

std::string SourceLoc::str() const {
  if (!known()) return {};
  const auto slash = file->find_last_of('/');
  return (slash == std::string::npos ? *file : file->substr(slash + 1)) + ":" + std::to_string(line);
}

const std::vector<CodeInfo>& all_codes() {
  static const std::vector<CodeInfo> table = {
#define GR_ERROR(name, cls, summary) {#name, ErrorClass::cls, summary},
#include "base/codes.def"
#undef GR_ERROR
  };
  return table;
}

const CodeInfo& code_info(Code code) { return all_codes()[static_cast<std::size_t>(code)]; }

std::string Diagnostic::str() const {
  std::string s;
  if (where.known()) s += where.str() + ": ";
  s += message + "   [" + code_info(code).name + "]";
  for (const auto& line : ir) s += "\n    " + line;
  for (const auto& line : details) s += "\n  " + line;
  if (!fix.empty()) s += "\n  fix: " + fix;
  return s;
}

Error::Error(std::vector<Diagnostic> ds) : diagnostics_(std::move(ds)) {
  for (const auto& d : diagnostics_) {
    if (!text_.empty()) text_ += "\n";
    text_ += d.str();
  }
}

void fail(Code code, std::string message, std::vector<std::string> details, std::string fix, SourceLoc where) {
  throw Error(Diagnostic{.code = code,
                         .where = std::move(where),
                         .message = std::move(message),
                         .ir = {},
                         .details = std::move(details),
                         .fix = std::move(fix)});
}

void internal_error(const char* file, int line, const std::string& what) {
  throw Error(Diagnostic{.code = Code::INTERNAL,
                         .where = {},
                         .message = what,
                         .ir = {},
                         .details = {std::string("at: ") + file + ":" + std::to_string(line)},
                         .fix = "this is a bug in Graphene; please report it with the kernel that shows it"});
}

}  // namespace graphene
