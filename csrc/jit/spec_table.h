// Finds kernels by spec, so that a hot call builds no text and takes no lock.
#pragma once

#include "csrc/base/hash.h"
#include "csrc/base/published_map.h"
#include "csrc/jit/device.h"
#include "csrc/jit/kernel_cache.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

namespace spikeforge::jit {

// Hashes the bytes of the spec at once.
template <class Spec> struct HashOfSpecBytes {
  std::size_t operator()(const Spec& spec) const {
    static_assert(std::has_unique_object_representations_v<Spec>, "equal specs must have equal bytes: no padding");
    return hash64(&spec, sizeof spec);
  }
};

// The kernels of one architecture. A Spec has a function print_source(spec) and an operator==.
template <class Spec, class Hash = HashOfSpecBytes<Spec>> class SpecTable {
 public:
  // Returns the table of the process.
  static SpecTable& of(const Device& device);

  // Returns the kernel; compiles and loads it at its first use.
  const LoadedKernel& get(const Spec& spec, const Device& device) {
    return get(spec, device, [] {});
  }
  // The same, but calls `before` before it compiles the kernel.
  template <class Before> const LoadedKernel& get(const Spec& spec, const Device& device, Before&& before) {
    if (const LoadedKernel* const kernel = kernels_.find(spec)) return *kernel;
    before();
    return make(spec, device);
  }

 private:
  // Compiles the kernel. KernelCache ensures that only one thread does.
  const LoadedKernel& make(const Spec& spec, const Device& device) {
    return kernels_.insert(spec, KernelCache::get().get(print_source(spec), name_of_arch(device)));
  }

  PublishedMap<Spec, const LoadedKernel, Hash> kernels_;
};

// One table per architecture. The kernels outlive the tables.
template <class Spec, class Hash = HashOfSpecBytes<Spec>> class SpecTables {
 public:
  SpecTable<Spec, Hash>& of(const Device& device) {
    const int arch = device.major * 10 + device.minor;
    if (auto* const table = tables_.find(arch)) return *table;
    const std::scoped_lock lock(owning_);
    owned_.push_back(std::make_unique<SpecTable<Spec, Hash>>());
    return tables_.insert(arch, *owned_.back());
  }

 private:
  PublishedMap<int, SpecTable<Spec, Hash>, std::hash<int>> tables_;
  std::mutex owning_;
  std::vector<std::unique_ptr<SpecTable<Spec, Hash>>> owned_;
};

template <class Spec, class Hash> SpecTable<Spec, Hash>& SpecTable<Spec, Hash>::of(const Device& device) {
  static auto& tables = *new SpecTables<Spec, Hash>;  // never destroyed, like the kernels themselves
  return tables.of(device);
}

}  // namespace spikeforge::jit
