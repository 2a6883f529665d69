#include <algorithm>

#include "layout/facts.h"

namespace graphene::layout {

namespace {

// a o (s:d) for one leaf of b, and how far it reaches into each mode of a.
class LeafComposition {
 public:
  LeafComposition(const Flat& a, const Layout& whole_a, const Layout& whole_b)
      : a_(a),
        facts_("composition", {{"left:  ", &whole_a}, {"right: ", &whole_b}}),
        up_(a.rank(), Expr(0)),
        down_(up_) {}

  IntTuple shape;  // of the result
  IntTuple stride;

  void distribute(const IntTuple& s, const IntTuple& d) {
    if (s.is_leaf()) {
      leaf(s.leaf(), d.leaf());
      return;
    }
    std::vector<IntTuple> shapes;
    std::vector<IntTuple> strides;
    for (int i = 0; i < s.rank(); ++i) {
      distribute(s[i], d[i]);
      shapes.push_back(std::move(shape));
      strides.push_back(std::move(stride));
    }
    shape = std::move(shapes);
    stride = std::move(strides);
  }

  // a(x + y) == a(x) + a(y) as long as no digit carries: the digits' largest values must add up to less than the size
  // of the mode. (The last mode is open-ended.) a is coalesced, so a carry would change the offset.
  // Digits below 0 are those of the mirrored function, so all of them have one sign, or only one mode is reached; in
  // the last mode alone they are those of the function that continues below 0, and nothing is borrowed.
  void check_no_carry() const {
    std::size_t reached = 0;
    bool up = false;
    bool down = false;
    for (std::size_t j = 0; j < a_.rank(); ++j) {
      const bool last = j + 1 == a_.rank();
      reached += up_[j].is_const(0) && down_[j].is_const(0) ? 0 : 1;
      up = up || !up_[j].is_const(0);
      down = down || (!last && !down_[j].is_const(0));
      for (const Expr& reach : {up_[j], down_[j]}) {
        if (last || reach.is_const(0)) continue;
        facts_.need_le(reach + 1, a_.shape[j], Code::LAYOUT_COMPOSE, [&] {
          return "the composition is not a layout: the modes of the right operand carry into each other inside of "
                 "mode " +
                 a_.shape[j].str() + ":" + a_.stride[j].str() + " of the left one";
        });
      }
    }
    if (up && down && reached > 1)
      fail(Code::LAYOUT_COMPOSE,
           "the composition is not a layout: strides of both signs on the right borrow from several modes of the left "
           "operand",
           facts_.details());
  }

 private:
  // step is |stride|; negative says which way.
  void piece(Flat& out, std::size_t j, const Expr& s, const Expr& step) {
    Expr& reach = negative_ ? down_[j] : up_[j];
    reach = reach + (s - 1) * step;
    push(out, j, s, step);
  }

  void push(Flat& out, std::size_t j, const Expr& s, const Expr& step) const {
    out.push(s, negative_ ? -(step * a_.stride[j]) : step * a_.stride[j]);
  }

  void leaf(const Expr& s, const Expr& d) {
    const std::size_t last = a_.rank() - 1;
    Flat out;
    if (d.is_const(0) || s.is_const(0)) {
      out.push(s, 0);
    } else if (last == 0) {
      out.push(s, d * a_.stride[0]);
    } else {
      negative_ = facts_.le(d, 0).value_or(false);
      Expr rest = s;
      Expr step = negative_ ? -d : d;
      facts_.need_le(0, step, Code::LAYOUT_COMPOSE, [&] {
        return "the composition is not a layout: the stride " + d.str() + " on the right has no one sign";
      });
      for (std::size_t j = 0; j < last && !rest.is_const(1); ++j) split(out, j, rest, step);
      if (s.is_const(1)) {
        Expr below = 1;
        for (std::size_t j = 0; j < last; ++j) below = below * a_.shape[j];
        push(out, last, 1, below.is_const() ? sym::ceil_div(step, below) : Expr(0));
      } else if (!rest.is_const(1)) {
        piece(out, last, rest, step);
      }
    }
    const Layout l = out.layout();
    shape = l.shape();
    stride = l.stride();
  }

  // Takes from rest:step what lies in mode j; what is left counts in units of the next mode.
  void split(Flat& out, std::size_t j, Expr& rest, Expr& step) {
    const Expr& size = a_.shape[j];
    const Expr reach = (rest - 1) * step + 1;
    if (facts_.le(reach, size).value_or(false)) {
      piece(out, j, rest, step);
      rest = 1;
      return;
    }
    const std::optional<bool> beyond = facts_.divides(size, step);
    if (beyond.value_or(false)) {
      step = sym::floor_div(step, size);
      return;
    }
    const std::optional<bool> inside = facts_.divides(step, size);
    if (!inside.value_or(false)) {
      if (beyond && inside)
        fail(Code::LAYOUT_DIVISIBILITY,
             "composition: the stride " + step.str() + " and the size " + size.str() + " do not divide each other",
             facts_.details());
      facts_.missing(reach.str() + " <= " + size.str() + " or " + size.str() + " % " + step.str() + " == 0",
                     step.is_const() ? Facts::divides_fix(step, size) : Facts::le_fix(reach, size));
    }
    const Expr taken = sym::floor_div(size, step);
    const std::optional<bool> whole = facts_.divides(taken, rest);
    if (!whole.value_or(false)) {
      if (whole && facts_.le(reach, size))
        fail(Code::LAYOUT_DIVISIBILITY,
             "composition: the size " + rest.str() + " is not a multiple of the " + taken.str() +
                 " steps that fit in mode " + size.str() + ":" + a_.stride[j].str(),
             facts_.details());
      facts_.missing(reach.str() + " <= " + size.str() + " or " + rest.str() + " % " + taken.str() + " == 0",
                     Facts::le_fix(reach, size));
    }
    if (!taken.is_const(1)) piece(out, j, taken, step);
    rest = sym::floor_div(rest, taken);
    step = 1;
  }

