#include "atoms/parse.h"

#include <algorithm>
#include <cctype>
#include <optional>

namespace graphene::atoms {

namespace {

// Integer tuples of the schema's strings: "4", "(2,(2,4))", "_" where a stride may be anything.
class Reader {
 public:
  Reader(std::string_view text, const std::string& what) : text_(text), what_(what) {}

  [[noreturn]] void bad(const std::string& why) const {
    fail(Code::ATOM_SYNTAX,
         what_ + ": " + why + " at character " + std::to_string(pos_) + " of \"" + std::string(text_) + "\"");
  }
  [[nodiscard]] bool at(char c) const { return pos_ < text_.size() && text_[pos_] == c; }
  [[nodiscard]] bool done() const { return pos_ == text_.size(); }
  bool take(char c) {
    if (!at(c)) return false;
    ++pos_;
    return true;
  }
  void need(char c) {
    if (!take(c)) bad(std::string("expected `") + c + "`");
  }
  std::string word() {
    const std::size_t start = pos_;
    while (pos_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[pos_])) || text_[pos_] == '_')) ++pos_;
    return std::string(text_.substr(start, pos_ - start));
  }
  std::int64_t integer() {
    if (pos_ >= text_.size() || !std::isdigit(static_cast<unsigned char>(text_[pos_]))) bad("expected an integer");
    std::int64_t v = 0;
    while (pos_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[pos_]))) {
      v = v * 10 + (text_[pos_++] - '0');
      if (v > 1'000'000'000) bad("integer too large");
    }
    return v;
  }
  // A leaf or a parenthesised tuple. `any` receives one flag per leaf; null: "_" is refused.
  IntTuple tuple(std::vector<bool>* any, int depth = 0) {
    if (depth > 8) bad("nested too deeply");
    if (take('(')) {
      std::vector<IntTuple> modes;
      do modes.push_back(tuple(any, depth + 1));
      while (take(','));
      need(')');
      return IntTuple(std::move(modes));
    }
    if (any != nullptr && take('_')) {
      any->push_back(true);
      return IntTuple(0);
    }
    if (any != nullptr) any->push_back(false);
    return IntTuple(integer());
  }
  std::vector<IntTuple> list(std::vector<bool>* any) {
    std::vector<IntTuple> modes;
    do modes.push_back(tuple(any));
    while (take(','));
    return modes;
  }

 private:
  std::string_view text_;
  const std::string& what_;
  std::size_t pos_ = 0;
};

IntTuple as_tuple(std::vector<IntTuple> modes) {
  return modes.size() == 1 ? modes.front() : IntTuple(std::move(modes));
}

Layout checked_layout(const IntTuple& shape, const IntTuple& stride, const Reader& r) {
  if (!congruent(shape, stride)) r.bad("shape and strides of different form");
  return Layout(shape, stride);
}

// Sizes of nonsense are refused before anything multiplies them.
void check_size(const IntTuple& shape, std::int64_t times, const Reader& r) {
  constexpr std::int64_t kLargest = 1 << 20;
  for (const Expr& e : shape.leaves()) {
    if (e.value() > kLargest / std::max<std::int64_t>(times, 1))
      r.bad("more than " + std::to_string(kLargest) + " elements");
    times *= e.value();
  }
}

// "4:1", "(4,8):(32,1)"
Layout shape_stride(Reader& r) {
  const IntTuple shape = r.tuple(nullptr);
  check_size(shape, 1, r);
  r.need(':');
  return checked_layout(shape, r.tuple(nullptr), r);
}

}  // namespace

std::int64_t FlatLayout::size() const {
  std::int64_t n = 1;
  for (const std::int64_t s : shape) n *= s;
  return n;
}

bool TypePattern::accepts(ir::Memory m) const {
  for (const ir::Memory x : memories) {
    if (x == m) return true;
  }
  return false;
}

bool TypePattern::accepts(ir::ScalarType t) const {
  for (const ir::ScalarType x : dtypes) {
    if (x == t) return true;
  }
  return false;
}

FlatLayout flatten(const Layout& l) {
  FlatLayout f;
  for (const Expr& e : l.shape().leaves()) f.shape.push_back(e.value());
  for (const Expr& e : l.stride().leaves()) f.stride.push_back(e.value());
  return f;
}

