#include <spikeforge/runtime/arguments.h>
#include <spikeforge/runtime/kernel_spec.h>
#include <spikeforge/runtime/multistep_launch.h>

#include <fmt/format.h>

#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace spikeforge::runtime {
namespace {

// Kernels by spec, so that a hot call builds no text. One table an architecture; never destroyed, like the kernels
// themselves.
class SpecTable {
 public:
  const LoadedKernel& get(const KernelSpec& spec, const Device& device) {
    {
      const std::shared_lock lock(mutex_);
      if (const auto found = kernels_.find(spec); found != kernels_.end()) return *found->second;
    }
    // Compiles at most once, whoever comes here first: KernelCache sees to that.
    const LoadedKernel& kernel =
        KernelCache::get().get(print_source(spec), fmt::format("sm_{}{}", device.major, device.minor));
    const std::unique_lock lock(mutex_);
    kernels_.emplace(spec, &kernel);
    return kernel;
  }

  static SpecTable& of(const Device& device) {
    static auto* tables = new std::unordered_map<int, SpecTable>;
    static std::mutex mutex;
    const std::scoped_lock lock(mutex);
    return (*tables)[device.major * 10 + device.minor];
  }

 private:
  std::shared_mutex mutex_;
  std::unordered_map<KernelSpec, const LoadedKernel*, HashOfSpec> kernels_;
};

template <class Launch>
void launch_spec(const KernelSpec& spec, const Launch& launch, const Device& device, void* stream) {
  const LoadedKernel& kernel = SpecTable::of(device).get(spec, device);
  const Grid grid = grid_of(spec.schedule, launch.neurons, device.multiprocessors);
  const Arguments arguments(launch);
  kernel.launch({static_cast<unsigned>(grid.blocks), 1, 1}, grid.block, 0, stream, arguments.data(), arguments.bytes());
}

}  // namespace

void launch(const ForwardLaunch& launch, const Device& device, void* stream) {
  if (launch.neurons == 0) return;
  launch_spec(forward_spec(launch, forward_schedule(launch, device.multiprocessors)), launch, device, stream);
}

void launch(const BackwardLaunch& launch, const Device& device, void* stream) {
  if (launch.neurons == 0) return;
  launch_spec(backward_spec(launch, backward_schedule(launch, device.multiprocessors)), launch, device, stream);
}

}  // namespace spikeforge::runtime
