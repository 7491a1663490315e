// Kernels by spec, so that a hot call builds no text and takes no lock.
#pragma once

#include <spikeforge/base/hash.h>
#include <spikeforge/base/published_map.h>
#include <spikeforge/jit/device.h>
#include <spikeforge/jit/kernel_cache.h>

#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>

namespace spikeforge::jit {

// Of the spec's bytes at once.
template <class Spec>
struct HashOfSpecBytes {
  std::size_t operator()(const Spec& spec) const {
    static_assert(std::has_unique_object_representations_v<Spec>, "equal specs must have equal bytes: no padding");
    return hash64(&spec, sizeof spec);
  }
};

// A Spec has print_source(spec), and an operator==.
template <class Spec, class Hash = HashOfSpecBytes<Spec>>
class SpecTable {
 public:
  // One an architecture.
  static SpecTable& of(const Device& device) {
    // Never destroyed, like the kernels themselves.
    static auto& tables = *new PublishedMap<int, SpecTable, std::hash<int>>;
    const int arch = device.major * 10 + device.minor;
    if (SpecTable* const table = tables.find(arch)) return *table;
    auto made = std::make_unique<SpecTable>();
    SpecTable& table = tables.insert(arch, *made);
    if (&table == made.get()) (void)made.release();
    return table;
  }

  // Compiled and loaded where it is not there yet.
  const LoadedKernel& get(const Spec& spec, const Device& device) {
    const LoadedKernel* const kernel = kernels_.find(spec);
    return kernel ? *kernel : make(spec, device);
  }

 private:
  // Compiles at most once, whoever comes here first: KernelCache sees to that.
  const LoadedKernel& make(const Spec& spec, const Device& device) {
    return kernels_.insert(
        spec, KernelCache::get().get(print_source(spec), fmt::format("sm_{}{}", device.major, device.minor)));
  }

  PublishedMap<Spec, const LoadedKernel, Hash> kernels_;
};

}  // namespace spikeforge::jit