TypePattern parse_pattern(std::string_view text, const std::string& what, std::vector<bool>* strided) {
  Reader r(text, what);
  TypePattern p;
  std::int64_t size = 1;
  strided->clear();
  do {
    r.need('[');
    if (r.take(']')) {
      if (!p.levels.empty() || !r.at('.')) r.bad("`[]` stands alone");
      break;
    }
    const IntTuple shape = as_tuple(r.list(nullptr));
    check_size(shape, size, r);
    size *= shape.product().value();
    std::vector<bool> any;
    if (r.take(':')) {
      const IntTuple stride = as_tuple(r.list(&any));
      p.levels.push_back(checked_layout(shape, stride, r));
      strided->push_back(true);
    } else {
      p.levels.emplace_back(shape);
      any.assign(shape.leaves().size(), false);
      strided->push_back(false);
    }
    for (const Expr& e : shape.leaves()) {
      if (e.value() < 1) r.bad("an extent below 1");
    }
    p.any_stride.push_back(std::move(any));
    r.need(']');
    if (!r.at('.')) r.bad("expected `.`");
    Reader ahead = r;
    ahead.take('.');
    if (!ahead.at('[')) break;
    r.take('.');
  } while (true);
  r.need('.');
  p.dtype_class = r.word();
  const std::optional<ir::ScalarType> t = ir::scalar_type_from_name(p.dtype_class);
  if (!t) r.bad("`" + p.dtype_class + "` is not a scalar type");
  if (ir::info(*t).cls == ir::ScalarInfo::Class::Bits) {
    for (int i = 0; i < static_cast<int>(ir::ScalarType::b4); ++i) {
      const auto candidate = static_cast<ir::ScalarType>(i);
      const bool data = ir::info(candidate).cls != ir::ScalarInfo::Class::Barrier;
      if (data && ir::bits(candidate) == ir::bits(*t)) p.dtypes.push_back(candidate);
    }
  } else {
    p.dtypes.push_back(*t);
  }
  r.need('.');
  do {
    const std::string w = r.word();
    const std::optional<ir::Memory> m = ir::memory_from_name(w);
    if (m) {
      p.memories.push_back(*m);
    } else if (w == "IMM") {
      p.immediate = true;
    } else {
      r.bad("`" + w + "` is not a memory (GL, SH, RF, IMM)");
    }
  } while (r.take('|'));
  if (!r.done()) r.bad("unexpected text");
  return p;
}

void parse_tile(std::string_view text, const std::string& what, std::vector<std::string>* axes,
                std::vector<std::int64_t>* extents) {
  axes->clear();
  extents->clear();
  if (text.empty()) return;
  Reader r(text, what);
  do {
    const std::string w = r.word();
    const std::size_t digits = w.find_first_of("0123456789");
    if (digits == 0 || digits == std::string::npos || w.find_first_not_of("0123456789", digits) != std::string::npos ||
        w.size() - digits > 9) {
      r.bad("expected an axis such as m16");
    }
    axes->push_back(w.substr(0, digits));
    extents->push_back(std::stoll(w.substr(digits)));
    if (extents->back() < 1) r.bad("an extent below 1");
    for (std::size_t i = 0; i + 1 < axes->size(); ++i) {
      if ((*axes)[i] == axes->back()) r.bad("axis `" + axes->back() + "` twice");
    }
  } while (r.take(','));
  if (!r.done()) r.bad("unexpected text");
}

Layout parse_tv(std::string_view text, const std::string& what) {
  Reader r(text, what);
  const Layout thread = shape_stride(r);
  r.need(';');
  const Layout value = shape_stride(r);
  if (!r.done()) r.bad("unexpected text");
  return Layout(IntTuple({thread.shape(), value.shape()}), IntTuple({thread.stride(), value.stride()}));
}

Layout parse_threads(std::string_view text, const std::string& what) {
  Reader r(text, what);
  r.need('[');
  const IntTuple shape = as_tuple(r.list(nullptr));
  check_size(shape, 1, r);
  std::optional<Layout> l;
  if (r.take(':')) l = checked_layout(shape, as_tuple(r.list(nullptr)), r);
  r.need(']');
  if (!r.done()) r.bad("unexpected text");
  return l ? *l : Layout(shape);
}

SizeFact parse_fact(std::string_view text, const std::string& name, const std::string& what) {
  std::string compact;
  for (const char c : text) {
    if (c != ' ') compact += c;
  }
  const bool of_size = compact.starts_with("bytes(");
  const std::string head = (of_size ? "bytes(" : "align(") + name + ")%";
  const std::string tail = "==0";
  Reader r(text, what);
  if (compact.rfind(head, 0) != 0 || compact.size() <= head.size() + tail.size() ||
      compact.compare(compact.size() - tail.size(), tail.size(), tail) != 0) {
    r.bad("expected a fact such as \"align(" + name + ") % 16 == 0\"");
  }
  const std::string digits = compact.substr(head.size(), compact.size() - head.size() - tail.size());
  if (digits.find_first_not_of("0123456789") != std::string::npos || digits.size() > 6) {
    r.bad("expected a number of bytes");
  }
  const int bytes = std::stoi(digits);
  if (bytes < 1 || (bytes & (bytes - 1)) != 0) r.bad("an alignment that is not a power of two");
  return {of_size, bytes};
}

}  // namespace graphene::atoms
