#include "csrc/jit/driver.h"
#include "csrc/jit/errors.h"

#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>

namespace spikeforge::jit {
namespace {

// Not copyable: it has a pointer to one of its members.
struct ClusterConfig {
  ClusterConfig(unsigned blocks, unsigned cluster, unsigned block, unsigned shared_bytes, Driver::Stream stream) {
    attribute.value = {cluster, 1, 1};
    config.grid[0] = blocks;
    config.block[0] = block;
    config.shared_bytes = shared_bytes;
    config.stream = stream;
    config.attributes = &attribute;
    config.count = 1;
  }
  ClusterConfig(const ClusterConfig&) = delete;
  ClusterConfig& operator=(const ClusterConfig&) = delete;

  Driver::LaunchAttribute attribute;
  Driver::LaunchConfig config;
};

constexpr unsigned first_version_with_libraries = 12000;

// Looks up a function of the driver through the CUDA runtime that torch loaded; without it, or before CUDA 12.5, in the
// library of the driver.
void* entry_point(const char* name) {
  using GetEntryPoint = int (*)(const char*, void**, unsigned version, unsigned long long flags, int* status);
  const auto get = reinterpret_cast<GetEntryPoint>(dlsym(RTLD_DEFAULT, "cudaGetDriverEntryPointByVersion"));
  void* found = nullptr;
  int status = 0;
  if (get && get(name, &found, first_version_with_libraries, 0, &status) == 0 && status == 0 && found) return found;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library ? dlsym(library, name) : nullptr;
}

template <class Function> void find(const char* name, Function& function) {
  function = reinterpret_cast<Function>(entry_point(name));
  if (!function)
    throw DriverError(
        fmt::format("the CUDA driver has no {}: a GPU kernel needs an NVIDIA driver for CUDA 12.0 or newer, "
                    "and nvidia-smi must find the GPU",
                    name));
}

Driver find_driver() {
  Driver driver;
  find("cuLibraryLoadData", driver.library_load_data);
  find("cuLibraryUnload", driver.library_unload);
  find("cuLibraryGetKernel", driver.library_get_kernel);
  find("cuLaunchKernel", driver.launch_kernel);
  find("cuLaunchCooperativeKernel", driver.launch_cooperative_kernel);
  find("cuLaunchKernelEx", driver.launch_kernel_ex);
  find("cuOccupancyMaxActiveClusters", driver.max_active_clusters);
  find("cuCtxGetDevice", driver.current_device);
  find("cuKernelSetAttribute", driver.kernel_set_attribute);
  find("cuKernelGetFunction", driver.kernel_get_function);
  find("cuOccupancyMaxActiveBlocksPerMultiprocessor", driver.max_active_blocks);
  find("cuGetErrorName", driver.get_error_name);
  find("cuGetErrorString", driver.get_error_string);
  return driver;
}

}  // namespace

const Driver& Driver::get() {
  static const Driver driver = find_driver();
  return driver;
}

int Driver::device() const {
  int index = 0;
  if (const Result result = current_device(&index))
    throw DriverError(fmt::format("the driver has no current device: {}", describe(result)));
  return index;
}

std::string Driver::describe(Result result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  get_error_name(result, &name);
  get_error_string(result, &text);
  return fmt::format("{} ({})", text ? text : "unknown error", name ? name : std::to_string(result));
}

LoadedKernel::LoadedKernel(const Driver& driver, Driver::Kernel kernel, std::string name)
    : driver_(&driver),
      kernel_(kernel),
      name_(std::move(name)),
      allowed_(std::make_unique<std::atomic<std::uint64_t>>(0)) {}

void LoadedKernel::launch(std::array<unsigned, 3> grid, std::array<unsigned, 3> block, unsigned shared_bytes,
                          Driver::Stream stream, const void* args, std::size_t args_bytes) const {
  // cuda.h: CU_LAUNCH_PARAM_END 0, _BUFFER_POINTER 1, _BUFFER_SIZE 2.
  void* extra[] = {reinterpret_cast<void*>(1), const_cast<void*>(args), reinterpret_cast<void*>(2), &args_bytes,
                   nullptr};
  check_launch(driver_->launch_kernel(kernel_, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared_bytes,
                                      stream, nullptr, extra),
               grid, block, shared_bytes);
}

void LoadedKernel::launch_together(unsigned blocks, unsigned block, unsigned shared_bytes, Driver::Stream stream,
                                   const void* args) const {
  void* arguments[] = {const_cast<void*>(args)};
  check_launch(driver_->launch_cooperative_kernel(kernel_, blocks, 1, 1, block, 1, 1, shared_bytes, stream, arguments),
               {blocks, 1, 1}, {block, 1, 1}, shared_bytes);
}

void LoadedKernel::check_launch(Driver::Result result, std::array<unsigned, 3> grid, std::array<unsigned, 3> block,
                                unsigned shared_bytes) const {
  if (result == 0) return;
  throw DriverError(fmt::format(
      "{}: the launch of {} x {} x {} blocks of {} x {} x {} threads with {} bytes of shared memory failed: "
      "{}",
      name_, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared_bytes, driver_->describe(result)));
}

void LoadedKernel::launch_in_clusters(unsigned blocks, unsigned cluster, unsigned block, unsigned shared_bytes,
                                      Driver::Stream stream, const void* args, std::size_t args_bytes) const {
  void* extra[] = {reinterpret_cast<void*>(1), const_cast<void*>(args), reinterpret_cast<void*>(2), &args_bytes,
                   nullptr};
  const ClusterConfig launch(blocks, cluster, block, shared_bytes, stream);
  check_launch(driver_->launch_kernel_ex(&launch.config, kernel_, nullptr, extra), {blocks, 1, 1}, {block, 1, 1},
               shared_bytes);
}

int LoadedKernel::most_clusters(unsigned cluster, unsigned block, unsigned shared_bytes) const {
  const ClusterConfig launch(cluster, cluster, block, shared_bytes, nullptr);
  int count = 0;
  return driver_->max_active_clusters(&count, kernel_, &launch.config) == 0 ? count : 0;
}

int LoadedKernel::blocks_at_once(unsigned block, std::size_t shared_bytes) const {
  Driver::Function function = nullptr;
  int blocks = 0;
  Driver::Result result = driver_->kernel_get_function(&function, kernel_);
  if (result == 0) result = driver_->max_active_blocks(&blocks, function, static_cast<int>(block), shared_bytes);
  if (result == 0) return blocks;
  throw DriverError(fmt::format("{}: the driver did not return the number of resident blocks of {} threads: {}", name_,
                                block, driver_->describe(result)));
}

void LoadedKernel::allow_shared(int bytes, int device) const {
  const std::uint64_t requested =
      (std::uint64_t{static_cast<unsigned>(device)} + 1) << 32 | static_cast<unsigned>(bytes);
  if (allowed_->load(std::memory_order_relaxed) == requested) return;
  set_attribute(8, bytes, device, "the size of its shared memory");  // MAX_DYNAMIC_SHARED_SIZE_BYTES
  allowed_->store(requested, std::memory_order_relaxed);
}

void LoadedKernel::allow_large_clusters(int device) const {
  set_attribute(14, 1, device, "large clusters");  // NON_PORTABLE_CLUSTER_SIZE_ALLOWED
}

// Sets an attribute; the number is a CUfunction_attribute of cuda.h.
void LoadedKernel::set_attribute(int attribute, int value, int device, const char* what) const {
  const Driver::Result result = driver_->kernel_set_attribute(attribute, value, kernel_, device);
  if (result == 0) return;
  throw DriverError(fmt::format("{}: the driver refused {} ({}): {}", name_, what, value, driver_->describe(result)));
}

LoadedKernel load_kernel(const Driver& driver, std::span<const char> image, const std::string& entry) {
  Driver::Library library = nullptr;
  if (const auto error = driver.library_load_data(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0))
    throw ImageRefused(fmt::format("{}: the driver refused the compiled image: {}", entry, driver.describe(error)));
  Driver::Kernel kernel = nullptr;
  if (const auto error = driver.library_get_kernel(&kernel, library, entry.c_str())) {
    driver.library_unload(library);
    throw ImageRefused(
        fmt::format("{}: the compiled image has no kernel of this name: {}", entry, driver.describe(error)));
  }
  return LoadedKernel(driver, kernel, entry);
}

}  // namespace spikeforge::jit
