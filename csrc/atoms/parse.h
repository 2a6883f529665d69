// Reading the strings of an entry. All throw SelectError ATOM_SYNTAX with `what` (entry, operand, field) in front.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "atoms/atom.h"

namespace graphene::atoms {

// "${N/8}" in every string, one Atom per member of the product of the family's rows.
[[nodiscard]] std::vector<Atom> expand_family(const Atom& family);

// "[2,2:2,4].[1,2].b16.RF", "[].fp16.RF|SH|GL|IMM". Fills levels, any_stride, dtypes, dtype_class, memories, immediate;
// `strided` tells per level whether strides were written.
[[nodiscard]] TypePattern parse_pattern(std::string_view text, const std::string& what, std::vector<bool>* strided);

// "m16,k16"
void parse_tile(std::string_view text, const std::string& what, std::vector<std::string>* axes,
                std::vector<std::int64_t>* extents);

// "(4,8):(32,1);(2,2,2):(16,8,128)"
[[nodiscard]] Layout parse_tv(std::string_view text, const std::string& what);

// "[32]", "[(4,2):(1,16)]"
[[nodiscard]] Layout parse_threads(std::string_view text, const std::string& what);

// "align(src) % 16 == 0" or "bytes(src) % 16 == 0", for the operand `name`: of where it starts, or of all of it.
struct SizeFact {
  bool of_size = false;
  int bytes = 0;
};
[[nodiscard]] SizeFact parse_fact(std::string_view text, const std::string& name, const std::string& what);

// "sm_80+" -> 80, one architecture exactly -> 0. Throws ATOM_DEFINITION with `what` in front.
[[nodiscard]] int parse_arch(const std::string& text, const std::string& what);

// The fields of an entry, each by itself (ATOM_DEFINITION, ATOM_TEXT); its collective, when `threads` is read.
void check_definition(const Atom& a);
void check_collective(const Instance& i);

[[nodiscard]] Text parse_text(std::string_view text, bool is_ptx, const std::string& what);

[[nodiscard]] FlatLayout flatten(const Layout& l);  // of a static layout

// An entry with its strings parsed and checked (ATOM_TV, ATOM_TEXT, ATOM_DEFINITION).
[[nodiscard]] Instance instantiate(Atom atom);

// Why two defaults would both match some leaf; "" when they cannot.
[[nodiscard]] bool overlap(const Instance& a, const Instance& b);

}  // namespace graphene::atoms
