#include "layout/layout.h"

#include "base/diag.h"
#include "bind/arguments.h"
#include "bind/bind.h"
#include "layout/injective.h"
#include "layout/inverse.h"
#include "layout/tv.h"

namespace graphene::bind {

using layout::ComposedLayout;
using layout::InverseLayout;
using layout::ModeTiler;

namespace {

// What is nested is read within bounds: a list may hold itself, hold another one many times, or grow while it is read.
class NestedReader {
 public:
  // f(item) of each.
  template <class F>
  void for_each(py::handle sequence, F f) {
    constexpr int kMaxDepth = 64;  // as in text
    if (depth_ >= kMaxDepth)
      fail(Code::LAYOUT_LIMIT,
           "a shape, stride, coordinate or tiler nested deeper than " + std::to_string(kMaxDepth) + " levels");
    ++depth_;
    for (const py::handle item : sequence) {
      if (--left_ < 0) fail(Code::LAYOUT_LIMIT, "a shape, stride, coordinate or tiler of too many parts");
      f(item);
    }
    --depth_;
  }

 private:
  int depth_ = 0;
  int left_ = 1 << 17;  // parts that it may still have
};

bool is_sequence(py::handle h) { return py::isinstance<py::tuple>(h) || py::isinstance<py::list>(h); }

IntTuple ints_from_py(py::handle h, NestedReader& reader) {
  if (!is_sequence(h)) return expr_from_py(h);
  std::vector<IntTuple> modes;
  reader.for_each(h, [&](py::handle item) { modes.push_back(ints_from_py(item, reader)); });
  return modes;
}

}  // namespace

IntTuple int_tuple_from_py(py::handle h) {
  NestedReader reader;
  return ints_from_py(h, reader);
}

py::object int_tuple_to_py(const IntTuple& t) {
  if (t.is_leaf()) return expr_to_py(t.leaf());
  py::tuple out(t.modes().size());
  for (std::size_t i = 0; i < t.modes().size(); ++i) out[i] = int_tuple_to_py(t.modes()[i]);
  return out;
}

namespace {

// A Layout; its text; or a shape, column-major.
Layout layout_from_py(py::handle h) {
  if (py::isinstance<Layout>(h)) return h.cast<Layout>();
  if (py::isinstance<py::str>(h)) return layout::parse_layout(printable_text(h));
  if (py::isinstance<ComposedLayout>(h))
    fail(Code::LAYOUT_COMPOSE, "shapes and strides are wanted, and a swizzle stands before these",
         {"got: " + h.cast<const ComposedLayout&>().str()},
         "take its .layout, and compose the swizzle with the result");
  if (py::isinstance<InverseLayout>(h))
    fail(Code::LAYOUT_COMPOSE, "shapes and strides are wanted, and a swizzle stands behind these",
         {"got: " + h.cast<const InverseLayout&>().str()}, "take its .layout, and swizzle what it is called with");
  return Layout(int_tuple_from_py(h));
}

// None, a Layout or what stands for one; a tuple: one of these per mode.
ModeTiler tiler_from_py(py::handle h, NestedReader& reader) {
  if (h.is_none()) return {};
  if (!is_sequence(h)) return layout_from_py(h);
  std::vector<ModeTiler> modes;
  reader.for_each(h, [&](py::handle item) { modes.push_back(tiler_from_py(item, reader)); });
  return modes;
}

ModeTiler tiler_from_py(py::handle h) {
  NestedReader reader;
  return tiler_from_py(h, reader);
}

// The hierarchy alone: what stands at the leaves does not matter.
IntTuple profile_from_py(py::handle h, NestedReader& reader) {
  if (py::isinstance<Layout>(h)) return h.cast<Layout>().shape();
  if (h.is_none()) return 1;
  if (!is_sequence(h)) return expr_from_py(h);
  std::vector<IntTuple> modes;
  reader.for_each(h, [&](py::handle item) { modes.push_back(profile_from_py(item, reader)); });
  return modes;
}

IntTuple profile_from_py(py::handle h) {
  NestedReader reader;
  return profile_from_py(h, reader);
}

Expr total_from_py(py::handle h) { return int_tuple_from_py(h).product(); }

// f(1, 2) and f((1, 2)) are the same coordinate or shape.
IntTuple int_tuple_from_args(const py::args& args) {
  return args.size() == 1 ? int_tuple_from_py(args[0]) : int_tuple_from_py(args);
}

void hash_combine(std::size_t& seed, std::size_t v) { seed ^= v + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2); }

void hash_tuple(const IntTuple& t, std::size_t& seed) {
  if (t.is_leaf()) {
    const Expr& e = t.leaf();
    hash_combine(seed, e.is_const() ? static_cast<std::size_t>(e.value()) : reinterpret_cast<std::size_t>(e.node()));
    return;
  }
  hash_combine(seed, t.modes().size() + 0x51ULL);
  for (const IntTuple& m : t.modes()) hash_tuple(m, seed);
}

py::ssize_t hash_layout(const Layout& l) {
  std::size_t seed = 0;
  hash_tuple(l.shape(), seed);
  hash_tuple(l.stride(), seed);
  return static_cast<py::ssize_t>(seed >> 1);
}

int checked_mode(py::ssize_t i, const Layout& l) {
  const py::ssize_t rank = l.rank();
  if (i < -rank || i >= rank)
    fail(Code::LAYOUT_RANK, "mode " + std::to_string(i) + " of a layout of rank " + std::to_string(rank),
         {"layout: " + l.str()});
  return static_cast<int>(i < 0 ? i + rank : i);
}

py::list layout_modes(const Layout& l) {
  py::list out;
  for (int i = 0; i < l.rank(); ++i) out.append(l.mode(i));
  return out;
}

py::object checked_offset(const Layout& l, const IntTuple& coord) {
  layout::check_coord(coord, l.shape());
  return expr_to_py(l(coord));
}

void bind_layout(py::module_& m) {
  py::class_<Layout> c(m, "Layout", R"doc(A function from coordinates to integers: shape:stride, as in CuTe.

``Layout(shape, stride=None)`` takes ints, symbolic integers and nested tuples of them; without strides it is
column-major (leftmost mode fastest). ``Layout("(4,(2,4)):(2,(1,8))")`` and ``Layout("[4,(2,4):2,(1,8)]")`` read CuTe's and
Graphene's notation. Layouts are immutable and hashable; ``==`` compares shape and stride, not the functions.

Raises LayoutError: LAYOUT_CONGRUENT (shape and stride differ in hierarchy), LAYOUT_SIZE (negative size), LAYOUT_PARSE.)doc");
  c.attr("__module__") = "graphene";
  c.def(py::init([](const py::object& shape, const py::object& stride) {
          if (stride.is_none()) return layout_from_py(shape);
          return Layout(int_tuple_from_py(shape), int_tuple_from_py(stride));
        }),
        py::arg("shape"), py::arg("stride") = py::none());
  c.def_property_readonly(
      "shape", [](const Layout& l) { return int_tuple_to_py(l.shape()); },
      "Sizes: an int, a symbolic integer or a nested tuple of them.");
  c.def_property_readonly(
      "stride", [](const Layout& l) { return int_tuple_to_py(l.stride()); },
      "Strides, in the same hierarchy as the shape.");
  c.def_property_readonly("rank", &Layout::rank, "Number of top-level modes (1 for a single integer).");
  c.def_property_readonly("depth", &Layout::depth, "Depth of nesting: 0 for a single integer, 1 for a flat tuple.");
  c.def_property_readonly(
      "size", [](const Layout& l) { return expr_to_py(l.size()); }, "Number of coordinates.");
  c.def_property_readonly(
      "cosize", [](const Layout& l) { return expr_to_py(l.cosize()); }, "Largest offset + 1; 0 if the size is 0.");
  c.def_property_readonly("is_static", &Layout::is_static, "Whether all sizes and strides are plain integers.");
  c.def_property_readonly("graphene_str", &Layout::graphene_str,
                          R"doc(Text in Graphene's notation, "[4,(2,4):2,(1,8)]".)doc");
  c.def(
      "__call__", [](const Layout& l, const py::args& args) { return checked_offset(l, int_tuple_from_args(args)); },
      R"doc(Offset of a coordinate: ``L(5)`` colexicographic, ``L(0, 3)`` one per mode, ``L(0, (1, 1))`` to any level.

Raises LayoutError: LAYOUT_COORD (hierarchy does not fit), LAYOUT_BOUNDS (outside of the shape).)doc");
  c.def(
      "coord",
      [](const Layout& l, const py::object& index) {
        const Expr i = expr_from_py(index);
        layout::check_coord(i, l.shape());
        return int_tuple_to_py(l.coord(i));
      },
      py::arg("index"), "Natural coordinate of a colexicographic index. Raises LayoutError LAYOUT_BOUNDS.");
  c.def(
      "__getitem__", [](const Layout& l, const Arg<"mode", std::int64_t>& i) { return l.mode(checked_mode(i, l)); },
      py::arg("mode"), "Sub-layout of a mode; negative indices count from the end. Raises LayoutError LAYOUT_RANK.");
  c.def("__len__", &Layout::rank);
  c.def("__iter__", [](const Layout& l) { return py::iter(layout_modes(l)); });
  c.def(
      "__eq__", [](const Layout& a, const Layout& b) { return identical(a, b); }, py::is_operator());
  c.def(
      "__ne__", [](const Layout& a, const Layout& b) { return !identical(a, b); }, py::is_operator());
  c.def("__hash__", &hash_layout);
  c.def("__str__", &Layout::str);
  c.def("__repr__", [](const Layout& l) { return "Layout(\"" + l.str() + "\")"; });
  c.def("__reduce__", [](const py::object& self) {
    return py::make_tuple(py::type::of(self), py::make_tuple(self.attr("shape"), self.attr("stride")));
  });
}

void bind_swizzle(py::module_& m) {
  py::class_<Swizzle> c(m, "Swizzle",
                        R"doc(CuTe's Swizzle<bits, base, shift>: a permutation of offsets, counted in elements.

``offset ^ ((offset & mask) >> shift)`` with ``mask = ((1 << bits) - 1) << (base + shift)``; with a negative shift the low
bits are read and the high ones changed. Also reads its own text, ``Swizzle("Sw<3,3,3>")``.

Raises LayoutError: LAYOUT_SWIZZLE unless 0 <= bits <= abs(shift) and 0 <= base; LAYOUT_PARSE.)doc");
  c.attr("__module__") = "graphene";
  c.def(py::init([](const Arg<"bits", int>& bits, const Arg<"base", int>& base, const Arg<"shift", int>& shift) {
          return Swizzle(bits, base, shift);
        }),
        py::arg("bits"), py::arg("base"), py::arg("shift"));
  c.def(py::init([](const Arg<"text", std::string>& text) { return layout::parse_swizzle(text.value); }),
        py::arg("text"));
  c.def_readonly("bits", &Swizzle::bits, "Number of bits that are changed.");
  c.def_readonly("base", &Swizzle::base, "Number of low bits left alone: log2 of the elements that stay together.");
  c.def_readonly("shift", &Swizzle::shift, "Distance from the changed bits to those they are xored with.");
  c.def_property_readonly("period", &Swizzle::period,
                          "Number of elements of an aligned block, within which offsets are permuted.");
  c.def(
      "__call__", [](const Swizzle& s, const py::object& offset) { return expr_to_py(s(expr_from_py(offset))); },
      py::arg("offset"), "The swizzled offset. Raises LayoutError LAYOUT_BOUNDS for a negative one.");
  c.def(
      "__eq__", [](const Swizzle& a, const Swizzle& b) { return a == b; }, py::is_operator());
  c.def("__hash__", [](const Swizzle& s) { return py::hash(py::make_tuple(s.bits, s.base, s.shift)); });
  c.def("__str__", &Swizzle::str);
  c.def("__repr__", [](const Swizzle& s) {
    return "Swizzle(" + std::to_string(s.bits) + ", " + std::to_string(s.base) + ", " + std::to_string(s.shift) + ")";
  });
  c.def("__reduce__", [](const py::object& self) {
    return py::make_tuple(py::type::of(self), py::make_tuple(self.attr("bits"), self.attr("base"), self.attr("shift")));
  });
}

void bind_composed(py::module_& m) {
  py::class_<ComposedLayout> c(m, "ComposedLayout",
                               R"doc(swizzle o (offset + layout): what composition(swizzle, layout) gives.

Called like a Layout. Raises LayoutError as Layout does.)doc");
  c.attr("__module__") = "graphene";
  c.def(py::init([](const Swizzle& s, const py::object& offset, const Layout& l) {
          return ComposedLayout{s, expr_from_py(offset), l};
        }),
        py::arg("swizzle"), py::arg("offset"), py::arg("layout"));
  c.def_readonly("swizzle", &ComposedLayout::swizzle, "The outer function.");
  c.def_property_readonly(
      "offset", [](const ComposedLayout& l) { return expr_to_py(l.offset); },
      "Added to the layout's offset before the swizzle.");
  c.def_readonly("layout", &ComposedLayout::layout, "The inner layout.");
  c.def_property_readonly(
      "shape", [](const ComposedLayout& l) { return int_tuple_to_py(l.layout.shape()); }, "Shape of the inner layout.");
  c.def_property_readonly(
      "rank", [](const ComposedLayout& l) { return l.layout.rank(); }, "Number of top-level modes.");
  c.def_property_readonly(
      "depth", [](const ComposedLayout& l) { return l.layout.depth(); }, "Depth of nesting.");
  c.def_property_readonly(
      "size", [](const ComposedLayout& l) { return expr_to_py(l.layout.size()); }, "Number of coordinates.");
  c.def(
      "__call__",
      [](const ComposedLayout& l, const py::args& args) {
        const IntTuple coord = int_tuple_from_args(args);
        layout::check_coord(coord, l.layout.shape());
        return expr_to_py(l(coord));
      },
      "Offset of a coordinate, as in Layout.");
  c.def(
      "coord",
      [](const ComposedLayout& l, const py::object& index) {
        const Expr i = expr_from_py(index);
        layout::check_coord(i, l.layout.shape());
        return int_tuple_to_py(l.layout.coord(i));
      },
      py::arg("index"), "Natural coordinate of a colexicographic index.");
  c.def(
      "__getitem__",
      [](const ComposedLayout& l, const Arg<"mode", std::int64_t>& i) {
        return ComposedLayout{l.swizzle, l.offset, l.layout.mode(checked_mode(i, l.layout))};
      },
      py::arg("mode"), "One mode, under the same swizzle and offset.");
  c.def("__len__", [](const ComposedLayout& l) { return l.layout.rank(); });
  c.def("__iter__", [](const ComposedLayout& l) {
    py::list modes;
    for (int i = 0; i < l.layout.rank(); ++i) modes.append(ComposedLayout{l.swizzle, l.offset, l.layout.mode(i)});
    return py::iter(modes);
  });
  c.def(
      "__eq__",
      [](const ComposedLayout& a, const ComposedLayout& b) {
        return a.swizzle == b.swizzle && identical(a.offset, b.offset) && identical(a.layout, b.layout);
      },
      py::is_operator());
  c.def("__hash__", [](const ComposedLayout& l) {
    return py::hash(py::make_tuple(l.swizzle.bits, l.swizzle.base, l.swizzle.shift, hash_layout(l.layout)));
  });
  c.def("__str__", &ComposedLayout::str);
  c.def("__repr__", [](const py::object& self) {
    return "ComposedLayout(" + std::string(py::repr(self.attr("swizzle"))) + ", " +
           std::string(py::repr(self.attr("offset"))) + ", " + std::string(py::repr(self.attr("layout"))) + ")";
  });
  c.def("__reduce__", [](const py::object& self) {
    return py::make_tuple(py::type::of(self),
                          py::make_tuple(self.attr("swizzle"), self.attr("offset"), self.attr("layout")));
  });
}

void bind_inverse(py::module_& m) {
  py::class_<InverseLayout> c(
      m, "InverseLayout",
      R"doc(layout o (offset + swizzle): the inverses of a ComposedLayout, and composition(layout, swizzle).

Called with an offset (an int or a symbolic integer), it gives an index. Raises LayoutError LAYOUT_BOUNDS where the
swizzled offset lies outside of the layout. Immutable and hashable.)doc");
  c.attr("__module__") = "graphene";
  c.def(py::init([](const Layout& l, const py::object& offset, const Swizzle& s) {
          return InverseLayout{l, expr_from_py(offset), s};
        }),
        py::arg("layout"), py::arg("offset"), py::arg("swizzle"));
  c.def_readonly("layout", &InverseLayout::layout, "The outer function.");
  c.def_property_readonly(
      "offset", [](const InverseLayout& l) { return expr_to_py(l.offset); }, "Added to the swizzled offset.");
  c.def_readonly("swizzle", &InverseLayout::swizzle, "The inner function.");
  c.def_property_readonly(
      "size", [](const InverseLayout& l) { return expr_to_py(l.size()); },
      "Every offset in [0, size) has an index. Larger ones may have one, too.");
  c.def(
      "__call__", [](const InverseLayout& l, const py::object& x) { return expr_to_py(l(expr_from_py(x))); },
      py::arg("offset"), "Index of an offset. Raises LayoutError LAYOUT_BOUNDS.");
  c.def(
      "__eq__",
      [](const InverseLayout& a, const InverseLayout& b) {
        return a.swizzle == b.swizzle && identical(a.offset, b.offset) && identical(a.layout, b.layout);
      },
      py::is_operator());
  c.def("__hash__", [](const InverseLayout& l) {
    return py::hash(py::make_tuple(hash_layout(l.layout), l.swizzle.bits, l.swizzle.base, l.swizzle.shift));
  });
  c.def("__str__", &InverseLayout::str);
  c.def("__repr__", [](const py::object& self) {
    return "InverseLayout(" + std::string(py::repr(self.attr("layout"))) + ", " +
           std::string(py::repr(self.attr("offset"))) + ", " + std::string(py::repr(self.attr("swizzle"))) + ")";
  });
  c.def("__reduce__", [](const py::object& self) {
    return py::make_tuple(py::type::of(self),
                          py::make_tuple(self.attr("layout"), self.attr("offset"), self.attr("swizzle")));
  });
}

// A swizzle is its own inverse; a swizzled layout's inverse has the swizzle inside.
template <class Invert>
py::object inverse(const py::object& l, Invert invert) {
  if (py::isinstance<Swizzle>(l)) return l;
  if (py::isinstance<ComposedLayout>(l)) return py::cast(invert(l.cast<const ComposedLayout&>()));
  if (py::isinstance<InverseLayout>(l)) return py::cast(invert(l.cast<const InverseLayout&>()));
  return py::cast(invert(layout_from_py(l)));
}

py::object compose(const py::object& a, const py::object& b) {
  const auto refuse = [&](const std::string& why) {
    fail(Code::LAYOUT_COMPOSE, "the composition is not a layout: " + why,
         {"left:  " + std::string(py::str(a)), "right: " + std::string(py::str(b))});
  };
  if (py::isinstance<InverseLayout>(a) && py::isinstance<ComposedLayout>(b))
    return py::cast(layout::composition(a.cast<const InverseLayout&>(), b.cast<const ComposedLayout&>()));
  if (py::isinstance<InverseLayout>(a) || py::isinstance<InverseLayout>(b))
    refuse("an inverse of a swizzled layout composes only with a layout of the same swizzle");
  const bool swizzled = py::isinstance<Swizzle>(a) || py::isinstance<ComposedLayout>(a);
  if (py::isinstance<ComposedLayout>(b) || (py::isinstance<Swizzle>(b) && swizzled))
    refuse("a swizzle can only be the outer function, or the inner one of a layout");
  if (py::isinstance<Swizzle>(b)) return py::cast(InverseLayout{layout_from_py(a), 0, b.cast<Swizzle>()});
  if (py::isinstance<Swizzle>(a)) return py::cast(ComposedLayout{a.cast<Swizzle>(), 0, layout_from_py(b)});
  const auto inner = [&](const Layout& l) { return layout::composition(l, tiler_from_py(b)); };
  if (py::isinstance<ComposedLayout>(a)) {
    const auto c = a.cast<ComposedLayout>();
    return py::cast(ComposedLayout{c.swizzle, c.offset, inner(c.layout)});
  }
  return py::cast(inner(layout_from_py(a)));
}

void def_tiled(py::module_& m, const char* name, Layout (*operation)(const Layout&, const ModeTiler&)) {
  m.def(
      name,
      [operation](const py::object& l, const py::object& tiler) {
        return operation(layout_from_py(l), tiler_from_py(tiler));
      },
      py::arg("layout"), py::arg("tiler"));
}

py::object checked_coord(const py::object& index, const py::object& shape, const py::object& stride) {
  const IntTuple i = int_tuple_from_py(index);
  if (stride.is_none()) {
    const Layout l(int_tuple_from_py(shape));
    layout::check_coord(i, l.shape());
    return int_tuple_to_py(layout::idx2crd(i, l.shape()));
  }
  const Layout l(int_tuple_from_py(shape), int_tuple_from_py(stride));
  layout::check_offset(i, l);
  return int_tuple_to_py(layout::idx2crd(i, l.shape(), l.stride()));
}

void bind_algebra(py::module_& m) {
  m.def("crd2idx", [](const py::object& coord, const py::object& shape, const py::object& stride) {
    const IntTuple c = int_tuple_from_py(coord);
    const Layout l = stride.is_none() ? Layout(int_tuple_from_py(shape))
                                      : Layout(int_tuple_from_py(shape), int_tuple_from_py(stride));
    return checked_offset(l, c);
  });
  m.def("idx2crd", &checked_coord);
  m.def("coalesce", [](const py::object& l, const py::object& profile) {
    return layout::coalesce(layout_from_py(l), profile_from_py(profile));
  });
  m.def("filter", [](const py::object& l, const py::object& profile) {
    return layout::filter(layout_from_py(l), profile_from_py(profile));
  });
  m.def("composition", &compose);
  m.def("complement", [](const py::object& l, const py::object& cotarget) {
    const Layout a = layout_from_py(l);
    return layout::complement(a, cotarget.is_none() ? a.cosize() : total_from_py(cotarget));
  });
  m.def("right_inverse",
        [](const py::object& l) { return inverse(l, [](const auto& f) { return layout::right_inverse(f); }); });
  m.def("left_inverse",
        [](const py::object& l) { return inverse(l, [](const auto& f) { return layout::left_inverse(f); }); });
  def_tiled(m, "logical_divide", layout::logical_divide);
  def_tiled(m, "zipped_divide", layout::zipped_divide);
  def_tiled(m, "tiled_divide", layout::tiled_divide);
  def_tiled(m, "logical_product", layout::logical_product);
  def_tiled(m, "zipped_product", layout::zipped_product);
  def_tiled(m, "tiled_product", layout::tiled_product);
  m.def("blocked_product", [](const py::object& l, const py::object& tiler) {
    return layout::blocked_product(layout_from_py(l), layout_from_py(tiler));
  });
  m.def("raked_product", [](const py::object& l, const py::object& tiler) {
    return layout::raked_product(layout_from_py(l), layout_from_py(tiler));
  });
  m.def("is_injective", [](const py::object& l) { return layout::is_injective(layout_from_py(l), check_signals); });
  m.def("equal_as_functions", [](const py::object& a, const py::object& b) {
    return layout::equal_as_functions(layout_from_py(a), layout_from_py(b));
  });
  m.def("make_layout", [](const py::args& modes) {
    std::vector<Layout> v;
    for (const py::handle h : modes) v.push_back(layout_from_py(h));
    return layout::make_layout(v);
  });
  m.def("tv", [](const py::object& thread, const py::object& value) {
    Layout tv = layout::make_layout({layout_from_py(thread), layout_from_py(value)});
    if (tv.is_static()) layout::require_two_modes(tv, "gr.tv");
    return tv;
  });
  m.def("row_major", [](const py::args& shape) { return Layout::row_major(int_tuple_from_args(shape)); });
  m.def("col_major", [](const py::args& shape) { return Layout(int_tuple_from_args(shape)); });
  m.def(
      "row_swizzle",
      [](const Arg<"row_elems", std::int64_t>& row, const Arg<"element_bits", int>& bits) {
        return layout::row_swizzle(row, bits);
      },
      py::arg("row_elems"), py::arg("element_bits"));
}

// For the pictures, the tests and the tools: the kernels' own use of TV layouts is in the core.
void bind_tv(py::module_& m) {
  using layout::TvTable;
  py::class_<TvTable>(m, "TvTable", "A static thread-value layout, tabulated in both directions.")
      .def(py::init<const Layout&, std::int64_t, const std::string&>(), py::arg("tv"), py::arg("elements"),
           py::arg("what") = "TV layout")
      .def_property_readonly("threads", &TvTable::threads)
      .def_property_readonly("values", &TvTable::values)
      .def_property_readonly("elements", &TvTable::elements)
      .def_property_readonly("first_hole", &TvTable::first_hole)
      .def_property_readonly("replication", &TvTable::replication)
      .def_property_readonly("repeats_within_thread", &TvTable::repeats_within_thread)
      .def("require_cover", &TvTable::require_cover)
      .def(
          "holders",
          [](const TvTable& t, std::int64_t element) {
            py::list out;
            for (const layout::Holder& h : t.holders(element)) out.append(py::make_tuple(h.thread, h.value));
            return out;
          },
          py::arg("element"), "(thread, value) pairs that hold an element, by thread, then by value.");
  m.def("tv_equal", &layout::tv_equal);
  m.def("tv_quotient", &layout::tv_quotient, py::arg("fragment"), py::arg("values"), py::arg("atom"),
        py::arg("first_thread") = 0);
  m.def("layout_from_table", [](const std::vector<std::int64_t>& table) -> py::object {
    const auto found = layout::layout_from_table(table);
    return found ? py::object(py::make_tuple(found->offset, found->layout)) : py::object(py::none());
  });
  m.def("max_common_vector", [](const py::object& a, const py::object& b) {
    return layout::max_common_vector(layout_from_py(a), layout_from_py(b));
  });
  m.def("max_vector", [](const py::object& l, int mode) {
    if (py::isinstance<ComposedLayout>(l)) return layout::max_vector(l.cast<ComposedLayout>(), mode);
    return layout::max_vector(layout_from_py(l), mode);
  });
}

}  // namespace

void register_layout(py::module_& m) {
  bind_layout(m);
  bind_swizzle(m);
  bind_inverse(m);
  bind_composed(m);
  bind_algebra(m);
  bind_tv(m);
}

}  // namespace graphene::bind
