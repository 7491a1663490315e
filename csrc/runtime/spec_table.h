// Kernels by spec, so that a hot call builds no text and takes no lock.
#pragma once

#include <spikeforge/runtime/kernel_spec.h>
#include <spikeforge/runtime/multistep_launch.h>
#include <spikeforge/runtime/published_map.h>

#include <cstddef>

namespace spikeforge::runtime {

// Of the spec's bytes at once.
struct HashOfSpecBytes {
  std::size_t operator()(const KernelSpec& spec) const;
};

class SpecTable {
 public:
  // One an architecture.
  static SpecTable& of(const Device& device);

  // Compiled and loaded where it is not there yet.
  const LoadedKernel& get(const KernelSpec& spec, const Device& device) {
    const LoadedKernel* const kernel = kernels_.find(spec);
    return kernel ? *kernel : make(spec, device);
  }

 private:
  const LoadedKernel& make(const KernelSpec& spec, const Device& device);

  PublishedMap<KernelSpec, const LoadedKernel, HashOfSpecBytes> kernels_;
};

}  // namespace spikeforge::runtime
