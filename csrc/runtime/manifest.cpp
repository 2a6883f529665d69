#include "runtime/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/diag.h"
#include "base/scalars.h"

namespace graphene::runtime {

namespace {

using Json = nlohmann::json;

[[noreturn]] void bad(const std::string& what) {
  fail(Code::LAUNCH_MANIFEST, "malformed launch manifest: " + what, {},
       "build the manifest with the same version of Graphene that reads it");
}

constexpr const char* kAccess[] = {"read", "write", "readwrite"};

Json expr_json(const Expr& e) { return e.is_const() ? Json(e.value()) : Json(e.str()); }

Json dims_json(const std::vector<Dim>& dims) {
  Json out = Json::array();
  for (const Dim& d : dims) out.push_back({expr_json(d.extent), expr_json(d.stride)});
  return out;
}

// Reads fields of an object and says which one is missing or of the wrong type.
class Reader {
 public:
  Reader(const Json& j, std::string at) : j_(j), at_(std::move(at)) {
    if (!j.is_object()) bad(at_ + " is not an object");
  }
  template <class T>
  T get(const char* key) const {
    try {
      return j_.at(key).get<T>();
    } catch (const Json::exception& e) {
      bad(at_ + "." + key + ": " + e.what());
    }
  }
  const Json& array(const char* key, std::size_t size = SIZE_MAX) const {
    const auto it = j_.find(key);
    if (it == j_.end() || !it->is_array()) bad(at_ + "." + key + " is not a list");
    if (size != SIZE_MAX && it->size() != size)
      bad(at_ + "." + key + " does not have " + std::to_string(size) + " entries");
    return *it;
  }
  [[nodiscard]] std::string path(const char* key, std::size_t i) const {
    return at_ + "." + key + "[" + std::to_string(i) + "]";
  }
  const Json& operator[](const char* key) const {
    const auto it = j_.find(key);
    if (it == j_.end()) bad(at_ + "." + key + " is missing");
    return *it;
  }

 private:
  const Json& j_;
  std::string at_;
};

// The variables that a manifest's expressions may name.
class Names {
 public:
  void add(const SymbolSpec& s) {
    vars_[s.name] = sym::make_var({.name = s.name,
                                   .kind = sym::VarKind::Size,
                                   .min = s.min,
                                   .max = s.max,
                                   .multiple_of = s.multiple_of,
                                   .hi = {},
                                   .lo = {},
                                   .def = {}});
  }
  void add(const ArgSpec& a) {
    if (a.kind == ArgKind::Scalar)
      vars_[a.name] = sym::make_var({.name = a.name,
                                     .kind = sym::VarKind::Param,
                                     .min = sym::kMinInt,
                                     .max = sym::kMaxInt,
                                     .multiple_of = 1,
                                     .hi = {},
                                     .lo = {},
                                     .def = {}});
  }
  [[nodiscard]] Expr read(const Json& j, const std::string& at) const {
    if (j.is_number_integer()) return j.get<std::int64_t>();
    if (!j.is_string()) bad(at + " is neither an integer nor an expression");
    return sym::parse_expr(j.get_ref<const std::string&>(), [&](std::string_view name) -> std::optional<Expr> {
      const auto it = vars_.find(std::string(name));
      return it == vars_.end() ? std::nullopt : std::optional(it->second);
    });
  }
  [[nodiscard]] std::vector<Dim> dims(const Json& j, const std::string& at) const {
    std::vector<Dim> out;
    for (const Json& d : j) {
      if (!d.is_array() || d.size() != 2) bad(at + ": a dimension is [extent, stride]");
      out.push_back({read(d[0], at), read(d[1], at)});
    }
    return out;
  }

