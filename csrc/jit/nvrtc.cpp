#include "csrc/jit/nvrtc.h"
#include "csrc/base/environment.h"
#include "csrc/jit/errors.h"
#include "csrc/jit/nvrtc_places.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <set>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace spikeforge::jit {

std::chrono::milliseconds longest_compilation() {
  constexpr std::uint64_t usual = 120, most = 1000000;
  const std::uint64_t seconds = whole_number_in_environment("SPIKEFORGE_COMPILE_SECONDS").value_or(usual);
  return std::chrono::seconds(seconds > 0 && seconds <= most ? seconds : usual);
}

// The functions of nvrtc.h. A handle is a pointer to an opaque struct; a result is an enum, with 0 for success.
struct NvrtcFunctions {
  using Program = void*;
  using Result = int;

  const char* (*get_error_string)(Result);
  Result (*version)(int* major, int* minor);
  Result (*get_num_supported_archs)(int*);
  Result (*get_supported_archs)(int*);
  Result (*create_program)(Program*, const char* text, const char* name, int headers, const char* const* header_texts,
                           const char* const* header_names);
  Result (*destroy_program)(Program*);
  Result (*compile_program)(Program, int options, const char* const*);
  Result (*get_cubin_size)(Program, std::size_t*);
  Result (*get_cubin)(Program, char*);
  Result (*get_ptx_size)(Program, std::size_t*);
  Result (*get_ptx)(Program, char*);
  Result (*get_program_log_size)(Program, std::size_t*);
  Result (*get_program_log)(Program, char*);
  Result (*set_flow_callback)(Program, int (*)(void* payload, void* reserved), void* payload);  // null before 12.9
};

namespace {

std::atomic<bool> is_given_up = false;

// A time limit, which NVRTC queries between its passes: 1 stops the compilation.
class Limit {
 public:
  explicit Limit(std::chrono::milliseconds longest) : longest_(longest) {}
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

  static int is_reached(void* limit, void*) { return static_cast<Limit*>(limit)->is_reached(); }

  std::string reason() const {
    if (!is_late_) return "it was given up, since the process ends";
    return fmt::format("it took longer than {} s, which is the limit; SPIKEFORGE_COMPILE_SECONDS allows more",
                       std::chrono::duration<double>(longest_).count());
  }

 private:
  // Returns 1 from the time limit on, as NVRTC requires. Several threads may call it.
  int is_reached() {
    if (std::chrono::steady_clock::now() - start_ > longest_) is_late_ = true;
    if (is_late_ || is_given_up) is_over_ = true;
    return is_over_ ? 1 : 0;
  }

  const std::chrono::milliseconds longest_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::atomic<bool> is_late_ = false, is_over_ = false;
};

template <class Function> void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function) throw NvrtcNotFound(fmt::format("it has no {}", name));
}

std::unique_ptr<NvrtcFunctions> find_functions(void* library) {
  auto f = std::make_unique<NvrtcFunctions>();
  find(library, "nvrtcGetErrorString", f->get_error_string);
  find(library, "nvrtcVersion", f->version);
  find(library, "nvrtcGetNumSupportedArchs", f->get_num_supported_archs);
  find(library, "nvrtcGetSupportedArchs", f->get_supported_archs);
  find(library, "nvrtcCreateProgram", f->create_program);
  find(library, "nvrtcDestroyProgram", f->destroy_program);
  find(library, "nvrtcCompileProgram", f->compile_program);
  find(library, "nvrtcGetCUBINSize", f->get_cubin_size);
  find(library, "nvrtcGetCUBIN", f->get_cubin);
  find(library, "nvrtcGetPTXSize", f->get_ptx_size);
  find(library, "nvrtcGetPTX", f->get_ptx);
  find(library, "nvrtcGetProgramLogSize", f->get_program_log_size);
  find(library, "nvrtcGetProgramLog", f->get_program_log);
  f->set_flow_callback = reinterpret_cast<decltype(f->set_flow_callback)>(dlsym(library, "nvrtcSetFlowCallback"));
  return f;
}

