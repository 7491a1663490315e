#include <spikeforge/runtime/hash.h>
#include <spikeforge/runtime/spec_table.h>

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <type_traits>

namespace spikeforge::runtime {

std::size_t HashOfSpecBytes::operator()(const KernelSpec& spec) const {
  static_assert(std::has_unique_object_representations_v<KernelSpec>, "equal specs must have equal bytes: no padding");
  return hash64(&spec, sizeof spec);
}

SpecTable& SpecTable::of(const Device& device) {
  // Never destroyed, like the kernels themselves.
  static auto& tables = *new PublishedMap<int, SpecTable, std::hash<int>>;
  const int arch = device.major * 10 + device.minor;
  if (SpecTable* const table = tables.find(arch)) return *table;
  auto made = std::make_unique<SpecTable>();
  SpecTable& table = tables.insert(arch, *made);
  if (&table == made.get()) (void)made.release();
  return table;
}

// Compiles at most once, whoever comes here first: KernelCache sees to that.
const LoadedKernel& SpecTable::make(const KernelSpec& spec, const Device& device) {
  return kernels_.insert(
      spec, KernelCache::get().get(print_source(spec), fmt::format("sm_{}{}", device.major, device.minor)));
}

}  // namespace spikeforge::runtime
