// Arguments that say in Python's words what was wanted: pybind11 alone answers a wrong type with the C++ signature.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bind/bind.h"

namespace graphene::bind {

template <std::size_t N>
struct ArgumentName {
  char text[N]{};
  constexpr ArgumentName(const char (&t)[N]) { std::copy_n(t, N, text); }  // NOLINT(google-explicit-constructor)
};

// A parameter of a bound function without overloads: Arg<"unroll", int>.
template <ArgumentName name, class T>
struct Arg {
  T value{};
  operator const T&() const { return value; }  // NOLINT(google-explicit-constructor)
};

template <class T>
inline constexpr const char* kWanted = "";
template <>
inline constexpr const char* kWanted<int> = "an integer of 32 bits";
template <>
inline constexpr const char* kWanted<std::int64_t> = "an integer of 64 bits";
template <>
inline constexpr const char* kWanted<std::uint64_t> = "an integer from 0 to 2^64 - 1";
template <>
inline constexpr const char* kWanted<std::optional<std::int64_t>> = "an integer of 64 bits or None";
template <>
inline constexpr const char* kWanted<bool> = "True or False";
template <>
inline constexpr const char* kWanted<std::string> = "a string";
template <>
inline constexpr const char* kWanted<std::vector<std::int64_t>> = "a list of integers of 64 bits";
template <>
inline constexpr const char* kWanted<std::vector<std::string>> = "a list of strings";
template <>
inline constexpr const char* kWanted<std::map<std::string, std::int64_t>> = "integers of 64 bits by name";
template <>
inline constexpr const char* kWanted<Expr> = "an integer or a symbolic integer";
template <>
inline constexpr const char* kWanted<Layout> = "a Layout";
template <>
inline constexpr const char* kWanted<Swizzle> = "a Swizzle";

// The value as a T; TypeError that names the argument where it is none.
template <class T>
T value_from_py(py::handle h, const char* name) {
  static_assert(*kWanted<T> != '\0');
  py::detail::make_caster<T> c;
  // bytes would pass for a string
  if (!PyBytes_Check(h.ptr()) && c.load(h, true)) return py::detail::cast_op<T>(c);
  PyErr_Clear();
  if constexpr (std::is_same_v<T, std::string>)
    if (PyUnicode_Check(h.ptr())) return printable_text(h);  // with half of a surrogate pair, which no text has
  throw py::type_error(std::string(name) + " must be " + kWanted<T> + ", got " + shown(h));
}

}  // namespace graphene::bind

template <graphene::bind::ArgumentName kLabel, class T>
struct pybind11::detail::type_caster<graphene::bind::Arg<kLabel, T>> {
  using Value = graphene::bind::Arg<kLabel, T>;
  PYBIND11_TYPE_CASTER(Value, const_name("value"));
  bool load(handle src, bool) {
    value.value = graphene::bind::value_from_py<T>(src, kLabel.text);
    return true;
  }
};
