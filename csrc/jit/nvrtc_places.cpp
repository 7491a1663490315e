#include "csrc/jit/nvrtc_places.h"

#include <link.h>

namespace spikeforge::jit {

std::vector<std::string> nvrtc_places(const std::string& override_path, const std::filesystem::path& torch_folder) {
  if (!override_path.empty()) return {override_path};
  // The newest version is first, since it supports more architectures; of equal versions, the system's is first.
  std::vector<std::string> places;
  // site-packages/torch/lib is next to site-packages/nvidia.
  const std::filesystem::path nvidia = torch_folder.parent_path().parent_path() / "nvidia";
  const auto add = [&](const char* soname, const char* wheel_folder) {
    places.push_back(soname);
    if (torch_folder.empty()) return;
    places.push_back(nvidia / wheel_folder / soname);
    places.push_back(torch_folder / soname);  // LibTorch zip
  };
  add("libnvrtc.so.13", "cu13/lib");
  add("libnvrtc.so.12", "cuda_nvrtc/lib");
  return places;
}

std::filesystem::path loaded_torch_folder() {
  std::filesystem::path folder;
  const auto visit = [](dl_phdr_info* info, std::size_t, void* found) {
    const std::filesystem::path path = info->dlpi_name;
    if (path.filename() != "libc10.so") return 0;
    *static_cast<std::filesystem::path*>(found) = path.parent_path();
    return 1;
  };
  dl_iterate_phdr(visit, &folder);
  return folder;
}

}  // namespace spikeforge::jit
