#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace spikeforge::jit {

// The arguments of dlopen, in the order in which they are tried: SPIKEFORGE_NVRTC alone if it is set, else the system's
// NVRTC, then those of torch's packages.
std::vector<std::string> nvrtc_places(const std::string& override_path, const std::filesystem::path& torch_folder);

// The folder of the libc10.so that this process has loaded, or empty: torch/lib of a wheel, lib of a LibTorch zip.
std::filesystem::path loaded_torch_folder();

}  // namespace spikeforge::jit
