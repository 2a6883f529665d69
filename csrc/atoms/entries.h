// The entries, by the first architecture that has them.
#pragma once

#include "atoms/atom.h"

namespace graphene::atoms {

void add_memory_entries(std::vector<Atom>& out);      // ld, st, mov, init
void add_arithmetic_entries(std::vector<Atom>& out);  // fma, binary, unary, ternary
void add_unary_entries(std::vector<Atom>& out);
void add_convert_entries(std::vector<Atom>& out);  // cast
void add_atomic_entries(std::vector<Atom>& out);   // red
void add_warp_entries(std::vector<Atom>& out);     // shfl, redux, barriers
void add_sm70_entries(std::vector<Atom>& out);
void add_sm75_entries(std::vector<Atom>& out);
void add_warp_matrix_entries(std::vector<Atom>& out);
void add_sm90_entries(std::vector<Atom>& out);
void add_gfx90a_entries(std::vector<Atom>& out);
void add_async_copy_entries(std::vector<Atom>& out);  // cp.async

}  // namespace graphene::atoms