// Loads NVRTC's builtins from the folder of NVRTC. NVRTC opens them by their plain name, and libnvrtc of the wheel has
// no RUNPATH to find them; once they are loaded, the dynamic linker resolves that name to them. A failure is reported
// by the first compilation.
void preload_builtins(const NvrtcFunctions& functions, const Nvrtc& nvrtc) {
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(functions.version), &info)) return;
  const auto folder = std::filesystem::path(info.dli_fname).parent_path();
  const auto builtins = folder / fmt::format("libnvrtc-builtins.so.{}.{}", nvrtc.major, nvrtc.minor);
  dlopen(builtins.c_str(), RTLD_NOW | RTLD_LOCAL);
}

std::string not_found_message(const std::vector<std::string>& reasons) {
  return fmt::format(
      "spikeforge compiles its GPU kernels with NVRTC, and none could be loaded. Tried:\n  {}\nInstall it (pip install "
      "nvidia-cuda-nvrtc), or set SPIKEFORGE_NVRTC to the full path of a libnvrtc.so.",
      fmt::join(reasons, "\n  "));
}

// ---- the log of a compilation ----

constexpr int lines_around = 4;
constexpr std::size_t most_excerpts = 3;  // later errors mostly follow from the first

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// Returns the number directly before `words`, as in "0 bytes spill stores".
int number_before(std::string_view line, std::string_view words) {
  const std::size_t end = line.find(words);
  if (end == std::string_view::npos) return 0;
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int number = 0;
  std::from_chars(line.data() + begin, line.data() + end, number);
  return number;
}

struct Location {
  std::string_view file;
  int line;
  auto operator<=>(const Location&) const = default;
};

// Returns the location in an error of NVRTC: `lif_forward.cu(12): error: ...`, or `catastrophic error` for a missing
// header.
std::optional<Location> location_of_error(std::string_view line) {
  const std::size_t close = line.find("): ");
  if (close == std::string_view::npos) return {};
  const std::string_view message = line.substr(close + 3);
  if (!message.starts_with("error") && !message.starts_with("catastrophic error")) return {};
  const std::size_t open = line.rfind('(', close);
  if (open == std::string_view::npos) return {};
  Location location{line.substr(0, open), 0};
  std::from_chars(line.data() + open + 1, line.data() + close, location.line);
  return location;
}

std::string excerpt(const Location& at, std::string_view text) {
  const std::vector<std::string_view> lines = split_lines(text);
  const int first = std::max(1, at.line - lines_around);
  const int last = std::min(static_cast<int>(lines.size()), at.line + lines_around);
  std::string out = fmt::format("{}, line {}:\n", at.file, at.line);
  for (int number = first; number <= last; ++number)
    out += fmt::format("{} {:4} | {}\n", number == at.line ? '>' : ' ', number, lines[number - 1]);
  return out;
}

}  // namespace

std::optional<ResourceUsage> parse_resource_usage(std::string_view log) {
  ResourceUsage most;
  bool found = false;
  for (const std::string_view line : split_lines(log)) {
    const int spilled = number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
    most.registers = std::max(most.registers, number_before(line, " registers"));
    most.spill_bytes = std::max(most.spill_bytes, spilled);
    most.stack_bytes = std::max(most.stack_bytes, number_before(line, " bytes stack frame"));
    found = found || line.find("spill stores") != std::string_view::npos;
  }
  return found ? std::optional(most) : std::nullopt;
}

std::string excerpt_of_errors(std::string_view log, std::span<const EmbeddedHeader> files) {
  std::string out;
  std::set<Location> shown;
  for (const std::string_view line : split_lines(log)) {
    const std::optional<Location> at = location_of_error(line);
    if (!at || shown.size() == most_excerpts || !shown.insert(*at).second) continue;
    const auto file = std::ranges::find_if(files, [&](const EmbeddedHeader& each) { return at->file == each.name; });
    if (file != files.end()) out += excerpt(*at, file->text);
  }
  return out;
}