  const Flat& a_;
  Facts facts_;
  std::vector<Expr> up_;  // the largest digits in each mode of a, by positive strides of b and by negative ones
  std::vector<Expr> down_;
  bool negative_ = false;  // the stride of the leaf that is being composed
};

}  // namespace

Layout coalesce(const Layout& l) { return coalesced(flatten(l)).layout(); }

Layout filter(const Layout& l) {
  const Flat f = filtered(flatten(l));
  return f.rank() == 0 ? Layout() : coalesced(f).layout();
}

namespace {

Layout by_profile(const Layout& l, const IntTuple& profile, const char* name, Layout (*whole)(const Layout&)) {
  if (profile.is_leaf()) return whole(l);
  if (profile.rank() > l.rank())
    fail(Code::LAYOUT_RANK,
         std::string(name) + ": the profile " + profile.str() + " has more modes than the layout of rank " +
             std::to_string(l.rank()),
         {"layout: " + l.str()});
  std::vector<Layout> modes;
  for (int i = 0; i < l.rank(); ++i)
    modes.push_back(i < profile.rank() ? by_profile(l.mode(i), profile[i], name, whole) : l.mode(i));
  return make_layout(modes);
}

}  // namespace

Layout coalesce(const Layout& l, const IntTuple& profile) { return by_profile(l, profile, "coalesce", coalesce); }
Layout filter(const Layout& l, const IntTuple& profile) { return by_profile(l, profile, "filter", filter); }

Layout composition(const Layout& a, const Layout& b) {
  const Flat flat = coalesced_open_ended(flatten(a));
  LeafComposition c(flat, a, b);
  c.distribute(b.shape(), b.stride());
  c.check_no_carry();
  return {std::move(c.shape), std::move(c.stride)};
}

Layout complement(const Layout& l, const Expr& cotarget) {
  const Flat f = filtered(flatten(l));
  Flat out;
  Expr current = 1;
  for (const std::size_t i : nested_order(f, Facts("complement", {{"layout: ", &l}}))) {
    out.push(sym::floor_div(f.stride[i], current), current);
    current = f.shape[i] * f.stride[i];
  }
  if (current.is_const(0)) current = 1;  // an empty layout leaves everything
  out.push(sym::ceil_div(cotarget, current), current);
  return coalesced(out).layout();
}

Layout right_inverse(const Layout& l) {
  const Flat f = coalesced(flatten(l));
  if (f.shape[0].is_const(0)) return {0, 0};
  std::vector<Expr> below(f.rank());  // the index at which a mode starts to count
  Expr product = 1;
  for (std::size_t i = 0; i < f.rank(); ++i) {
    below[i] = product;
    product = product * f.shape[i];
  }
  Flat out;
  Expr current = 1;
  std::vector<bool> used(f.rank(), false);
  for (bool found = true; found;) {
    found = false;
    for (std::size_t i = 0; i < f.rank() && !found; ++i) {
      if (used[i] || !identical(f.stride[i], current)) continue;
      out.push(f.shape[i], below[i]);
      current = current * f.shape[i];
      used[i] = found = true;
    }
  }
  return coalesced(out).layout();
}

Layout left_inverse(const Layout& l) {
  const Flat f = coalesced(flatten(l));
  if (f.shape[0].is_const(0) || f.shape[0].is_const(1)) return {};
  const Facts facts("left_inverse", {{"layout: ", &l}});
  // A mode of stride 0 moves no offset: of all indices with one offset, the inverse has that with coordinate 0 there.
  Flat moving;
  std::vector<Expr> below;
  Expr product = 1;
  for (std::size_t i = 0; i < f.rank(); ++i) {
    if (!f.stride[i].is_const(0)) {
      moving.push(f.shape[i], f.stride[i]);
      below.push_back(product);
    }
    product = product * f.shape[i];
  }
  if (moving.rank() == 0) return {};
  // An offset's digits, in the mixed radix of the sorted strides, are the coordinates in that order.
  Flat out;
  Expr current = 1;
  Expr weight = 0;
  Expr size = 1;
  for (const std::size_t i : nested_order(moving, facts)) {
    const Expr& d = moving.stride[i];
    facts.need_divides(current, d, Code::LAYOUT_DIVISIBILITY, [&] {
      return "left_inverse: the stride " + d.str() + " is not a multiple of " + current.str();
    });
    out.push(sym::floor_div(d, current), weight);
    current = d;
    weight = below[i];
    size = moving.shape[i];
  }
  out.push(size, weight);
  return coalesced(out).layout();
}

bool equal_as_functions(const Layout& a, const Layout& b) {
  // The coalesced form is canonical: the first size is the first index at which the offset leaves the line through 0
  // and 1, and so on.
  return identical(coalesce(a), coalesce(b));
}

}  // namespace graphene::layout