 private:
  std::map<std::string, Expr> vars_;
};

ArgSpec read_arg(const Json& j, const std::string& at) {
  const Reader r(j, at);
  ArgSpec a;
  a.name = r.get<std::string>("name");
  const auto kind = r.get<std::string>("kind");
  if (kind != "tensor" && kind != "scalar") bad(at + ".kind is '" + kind + "'");
  a.kind = kind == "tensor" ? ArgKind::Tensor : ArgKind::Scalar;
  a.dtype = dtype_of(r.get<std::string>("dtype"));
  if (a.kind == ArgKind::Scalar) return a;
  const auto access = r.get<std::string>("access");
  bool known = false;
  for (int i = 0; i < 3; ++i)
    if (access == kAccess[i]) known = true, a.access = static_cast<Access>(i);
  if (!known) bad(at + ".access is '" + access + "'");
  if (j.contains("packed")) {
    a.packed = r.get<std::string>("packed");
    const Scalar* s = find_scalar(a.packed);
    if (s == nullptr || !s->packed() || a.dtype.name != std::string_view("u8"))
      bad(at + ".packed is '" + a.packed + "'");
  }
  a.align_bytes = r.get<std::int64_t>("align_bytes");
  a.list_count = r.get<int>("list_count");
  if (a.align_bytes < 1 || (a.align_bytes & (a.align_bytes - 1)) != 0) bad(at + ".align_bytes is not a power of two");
  if (a.list_count < 0) bad(at + ".list_count is negative");
  return a;
}

}  // namespace

DType dtype_of(std::string_view name) {
  std::string names;
  for (const Scalar& s : scalars()) {
    if (!s.in_arrays()) continue;
    if (s.name == name) return {s.name, s.dlpack, static_cast<std::uint8_t>(s.bits)};
    names += (names.empty() ? "" : " ") + std::string(s.name);
  }
  fail(Code::LAUNCH_MANIFEST, "'" + std::string(name) + "' is not an element type that tensors hold",
       {"known: " + names});
}

std::vector<std::int64_t> LaunchManifest::param_bytes() const {
  std::vector<std::int64_t> out;
  for (const ArgSpec& a : args)
    if (a.kind == ArgKind::Tensor) out.push_back(8 * std::max(a.list_count, 1));
  for (const ArgSpec& a : args)
    if (a.kind == ArgKind::Scalar) out.push_back(a.dtype.bits / 8);
  for (const SymbolSpec& s : symbols)
    if (s.is_param) out.push_back(s.bits / 8);
  out.insert(out.end(), maps.size(), static_cast<std::int64_t>(kMapBytes));
  return out;
}

std::string LaunchManifest::to_json(int indent) const {
  Json j = {{"schema", kManifestSchema}, {"kernel", kernel_name}, {"entry", entry}};
  for (const ArgSpec& a : args) {
    Json x = {{"name", a.name}, {"kind", a.kind == ArgKind::Tensor ? "tensor" : "scalar"}, {"dtype", a.dtype.name}};
    if (a.kind == ArgKind::Tensor) {
      if (!a.packed.empty()) x["packed"] = a.packed;
      x["access"] = kAccess[static_cast<int>(a.access)];
      x["dims"] = dims_json(a.dims);
      x["flat"] = dims_json(a.flat);
      x["align_bytes"] = a.align_bytes;
      x["list_count"] = a.list_count;
    }
    j["args"].push_back(x);
  }
  for (const SymbolSpec& s : symbols)
    j["symbols"].push_back({{"name", s.name},
                            {"min", s.min},
                            {"max", s.max},
                            {"multiple_of", s.multiple_of},
                            {"from", s.from == SymbolFrom::Shape ? "shape" : "sm_count"},
                            {"is_param", s.is_param},
                            {"bits", s.bits}});
  for (const FactSpec& f : facts)
    j["facts"].push_back({{"condition", expr_json(f.condition)}, {"text", f.text}, {"where", f.where}});
  for (const char* key : {"args", "symbols", "facts"})
    if (!j.contains(key)) j[key] = Json::array();
  for (const MapSpec& x : maps)
    j["maps"].push_back({{"arg", x.arg}, {"dims", dims_json(x.dims)}, {"box", x.box}, {"swizzle", x.swizzle_bytes}});
  j["grid"] = {expr_json(grid[0]), expr_json(grid[1]), expr_json(grid[2])};
  j["cluster"] = cluster;
  j["block_threads"] = block_threads;
  j["dynamic_shared_bytes"] = expr_json(dynamic_shared_bytes);
  if (waits_itself) j["waits_itself"] = true;
  return j.dump(indent, ' ', false, Json::error_handler_t::replace);
}

LaunchManifest LaunchManifest::from_json(std::string_view text) {
  Json j;
  try {
    j = Json::parse(text);
  } catch (const Json::exception& e) {
    bad(e.what());
  }
  const Reader r(j, "manifest");
  if (const int schema = r.get<int>("schema"); schema != kManifestSchema)
    bad("schema " + std::to_string(schema) + ", this version reads " + std::to_string(kManifestSchema));
  LaunchManifest m;
  m.kernel_name = r.get<std::string>("kernel");
  m.entry = r.get<std::string>("entry");
  Names names;
  std::size_t i = 0;
  for (const Json& x : r.array("symbols")) {
    const Reader s(x, r.path("symbols", i++));
    SymbolSpec spec{.name = s.get<std::string>("name"),
                    .min = s.get<std::int64_t>("min"),
                    .max = s.get<std::int64_t>("max"),
                    .multiple_of = s.get<std::int64_t>("multiple_of"),
                    .from = SymbolFrom::Shape,
                    .is_param = s.get<bool>("is_param"),
                    .bits = s.get<int>("bits")};
    const auto from = s.get<std::string>("from");
    if (from != "shape" && from != "sm_count") bad(spec.name + ".from is '" + from + "'");
    if (from == "sm_count") spec.from = SymbolFrom::SmCount;
    if (spec.bits != 32 && spec.bits != 64) bad(spec.name + ".bits is neither 32 nor 64");
    names.add(spec);
    m.symbols.push_back(spec);
  }
  i = 0;
  for (const Json& x : r.array("args")) {
    m.args.push_back(read_arg(x, r.path("args", i++)));
    names.add(m.args.back());
  }
  for (i = 0; i < m.args.size(); ++i) {
    if (m.args[i].kind == ArgKind::Scalar) continue;
    const Reader a(r.array("args")[i], r.path("args", i));
    m.args[i].dims = names.dims(a.array("dims"), r.path("args", i));
    m.args[i].flat = names.dims(a.array("flat"), r.path("args", i));
  }
  i = 0;
  for (const Json& x : r.array("facts")) {
    const Reader f(x, r.path("facts", i++));
    m.facts.push_back({names.read(f["condition"], "facts"), f.get<std::string>("text"), f.get<std::string>("where")});
  }
  i = 0;
  if (j.contains("maps")) {
    for (const Json& x : r.array("maps")) {
      const std::string at = r.path("maps", i++);
      const Reader s(x, at);
      MapSpec map{s.get<int>("arg"), names.dims(s.array("dims"), at), s.get<std::vector<std::int64_t>>("box"),
                  s.get<int>("swizzle")};
      const bool of_tensor = map.arg >= 0 && map.arg < static_cast<int>(m.args.size()) &&
                             m.args[static_cast<std::size_t>(map.arg)].kind == ArgKind::Tensor;
      if (!of_tensor) bad(at + ".arg is not a tensor");
      if (map.dims.empty() || map.dims.size() > kMapDims || map.box.size() != map.dims.size()) bad(at + ".dims");
      if (map.swizzle_bytes != 0 && map.swizzle_bytes != 32 && map.swizzle_bytes != 64 && map.swizzle_bytes != 128)
        bad(at + ".swizzle is " + std::to_string(map.swizzle_bytes));
      m.maps.push_back(std::move(map));
    }
    if (m.maps.size() > kMaxMaps) bad("more than " + std::to_string(kMaxMaps) + " maps");
  }
  for (std::size_t d = 0; d < 3; ++d) {
    m.grid[d] = names.read(r.array("grid", 3)[d], "grid");
    const Json& c = r.array("cluster", 3)[d];
    if (!c.is_number_integer() || c.get<std::int64_t>() < 1 || c.get<std::int64_t>() > 16) bad("cluster");
    m.cluster[d] = c.get<int>();
  }
  m.block_threads = r.get<int>("block_threads");
  if (m.block_threads < 1) bad("block_threads is not positive");
  m.dynamic_shared_bytes = names.read(r["dynamic_shared_bytes"], "dynamic_shared_bytes");
  if (j.contains("waits_itself")) m.waits_itself = r.get<bool>("waits_itself");
  return m;
}

}  // namespace graphene::runtime
