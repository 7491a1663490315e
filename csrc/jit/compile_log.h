#pragma once
#include "csrc/jit/sources.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>

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

}  // namespace spikeforge::jit
