// Exchanges the spikes of some steps between all ranks: lists of 32-bit numbers, or a bit for each neuron and step,
// whichever is shorter.
//
// Lists have space for `capacity` spikes, the same on all ranks, so that one all_gather exchanges both the counts and
// the spikes. If a rank has more spikes, all ranks detect it, and repeat the exchange with more space. The space
// follows that of the busiest rank in recent exchanges. The length of a message does not depend on the arguments of a
// call: ranks that make different calls can report it. A rank that fails between exchanges sends its failure in place
// of its spikes.
#pragma once

#include "csrc/simulation/internal/partition.h"
#include "csrc/simulation/ranks.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace spikeforge::simulation {

// Statistics of this process's exchanges.
struct ExchangeCost {
  std::int64_t exchanges = 0, bytes = 0;  // bytes sent
  double seconds = 0;                     // wall time, including waiting for other ranks; on the CPU
};

class Exchange {
 public:
  // All ranks must have the same numbering of neurons.
  Exchange(std::shared_ptr<Ranks> ranks, const Description& description);

  // Sets the largest number of steps of later exchanges.
  void set_block(std::int64_t steps) { bit_words_ = (steps * most_neurons_ + 31) / 32; }

  // Allocates memory for the longest messages. A list is only used if it is shorter than the bits.
  void reserve();

  // Notes that the other ranks wait for exchanges of steps first, ..., end - 1.
  void expect(std::int64_t first, std::int64_t end) {
    next_ = first;
    end_ = end;
  }

  // Exchanges spikes. own[i] has this rank's neurons that fired in step first + i, and all[i] receives those of all
  // ranks, as indices in the whole network; both are in ascending order. Throws c10::Error if ranks are not at the same
  // step, or if a rank has exited or failed; `others_throw_too` is set to true if the other ranks throw, too.
  void run(std::int64_t first, std::span<const std::vector<std::int64_t>> own, std::span<std::vector<std::int64_t>> all,
           bool& others_throw_too);

  // Sends a failure in place of the next exchange. Returns false if the other ranks do not wait for one.
  bool send_failure() noexcept;

  // Resets the capacity to its initial value. Needed if the ranks may have completed different numbers of exchanges.
  void forget() {
    capacity_ = first_room;
    busiest_ = since_ = 0;
  }

  const ExchangeCost& cost() const { return cost_; }
  // The slices of each rank, without empty ones.
  const std::vector<std::vector<Slice>>& slices() const { return slices_; }
  std::int64_t most_neurons() const { return most_neurons_; }
  // The largest number of requested neurons on one rank.
  std::int64_t most_of_a_rank(const StateProbe& requested) const;
  bool all_have_neurons() const { return std::ranges::find(neurons_, 0) == neurons_.end(); }

 private:
  static constexpr std::int64_t first_room = 256;
  static constexpr std::int64_t header = 4;  // words: spikes, steps, the first step's two halves

  static constexpr std::int32_t failed = -1;  // sent in place of the number of steps

  bool as_bits() const { return bit_words_ <= capacity_; }
  std::int64_t words() const { return header + (as_bits() ? bit_words_ : capacity_); }
  void write(std::int64_t first, std::span<const std::vector<std::int64_t>> own, std::int64_t words, bool as_bits);
  void send_header(std::int64_t first, std::int64_t steps, std::int64_t words);
  std::int64_t most_spikes(std::int64_t first, std::int64_t steps, std::int64_t words) const;
  void read(std::int64_t words, bool as_bits, std::span<std::vector<std::int64_t>> all) const;
  void keep_room(std::int64_t spikes);

  const std::shared_ptr<Ranks> ranks_;
  std::vector<std::vector<Slice>> slices_;
  std::vector<std::int64_t> neurons_;  // of each rank
  std::int64_t most_neurons_ = 0, bit_words_ = 0;
  std::int64_t capacity_ = first_room, busiest_ = 0, since_ = 0;
  std::int64_t next_ = 0, end_ = 0;  // the steps for whose spikes the other ranks wait
  std::vector<std::int32_t> own_, all_;
  ExchangeCost cost_;
};

}  // namespace spikeforge::simulation
