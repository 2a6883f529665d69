#include "call/arguments.h"

#include <deque>
#include <unordered_map>

#include "runtime/launch.h"
#include "runtime/strides.h"

namespace graphene::call {

namespace {

int trailing_zeros(std::uint64_t x, int at_most) { return x == 0 ? at_most : std::min(std::countr_zero(x), at_most); }

// Four steps to a factor of two.
int magnitude(std::uint64_t n) {
  const int bits = std::bit_width(n);
  const std::uint64_t next = bits > 2 ? n >> (bits - 3) : n << (3 - bits);
  return bits * 4 + static_cast<int>(next & 3U);
}

// Tensors and scalar words of a call, parameter by parameter.
class Walk {
 public:
  explicit Walk(const Arguments& call) : word_(call.words()) {}
  // How many tensors the parameter stands for.
  std::size_t tensors(const Param& p) {
    if (p.is_tensor()) return 1;
    return static_cast<std::size_t>(p.count != 0 ? p.count : *word_++);
  }
  std::size_t next_tensor() { return tensor_++; }
  // The words of a scalar.
  std::pair<const std::int64_t*, const std::int64_t*> words(const Param& p) {
    const std::int64_t* const first = word_;
    if (p.kind == ParamKind::IntList || p.kind == ParamKind::BoolList || p.kind == ParamKind::StringList)
      word_ += 1 + *word_;
    else
      ++word_;
    return {first, word_};
  }

 private:
  const std::int64_t* word_;
  std::size_t tensor_ = 0;
};

// Strings that calls were given, by number, kept for good. The interpreter's lock guards them.
struct Texts {
  std::deque<std::string> all;
  std::unordered_map<std::string_view, std::int64_t> numbers;
};
Texts& texts() {
  static Texts t;
  return t;
}

std::string text_of(const runtime::TensorArg& t) {
  std::string shape, strides;
  for (int d = 0; d < t.ndim; ++d) {
    shape += (d > 0 ? "," : "") + std::to_string(t.shape[d]);
    strides += (d > 0 ? "," : "") + std::to_string(t.stride(d));
  }
  return "[" + shape + ":" + strides + "]";
}

// A tensor of a call, and what messages call it: "x", "weights[1]".
struct Named {
  std::string name;
  std::size_t index;
  bool written;
};
std::vector<Named> named_tensors(const Arguments& call, const std::vector<Param>& params) {
  std::vector<Named> out;
  Walk walk(call);
  for (const Param& p : params) {
    if (!p.holds_tensors()) {
      walk.words(p);
      continue;
    }
    const std::size_t n = walk.tensors(p);
    for (std::size_t k = 0; k < n; ++k) {
      const std::size_t i = walk.next_tensor();
      const std::string name = p.kind == ParamKind::TensorList ? p.name + "[" + std::to_string(k) + "]" : p.name;
      if (call.present(i)) out.push_back({name, i, p.written});
    }
  }
  return out;
}

void add_class(const runtime::TensorArg& t, std::int64_t head, const Param& p, std::int64_t named,
               std::vector<std::int64_t>& out) {
  const int n = t.ndim;
  const std::uint64_t bytes = std::max<std::uint64_t>(t.bits / 8, 1);
  const std::uint64_t align = static_cast<std::uint64_t>(head) >> 40 & 0xf;  // beyond 16 bytes: all the same
  out.push_back(static_cast<std::int64_t>((static_cast<std::uint64_t>(head) & ~(std::uint64_t{0xf} << 40)) |
                                          std::min<std::uint64_t>(align, 4) << 40));
  for (int d = 0; d < n; ++d) {
    const auto extent = static_cast<std::uint64_t>(t.shape[d]), stride = static_cast<std::uint64_t>(t.stride(d));
    const bool by_name = p.exact_by >= 0 && (d == named || d == named + n);
    const bool exact = extent <= 1 || d >= n - p.exact_dims || by_name;
    // Divisibility matters along lines in memory and, in results, along the last dimension.
    const int divisor = d == n - 1 || stride == 1 ? trailing_zeros(extent * bytes, 4) : 0;
    out.push_back(exact ? t.shape[d] : -1 - (magnitude(extent) * 8 + divisor));
    int next = d + 1;  // a dimension of one element lies anywhere
    while (next < n && t.shape[next] == 1) ++next;
    const bool merges = next < n && t.stride(d) == t.stride(next) * t.shape[next];
    const int kind = stride == 0 ? 0 : stride == 1 ? 1 : 2 + trailing_zeros(stride * bytes, 4);
    const bool far = stride >= std::uint64_t{1} << 31;  // more than some kernels count
    out.push_back((kind * 2 + (merges ? 1 : 0)) * 2 + (far ? 1 : 0));
  }
}

}  // namespace

std::vector<Param> params_of(const runtime::LaunchManifest& m) {
  std::vector<Param> out;
  const auto decides = runtime::scalars_in_sizes(m);
  std::size_t scalar = 0;
  for (const runtime::ArgSpec& a : m.args) {
    Param p{.name = a.name};
    if (a.kind == runtime::ArgKind::Scalar) {
      p.kind = ParamKind::Number;
      p.dtype = a.dtype;
      p.decides_sizes = decides[scalar++];
    } else {
      p.kind = a.list_count == 0 ? ParamKind::Tensor : ParamKind::TensorList;
      p.count = a.list_count;
      p.written = a.access != runtime::Access::Read;
      p.align = trailing_zeros(static_cast<std::uint64_t>(a.align_bytes), 15);
    }
    out.push_back(std::move(p));
  }
  return out;
}

std::int64_t alignment_of(const void* address) {
  return std::int64_t{1} << trailing_zeros(reinterpret_cast<std::uintptr_t>(address), kMaxAlign);
}

void Arguments::add(const Param& p, std::string_view text, const std::string& op) {
  for (std::size_t i = 0; i < p.choices.size(); ++i)
    if (p.choices[i] == text) {
      add(static_cast<std::int64_t>(i));
      return;
    }
  std::string known = "None";
  for (const std::string& c : p.choices) known += ", \"" + c + "\"";
  fail(Code::OP_ARGUMENT, op + ": no " + p.name + " is called \"" + std::string(text) + "\"", {"known: " + known},
       "pass one of them");
}

void Arguments::add_text(std::string_view text) {
  Texts& t = texts();
  auto it = t.numbers.find(text);
  if (it == t.numbers.end())
    it = t.numbers.emplace(t.all.emplace_back(text), static_cast<std::int64_t>(t.numbers.size())).first;
  add(it->second);
}

std::vector<std::int64_t> class_key(const Arguments& call, const std::vector<Param>& params) {
  std::vector<std::int64_t> numbers(params.size());  // of the parameters that are one word
  Walk first(call);
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i].holds_tensors())
      first.tensors(params[i]);
    else
      numbers[i] = *first.words(params[i]).first;
  }
  std::vector<std::int64_t> out;
  Walk walk(call);
  for (const Param& p : params) {
    if (!p.holds_tensors()) {
      const auto [from, to] = walk.words(p);
      out.insert(out.end(), from, to);
      continue;
    }
    const std::size_t n = walk.tensors(p);
    if (p.kind == ParamKind::TensorList) out.push_back(static_cast<std::int64_t>(n));
    const std::int64_t named = p.exact_by < 0 ? -1 : numbers[static_cast<std::size_t>(p.exact_by)];
    for (std::size_t k = 0; k < n; ++k) {
      const std::size_t i = walk.next_tensor();
      add_class(call.tensor(i), call.head(i), p, named, out);
    }
  }
  return out;
}

