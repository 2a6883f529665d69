// Compiling and the disk cache, seen from Python.
#include <memory>
#include <optional>

#include "base/diag.h"
#include "bind/bind.h"
#include "bind/gil.h"
#include "bind/launcher.h"
#include "bind/python_arguments.h"
#include "bind/record.h"
#include "bind/runtime_common.h"
#include "runtime/cache.h"
#include "runtime/compile.h"
#include "runtime/driver.h"
#include "runtime/folder.h"
#include "runtime/nvrtc.h"
#include "runtime/plans.h"
#include "runtime/sha256.h"

namespace graphene::bind {

namespace rt = graphene::runtime;

namespace {

struct FoundPlan {
  std::string key;
  py::bytes text;
};

}  // namespace

std::vector<std::string> site_packages() {
  std::vector<std::string> out;
  const py::object path = py::module_::import("sys").attr("path");
  for (const py::handle item : path)
    if (PyUnicode_Check(item.ptr()) != 0 && py::len(item) > 0) {
      const auto bytes = py::reinterpret_steal<py::object>(PyUnicode_EncodeFSDefault(item.ptr()));
      if (!bytes) {
        PyErr_Clear();  // no file has such a name
        continue;
      }
      out.emplace_back(PyBytes_AsString(bytes.ptr()));  // up to a NUL: such a folder is not found
    }
  return out;
}

void warn_about_cache() {
  for (const std::string& text : rt::take_cache_warnings())
    if (PyErr_WarnFormat(PyExc_RuntimeWarning, 1, "%U", text_to_py(text).ptr()) != 0) throw py::error_already_set();
}

namespace {

rt::CompileRequest request_of(const std::string& source, const std::string& entry, const std::string& arch,
                              const std::optional<std::string>& name,
                              const std::optional<std::vector<std::string>>& options) {
  rt::CompileRequest r;
  r.source = source;
  r.entry = entry;
  r.arch = arch;
  r.kernel_name = name.value_or(entry);
  if (options) r.options = *options;
  r.site_packages = site_packages();
  return r;
}

std::string memo_file(const std::string& name) {
  constexpr std::size_t kDigits = 32;
  if (name.size() != kDigits || name.find_first_not_of("0123456789abcdef") != std::string::npos)
    throw py::value_error("a name of 32 hexadecimal digits");
  return name + ".json";
}

py::dict nvrtc_dict(const rt::NvrtcInfo& info) {
  py::dict d;
  d["path"] = text_to_py(info.path);
  d["why"] = info.why;
  d["version"] = info.version();
  py::list archs;
  for (const int a : info.archs) archs.append("sm_" + std::to_string(a));
  d["archs"] = archs;
  return d;
}

std::string binary_repr(const rt::Binary& b) {
  return "Binary('" + b.entry + "', " + b.arch + ", " + std::to_string(b.resources.registers) + " registers, " +
         std::to_string(b.resources.spill_bytes) + " spill bytes, " + std::to_string(b.resources.shared_bytes) +
         " shared bytes, cubin of " + std::to_string(b.cubin.size()) + " bytes)";
}

py::dict bound_dict(const rt::LaunchManifest& m, const rt::BoundCall& b) {
  py::dict symbols;
  for (std::size_t i = 0; i < m.symbols.size(); ++i) symbols[py::str(m.symbols[i].name)] = b.symbols[i];
  py::dict d;
  d["symbols"] = symbols;
  d["grid"] = py::make_tuple(b.grid[0], b.grid[1], b.grid[2]);
  d["dynamic_shared_bytes"] = b.dynamic_shared_bytes;
  d["flat"] = b.flat;
  return d;
}

py::dict driver_dict() {
  const rt::Driver& d = rt::driver();
  py::list devices;
  for (int i = 0; i < rt::device_count(); ++i) {
    const rt::DeviceInfo& info = rt::device(i);
    py::dict x;
    x["name"] = info.name;
    x["arch"] = info.arch;
    x["sm_count"] = info.limits.sm_count;
    x["shared_bytes"] = info.limits.shared_bytes;
    const rt::DeviceClocks clocks = rt::device_clocks(i);
    x["clock_khz"] = clocks.clock_khz;
    x["memory_clock_khz"] = clocks.memory_clock_khz;
    x["memory_bus_bits"] = clocks.memory_bus_bits;
    devices.append(x);
  }
  py::dict out;
  out["path"] = text_to_py(d.path);
  out["version"] = std::to_string(d.version_number / 1000) + "." + std::to_string(d.version_number % 1000 / 10);
  out["devices"] = devices;
  return out;
}

void register_manifest(py::module_& m) {
  py::class_<rt::LaunchManifest, std::shared_ptr<rt::LaunchManifest>>(m, "LaunchManifest", R"(What a launch must know.

Arguments with their shapes, symbols, grid and block. It travels as JSON beside a cubin.)")
      .def_static(
          "from_json", [](const std::string& text) { return rt::LaunchManifest::from_json(text); }, py::arg("text"),
          "Raises LaunchError (LAUNCH_MANIFEST) on malformed text or another schema.")
      .def("to_json", &rt::LaunchManifest::to_json, py::arg("indent") = -1, "The manifest as JSON text.")
      .def_readonly("kernel_name", &rt::LaunchManifest::kernel_name, "What messages call the kernel.")
      .def_readonly("entry", &rt::LaunchManifest::entry, "The extern \"C\" symbol in the cubin.")
      .def_readonly("block_threads", &rt::LaunchManifest::block_threads, "Threads of a block.")
      .def_property_readonly(
          "arguments",
          [](const rt::LaunchManifest& x) {
            std::vector<std::string> names;
            for (const rt::ArgSpec& a : x.args) names.push_back(a.name);
            return names;
          },
          "Names of the arguments in order.")
      .def("__repr__", [](const rt::LaunchManifest& x) { return "LaunchManifest('" + x.kernel_name + "')"; });
  m.def(
      "check_call",
      [](const rt::LaunchManifest& x, const py::tuple& args, const py::dict& named) {
        return bound_dict(x, rt::bind_args(x, read_call(x, args, named).values));
      },
      py::arg("manifest"), py::arg("args"), py::arg("named") = py::dict(),
      R"(Checks arguments as a launch does, for tensors on any one device.

Returns a dict: symbols (values by name), grid, dynamic_shared_bytes, flat (for each tensor: whether it was taken with
one dimension per leaf of its layout). Raises LaunchError with everything that is wrong.)");
  m.def("driver_info", &driver_dict,
        "The CUDA driver: dict with path, version and devices (name, arch, sm_count, shared_bytes; clock_khz, "
        "memory_clock_khz, memory_bus_bits, 0 where it does not say). Raises LaunchError (LAUNCH_NO_DRIVER, "
        "LAUNCH_DRIVER).");
}

}  // namespace

void register_runtime(py::module_& m) {
  py::class_<rt::Binary, std::shared_ptr<rt::Binary>>(m, "Binary", R"(A compiled kernel.

Sizes are per thread (registers, spill_bytes, local_bytes) or per block (shared_bytes: static shared memory).)")
      .def(py::init([](const py::bytes& cubin, const std::string& entry, const std::string& arch) {
             auto b = std::make_shared<rt::Binary>();
             b->cubin = std::string(cubin);
             b->entry = entry;
             b->arch = arch;
             b->resources = rt::read_cubin(b->cubin, entry);
             if (!b->resources.known)
               fail(Code::LAUNCH_MANIFEST, "the cubin has no kernel '" + entry + "'", {},
                    "name the extern \"C\" symbol of its kernel");
             return b;
           }),
           py::arg("cubin"), py::arg("entry"), py::arg("arch"),
           "A cubin from elsewhere. Raises LaunchError (LAUNCH_MANIFEST) when `entry` is not a kernel of it.")
      .def_readonly("entry", &rt::Binary::entry, "The extern \"C\" symbol.")
      .def_readonly("arch", &rt::Binary::arch, "Architecture, as in \"sm_90a\".")
      .def_property_readonly(
          "cubin", [](const rt::Binary& b) { return py::bytes(b.cubin); }, "The ELF file, bytes.")
      .def_property_readonly(
          "ptx", [](const rt::Binary& b) { return text_to_py(b.ptx); }, "PTX text.")
      .def_property_readonly(
          "log", [](const rt::Binary& b) { return text_to_py(b.log); }, "What NVRTC and the assembler said.")
      .def_readonly("nvrtc_version", &rt::Binary::nvrtc_version, "As in \"13.0\".")
      .def_property_readonly(
          "registers", [](const rt::Binary& b) { return b.resources.registers; }, "Per thread.")
      .def_property_readonly(
          "spill_bytes", [](const rt::Binary& b) { return b.resources.spill_bytes; },
          "Stored plus loaded per thread because registers ran out.")
      .def_property_readonly(
          "shared_bytes", [](const rt::Binary& b) { return b.resources.shared_bytes; },
          "Static shared memory of a block, without what the system reserves and without dynamic shared memory.")
      .def_property_readonly(
          "local_bytes", [](const rt::Binary& b) { return b.resources.local_bytes; }, "Stack frame of a thread.")
      .def_readonly("from_cache", &rt::Binary::from_cache, "Whether the disk cache had it.")
      .def_readonly("key", &rt::Binary::key, "Of its entry in the disk cache; empty where it has none.")
      .def_readonly("compile_ms", &rt::Binary::compile_ms, "Time NVRTC took, when it was compiled.")
      .def("__repr__", &binary_repr);

  m.def(
      "compile_source",
      [](const std::string& source, const std::string& entry, const std::string& arch,
         const std::optional<std::string>& name, const std::optional<std::vector<std::string>>& options) {
        const auto request = request_of(source, entry, arch, name, options);
        std::shared_ptr<rt::Binary> b;
        {
          const GilReleased released;
          b = std::make_shared<rt::Binary>(rt::compile(request, check_signals));
        }
        warn_about_cache();
        return b;
      },
      py::arg("source"), py::arg("entry"), py::arg("arch"), py::arg("name") = py::none(),
      py::arg("options") = py::none(),
      R"(CUDA C++ text with the kernel `extern "C" __global__ entry` -> Binary for `arch`, through the disk cache.

`options` replaces default_compile_options(). Raises CompileError: COMPILE_NVRTC, COMPILE_ARCH, COMPILE_SOURCE,
COMPILE_REMARK, COMPILE_CANCELLED, COMPILE_FORK. Releases the GIL, and answers signals while NVRTC works.)");
  m.def("cancel_compilations", &rt::cancel_compilations,
        "Ends the compilations that other threads wait for, which raise CompileError (COMPILE_CANCELLED).");
  m.def("default_compile_options", &rt::default_options, "NVRTC options used when none are given.");
  m.def(
      "is_cached",
      [](const std::string& source, const std::string& entry, const std::string& arch,
         const std::optional<std::vector<std::string>>& options) {
        return rt::is_cached(request_of(source, entry, arch, std::nullopt, options));
      },
      py::arg("source"), py::arg("entry"), py::arg("arch"), py::arg("options") = py::none(),
      "Whether compile_source would find this in the disk cache.");
  m.def(
      "cubin_key",
      [](const std::string& source, const std::string& entry, const std::string& arch) {
        return rt::cubin_key(request_of(source, entry, arch, std::nullopt, std::nullopt));
      },
      py::arg("source"), py::arg("entry"), py::arg("arch"),
      "The key under which compile_source looks for this in the disk cache; where no NVRTC serves `arch`, its first 64 "
      "digits, which name the request.");
  m.def(
      "cached_binary",
      [](const std::string& key, const std::string& entry, const std::string& arch) -> py::object {
        auto b = std::make_shared<rt::Binary>();
        if (!rt::load_cubin(key, entry, arch, *b)) return py::none();
        return py::cast(b);
      },
      py::arg("key"), py::arg("entry"), py::arg("arch"),
      "The Binary of an entry of the disk cache, without PTX and log; None unless it is `entry` for `arch`.");
  register_record<FoundPlan>(m, "StoredPlan", "A plan in the disk cache: its entry's key, and its text.",
                             field("key", &FoundPlan::key), field("text", &FoundPlan::text));
  m.def(
      "plan_load",
      [](const std::string& request, const std::string& arch) -> py::object {
        auto found = rt::plan_load(request, arch, site_packages());
        warn_about_cache();
        return found ? py::cast(FoundPlan{found->key, py::bytes(found->text)}) : py::object(py::none());
      },
      py::arg("request"), py::arg("arch"), "The plan that the disk cache keeps of a request; None when there is none.");
  m.def(
      "plan_store",
      [](const std::string& request, const std::string& arch, const std::string& text) {
        const bool done = rt::plan_store(request, arch, site_packages(), text);
        warn_about_cache();
        return done;
      },
      py::arg("request"), py::arg("arch"), py::arg("text"),
      "Keeps a plan, a JSON object that says its own `request` and `arch`. False where that cannot be.");
  m.def("cache_discard", &rt::cache_discard, py::arg("key"), "Removes an entry that its reader found wrong.");
  m.def(
      "files_state",
      [](const std::string& folder, const std::vector<std::string>& endings) {
        const rt::FilesState state = rt::files_state(folder, endings);
        return py::make_tuple(state.digest, state.newest_ns);
      },
      py::arg("folder"), py::arg("endings"),
      "A hash of names, sizes, times and places on the disk of all files below a folder whose names end so, and the "
      "latest of their times in nanoseconds. The hash is empty where the system refuses one. Folders whose names have "
      "a dot, __pycache__ and links to folders are left out.");
  m.def(
      "memo_load",
      [](const std::string& name) -> py::object {
        std::string bytes;
        if (!rt::memo_load(memo_file(name), bytes)) return py::none();
        return py::bytes(bytes);
      },
      py::arg("name"), "What the cache remembers of files under a name, 32 hexadecimal digits; None: nothing.");
  m.def(
      "memo_store",
      [](const std::string& name, const py::bytes& bytes) {
        return rt::memo_store(memo_file(name), std::string(bytes));
      },
      py::arg("name"), py::arg("bytes"), "Remembers it until the cache is cleared. False where that cannot be.");
  m.def(
      "nvrtc_read_ahead", [] { return rt::nvrtc_read_ahead(site_packages()); },
      "Asks the system to read NVRTC into memory, without waiting for it or loading it. False: there is none.");
  m.def(
      "nvrtc_start",
      [](const std::string& arch) {
        std::vector<std::string> options = {"-arch=" + arch};
        const auto& usual = rt::default_options();
        options.insert(options.end(), usual.begin(), usual.end());
        if (rt::nvrtc_start(arch, site_packages(), options))
          py::module_::import("atexit").attr("register")(
              py::cpp_function([] { rt::nvrtc_end_start(); }, py::call_guard<py::gil_scoped_release>()));
      },
      py::arg("arch"),
      "Begins to load and to start the compiler for `arch`, without waiting for it. Once a process; errors are not "
      "told.");
  m.def(
      "nvrtc_libraries",
      [] {
        py::list out;
        for (const auto& info : rt::all_nvrtc(site_packages())) out.append(nvrtc_dict(info));
        return out;
      },
      "Every NVRTC found, in the order of the search: dicts with path, why, version, archs.");
  m.def(
      "nvrtc_for", [](const std::string& arch) { return nvrtc_dict(rt::find_nvrtc(arch, site_packages())); },
      py::arg("arch"), "The NVRTC that compiles for `arch`. Raises CompileError (COMPILE_NVRTC, COMPILE_ARCH).");
  m.def(
      "cache_stats",
      [] {
        const auto s = rt::cache_stats();
        warn_about_cache();
        py::dict d;
        d["dir"] = s.dir.empty() ? py::object(py::none()) : py::object(text_to_py(s.dir.string()));
        d["entries"] = s.entries;
        d["bytes"] = s.bytes;
        d["limit_bytes"] = s.limit_bytes;
        d["writable"] = s.writable;
        return d;
      },
      "The disk cache: dir (None when it is off), entries, bytes, limit_bytes, writable.");
  m.def(
      "cache_dir",
      [] {
        const auto dir = rt::cache_dir();
        return dir.empty() ? py::object(py::none()) : py::object(text_to_py(dir.string()));
      },
      "Where the disk cache is, None when it is off; its entries are not looked at.");
  m.def(
      "cache_keys",
      [] {
        auto keys = rt::cache_keys();
        warn_about_cache();
        return keys;
      },
      "The keys of the disk cache's entries, sorted.");
  m.def(
      "cache_read",
      [](const std::string& key) -> py::object {
        rt::CacheFiles files;
        if (key.find('/') != std::string::npos || !rt::cache_load(key, files)) return py::none();
        py::dict out;
        for (const auto& [name, content] : files) out[py::str(name)] = py::bytes(content);
        return out;
      },
      py::arg("key"),
      "An entry's files, bytes by name; None when there is none, or it was damaged and is now removed.");
  const auto content_of = [](const std::map<std::string, py::bytes>& files) {
    rt::CacheFiles content;
    for (const auto& [name, bytes] : files) content[name] = std::string(bytes);
    return content;
  };
  m.def(
      "why_not_cacheable",
      [content_of](const std::string& key, const std::map<std::string, py::bytes>& files) {
        return rt::why_not_cacheable(key, content_of(files));
      },
      py::arg("key"), py::arg("files"),
      "Why files are not a compiled kernel whose source, entry, architecture and options hash to the key; empty when "
      "they are.");
  m.def(
      "cache_write",
      [content_of](const std::string& key, const std::map<std::string, py::bytes>& files) {
        const rt::CacheFiles content = content_of(files);
        if (const std::string why = rt::why_not_cacheable(key, content); !why.empty())
          throw py::value_error("no entry of the cache: " + why);
        rt::CacheFiles present;
        const bool added = !rt::cache_load(key, present);
        if (added && !rt::cache_store(key, content)) {
          std::vector<std::string> why = rt::take_cache_warnings();
          if (why.empty()) why = {"the cache is off (GRAPHENE_CACHE=0, or no home directory)"};
          fail(Code::CACHE_ARCHIVE, "the cache cannot be written", why,
               "set GRAPHENE_CACHE_DIR to a writable directory");
        }
        return added;
      },
      py::arg("key"), py::arg("files"),
      R"(Stores an entry from elsewhere; returns False when it was there.

Raises CompileError (CACHE_ARCHIVE) when the cache cannot be written, ValueError for what is not cacheable.)");
  m.def(
      "cache_clear",
      [] {
        const auto removed = rt::cache_clear();
        warn_about_cache();
        return removed;
      },
      "Removes every entry of the disk cache; returns how many. What is not the cache's own stays.");
  m.def(
      "sha256", [](const py::bytes& data) { return rt::sha256_hex(std::string(data)); }, py::arg("data"),
      "SHA-256 in hexadecimal, as the cache computes it.");
  register_manifest(m);
  register_launcher(m);
}

}  // namespace graphene::bind
