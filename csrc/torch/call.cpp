#include "torch/call.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <numeric>
#include <unordered_map>

namespace graphene::torch {

namespace {

int trailing_zeros(std::uint64_t x, int at_most) { return x == 0 ? at_most : std::min(std::countr_zero(x), at_most); }

// Four steps to a factor of two.
int magnitude(std::uint64_t n) {
  const int bits = std::bit_width(n);
  const std::uint64_t next = bits > 2 ? n >> (bits - 3) : n << (3 - bits);
  return bits * 4 + static_cast<int>(next & 3U);
}

// Words of a tensor in the key: one for what it is, then its shape, then its strides.
std::int64_t head_word(const runtime::TensorArg& t) {
  const auto align = static_cast<std::uint64_t>(trailing_zeros(reinterpret_cast<std::uintptr_t>(t.data), 7));
  return static_cast<std::int64_t>(
      static_cast<std::uint64_t>(t.code) | static_cast<std::uint64_t>(t.bits) << 8 |
      static_cast<std::uint64_t>(t.lanes) << 16 | static_cast<std::uint64_t>(t.ndim & 0xff) << 32 | align << 40 |
      static_cast<std::uint64_t>(t.device.id & 0xff) << 44 | static_cast<std::uint64_t>(t.device.type & 0xff) << 52);
}
int ndim_of(std::int64_t head) { return static_cast<int>(static_cast<std::uint64_t>(head) >> 32 & 0xff); }
// Behind the words of an argument.
const std::int64_t* skip(const Param& p, const std::int64_t* w) {
  const auto tensor = [&] { w += 1 + 2 * ndim_of(*w); };
  switch (p.kind) {
    case ParamKind::Tensor:
    case ParamKind::OptionalTensor:
      tensor();
      return w;
    case ParamKind::TensorList:
      for (std::int64_t n = *w++; n > 0; --n) tensor();
      return w;
    case ParamKind::IntList:
    case ParamKind::BoolList:
    case ParamKind::StringList:
      return w + 1 + *w;
    default:
      return w + 1;
  }
}

// Strings that calls were given, by number, kept for good. The interpreter's lock guards them.
struct Texts {
  std::deque<std::string> all;
  std::unordered_map<std::string_view, std::int64_t> numbers;
};
Texts& texts() {
  static Texts t;
  return t;
}

std::uint64_t item_bytes_of(std::int64_t head) { return (static_cast<std::uint64_t>(head) >> 8 & 0xff) / 8; }

// A dimension of more than one element. Elements go in both directions from one another: signs do not matter.
struct Line {
  std::int64_t stride;  // 0 or more
  std::int64_t extent;
};

enum class Apart : std::uint8_t { Yes, No, Unknown };

constexpr int kMaxSteps = 1 << 22;  // some hundredths of a second

// Whether two elements, `offset` apart along the lines after the first `count`, can be at one address: whether steps
// below the extents along these sum up to -offset. `reach[i]`: how far the first i lines go together.
bool meet(const std::vector<Line>& lines, const std::vector<std::int64_t>& reach,
          const std::vector<std::int64_t>& divisor, std::size_t count, std::int64_t offset, bool moved, int& steps) {
  if (count == 0) return offset == 0 && moved;
  if (++steps > kMaxSteps || offset % divisor[count] != 0) return false;
  const auto& [stride, extent] = lines[count - 1];
  const std::int64_t most = extent - 1, left = reach[count - 1];
  // -left <= offset + step * stride <= left; the division rounds towards 0, the next step is looked at, too.
  const std::int64_t first = std::max(-most, (-left - offset) / stride - 1);
  // Of two steps with opposite signs one is enough until something has moved.
  for (std::int64_t step = moved ? first : std::max<std::int64_t>(first, 0); step <= most; ++step) {
    const std::int64_t next = offset + step * stride;
    if (next > left) break;
    if (next < -left) continue;
    if (meet(lines, reach, divisor, count - 1, next, moved || step != 0, steps)) return true;
    if (steps > kMaxSteps) return false;
  }
  return false;
}

// Whether every element has an address of its own.
Apart lies_apart(const runtime::TensorArg& t) {
  std::vector<Line> lines;
  for (int d = 0; d < t.ndim; ++d) {
    if (t.shape[d] == 0) return Apart::Yes;
    if (t.shape[d] > 1) lines.push_back({std::abs(t.stride(d)), t.shape[d]});
  }
  std::ranges::sort(lines, {}, &Line::stride);
  if (!lines.empty() && lines.front().stride == 0) return Apart::No;
  std::vector<std::int64_t> reach = {0}, divisor = {0};
  bool steps_over = true;  // each line over what lies below
  for (const auto& [stride, extent] : lines) {
    steps_over = steps_over && stride > reach.back();
    reach.push_back(reach.back() + stride * (extent - 1));
    divisor.push_back(std::gcd(divisor.back(), stride));
  }
  if (steps_over) return Apart::Yes;
  int steps = 0;
  if (meet(lines, reach, divisor, lines.size(), 0, false, steps)) return Apart::No;
  return steps > kMaxSteps ? Apart::Unknown : Apart::Yes;
}

std::string text_of(const runtime::TensorArg& t) {
  std::string shape, strides;
  for (int d = 0; d < t.ndim; ++d) {
    shape += (d > 0 ? "," : "") + std::to_string(t.shape[d]);
    strides += (d > 0 ? "," : "") + std::to_string(t.stride(d));
  }
  return "[" + shape + ":" + strides + "]";
}

}  // namespace

std::int64_t alignment_of(const void* address) {
  return std::int64_t{1} << trailing_zeros(reinterpret_cast<std::uintptr_t>(address), 7);
}

void Call::add(const runtime::TensorArg& t) {
  if (tensor_count_ == kMaxTensors || size_ + 1 + 2 * static_cast<std::size_t>(t.ndim) > kMaxWords) {
    overflow_ = true;
    return;
  }
  new (&tensors_[tensor_count_++]) runtime::TensorArg(t);
  words_[size_++] = head_word(t);
  for (int d = 0; d < t.ndim; ++d) words_[size_++] = t.shape[d];
  for (int d = 0; d < t.ndim; ++d) words_[size_++] = t.strides != nullptr ? t.strides[d] : t.stride(d);
}

void Call::add_absent() {
  if (tensor_count_ == kMaxTensors) {
    overflow_ = true;
    return;
  }
  runtime::TensorArg none;
  none.lanes = 0;
  new (&tensors_[tensor_count_++]) runtime::TensorArg(none);
  word(0);
}

void Call::add(std::int64_t w) { word(w); }

void Call::add(double number) { word(std::bit_cast<std::int64_t>(number == 0 ? 0.0 : number)); }

void Call::add(const Param& p, std::string_view text, const std::string& op) {
  for (std::size_t i = 0; i < p.choices.size(); ++i)
    if (p.choices[i] == text) {
      word(static_cast<std::int64_t>(i));
      return;
    }
  std::string known = "None";
  for (const std::string& c : p.choices) known += ", \"" + c + "\"";
  fail(Code::OP_ARGUMENT, op + ": no " + p.name + " is called \"" + std::string(text) + "\"", {"known: " + known},
       "pass one of them");
}

void Call::add(const std::int64_t* list, std::size_t count) {
  word(static_cast<std::int64_t>(count));
  for (std::size_t i = 0; i < count; ++i) word(list[i]);
}

void Call::add_text(std::string_view text) {
  Texts& t = texts();
  auto it = t.numbers.find(text);
  if (it == t.numbers.end())
    it = t.numbers.emplace(t.all.emplace_back(text), static_cast<std::int64_t>(t.numbers.size())).first;
  word(it->second);
}

std::uint64_t Call::hash() const {
  std::uint64_t h = size_;
  for (std::size_t i = 0; i < size_; ++i) {
    h = (h ^ static_cast<std::uint64_t>(words_[i])) * 0x9E3779B97F4A7C15U;
    h ^= h >> 29;
  }
  return h;
}

std::vector<std::int64_t> class_key(const Call& call, const std::vector<Param>& params) {
  std::vector<std::int64_t> out;
  std::vector<std::int64_t> numbers(params.size());  // of the parameters that are one word
  const std::int64_t* w = call.key();
  for (std::size_t i = 0; i < params.size(); ++i) {
    numbers[i] = *w;
    w = skip(params[i], w);
  }
  w = call.key();
  const auto add_tensor = [&](const Param& p) {
    const std::int64_t head = *w++;
    const int n = ndim_of(head);
    const std::uint64_t bytes = std::max<std::uint64_t>(item_bytes_of(head), 1);
    const std::int64_t *shape = w, *strides = w + n;
    const std::uint64_t align = static_cast<std::uint64_t>(head) >> 40 & 0xf;  // beyond 16 bytes: all the same
    out.push_back(static_cast<std::int64_t>((static_cast<std::uint64_t>(head) & ~(std::uint64_t{0xf} << 40)) |
                                            std::min<std::uint64_t>(align, 4) << 40));
    const std::int64_t named = p.exact_by < 0 ? -1 : numbers[static_cast<std::size_t>(p.exact_by)];
    for (int d = 0; d < n; ++d) {
      const auto extent = static_cast<std::uint64_t>(shape[d]), stride = static_cast<std::uint64_t>(strides[d]);
      const bool by_name = p.exact_by >= 0 && (d == named || d == named + n);
      const bool exact = extent <= 1 || d >= n - p.exact_dims || by_name;
      // Divisibility matters along lines in memory and, in results, along the last dimension.
      const int divisor = d == n - 1 || stride == 1 ? trailing_zeros(extent * bytes, 4) : 0;
      out.push_back(exact ? shape[d] : -1 - (magnitude(extent) * 8 + divisor));
      int next = d + 1;  // a dimension of one element lies anywhere
      while (next < n && shape[next] == 1) ++next;
      const bool merges = next < n && strides[d] == strides[next] * shape[next];
      const int kind = stride == 0 ? 0 : stride == 1 ? 1 : 2 + trailing_zeros(stride * bytes, 4);
      const bool far = stride >= std::uint64_t{1} << 31;  // more than some kernels count
      out.push_back((kind * 2 + (merges ? 1 : 0)) * 2 + (far ? 1 : 0));
    }
    w += 2 * n;
  };
  for (const Param& p : params) {
    if (p.is_tensor()) {
      add_tensor(p);
    } else if (p.kind == ParamKind::TensorList) {
      out.push_back(*w);
      for (std::int64_t n = *w++; n > 0; --n) add_tensor(p);
    } else {
      const std::int64_t* const end = skip(p, w);
      out.insert(out.end(), w, end);
      w = end;
    }
  }
  return out;
}

void check_written(const Call& call, const std::vector<Param>& params, const std::string& op) {
  std::size_t i = 0;
  for (const Param& p : params) {
    if (!p.is_tensor()) continue;
    const std::size_t mine = i++;
    if (!p.written || !call.present(mine)) continue;
    const runtime::TensorArg& t = call.tensors()[mine];
    if (const Apart apart = lies_apart(t); apart != Apart::Yes)
      fail(Code::OP_OUT,
           op + ": argument '" + p.name +
               (apart == Apart::No ? "' has several elements at one address"
                                   : "' has strides of which it takes too long to know whether elements lie apart"),
           {p.name + ": " + text_of(t)}, "pass a tensor whose elements lie apart, or leave " + p.name + "= out");
    std::size_t k = 0;
    for (const Param& q : params) {
      if (!q.is_tensor()) continue;
      const std::size_t other = k++;
      if (other == mine || !call.present(other) || !runtime::overlap(t, call.tensors()[other])) continue;
      fail(Code::OP_OUT, op + ": arguments '" + p.name + "' and '" + q.name + "' share memory",
           {p.name + ": " + text_of(t), q.name + ": " + text_of(call.tensors()[other])},
           "pass another tensor: arguments are read while the result is written");
    }
  }
}

std::vector<ScalarValue> scalars_of(const Call& call, const std::vector<Param>& params) {
  std::vector<ScalarValue> out;
  const std::int64_t* w = call.key();
  for (const Param& p : params) {
    if (p.holds_tensors()) {
      w = skip(p, w);
      continue;
    }
    ScalarValue v;
    v.kind = p.kind;
    v.i = *w++;
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
        for (std::int64_t k = 0; k < v.i; ++k) v.texts.push_back(texts().all[static_cast<std::size_t>(w[k])]);
        [[fallthrough]];
      case ParamKind::IntList:
      case ParamKind::BoolList:
        v.list.assign(w, w + v.i);
        w += v.i;
        break;
      default:
        break;
    }
    out.push_back(std::move(v));
  }
  return out;
}

std::vector<std::size_t> tensor_counts(const Call& call, const std::vector<Param>& params) {
  std::vector<std::size_t> out;
  const std::int64_t* w = call.key();
  for (const Param& p : params) {
    out.push_back(p.is_tensor() ? 1 : p.kind == ParamKind::TensorList ? static_cast<std::size_t>(*w) : 0);
    w = skip(p, w);
  }
  return out;
}

}  // namespace graphene::torch
