// A JSON value and its place in the document: typed access that fails with the JSON pointer of what is wrong.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ir/lexer.h"
#include "sym/expr.h"

namespace graphene::ir {

using Json = nlohmann::json;

// A value and where it stands; parents outlive their children.
class At {
 public:
  explicit At(const Json& value) : value_(value) {}
  At(const At& parent, std::string key, const Json& value) : value_(value), parent_(&parent), key_(std::move(key)) {}

  [[nodiscard]] const Json& json() const { return value_; }

  // The JSON pointer (RFC 6901); "" for the whole.
  [[nodiscard]] std::string pointer() const {
    if (parent_ == nullptr) return {};
    std::string key;
    for (const char c : key_) key += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    return parent_->pointer() + "/" + key;
  }

  [[noreturn]] void fail(Code code, const std::string& message, std::vector<std::string> details = {},
                         std::string fix = {}) const {
    const std::string where = pointer();
    throw PositionedError(Diagnostic{.code = code,
                                     .where = {},
                                     .message = (where.empty() ? "the whole text" : where) + ": " + message,
                                     .ir = {},
                                     .details = std::move(details),
                                     .fix = std::move(fix)});
  }
  [[noreturn]] void expected(const std::string& what) const {
    std::string got = value_.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (got.size() > 60) got = got.substr(0, 60) + "...";
    fail(Code::IR_JSON_VALUE, "expected " + what, {"got: " + got});
  }

  // Runs f; an error without a position gets this one.
  template <class F>
  auto run(F&& f) const {
    try {
      return f();
    } catch (const PositionedError&) {
      throw;
    } catch (const Error& e) {
      const Diagnostic& d = e.diagnostics().front();
      fail(d.code, d.message, d.details, d.fix);
    }
  }

  [[nodiscard]] bool has(const char* key) const { return value_.is_object() && value_.contains(key); }
  [[nodiscard]] At operator[](const char* key) const {
    if (!value_.is_object()) expected("an object");
    const auto it = value_.find(key);
    if (it == value_.end()) fail(Code::IR_JSON_VALUE, std::string("no \"") + key + "\" here");
    return {*this, key, *it};
  }
  [[nodiscard]] At operator[](std::size_t i) const { return {*this, std::to_string(i), value_[i]}; }
  [[nodiscard]] At operator[](int i) const { return (*this)[static_cast<std::size_t>(i)]; }
  [[nodiscard]] std::size_t size() const { return value_.size(); }

  // Refuses keys that mean nothing here: a misspelt one must not be dropped silently.
  void only(std::initializer_list<const char*> keys) const {
    if (!value_.is_object()) expected("an object");
    for (const auto& [key, value] : value_.items())
      if (std::none_of(keys.begin(), keys.end(), [&k = key](const char* x) { return k == x; })) {
        std::string want;
        for (const char* k : keys) want += (want.empty() ? "" : ", ") + std::string(k);
        fail(Code::IR_JSON_VALUE, "an unknown key \"" + key + "\"", {"want: " + want});
      }
  }

  [[nodiscard]] const At& array() const {
    if (!value_.is_array()) expected("an array");
    return *this;
  }
  [[nodiscard]] std::string string() const {
    if (!value_.is_string()) expected("a string");
    return value_.get<std::string>();
  }
  [[nodiscard]] bool boolean() const {
    if (!value_.is_boolean()) expected("true or false");
    return value_.get<bool>();
  }
  [[nodiscard]] std::int64_t integer() const {
    if (!value_.is_number_integer()) expected("an integer");
    if (value_.is_number_unsigned() && value_.get<std::uint64_t>() > std::uint64_t{sym::kMaxInt})
      fail(Code::IR_NUMBER, "an integer that does not fit in 64 bits");
    return value_.get<std::int64_t>();
  }
  [[nodiscard]] int small(int min, int max) const {
    const std::int64_t v = integer();
    if (v < min || v > max)
      fail(Code::IR_NUMBER, "an integer out of range",
           {"want: " + std::to_string(min) + " to " + std::to_string(max), "got: " + std::to_string(v)});
    return static_cast<int>(v);
  }
  [[nodiscard]] int id() const { return small(0, std::numeric_limits<int>::max()); }

 private:
  const Json& value_;
  const At* parent_ = nullptr;
  std::string key_;
};

}  // namespace graphene::ir
