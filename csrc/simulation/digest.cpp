#include <spikeforge/base/version.h>
#include <spikeforge/simulation/internal/digest.h>
#include <spikeforge/simulation/internal/tell.h>

#include <torch/version.h>

#include <bit>
#include <cstdint>
#include <string_view>
#include <vector>

namespace spikeforge::simulation {
namespace {

// Fowler, Noll and Vo's, of 64 bits, version 1a.
class Digest {
 public:
  Digest& add(const void* data, std::size_t bytes) {
    const auto* const begin = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < bytes; ++i) sum_ = (sum_ ^ begin[i]) * 0x100000001b3U;
    return *this;
  }
  Digest& add(std::int64_t number) { return add(&number, sizeof number); }
  Digest& add(double number) { return add(std::bit_cast<std::int64_t>(number)); }
  Digest& add(std::string_view text) { return add(std::ssize(text)).add(text.data(), text.size()); }
  Digest& add(const at::Tensor& t) {
    if (!t.defined()) return add(std::int64_t{-1});
    const at::Tensor plain = t.cpu().contiguous();
    return add(static_cast<std::int64_t>(plain.scalar_type()))
        .add(plain.numel())
        .add(plain.const_data_ptr(), plain.nbytes());
  }
  std::int64_t sum() const { return static_cast<std::int64_t>(sum_); }

 private:
  std::uint64_t sum_ = 0xcbf29ce484222325U;
};

void add_law(Digest& digest, const NumberLaw& law) {
  digest.add(law.law).add(law.first).add(law.second).add(law.low).add(law.high).add(std::int64_t{law.redraw});
}

void add_targets(Digest& digest, const Targets& targets) {
  digest.add(targets.begin).add(targets.end).add(targets.input);
}

std::int64_t of_build() {
  return Digest().add(std::int64_t{SPIKEFORGE_VERSION}).add(std::string_view(TORCH_VERSION)).sum();
}

std::int64_t of_options(const Description& d) {
  return Digest()
      .add(static_cast<std::int64_t>(d.dtype))
      .add(static_cast<std::int64_t>(d.weight_dtype))
      .add(static_cast<std::int64_t>(d.options.device.type()))
      .add(std::int64_t{d.options.deterministic})
      .sum();
}

std::int64_t of_populations(const Description& d) {
  Digest digest;
  for (std::size_t i = 0; i < d.populations.size(); ++i) {
    const DescribedPopulation& described = d.neurons[i];
    digest.add(d.populations[i].name).add(d.populations[i].size()).add(described.neuron.text()).add(described.area);
    for (const PerNeuron& numbers : described.states) digest.add(numbers.tensor());
    for (const PerNeuron& numbers : described.params) digest.add(numbers.tensor());
  }
  return digest.sum();
}

std::int64_t of_projections(const Description& d) {
  Digest digest;
  for (const DescribedProjection& p : d.projections) {
    digest.add(p.how.rule)
        .add(p.how.sources.begin)
        .add(p.how.sources.end)
        .add(p.how.targets.begin)
        .add(p.how.targets.end);
    digest.add(p.input).add(p.how.amount).add(std::int64_t{p.how.autapses}).add(std::int64_t{p.how.multapses});
    add_law(digest, p.how.weight);
    add_law(digest, p.how.delay);
    digest.add(p.how.source_indices).add(p.how.target_indices).add(p.how.weights).add(p.how.delays);
  }
  return digest.sum();
}

std::int64_t of_drive(const Description& d) {
  Digest digest;
  for (const DescribedDrive& drive : d.drives) {
    add_targets(digest, drive.targets);
    digest.add(drive.rates).add(drive.weight);
  }
  for (const DescribedCurrent& current : d.currents) {
    add_targets(digest, current.targets);
    digest.add(current.current);
  }
  return digest.sum();
}

}  // namespace

void check_alike(const Description& d) {
  constexpr const char* names[] = {"another build of spikeforge or torch",
                                   "another seed",
                                   "other dtypes, devices or `deterministic`",
                                   "other populations",
                                   "other projections",
                                   "another drive or current"};
  const std::vector<std::int64_t> own{of_build(),        d.options.seed,    of_options(d),
                                      of_populations(d), of_projections(d), of_drive(d)};
  const auto told = told_by_all(*d.options.ranks, own, d.options.device, "the description of the network");
  for (std::size_t rank = 1; rank < told.size(); ++rank)
    for (std::size_t i = 0; i < own.size(); ++i)
      TORCH_CHECK_VALUE(told[rank][i] == told[0][i], "Network: rank ", rank, " of ", told.size(), " has ", names[i],
                        " than rank 0: all ranks must describe the same network");
}

}  // namespace spikeforge::simulation
