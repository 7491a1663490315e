#include "csrc/simulation/internal/host_exchange.h"
#include "csrc/simulation/internal/notices.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <bit>
#include <chrono>
#include <exception>
#include <utility>

namespace spikeforge::simulation {
namespace {

constexpr std::int64_t least_room = 256, exchanges_of_room = 64;

std::int64_t power_of_two_from(std::int64_t n) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
}

// Converts the index of a neuron within a rank to its index in the whole network.
class Numbering {
 public:
  explicit Numbering(const std::vector<Slice>& slices) : slices_(slices) {}

  // Requires ascending indices between calls of `again`.
  std::int64_t operator()(std::int64_t own) {
    while (own >= slices_[at_].first + slices_[at_].size()) ++at_;
    return slices_[at_].begin + own - slices_[at_].first;
  }
  void again() { at_ = 0; }

 private:
  const std::vector<Slice>& slices_;
  std::size_t at_ = 0;
};

at::Tensor over(std::vector<std::int32_t>& words) { return at::from_blob(words.data(), {std::ssize(words)}, at::kInt); }

}  // namespace

Exchange::Exchange(std::shared_ptr<Ranks> ranks, const Description& description) : ranks_(std::move(ranks)) {
  for (std::int64_t rank = 0; rank < ranks_->size(); ++rank) {
    std::vector<Slice> slices = slices_of(description, rank, ranks_->size());
    std::erase_if(slices, [](const Slice& slice) { return slice.size() == 0; });
    neurons_.push_back(neurons_of(slices));
    most_neurons_ = std::max(most_neurons_, neurons_.back());
    slices_.push_back(std::move(slices));
  }
}

void Exchange::reserve() {
  own_.reserve(static_cast<std::size_t>(header + bit_words_));
  all_.reserve(static_cast<std::size_t>((header + bit_words_) * ranks_->size()));
}

