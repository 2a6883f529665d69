// graphene.IntExpr: symbolic integers that mix with Python ints.
#include <array>

#include "base/diag.h"
#include "bind/arguments.h"
#include "bind/bind.h"
#include "sym/kept.h"

namespace graphene::bind {

namespace {

using Binary = Expr (*)(const Expr&, const Expr&);

Expr add(const Expr& a, const Expr& b) { return a + b; }
Expr subtract(const Expr& a, const Expr& b) { return a - b; }
Expr multiply(const Expr& a, const Expr& b) { return a * b; }
Expr greater(const Expr& a, const Expr& b) { return sym::lt(b, a); }
Expr greater_equal(const Expr& a, const Expr& b) { return sym::le(b, a); }

py::object not_implemented() { return py::reinterpret_borrow<py::object>(Py_NotImplemented); }

template <Binary F>
py::object binary(const PyIntExpr& a, const py::object& b) {
  const auto other = try_expr_from_py(b);
  return other ? expr_to_py(F(a.e, *other)) : not_implemented();
}

template <Binary F>
py::object reversed(const PyIntExpr& a, const py::object& b) {
  const auto other = try_expr_from_py(b);
  return other ? expr_to_py(F(*other, a.e)) : not_implemented();
}

template <Binary F>
py::object comparison(const PyIntExpr& a, const py::object& b) {
  const auto other = try_expr_from_py(b);
  return other ? condition_to_py(F(a.e, *other)) : not_implemented();
}

// & and | join conditions; on other integers they have no meaning here.
template <Binary F>
py::object connective(const PyIntExpr& a, const py::object& b) {
  const auto other = try_expr_from_py(b);
  if (!other || !sym::is_condition(a.e) || !sym::is_condition(*other)) return not_implemented();
  return condition_to_py(F(a.e, *other));
}

bool truth(const PyIntExpr& a) {
  if (const auto known = sym::decide(sym::ne(a.e, 0))) return *known;
  fail(Code::SYM_RUNTIME_BOOL, "the truth of " + a.e.str() + " is known only when the kernel runs",
       {"asked by: a Python if, while, assert, and, or, not, in, min() or max() while the kernel is being built"},
       "gr.if_(condition) for statements, gr.where(condition, a, b) for values, gr.min / gr.max for the smaller or "
       "larger value, & | ~ to join conditions");
}

std::int64_t index(const PyIntExpr& a) {
  const std::int64_t lo = sym::lower_bound(a.e);
  if (lo == sym::upper_bound(a.e) && lo != sym::kMinInt && lo != sym::kMaxInt) return lo;
  fail(Code::SYM_RUNTIME_INT, "the value of " + a.e.str() + " is known only when the kernel runs",
       {"asked by: int(), range() or an index that must be a Python integer"},
       "gr.loop(name, stop) in place of range(stop)");
}

std::vector<Expr> declare(const Arg<"names", std::string>& given, const Arg<"multiple_of", std::int64_t>& multiple_of,
                          const Arg<"min", std::int64_t>& min, const Arg<"max", std::optional<std::int64_t>>& max) {
  const std::string& names = given;
  std::vector<Expr> out;
  std::vector<std::string> seen;
  std::size_t at = 0;
  const auto separator = [&](char c) { return c == ' ' || c == ',' || c == '\t' || c == '\n'; };
  while (at < names.size()) {
    if (separator(names[at])) {
      ++at;
      continue;
    }
    std::size_t end = at;
    while (end < names.size() && !separator(names[end])) ++end;
    const std::string name = names.substr(at, end - at);
    at = end;
    const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
    bool good = letter(name[0]);
    for (const char c : name) good = good && (letter(c) || (c >= '0' && c <= '9'));
    for (const char* word : {"and", "or", "not", "min", "max"}) good = good && name != word;
    if (!good)
      fail(Code::SYM_FACTS, "\"" + name + "\" cannot name a symbol", {},
           "letters, digits and _, not starting with a digit; and, or, not, min, max are taken");
    if (std::find(seen.begin(), seen.end(), name) != seen.end())
      fail(Code::SYM_FACTS, "the symbol " + name + " is named twice");
    seen.push_back(name);
    out.push_back(sym::make_var({.name = name,
                                 .kind = sym::VarKind::Size,
                                 .min = min,
                                 .max = max.value.value_or(sym::kMaxInt),
                                 .multiple_of = multiple_of,
                                 .hi = {},
                                 .lo = {},
                                 .def = {}}));
  }
  if (out.empty()) fail(Code::SYM_FACTS, "no symbol is named", {}, "gr.sym(\"M N\")");
  return out;
}

sym::VarKind kind_from(const std::string& name) {
  static constexpr std::array<const char*, 8> kNames = {"size",  "param", "thread", "block",
                                                        "coord", "loop",  "scalar", "data"};
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (name == kNames[i]) return static_cast<sym::VarKind>(i);
  throw py::value_error("unknown kind of variable: " + name);
}

Expr make_var(std::string name, const std::string& kind, std::int64_t min, std::optional<std::int64_t> max,
              std::int64_t multiple_of, std::optional<Expr> hi, std::optional<Expr> lo, std::optional<Expr> def) {
  return sym::make_var({.name = std::move(name),
                        .kind = kind_from(kind),
                        .min = min,
                        .max = max.value_or(sym::kMaxInt),
                        .multiple_of = multiple_of,
                        .hi = hi,
                        .lo = lo,
                        .def = def});
}

std::int64_t evaluate(const Expr& e, const py::dict& env) {
  std::function<std::int64_t(const sym::VarInfo&)> value = [&](const sym::VarInfo& v) -> std::int64_t {
    const py::str name(v.name);
    if (env.contains(name)) return env[name].cast<std::int64_t>();
    if (v.def) return sym::evaluate(*v.def, value);
    throw py::key_error(v.name);
  };
  return sym::evaluate(e, value);
}

Expr substitute(const Expr& e, const py::dict& values) {
  sym::Substitution s;
  for (const auto& [var, value] : values) {
    const Expr v = expr_from_py(var);
    if (!v.is_var()) throw py::type_error("want variables as keys, got " + v.str());
    s.emplace(v.node(), expr_from_py(value));
  }
  return sym::substitute(e, s);
}

py::tuple bounds(const Expr& e) {
  const std::int64_t lo = sym::lower_bound(e);
  const std::int64_t hi = sym::upper_bound(e);
  const bool fixed = e.is_const();
  return py::make_tuple(lo == sym::kMinInt && !fixed ? py::object(py::none()) : py::int_(lo),
                        hi == sym::kMaxInt && !fixed ? py::object(py::none()) : py::int_(hi));
}

Expr parse(const std::string& text, const py::dict& names) {
  return sym::parse_expr(text, [&](std::string_view name) -> std::optional<Expr> {
    const py::str key(name.data(), name.size());
    return names.contains(key) ? std::optional(expr_from_py(names[key])) : std::nullopt;
  });
}

}  // namespace

std::optional<Expr> try_expr_from_py(py::handle h, bool convert) {
  if (py::isinstance<PyIntExpr>(h)) return h.cast<const PyIntExpr&>().e;
  if (PyLong_Check(h.ptr())) {
    int overflow = 0;
    const long long v = PyLong_AsLongLongAndOverflow(h.ptr(), &overflow);
    if (overflow != 0) fail(Code::SYM_OVERFLOW, "a Python integer leaves the 64-bit range");
    return Expr(static_cast<std::int64_t>(v));
  }
  if (!convert || !PyIndex_Check(h.ptr())) return std::nullopt;
  const auto i = py::reinterpret_steal<py::object>(PyNumber_Index(h.ptr()));
  if (!i) {
    PyErr_Clear();
    return std::nullopt;
  }
  return try_expr_from_py(i, false);
}

Expr expr_from_py(py::handle h) {
  if (const auto e = try_expr_from_py(h)) return *e;
  throw py::type_error("want an int or an IntExpr, got " + std::string(Py_TYPE(h.ptr())->tp_name));
}

py::object expr_to_py(const Expr& e) {
  if (e.is_const()) return py::int_(e.value());
  return py::cast(PyIntExpr{e});
}

py::object condition_to_py(const Expr& e) {
  if (e.is_const()) return py::bool_(e.value() != 0);
  return py::cast(PyIntExpr{e});
}

void register_sym(py::module_& m) {
  py::class_<PyIntExpr>(m, "IntExpr", R"(A symbolic 64-bit integer, or a condition on some.

Made by gr.sym, by the indices of loops and threads, and by arithmetic on them: + - * // % ^ and comparisons, mixed
freely with Python ints. Expressions are simplified as they are made; a result that is known becomes a Python int
(of a comparison: a Python bool). // and % round down, as Python's do. Conditions join with & | ~.

Raises LayoutError: SYM_OVERFLOW past 64 bits, SYM_DIV_ZERO, SYM_RUNTIME_BOOL where Python asks for the truth of a
condition that is not known, SYM_RUNTIME_INT where it needs an integer, SYM_SIZE past 20000 operations.)")
      .def("__add__", &binary<add>)
      .def("__radd__", &reversed<add>)
      .def("__sub__", &binary<subtract>)
      .def("__rsub__", &reversed<subtract>)
      .def("__mul__", &binary<multiply>)
      .def("__rmul__", &reversed<multiply>)
      .def("__floordiv__", &binary<sym::floor_div>)
      .def("__rfloordiv__", &reversed<sym::floor_div>)
      .def("__mod__", &binary<sym::mod>)
      .def("__rmod__", &reversed<sym::mod>)
      .def("__xor__", &binary<sym::bit_xor>)
      .def("__rxor__", &reversed<sym::bit_xor>)
      .def("__lt__", &comparison<sym::lt>)
      .def("__le__", &comparison<sym::le>)
      .def("__gt__", &comparison<greater>)
      .def("__ge__", &comparison<greater_equal>)
      .def("__eq__", &comparison<sym::eq>)
      .def("__ne__", &comparison<sym::ne>)
      .def("__and__", &connective<sym::logical_and>)
      .def("__rand__", &connective<sym::logical_and>)
      .def("__or__", &connective<sym::logical_or>)
      .def("__ror__", &connective<sym::logical_or>)
      .def("__invert__",
           [](const PyIntExpr& a) {
             if (!sym::is_condition(a.e)) throw py::type_error("~ negates a condition; " + a.e.str() + " is not one");
             return condition_to_py(sym::logical_not(a.e));
           })
      .def("__neg__", [](const PyIntExpr& a) { return expr_to_py(-a.e); })
      .def("__pos__", [](const PyIntExpr& a) { return expr_to_py(a.e); })
      .def("__abs__", [](const PyIntExpr& a) { return expr_to_py(sym::max(a.e, -a.e)); })
      .def("__bool__", &truth)
      .def("__index__", &index)
      .def("__int__", &index)
      .def("__hash__", [](const PyIntExpr& a) { return static_cast<py::ssize_t>(a.e.node()->hash >> 1); })
      .def("__copy__", [](const py::object& self) { return self; })
      .def("__deepcopy__", [](const py::object& self, const py::dict&) { return self; })
      .def("__str__", [](const PyIntExpr& a) { return a.e.str(); })
      .def("__repr__", [](const PyIntExpr& a) { return a.e.str(); })
      // NumPy integers leave the operation to us.
      .attr("__array_ufunc__") = py::none();

  m.def("sym", &declare, py::arg("names"), py::arg("multiple_of") = 1, py::arg("min") = 0, py::arg("max") = py::none());
  m.def(
      "ceil_div", [](const Arg<"a", Expr>& a, const Arg<"b", Expr>& b) { return sym::ceil_div(a, b); }, py::arg("a"),
      py::arg("b"));
  m.def("sym_min", &sym::min, py::arg("a"), py::arg("b"));
  m.def("sym_max", &sym::max, py::arg("a"), py::arg("b"));

  m.def("sym_var", &make_var, py::arg("name"), py::arg("kind") = "size", py::arg("min") = 0,
        py::arg("max") = py::none(), py::arg("multiple_of") = 1, py::arg("hi") = py::none(), py::arg("lo") = py::none(),
        py::arg("definition") = py::none());
  m.def("sym_evaluate", &evaluate, py::arg("e"), py::arg("env"));
  m.def("sym_substitute", &substitute, py::arg("e"), py::arg("values"));
  m.def("sym_expand_coords", &sym::expand_coords, py::arg("e"));
  m.def(
      "sym_kept",
      [] {
        const sym::Kept k = sym::kept();
        return py::make_tuple(k.nodes, k.bytes);
      },
      "How many expressions the process keeps, and in how many bytes.");
  m.def("sym_free_vars", &sym::free_vars, py::arg("e"));
  m.def(
      "sym_depends_on",
      [](const Expr& e, const std::string& kind) {
        const sym::VarKind k = kind_from(kind);
        return sym::depends_on(e, [&](const sym::VarInfo& v) { return v.kind == k; });
      },
      py::arg("e"), py::arg("kind"));
  m.def("sym_bounds", &bounds, py::arg("e"));
  m.def("sym_divisor", &sym::divisor, py::arg("e"));
  m.def("sym_possible_bits", &sym::possible_bits, py::arg("e"));
  m.def("sym_decide", &sym::decide, py::arg("condition"));
  m.def("sym_fits_signed", &sym::fits_signed, py::arg("e"), py::arg("bits"));
  m.def(
      "sym_identical", [](const Expr& a, const Expr& b) { return identical(a, b); }, py::arg("a"), py::arg("b"));
  m.def(
      "sym_to_c", [](const Expr& e) { return sym::to_c(e, [](const sym::VarInfo& v) { return v.name; }); },
      py::arg("e"));
  m.def("sym_parse", &parse, py::arg("text"), py::arg("names"));
}

}  // namespace graphene::bind
