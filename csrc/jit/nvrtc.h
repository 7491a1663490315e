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

// The lines of `files` around the first errors in NVRTC's log, numbered; empty where the log names no line.
std::string excerpt_of_errors(std::string_view log, std::span<const EmbeddedHeader> files);

// Advice if the log shows that NVRTC misses a part of itself; else empty.
std::string installation_hint(std::string_view log);

struct CompileRequest {
  std::string name;                                       // for people: "lif_forward"
  std::string text;                                       // may include <spikeforge/...>
  std::vector<std::string> options;                       // beyond base_options()
  std::string arch;                                       // of the device: "sm_90"
  std::vector<EmbeddedHeader> headers;                    // beyond embedded_headers()
  bool anew = false;                                      // not from NVRTC's own cache, which keeps no log: for `usage`
  std::optional<std::chrono::milliseconds> longest = {};  // it may take; else longest_compilation()
};

// How long one compilation may take: SPIKEFORGE_COMPILE_SECONDS, or two minutes.
std::chrono::milliseconds longest_compilation();

struct CompileResult {
  std::vector<char> image;  // a cubin; PTX with its final zero if NVRTC does not support the architecture
  bool is_ptx = false;
  std::string log;
  std::optional<ResourceUsage> usage;  // a cubin's, where it was compiled anew
};

// An option for kernels that need no textures, no device runtime and no more of CUDA's library than its mathematics:
// they are compiled to the same, without reading the rest. Left out where NVRTC is older.
inline constexpr const char* minimal_language = "--minimal";

// The options of every kernel's compilation.
const std::vector<std::string>& base_options();

// NVRTC's functions, opened at run time: so that the library loads without NVRTC.
struct NvrtcFunctions;

class Nvrtc {
 public:
  // Opens NVRTC from nvrtc_places(). Throws NvrtcNotFound; the next call searches again.
  static const Nvrtc& get();

  // Opens the first of these libraries that exists, and never closes it.
  static Nvrtc open(const std::vector<std::string>& places);

  int major = 0;
  int minor = 0;
  std::vector<int> archs;  // ascending: 75, 80, ...

  std::string version() const;  // "nvrtc13.0"

  // Throws CompileError for what does not compile, with the lines around the errors, and where it takes longer than it
  // may. NVRTC from 12.9 on can be stopped, between its passes; an older one goes on to its end.
  CompileResult compile(const CompileRequest& request) const;

  // While it is true, compilations end with a CompileError as soon as they can be stopped.
  static void give_up(bool is_so);

 private:
  const NvrtcFunctions* functions_ = nullptr;
};

// The target of NVRTC: "sm_90" if it supports that architecture, else the highest supported one below it, as
// "compute_89", which the driver completes. Throws CompileError if there is none.
std::string compile_target(const Nvrtc& nvrtc, const std::string& arch);

}  // namespace spikeforge::jit