void Exchange::run(std::int64_t first, std::span<const std::vector<std::int64_t>> own,
                   std::span<std::vector<std::int64_t>> all, bool& others_throw_too) {
  const auto begun = std::chrono::steady_clock::now();
  const auto steps = std::ssize(own);
  for (;;) {
    const bool as_bits = this->as_bits();
    const std::int64_t words = this->words();
    others_throw_too = true;
    write(first, own, words, as_bits);
    send_header(first, steps, words);
    const std::int64_t most = most_spikes(first, steps, words);
    others_throw_too = false;
    if (!as_bits && most > capacity_) {
      capacity_ = power_of_two_from(most);
      continue;
    }
    next_ = first + steps;
    keep_room(most);
    read(words, as_bits, all);
    break;
  }
  cost_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

bool Exchange::send_failure() noexcept {
  if (next_ >= end_) return false;
  end_ = 0;
  try {
    const std::int64_t words = this->words();
    own_.assign(static_cast<std::size_t>(words), 0);
    own_[1] = failed;
    send_header(next_, 0, words);
  } catch (const std::exception&) {  // the other ranks time out
  }
  return true;
}

void Exchange::write(std::int64_t first, std::span<const std::vector<std::int64_t>> own, std::int64_t words,
                     bool as_bits) {
  own_.assign(static_cast<std::size_t>(words), 0);
  const std::int64_t neurons = neurons_[static_cast<std::size_t>(ranks_->rank())];
  std::int64_t count = 0;
  std::int32_t* const body = own_.data() + header;
  for (std::size_t step = 0; step < own.size(); ++step)
    for (const std::int64_t neuron : own[step]) {
      const std::int64_t place = static_cast<std::int64_t>(step) * neurons + neuron;
      if (as_bits)
        body[place / 32] |= static_cast<std::int32_t>(std::uint32_t{1} << (place % 32));
      else if (count < words - header)
        body[count] = static_cast<std::int32_t>(static_cast<std::uint32_t>(place));
      ++count;
    }
  own_[0] = static_cast<std::int32_t>(count);
  own_[1] = static_cast<std::int32_t>(own.size());
  own_[2] = static_cast<std::int32_t>(first & 0x7fffffff);
  own_[3] = static_cast<std::int32_t>(first >> 31);
}

void Exchange::send_header(std::int64_t first, std::int64_t steps, std::int64_t words) {
  all_.resize(static_cast<std::size_t>(words * ranks_->size()));
  const at::Tensor own = over(own_), all = over(all_);
  all_gather(*ranks_, own, all.view({ranks_->size(), words}), "the spikes of " + steps_in_words(first, steps));
  ++cost_.exchanges;
  cost_.bytes += words * static_cast<std::int64_t>(sizeof(std::int32_t));
}

std::int64_t Exchange::most_spikes(std::int64_t first, std::int64_t steps, std::int64_t words) const {
  std::int64_t most = 0;
  for (std::int64_t rank = 0; rank < ranks_->size(); ++rank) {
    const std::int32_t* const received = all_.data() + rank * words;
    if (received[1] == failed) throw RankFailed(*ranks_, rank, Failure::within_step);
    const std::int64_t their_first = std::int64_t{received[3]} << 31 | received[2];
    TORCH_CHECK(their_first == first && received[1] == steps, "Network: rank ", rank, " sends spikes of ",
                steps_in_words(their_first, received[1]), ", but rank ", ranks_->rank(), " those of ",
                steps_in_words(first, steps), ": all ranks must make the same calls");
    most = std::max<std::int64_t>(most, received[0]);
  }
  return most;
}

void Exchange::read(std::int64_t words, bool as_bits, std::span<std::vector<std::int64_t>> all) const {
  for (std::vector<std::int64_t>& fired : all) fired.clear();
  for (std::size_t rank = 0; rank < slices_.size(); ++rank) {
    const std::int32_t* const received = all_.data() + static_cast<std::int64_t>(rank) * words;
    const std::int32_t* const body = received + header;
    const std::int64_t neurons = neurons_[rank];
    Numbering whole(slices_[rank]);
    std::int64_t last_step = 0;
    const auto add = [&](std::int64_t place) {
      const std::int64_t step = place / neurons;
      if (step != last_step) whole.again();
      last_step = step;
      all[static_cast<std::size_t>(step)].push_back(whole(place % neurons));
    };
    if (as_bits) {
      for (std::int64_t word = 0; received[0] != 0 && word < words - header; ++word)
        for (auto bits = static_cast<std::uint32_t>(body[word]); bits != 0; bits &= bits - 1)
          add(32 * word + std::countr_zero(bits));
    } else {
      for (std::int32_t i = 0; i < received[0]; ++i) add(static_cast<std::uint32_t>(body[i]));
    }
  }
  for (std::vector<std::int64_t>& fired : all) std::ranges::sort(fired);
}

// Reduces the space after a while if much more is reserved than needed, in the same exchange on all ranks.
void Exchange::keep_room(std::int64_t spikes) {
  busiest_ = std::max(busiest_, spikes);
  if (++since_ < exchanges_of_room) return;
  const std::int64_t room = std::max(least_room, power_of_two_from(2 * busiest_));
  if (4 * room <= capacity_) capacity_ = room;
  busiest_ = since_ = 0;
}

std::int64_t Exchange::most_of_a_rank(const StateProbe& requested) const {
  std::int64_t most = 0;
  for (const std::vector<Slice>& slices : slices_) {
    const auto slice = std::ranges::find_if(slices, [&](const Slice& s) {
      return s.begin >= requested.population.begin && s.end <= requested.population.end;
    });
    if (slice == slices.end()) continue;
    const auto is_its = [&](std::int64_t neuron) {
      return slice->begin <= requested.population.begin + neuron && requested.population.begin + neuron < slice->end;
    };
    most = std::max<std::int64_t>(most, std::ranges::count_if(requested.neurons, is_its));
  }
  return most;
}

}  // namespace spikeforge::simulation
