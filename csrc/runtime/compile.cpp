#include "runtime/compile.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/diag.h"
#include "base/stages.h"
#include "runtime/cache.h"
#include "runtime/plans.h"
#include "runtime/sha256.h"

namespace graphene::runtime {

namespace {

using Json = nlohmann::json;

// What the assembler only remarks on although the kernel then misses its purpose.
struct FatalRemark {
  const char* text;
  const char* message;
  const char* fix;
};
constexpr std::array<FatalRemark, 2> kFatalRemarks = {{
    {"wgmma.mma_async instructions are serialized", "the assembler serialises the wgmma instructions",
     "keep the accumulator's registers untouched between the first wgmma and its wait, and use no function calls "
     "there"},
    {"'setmaxnreg' ignored", "the assembler ignores the change of the number of registers",
     "say how many blocks an SM runs: __launch_bounds__(threads, 1)"},
}};

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at <= text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

std::string trimmed(const std::string& s) {
  const auto first = s.find_first_not_of(" \t");
  return first == std::string::npos ? "" : s.substr(first, s.find_last_not_of(" \t\r") - first + 1);
}

// The line number in "name.cu(12): error ...".
std::optional<std::size_t> error_line(const std::string& line, const std::string& file_name) {
  const std::string prefix = file_name + "(";
  if (!line.starts_with(prefix) || line.find("): error") == std::string::npos) return std::nullopt;
  std::size_t n = 0;
  const auto r = std::from_chars(line.data() + prefix.size(), line.data() + line.size(), n);
  if (r.ec != std::errc() || n == 0) return std::nullopt;
  return n;
}

[[noreturn]] void fail_source(const CompileRequest& request, const NvrtcInfo& info, const std::string& file_name,
                              const std::string& log) {
  constexpr std::size_t kMaxErrors = 10;
  const auto source = split_lines(request.source);
  Diagnostic d{.code = Code::COMPILE_SOURCE,
               .where = {},
               .message = request.kernel_name + ": NVRTC " + info.version() + " refused the source for " + request.arch,
               .ir = {},
               .details = {},
               .fix = {}};
  std::size_t errors = 0;
  for (const std::string& line : split_lines(log)) {
    const auto n = error_line(line, file_name);
    if (!n) continue;
    if (++errors > kMaxErrors) continue;
    d.details.push_back(line);
    if (*n > source.size()) continue;
    for (std::size_t i = *n; i-- > 0;) {
      const std::string text = trimmed(source[i]);
      if (!text.starts_with("//")) continue;
      d.details.push_back("  under: " + trimmed(text.substr(2)));
      break;
    }
    d.details.push_back("  line:  " + trimmed(source[*n - 1]));
  }
  if (errors > kMaxErrors) d.details.push_back("and " + std::to_string(errors - kMaxErrors) + " more");
  if (errors == 0) d.details = split_lines(log);
  d.fix =
      "a kernel built from Graphene's own statements should always compile: report it; text of define_atom or "
      "options of your own: correct them";
  throw Error(std::move(d));
}

void check_remarks(const CompileRequest& request, const std::string& log) {
  for (const FatalRemark& r : kFatalRemarks)
    for (const std::string& line : split_lines(log))
      if (line.find(r.text) != std::string::npos)
        fail(Code::COMPILE_REMARK, request.kernel_name + ": " + r.message, {"ptxas: " + trimmed(line)}, r.fix);
}

// The source without the hints of asynchronous copies to the cache. Each such statement ends with its policy: ", p;}".
std::string without_hints(std::string source) {
  const std::string copy = ".shared.global", hint = ".L2::cache_hint", policy = "p;}";
  for (std::size_t at = 0; (at = source.find(copy + hint, at)) != std::string::npos;) {
    at += copy.size();
    const auto end = source.find(policy, at);
    const auto comma = end == std::string::npos ? end : source.rfind(',', end);
    if (comma == std::string::npos || comma < at) break;
    source.erase(comma, end + 1 - comma);
    source.erase(at, hint.size());
  }
  return source;
}

std::vector<std::string> full_options(const CompileRequest& request) {
  std::vector<std::string> out = {"-arch=" + request.arch, "--ptxas-options=-v"};
  out.insert(out.end(), request.options.begin(), request.options.end());
  return out;
}

constexpr std::size_t kRequestDigits = 64, kBuildDigits = 16;

std::string request_key(const std::string& source, const std::string& entry, const std::string& arch,
                        const std::vector<std::string>& options) {
  Sha256 h;
  h.field("graphene cubin").field(std::to_string(kCacheSchema)).field(entry).field(arch);
  for (const std::string& o : options) h.field(o);
  return h.field("source").field(source).hex();
}

std::string request_key(const CompileRequest& r) {
  return request_key(r.source, r.entry, r.arch, full_options(r)) + "-";
}

std::string digits_of(const NvrtcInfo& info) { return Sha256().field(info.identity()).hex().substr(0, kBuildDigits); }

std::string cache_key(const CompileRequest& request, const NvrtcInfo& info) {
  return request_key(request) + digits_of(info);
}

Json info_json(const Binary& b, const CompileRequest& request) {
  return {{"entry", b.entry},
          {"arch", b.arch},
          {"options", full_options(request)},
          {"nvrtc", b.nvrtc_version},
          {"registers", b.resources.registers},
          {"spill_bytes", b.resources.spill_bytes},
          {"shared_bytes", b.resources.shared_bytes},
          {"local_bytes", b.resources.local_bytes},
          {"compile_ms", b.compile_ms}};
}

bool from_files(CacheFiles& files, const CompileRequest& request, Binary& b) {
  const Json j = Json::parse(files["info.json"], nullptr, false);
  if (!j.is_object() || files["kernel.cubin"].empty()) return false;
  try {
    b.nvrtc_version = j.at("nvrtc");
    b.resources = {.registers = j.at("registers"),
                   .spill_bytes = j.at("spill_bytes"),
                   .shared_bytes = j.at("shared_bytes"),
                   .local_bytes = j.at("local_bytes"),
                   .known = true};
    b.compile_ms = j.at("compile_ms");
  } catch (const Json::exception&) {
    return false;
  }
  b.entry = request.entry;
  b.arch = request.arch;
  b.cubin = std::move(files["kernel.cubin"]);
  b.ptx = std::move(files["kernel.ptx"]);
  b.log = std::move(files["log.txt"]);
  b.from_cache = true;
  return !has_illegal_copy(b.cubin, b.entry);  // an older version may have stored one
}

// What any NVRTC compiled of it.
bool load_any(const CompileRequest& request, Binary& b) {
  const auto keys = cache_keys(request_key(request));
  return std::any_of(keys.rbegin(), keys.rend(), [&](const std::string& key) {
    CacheFiles files;
    if (!cache_load(key, files) || !from_files(files, request, b)) return false;
    b.key = key;
    return true;
  });
}

}  // namespace

const std::vector<std::string>& default_options() {
  static const std::vector<std::string> options = [] {
    std::vector<std::string> out = {"-std=c++17", "-default-device", "--fmad=false"};
    const char* asked = std::getenv("GRAPHENE_LINEINFO");
    if (asked != nullptr && *asked != '\0' && std::string(asked) != "0") out.emplace_back("-lineinfo");
    return out;
  }();
  return options;
}

std::string build_digits(const std::string& arch, const std::vector<std::string>& site_packages) {
  try {
    return digits_of(find_nvrtc(arch, site_packages));
  } catch (const Error&) {
    return {};
  }
}

bool load_cubin(const std::string& key, const std::string& entry, const std::string& arch, Binary& b) {
  CacheFiles files;
  if (!cache_load(key, files, {"info.json", "kernel.cubin"})) return false;
  const Json info = Json::parse(files["info.json"], nullptr, false);
  if (!info.is_object() || info.value("entry", Json()) != entry || info.value("arch", Json()) != arch) return false;
  CompileRequest request;
  request.entry = entry;
  request.arch = arch;
  b.key = key;
  return from_files(files, request, b) && read_cubin(b.cubin, entry).known;
}

std::string why_not_cacheable(const std::string& key, const CacheFiles& files) {
  if (!is_cache_key(key)) return "the key is malformed";
  if (files.count(std::string(kPlanFile)) != 0) return why_no_plan(key, files);
  if (files.size() != std::size(kEntryFiles)) return "it has other files than a compiled kernel";
  for (const std::string_view name : kEntryFiles)
    if (files.count(std::string(name)) == 0) return "it has no " + std::string(name);
  const Json info = Json::parse(files.at("info.json"), nullptr, false);
  CompileRequest request;
  std::vector<std::string> options;
  Binary b;
  try {
    request.entry = info.at("entry");
    request.arch = info.at("arch");
    options = info.at("options").get<std::vector<std::string>>();
  } catch (const Json::exception&) {
    return "info.json is malformed";
  }
  CacheFiles copy = files;
  if (!from_files(copy, request, b)) return "info.json is malformed";
  if (request_key(files.at("kernel.cu"), request.entry, request.arch, options) != key.substr(0, kRequestDigits))
    return "its source, entry, architecture and options are not those of its key";
  if (!read_cubin(b.cubin, request.entry).known) return "kernel.cubin has no kernel '" + request.entry + "'";
  return {};
}

std::string cubin_key(const CompileRequest& request) {
  try {
    return cache_key(request, find_nvrtc(request.arch, request.site_packages));
  } catch (const Error&) {
    return request_key(request).substr(0, kRequestDigits);
  }
}

bool is_cached(const CompileRequest& request) {
  Binary b;
  NvrtcInfo info;
  try {
    info = find_nvrtc(request.arch, request.site_packages);
  } catch (const Error&) {
    return load_any(request, b);
  }
  CacheFiles files;
  return cache_load(cache_key(request, info), files);
}

Binary compile(const CompileRequest& request, const Poll& poll) {
  const Stage stage("look up the cubin");
  Binary b;
  NvrtcInfo info;
  try {
    info = find_nvrtc(request.arch, request.site_packages);
  } catch (const Error&) {
    if (load_any(request, b)) return b;
    throw;
  }
  const std::string key = cache_key(request, info);
  b.key = key;
  if (CacheFiles files; cache_load(key, files) && from_files(files, request, b)) return b;

  const std::string file_name = request.entry + ".cu";
  // The line information names the source where the cache will keep it, so that a profiler finds it; messages do not.
  const auto entry = cache_entry(key);
  const std::string path = entry.empty() ? file_name : (entry / "kernel.cu").string();
  const auto begin = std::chrono::steady_clock::now();
  std::optional<Stage> compiling;
  compiling.emplace("NVRTC");
  const auto run = [&](const std::string& source) {
    return loaded_nvrtc(info)->compile(source, path, full_options(request), poll);
  };
  NvrtcOutput out = run(request.source);
  if (out.ok && has_illegal_copy(out.cubin, request.entry)) {
    const std::string plain = without_hints(request.source);
    if (plain != request.source) out = run(plain);
    if (out.ok && has_illegal_copy(out.cubin, request.entry))
      fail(Code::COMPILE_REMARK, request.kernel_name + ": the assembler wrote a copy that no GPU decodes",
           {"NVRTC " + info.version() + " at " + info.path, "found: LDGSTS with its descriptor in an odd register"},
           "choose another tile, or install a newer NVRTC: pip install -U nvidia-cuda-nvrtc");
    out.log += "graphene: compiled without cache hints, with which the assembler writes a copy that no GPU decodes\n";
  }
  compiling.reset();
  replace_all(out.log, path, file_name);
  b.compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  if (!out.ok) fail_source(request, info, file_name, out.log);
  check_remarks(request, out.log);
  b.entry = request.entry;
  b.arch = request.arch;
  b.cubin = std::move(out.cubin);
  b.ptx = std::move(out.ptx);
  b.log = std::move(out.log);
  b.nvrtc_version = info.version();
  b.resources = read_ptxas_log(b.log, b.entry);
  if (!b.resources.known) b.resources = read_cubin(b.cubin, b.entry);
  if (!b.resources.known)
    fail(Code::COMPILE_SOURCE, request.kernel_name + ": the compiled source has no kernel '" + b.entry + "'", {},
         "declare it extern \"C\" __global__");
  const Stage storing("store the cubin");
  if (!cache_store(key, {{"kernel.cubin", b.cubin},
                         {"kernel.ptx", b.ptx},
                         {"kernel.cu", request.source},
                         {"log.txt", b.log},
                         {"info.json", info_json(b, request).dump(1, ' ', false, Json::error_handler_t::replace)}}))
    b.key.clear();
  return b;
}

}  // namespace graphene::runtime
