#include "csrc/base/version.h"
#include "csrc/simulation/internal/description.h"
#include "csrc/simulation/internal/digest.h"
#include "csrc/simulation/internal/notices.h"

#include <c10/util/Exception.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace spikeforge::simulation {
namespace {

using Digests = std::vector<std::int64_t>;

// Digests and names of one kind of items in the description of a network, in their order.
struct Described {
  const char *one, *many;
  Digests digests;
  std::vector<std::string> names;

  std::int64_t sum() const {
    Digest all;
    for (const std::int64_t digest : digests) all.add(digest);
    return all.sum();
  }
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

Described populations_of(const Description& d) {
  Described all{"population", "populations", {}, {}};
  for (std::size_t i = 0; i < d.populations.size(); ++i) {
    const DescribedPopulation& described = d.neurons[i];
    Digest digest;
    digest.add(d.populations[i].name).add(d.populations[i].size()).add(described.neuron.text()).add(described.area);
    for (const PerNeuron& numbers : described.states) digest.add(numbers.tensor());
    for (const PerNeuron& numbers : described.params) digest.add(numbers.tensor());
    all.digests.push_back(digest.sum());
    all.names.push_back(d.populations[i].name);
  }
  return all;
}

Described projections_of(const Description& d) {
  Described all{"projection", "projections", {}, {}};
  for (const DescribedProjection& p : d.projections) {
    Digest digest;
    digest.add(p.how.rule)
        .add(p.how.sources.begin)
        .add(p.how.sources.end)
        .add(p.how.targets.begin)
        .add(p.how.targets.end);
    digest.add(p.input).add(p.how.amount).add(std::int64_t{p.how.autapses}).add(std::int64_t{p.how.multapses});
    add_law(digest, p.how.weight);
    add_law(digest, p.how.delay);
    digest.add(p.how.source_indices).add(p.how.target_indices).add(p.how.weights).add(p.how.delays);
    all.digests.push_back(digest.sum());
    all.names.push_back(d.populations[p.sources].name + " to " + d.populations[p.targets].name);
  }
  return all;
}

Described drives_of(const Description& d) {
  Described all{"drive", "drives", {}, {}};
  for (const DescribedDrive& drive : d.drives) {
    Digest digest;
    add_targets(digest, drive.targets);
    all.digests.push_back(digest.add(drive.rates).add(drive.weights).sum());
    all.names.push_back("of " + drive.population.name);
  }
  return all;
}

Described currents_of(const Description& d) {
  Described all{"current", "currents", {}, {}};
  for (const DescribedCurrent& current : d.currents) {
    Digest digest;
    add_targets(digest, current.targets);
    all.digests.push_back(digest.add(current.current).sum());
    all.names.push_back("of " + current.population.name);
  }
  return all;
}

// Returns the first difference between `rank` and rank 0, which have the same number of values. All ranks send their
// values.
std::string first_difference(const Description& d, const Described& own, std::size_t rank, std::int64_t count) {
  Digests digests = own.digests;
  digests.resize(static_cast<std::size_t>(count));
  const std::vector<Digests> received = payloads(*d.options.ranks, digests, d.options.device, Topic::build);
  const auto at =
      static_cast<std::size_t>(std::ranges::mismatch(received[0], received[rank]).in1 - received[0].begin());
  const std::string name = at < own.names.size() ? " (" + own.names[at] + ")" : "";
  return std::string("another ") + own.one + " " + std::to_string(at) + name + " than rank 0";
}

std::atomic<std::int64_t> last_number{0};  // the number of the last network

}  // namespace

std::int64_t check_alike(const Description& d) {
  constexpr const char* names[] = {"another build of spikeforge or torch", "another seed",
                                   "other dtypes, devices or `deterministic`"};
  constexpr std::size_t plain = std::size(names);
  std::vector<Described> kinds;
  const std::vector<Numbers> received =
      gather_notices(*d.options.ranks, {Topic::build}, d.options.device, [&] {
        kinds = {populations_of(d), projections_of(d), drives_of(d), currents_of(d)};
        Numbers own{of_build(), Digest().add(d.options.seed).add(d.noise_seed(0)).sum(), of_options(d)};
        for (const Described& kind : kinds) own.insert(own.end(), {std::ssize(kind.digests), kind.sum()});
        own.push_back(++last_number);
        return own;
      }).numbers;
  constexpr const char* rest = ": all ranks must describe the same network";
  for (std::size_t rank = 1; rank < received.size(); ++rank) {
    const std::vector<std::int64_t>&theirs = received[rank], &first = received[0];
    const auto who = [&] { return "Network: rank " + std::to_string(rank) + " of " + std::to_string(received.size()); };
    for (std::size_t i = 0; i < plain; ++i)
      TORCH_CHECK_VALUE(theirs[i] == first[i], who(), " has ", names[i], " than rank 0", rest);
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      const std::size_t count = plain + 2 * k, sum = count + 1;
      TORCH_CHECK_VALUE(theirs[count] == first[count], who(), " has ", theirs[count], " ", kinds[k].many,
                        ", but rank 0 has ", first[count], rest);
      if (theirs[sum] != first[sum])
        TORCH_CHECK_VALUE(false, who(), " has ", first_difference(d, kinds[k], rank, first[count]), rest);
    }
  }
  std::int64_t number = 0;
  for (const std::vector<std::int64_t>& theirs : received) number = std::max(number, theirs.back());
  std::int64_t last = last_number;
  while (last < number && !last_number.compare_exchange_weak(last, number)) {
  }
  return number;
}

}  // namespace spikeforge::simulation
