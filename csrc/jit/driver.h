#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace spikeforge::jit {

// The part of the CUDA driver that a kernel needs. The functions are looked up at run time, so that neither a CUDA
// header nor libcuda is needed: the library loads on a machine without a GPU. Handles are cuda.h's pointers to opaque
// structs (CUlibrary, CUkernel, CUfunction, CUstream), Result is CUresult with 0 for success.
struct Driver {
  using Result = int;
  using Library = void*;
  using Kernel = void*;
  using Function = void*;
  using Stream = void*;

  Result (*library_load_data)(Library*, const void* image, void* jit_options, void** jit_values, unsigned jit_count,
                              void* library_options, void** library_values, unsigned library_count) = nullptr;
  Result (*library_unload)(Library) = nullptr;
  Result (*library_get_kernel)(Kernel*, Library, const char* name) = nullptr;
  Result (*launch_kernel)(Kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                          unsigned block_z, unsigned shared_bytes, Stream, void** arguments, void** extra) = nullptr;
  Result (*launch_cooperative_kernel)(Kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                      unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream,
                                      void** arguments) = nullptr;
  // CUlaunchConfig and CUlaunchAttribute of cuda.h.
  struct LaunchAttribute {
    static constexpr int cluster_dimension = 4;
    int id = cluster_dimension;
    int padding = 0;
    std::array<unsigned, 16> value{};  // 64 bytes for every attribute
  };
  struct LaunchConfig {
    std::array<unsigned, 3> grid{1, 1, 1}, block{1, 1, 1};
    unsigned shared_bytes = 0;
    Stream stream = nullptr;
    LaunchAttribute* attributes = nullptr;
    unsigned count = 0;  // of attributes
  };
  Result (*launch_kernel_ex)(const LaunchConfig*, Kernel, void** arguments, void** extra) = nullptr;
  Result (*max_active_clusters)(int*, Kernel, const LaunchConfig*) = nullptr;
  Result (*current_device)(int*) = nullptr;
  Result (*kernel_set_attribute)(int attribute, int value, Kernel, int device) = nullptr;
  Result (*kernel_get_function)(Function*, Kernel) = nullptr;
  Result (*max_active_blocks)(int* blocks, Function, int block, std::size_t dynamic_shared_bytes) = nullptr;
  Result (*get_error_name)(Result, const char**) = nullptr;
  Result (*get_error_string)(Result, const char**) = nullptr;

  // Throws DriverError on a machine without a driver; the next call searches for it again.
  static const Driver& get();

  // Returns the CUDA runtime's index of the device of the current context.
  int device() const;

  // Returns a text such as "an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)".
  std::string describe(Result result) const;
};

// A kernel that the driver has loaded, for every device of its architecture and for the lifetime of the process. It is
// never unloaded: kernels are stored in a cache that outlives main, when the driver may already be unloaded.
class LoadedKernel {
 public:
  LoadedKernel(const Driver& driver, Driver::Kernel kernel, std::string name);

  // Launches the kernel. `args` has the parameters in the layout of the device: a struct for a kernel whose parameter
  // is a struct. A context must be current; the stream is a cudaStream_t.
  void launch(std::array<unsigned, 3> grid, std::array<unsigned, 3> block, unsigned shared_bytes, Driver::Stream stream,
              const void* args, std::size_t args_bytes) const;
  void launch(std::array<unsigned, 3> grid, unsigned block, unsigned shared_bytes, Driver::Stream stream,
              const void* args, std::size_t args_bytes) const {
    launch(grid, {block, 1, 1}, shared_bytes, stream, args, args_bytes);
  }

  // Launches the kernel with all blocks resident at once, so that they may wait for each other. The parameter is one
  // struct.
  void launch_together(unsigned blocks, unsigned block, unsigned shared_bytes, Driver::Stream stream,
                       const void* args) const;

  // Launches the kernel in clusters of `cluster` blocks, which are resident at once: the blocks of a cluster may wait
  // for each other.
  void launch_in_clusters(unsigned blocks, unsigned cluster, unsigned block, unsigned shared_bytes,
                          Driver::Stream stream, const void* args, std::size_t args_bytes) const;
  // Returns the maximum number of such clusters that are resident at once; 0 for a cluster size that the device does
  // not support.
  int most_clusters(unsigned cluster, unsigned block, unsigned shared_bytes) const;
  // Allows clusters of more than 8 blocks, the size that every device with clusters supports.
  void allow_large_clusters(int device) const;

  // Returns the maximum number of resident blocks per multiprocessor of the current device, for blocks of `block`
  // threads with `shared_bytes` of dynamic shared memory.
  int blocks_at_once(unsigned block, std::size_t shared_bytes = 0) const;

  // Allows more dynamic shared memory than the 48 KB that every kernel may use; `device` is the CUDA runtime's index.
  // It applies to the launches of all threads on the device, until the next call: a later call that allows less reduces
  // it for all. Repeated calls with the same value do not call the driver.
  void allow_shared(int bytes, int device) const;

 private:
  void check_launch(Driver::Result result, std::array<unsigned, 3> grid, std::array<unsigned, 3> block,
                    unsigned shared_bytes) const;

  void set_attribute(int attribute, int value, int device, const char* what) const;

  const Driver* driver_;
  Driver::Kernel kernel_;
  std::string name_;
  std::unique_ptr<std::atomic<std::uint64_t>> allowed_;  // of allow_shared: bytes; above them, the device + 1
};

// Loads a kernel. `entry` is the name of an extern "C" kernel in the image. Throws ImageRefused.
LoadedKernel load_kernel(const Driver& driver, std::span<const char> image, const std::string& entry);

}  // namespace spikeforge::jit