std::string installation_hint(std::string_view log) {
  if (log.find("libnvrtc-builtins") == std::string_view::npos) return "";
  return "NVRTC lacks its second library, libnvrtc-builtins, which must be in the folder of libnvrtc and have the "
         "same "
         "version. Reinstall NVRTC (pip install --force-reinstall nvidia-cuda-nvrtc), or let SPIKEFORGE_NVRTC name "
         "a "
         "libnvrtc that has it.\n";
}

namespace {

// ---- compilations ----

// A program that its destructor destroys; every call is checked.
class Program {
 public:
  Program(const NvrtcFunctions& functions, const CompileRequest& request, const std::string& file,
          const std::vector<EmbeddedHeader>& headers)
      : functions_(functions), name_(request.name) {
    std::vector<const char*> names, texts;
    for (const EmbeddedHeader& header : headers) {
      names.push_back(header.name);
      texts.push_back(header.text);
    }
    check(functions_.create_program(&program_, request.text.c_str(), file.c_str(), static_cast<int>(names.size()),
                                    texts.data(), names.data()),
          "nvrtcCreateProgram");
  }
  ~Program() { functions_.destroy_program(&program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // `limit` must outlive the compilation.
  void set_limit(Limit& limit) {
    if (functions_.set_flow_callback != nullptr)
      check(functions_.set_flow_callback(program_, &Limit::is_reached, &limit), "nvrtcSetFlowCallback");
  }

  // The caller checks the result: after a failure the log has more information than the error code.
  NvrtcFunctions::Result compile(const std::vector<std::string>& options) {
    std::vector<const char*> pointers;
    pointers.reserve(options.size());
    for (const std::string& option : options) pointers.push_back(option.c_str());
    return functions_.compile_program(program_, static_cast<int>(pointers.size()), pointers.data());
  }

  std::string log() {
    const std::vector<char> text = read(functions_.get_program_log_size, functions_.get_program_log, "the log");
    return text.empty() ? "" : std::string(text.data());  // the size includes the terminating zero
  }

  std::vector<char> cubin() { return read(functions_.get_cubin_size, functions_.get_cubin, "the cubin"); }
  std::vector<char> ptx() { return read(functions_.get_ptx_size, functions_.get_ptx, "the PTX"); }

 private:
  using Result = NvrtcFunctions::Result;

  void check(Result result, const char* what) const {
    if (result == 0) return;
    throw CompileError(fmt::format("{}: NVRTC failed at {}: {}", name_, what, functions_.get_error_string(result)));
  }

  std::vector<char> read(Result (*size)(void*, std::size_t*), Result (*content)(void*, char*), const char* what) {
    std::size_t length = 0;
    check(size(program_, &length), what);
    std::vector<char> bytes(length);
    check(content(program_, bytes.data()), what);
    return bytes;
  }

  const NvrtcFunctions& functions_;
  std::string name_;
  NvrtcFunctions::Program program_ = nullptr;
};

// True if this NVRTC supports an option that it does not need.
bool is_known(const Nvrtc& nvrtc, const std::string& option) { return option != minimal_language || nvrtc.major >= 13; }

constexpr NvrtcFunctions::Result cancelled = 16;  // NVRTC_ERROR_CANCELLED

std::string failure_message(const CompileRequest& request, const std::string& file, const char* error,
                            const std::string& log, std::vector<EmbeddedHeader> files) {
  files.push_back({file.c_str(), request.text.c_str()});
  return fmt::format("{}: NVRTC could not compile this kernel for {} ({}):\n{}\n{}{}", request.name, request.arch,
                     error, log, excerpt_of_errors(log, files), installation_hint(log));
}

}  // namespace

const std::vector<std::string>& base_options() {
  static const std::vector<std::string> options = [] {
    // No contraction: the forward pass and its recomputation must have the same bits, since otherwise a spike may
    // differ.
    std::vector<std::string> base = {"-std=c++17", "--fmad=false"};
    if (!environment("SPIKEFORGE_DEBUG").empty()) base.push_back("-lineinfo");
    return base;
  }();
  return options;
}

const Nvrtc& Nvrtc::get() {
  // If the initialisation throws, the next call repeats it.
  static const Nvrtc nvrtc = open(nvrtc_places(environment("SPIKEFORGE_NVRTC"), loaded_torch_folder()));
  return nvrtc;
}

Nvrtc Nvrtc::open(const std::vector<std::string>& places) {
  std::vector<std::string> reasons;
  for (const std::string& place : places) {
    void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      reasons.push_back(dlerror());
      continue;
    }
    try {
      Nvrtc nvrtc;
      auto functions = find_functions(library);
      functions->version(&nvrtc.major, &nvrtc.minor);
      int count = 0;
      functions->get_num_supported_archs(&count);
      nvrtc.archs.resize(count);
      functions->get_supported_archs(nvrtc.archs.data());
      preload_builtins(*functions, nvrtc);
      nvrtc.functions_ = functions.release();  // for the lifetime of the process, like the library
      return nvrtc;
    } catch (const NvrtcNotFound& unusable) {
      reasons.push_back(fmt::format("{}: {}", place, unusable.what()));
    }
  }
  throw NvrtcNotFound(not_found_message(reasons));
}

void Nvrtc::give_up(bool is_so) { is_given_up = is_so; }

std::string Nvrtc::version() const { return fmt::format("nvrtc{}.{}", major, minor); }

std::string compile_target(const Nvrtc& nvrtc, const std::string& arch) {
  int number = 0;
  constexpr std::string_view prefix = "sm_";
  if (arch.starts_with(prefix)) std::from_chars(arch.data() + prefix.size(), arch.data() + arch.size(), number);
  if (number == 0)
    throw CompileError(fmt::format("a GPU architecture is written like sm_90, but this one is \"{}\"", arch));

  const auto above = std::ranges::upper_bound(nvrtc.archs, number);
  if (above == nvrtc.archs.begin())
    throw CompileError(fmt::format("NVRTC {}.{} compiles for {} and newer, not for {}", nvrtc.major, nvrtc.minor,
                                   nvrtc.archs.empty() ? "nothing" : fmt::format("sm_{}", nvrtc.archs.front()), arch));
  const int known = *std::prev(above);
  return known == number ? arch : fmt::format("compute_{}", known);
}

CompileResult Nvrtc::compile(const CompileRequest& request) const {
  const std::string target = compile_target(*this, request.arch);
  const bool to_ptx = target.starts_with("compute_");

  std::vector<EmbeddedHeader> headers = request.headers;
  headers.insert(headers.end(), embedded_headers().begin(), embedded_headers().end());
  std::vector<std::string> options = base_options();
  std::ranges::copy_if(request.options, std::back_inserter(options),
                       [this](const std::string& option) { return is_known(*this, option); });
  options.push_back("-arch=" + target);
  if (!to_ptx) options.push_back("--ptxas-options=-v");  // writes registers and spills to the log
  // Older versions have neither the cache nor the option. Newer ones use the cache if they find a driver.
  if (request.anew && std::pair(major, minor) >= std::pair(12, 9)) options.push_back("--no-cache");

  const std::string file = request.name + ".cu";
  Limit limit(request.longest.value_or(longest_compilation()));
  Program program(*functions_, request, file, headers);
  program.set_limit(limit);
  const int error = program.compile(options);
  CompileResult result;
  result.log = program.log();
  if (error == cancelled)
    throw CompileError(
        fmt::format("{}: NVRTC did not finish this kernel for {}: {}", request.name, request.arch, limit.reason()));
  if (error != 0)
    throw CompileError(
        failure_message(request, file, functions_->get_error_string(error), result.log, std::move(headers)));
  result.is_ptx = to_ptx;
  result.image = to_ptx ? program.ptx() : program.cubin();
  result.usage = parse_resource_usage(result.log);
  return result;
}

}  // namespace spikeforge::jit
