// Copies from global to shared memory that complete later.
#include "atoms/entries/operands.h"

namespace graphene::atoms::subjects {

namespace {

// B: bytes of a copy; E: bits of an element; M: pattern; T: tile.
Param copies(bool only_16) {
  Param p{{"B", "E", "M", "T"},
          {{"16", "8", "[16:1]", "e16"},
           {"16", "16", "[8:1]", "e8"},
           {"16", "32", "[4:1]", "e4"},
           {"16", "64", "[2:1]", "e2"},
           {"16", "4", "[32:1]", "e32"}}};
  if (only_16) return p;
  for (std::vector<std::string> row : std::vector<std::vector<std::string>>{{"8", "8", "[8:1]", "e8"},
                                                                            {"8", "16", "[4:1]", "e4"},
                                                                            {"8", "32", "[2:1]", "e2"},
                                                                            {"8", "64", "[]", ""},
                                                                            {"4", "8", "[4:1]", "e4"},
                                                                            {"4", "16", "[2:1]", "e2"},
                                                                            {"4", "32", "[]", ""},
                                                                            {"8", "4", "[16:1]", "e16"},
                                                                            {"4", "4", "[8:1]", "e8"}}) {
    p.rows.push_back(std::move(row));
  }
  return p;
}

// What lies outside of a partial source is not read; zeros are written in its place.
void add_copies(std::vector<Atom>& list, const std::string& cache, const Param& sizes, const std::string& say) {
  list.push_back({.name = "cp.async." + cache + ".${B}/b${E}",
                  .arch = "sm_80+",
                  .out = {aligned(out("dst", "${M}.b${E}.SH", "${T}"), "${B}")},
                  .in = {aligned(in("src", "${M}.b${E}.GL", "${T}"), "${B}")},
                  .attrs = {{"cache", {cache}},
                            {"prefetch", {"none", "64B", "128B", "256B"}},
                            {"evict", {"default", "evict_first", "evict_last", "evict_unchanged"}}},
                  .guard = Guard::Bytes,
                  .ptx = "{?evict:{.reg .b64 p; createpolicy.fractional.L2::$evict.b64 p, 1.0; }cp.async." + cache +
                         ".shared.global{?evict:.L2::cache_hint}{?prefetch:.L2::$prefetch} [$dst], [$src], ${B}"
                         "{?guard:, $src.bytes}{?evict:, p};{?evict:$}}",
                  .done = "group:cp_async",
                  .is_default = false,
                  .family = {sizes},
                  .doc = "Starts copying ${B} bytes of global memory to shared memory, " + say + ".",
                  .source = "PTX ISA, asynchronous copy: cp.async"});
}

}  // namespace

void async_copy(std::vector<Atom>& list) {
  add_copies(list, "ca", copies(false), "caching at all levels");
  add_copies(list, "cg", copies(true), "caching at the level shared by all SMs only");
  const AttrDef scope = {"scope", {"cp_async"}};
  const char* source = "PTX ISA, asynchronous copy: cp.async.commit_group, cp.async.wait_group";
  list.push_back({.name = "cp.async.commit_group",
                  .kind = Kind::Sync,
                  .arch = "sm_80+",
                  .attrs = {{"op", {"commit"}}, scope},
                  .ptx = "cp.async.commit_group;",
                  .doc = "Makes a group of the thread's own copies started since the last one.",
                  .source = source});
  list.push_back({.name = "cp.async.wait_group",
                  .kind = Kind::Sync,
                  .arch = "sm_80+",
                  .attrs = {{"op", {"wait"}}, scope, {"pending", {"*const"}}},
                  .ptx = "cp.async.wait_group $pending;",
                  .doc = "Waits until all but the thread's youngest `pending` groups of copies have landed.",
                  .source = source});
  list.push_back({.name = "cp.async.wait_all",
                  .kind = Kind::Sync,
                  .arch = "sm_80+",
                  .attrs = {{"op", {"wait"}}, scope},
                  .ptx = "cp.async.wait_all;",
                  .doc = "Waits until all of the thread's own copies have landed, in a group or not.",
                  .source = source});
}

}  // namespace graphene::atoms::subjects
