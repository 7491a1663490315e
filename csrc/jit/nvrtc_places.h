#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace spikeforge::jit {

// Returns the arguments of dlopen, in the order in which they are tried: only SPIKEFORGE_NVRTC if it is set; otherwise
// the system's NVRTC, then those of torch's packages.
std::vector<std::string> nvrtc_places(const std::string& override_path, const std::filesystem::path& torch_folder);

// Returns the folder of the libc10.so that this process has loaded, or an empty path: torch/lib of a wheel, lib of a
// LibTorch zip.
std::filesystem::path loaded_torch_folder();

}  // namespace spikeforge::jit