void check_written(const Arguments& call, const std::vector<Param>& params, const std::string& op) {
  const auto all = named_tensors(call, params);
  for (const Named& x : all) {
    if (!x.written) continue;
    const runtime::TensorArg& t = call.tensor(x.index);
    if (const runtime::Meet meet = runtime::elements_meet(t); meet != runtime::Meet::No)
      fail(Code::OP_OUT,
           op + ": argument '" + x.name +
               (meet == runtime::Meet::Yes
                    ? "' has several elements at one address"
                    : "' has strides of which it takes too long to know whether elements lie apart"),
           {x.name + ": " + text_of(t)}, "pass a tensor whose elements lie apart, or leave " + x.name + "= out");
    for (const Named& y : all) {
      if (y.index == x.index || !runtime::overlap(t, call.tensor(y.index))) continue;
      fail(Code::OP_OUT, op + ": arguments '" + x.name + "' and '" + y.name + "' share memory",
           {x.name + ": " + text_of(t), y.name + ": " + text_of(call.tensor(y.index))},
           "pass another tensor: arguments are read while the result is written");
    }
  }
}

std::vector<bool> written_tensors(const Arguments& call, const std::vector<Param>& params) {
  std::vector<bool> out(call.tensor_count());
  for (const Named& x : named_tensors(call, params)) out[x.index] = x.written;
  return out;
}

std::vector<ScalarValue> scalars_of(const Arguments& call, const std::vector<Param>& params) {
  std::vector<ScalarValue> out;
  Walk walk(call);
  for (const Param& p : params) {
    if (p.holds_tensors()) {
      walk.tensors(p);
      continue;
    }
    const auto [from, to] = walk.words(p);
    ScalarValue v;
    v.kind = p.kind;
    v.i = *from;
    switch (p.kind) {
      case ParamKind::Float:
        v.f = std::bit_cast<double>(v.i);
        break;
      case ParamKind::OptionalFloat:
        v.present = v.i != kNone;
        v.f = std::bit_cast<double>(v.i);
        break;
      case ParamKind::OptionalString:
        v.present = v.i != kNone;
        if (v.present) v.text = p.choices[static_cast<std::size_t>(v.i)];
        break;
      case ParamKind::OptionalDtype:
        v.present = v.i != kNone;
        break;
      case ParamKind::StringList:
        for (const std::int64_t* w = from + 1; w != to; ++w)
          v.texts.push_back(texts().all[static_cast<std::size_t>(*w)]);
        [[fallthrough]];
      case ParamKind::IntList:
      case ParamKind::BoolList:
        v.list.assign(from + 1, to);
        break;
      default:
        break;
    }
    out.push_back(std::move(v));
  }
  return out;
}

std::vector<std::size_t> tensor_counts(const Arguments& call, const std::vector<Param>& params) {
  std::vector<std::size_t> out;
  Walk walk(call);
  for (const Param& p : params) {
    if (!p.holds_tensors()) walk.words(p);
    out.push_back(p.holds_tensors() ? walk.tensors(p) : 0);
  }
  return out;
}

}  // namespace graphene::call
