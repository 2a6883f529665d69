// Tokens of the IR text (docs/ir_text.md), with positions for error messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/diag.h"

namespace graphene::ir {

// A kernel's name: NVRTC corrupts its memory with 100,000 characters.
inline constexpr std::size_t kMostNameChars = 1024;

enum class Tok : std::uint8_t {
  Name,     // bm, rd.index, mma.m16n8k16: parts after a dot may start with a digit
  Coord,    // @bm
  Int,      // 128 (the sign is an operator)
  Float,    // 1.5, 1e-05
  String,   // "..." with \" \\ \n \t \r \xNN
  Punct,    // one of the operators and brackets of the grammar
  Newline,  // ends a statement; runs of them are one
  End,
};

struct Token {
  Tok kind = Tok::End;
  std::string_view text;   // as written; without '@' for Coord
  std::size_t offset = 0;  // of its first byte in the source
  bool glued = false;      // nothing stands between it and the token before: "%7" is '%' and a glued 7

  [[nodiscard]] bool is(std::string_view punct) const { return kind == Tok::Punct && text == punct; }
  [[nodiscard]] bool is_name(std::string_view name) const { return kind == Tok::Name && text == name; }
  [[nodiscard]] std::string str() const;  // for messages: "'<-'", "the end of the line"
};

// An error whose message says where in the text.
class PositionedError : public Error {
 public:
  using Error::Error;
};

// A text that outlives its tokens.
struct Source {
  std::string_view text;

  // Throws PositionedError: "3:14: message", the line and a caret below it.
  [[noreturn]] void fail_at(std::size_t offset, Code code, const std::string& message,
                            std::vector<std::string> details = {}, std::string fix = {}) const;
  [[nodiscard]] std::string position(std::size_t offset) const;  // "3:14"
  // The same position in front of a message that another layer threw.
  [[noreturn]] void rethrow_at(std::size_t offset, const Error& e) const;
};

// Throws IR_PARSE on a character that starts no token, and on an unterminated string.
[[nodiscard]] std::vector<Token> lex(const Source& source);

// The value of a String token; escapes are already checked.
[[nodiscard]] std::string unescape(std::string_view quoted);
[[nodiscard]] std::string quote(std::string_view value);

// Whether a value can stand without quotes where the grammar wants a Name.
[[nodiscard]] bool is_plain_name(std::string_view value);

}  // namespace graphene::ir
