#pragma once
#include "csrc/jit/sources.h"

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spikeforge::jit {

// The resources of the most demanding kernel of a program; spill_bytes counts stores and loads.
struct ResourceUsage {
  int registers = 0;
  int spill_bytes = 0;
  int stack_bytes = 0;
};

// Parses the output of ptxas -v. Returns nullopt if there is none.
std::optional<ResourceUsage> parse_resource_usage(std::string_view log);

// Returns the numbered lines of `files` around the first errors in NVRTC's log; empty if the log names no line.
std::string excerpt_of_errors(std::string_view log, std::span<const EmbeddedHeader> files);

// Returns advice if the log shows that a part of NVRTC is missing; otherwise an empty string.
std::string installation_hint(std::string_view log);

struct CompileRequest {
  std::string name;                                       // for people: "lif_forward"
  std::string text;                                       // may include <spikeforge/...>
  std::vector<std::string> options;                       // in addition to base_options()
  std::string arch;                                       // of the device: "sm_90"
  std::vector<EmbeddedHeader> headers;                    // in addition to embedded_headers()
  bool anew = false;                                      // bypasses NVRTC's cache, which stores no log: for `usage`
  std::optional<std::chrono::milliseconds> longest = {};  // the time limit; else longest_compilation()
};

// Returns the time limit of one compilation: SPIKEFORGE_COMPILE_SECONDS, or two minutes.
std::chrono::milliseconds longest_compilation();

struct CompileResult {
  std::vector<char> image;  // a cubin; zero-terminated PTX if NVRTC does not support the architecture
  bool is_ptx = false;
  std::string log;
  std::optional<ResourceUsage> usage;  // for a cubin that was not in the cache
};

// An option for kernels that need no textures, no device runtime, and only the mathematical functions of CUDA's
// library: it skips the headers of the rest, and the compiled code is the same. Older versions of NVRTC do not receive
// it.
inline constexpr const char* minimal_language = "--minimal";

// Returns the options of every compilation.
const std::vector<std::string>& base_options();

// NVRTC's functions, looked up at run time, so that the library loads without NVRTC.
struct NvrtcFunctions;

class Nvrtc {
 public:
  // Opens NVRTC from nvrtc_places(). Throws NvrtcNotFound; the next call then searches again.
  static const Nvrtc& get();

  // Opens the first of these libraries that exists, and never closes it.
  static Nvrtc open(const std::vector<std::string>& places);

  int major = 0;
  int minor = 0;
  std::vector<int> archs;  // ascending: 75, 80, ...

  std::string version() const;  // "nvrtc13.0"

  // Compiles a program. Throws CompileError with the lines around the errors if it does not compile, or if it exceeds
  // its time limit. NVRTC 12.9 and newer can be stopped between passes; older versions run to the end.
  CompileResult compile(const CompileRequest& request) const;

  // While set to true, compilations end with a CompileError as soon as they can be stopped.
  static void give_up(bool is_so);

 private:
  const NvrtcFunctions* functions_ = nullptr;
};

// Returns the target of NVRTC: "sm_90" if it supports that architecture; otherwise the highest supported one below it,
// such as "compute_89", whose PTX the driver compiles. Throws CompileError if there is none.
std::string compile_target(const Nvrtc& nvrtc, const std::string& arch);

}  // namespace spikeforge::jit
