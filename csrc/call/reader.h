// The one reader of a call's arguments, whatever they come from.
//
// A source hands out what stands in the i-th place as what the parameter declares, or says why not:
//
//   bool absent(i)                      an optional argument was left out
//   Read tensor(i, p, TensorArg&)       every field of it, whatever it held
//   Read list(i, p, std::size_t&)       the length of a list
//   Read item(i, k, p, TensorArg&)      ... its k-th tensor
//   Read item(i, k, p, std::int64_t&)   ... its k-th integer or truth value
//   Read item(i, k, p, std::string_view&)
//   Read integer(i, p, std::int64_t&), boolean(...), dtype(...)
//   Read number(i, p, double&)
//   Read text(i, p, std::string_view&)
//   Read packed(i, p, std::uint64_t&)   a Number in the bits of its type
#pragma once

#include "call/arguments.h"

namespace graphene::call {

enum class Read : std::uint8_t {
  Yes,
  NotHere,  // this source does not take it: who called it knows another way
  Error,    // the source has said what is wrong
};

template <class Source>
[[nodiscard]] Read read_one(const Param& p, std::size_t i, Source& from, Arguments& to, const std::string& callee) {
  if (p.kind == ParamKind::Tensor) [[likely]] {
    const Read r = from.tensor(i, p, to.next());
    if (r == Read::Yes) to.add_next(p.align);
    return r;
  }
  const auto word = [&](Read (Source::*ask)(std::size_t, const Param&, std::int64_t&)) {
    std::int64_t w = 0;
    const Read r = (from.*ask)(i, p, w);
    if (r == Read::Yes) to.add(w);
    return r;
  };
  const auto number = [&] {
    double x = 0;
    const Read r = from.number(i, p, x);
    if (r == Read::Yes) to.add(x);
    return r;
  };
  const auto items = [&](auto&& one) {
    std::size_t n = 0;
    Read r = from.list(i, p, n);
    if (r == Read::Yes && p.count == 0) to.add(static_cast<std::int64_t>(n));
    for (std::size_t k = 0; k < n && r == Read::Yes; ++k) r = one(k);
    return r;
  };
  switch (p.kind) {
    case ParamKind::OptionalTensor:
      if (from.absent(i)) {
        to.add_absent();
        return Read::Yes;
      }
      [[fallthrough]];
    case ParamKind::Tensor: {
      const Read r = from.tensor(i, p, to.next());
      if (r == Read::Yes) to.add_next(p.align);
      return r;
    }
    case ParamKind::TensorList:
      return items([&](std::size_t k) {
        const Read r = from.item(i, k, p, to.next());
        if (r == Read::Yes) to.add_next(p.align);
        return r;
      });
    case ParamKind::Number: {
      std::uint64_t bits = 0;
      const Read r = from.packed(i, p, bits);
      if (r == Read::Yes) to.add_number(p, bits);
      return r;
    }
    case ParamKind::Int:
      return word(&Source::integer);
    case ParamKind::Bool:
      return word(&Source::boolean);
    case ParamKind::OptionalFloat:
      if (!from.absent(i)) return number();
      break;
    case ParamKind::Float:
      return number();
    case ParamKind::OptionalDtype:
      if (!from.absent(i)) return word(&Source::dtype);
      break;
    case ParamKind::OptionalString: {
      if (from.absent(i)) break;
      std::string_view text;
      const Read r = from.text(i, p, text);
      if (r == Read::Yes) to.add(p, text, callee);
      return r;
    }
    case ParamKind::IntList:
    case ParamKind::BoolList:
      return items([&](std::size_t k) {
        std::int64_t w = 0;
        const Read r = from.item(i, k, p, w);
        if (r == Read::Yes) to.add(w);
        return r;
      });
    case ParamKind::StringList:
      return items([&](std::size_t k) {
        std::string_view text;
        const Read r = from.item(i, k, p, text);
        if (r == Read::Yes) to.add_text(text);
        return r;
      });
  }
  to.add(kNone);
  return Read::Yes;
}

// Reads all arguments; stops at the first that is not `Yes`. `callee`: for messages. Throws what the source throws, and
// OP_ARGUMENT for a text that is not among the choices.
template <class Source>
[[nodiscard]] Read read(const std::vector<Param>& params, Source& from, Arguments& to, const std::string& callee) {
  std::size_t i = 0;
  for (const Param& p : params)
    if (const Read r = read_one(p, i++, from, to, callee); r != Read::Yes) return r;
  return Read::Yes;
}

}  // namespace graphene::call
