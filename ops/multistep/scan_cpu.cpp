#include "csrc/cpu/multistep/program.h"
#include "csrc/kernels/scan/scan.h"
#include "ops/multistep/cpu_tiles.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

namespace spikeforge::ops {
namespace {

// Rows of N elements of the compute type.
class StateRows {
 public:
  StateRows(const ForwardLaunch& launch, std::int64_t rows)
      : row_bytes_(static_cast<std::size_t>(launch.neurons) * size_of(compute_type(launch.type))),
        bytes_(static_cast<std::size_t>(rows) * row_bytes_) {}

  void* row(std::int64_t i) { return bytes_.data() + static_cast<std::size_t>(i) * row_bytes_; }
  std::vector<void*> rows(std::int64_t first, std::size_t count) {
    std::vector<void*> list;
    for (std::size_t i = 0; i < count; ++i) list.push_back(row(first + static_cast<std::int64_t>(i)));
    return list;
  }

 private:
  std::size_t row_bytes_;
  std::vector<char> bytes_;
};

// A launch of some of the steps, and the data that it points to.
struct Part {
  Part(const ForwardLaunch& whole, std::int64_t first, std::int64_t end) : launch(whole) {
    launch.steps = end - first;
    inputs.assign(whole.inputs.begin(), whole.inputs.end());
    for (SequenceView& view : inputs) view.data = moved(view.data, first * view.time_stride, size_of(whole.type));
    launch.inputs = inputs;
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  static void* moved(const void* data, std::int64_t elements, std::size_t size) {
    if (data == nullptr) return nullptr;
    return const_cast<char*>(static_cast<const char*>(data) + elements * static_cast<std::int64_t>(size));
  }

  ForwardLaunch launch;
  std::vector<SequenceView> inputs;
  std::vector<StateView> initial;
  std::vector<void*> outputs, states;
};

class ScanOnCpu {
 public:
  ScanOnCpu(const ForwardLaunch& launch, std::int64_t segments)
      : launch_(launch),
        composition_(composition_of(static_cast<const TracedCell&>(*launch.cell))),
        n_(static_cast<std::int64_t>(launch.cell->states.size())),
        length_(rounded_up((launch.steps + segments - 1) / segments, launch.checkpoint_length)),
        count_((launch.steps + length_ - 1) / length_),
        maps_(launch, (count_ - 1) * n_ * (n_ + 1)),
        starts_(launch, count_ * n_),
        last_(launch, count_ * n_) {}

  void run() {
    load_initial();
    run_segments(count_ - 1, [&](std::int64_t k) { return composed(k); });
    if (compute_type(launch_.type) == DType::f64)
      join<double>();
    else
      join<float>();
    run_segments(count_, [&](std::int64_t k) { return walked(k); });
  }

 private:
  using Made = std::unique_ptr<Part>;

  static std::int64_t rounded_up(std::int64_t a, std::int64_t unit) { return (a + unit - 1) / unit * unit; }

  Made segment(std::int64_t k) const {
    return std::make_unique<Part>(launch_, k * length_, std::min((k + 1) * length_, launch_.steps));
  }

  // Runs segments in tiles of neurons.
  template <class Make> static void run_segments(std::int64_t count, const Make& make) {
    std::vector<Made> made;
    for (std::int64_t k = 0; k < count; ++k) made.push_back(make(k));
    if (made.empty()) return;
    const cpu::Program program = cpu::program_of(made[0]->launch);
    const std::int64_t neurons = made[0]->launch.neurons, size = std::min(neurons, program.largest_tile);
    const std::int64_t tiles = (neurons + size - 1) / size;
    std::size_t bytes = 0;
    for (const Made& one : made)
      bytes = std::max(bytes, program.loop.forward_scratch(one->launch, program.context, size));
    at::parallel_for(0, count * tiles, 1, [&](std::int64_t first, std::int64_t last) {
      void* const scratch = thread_scratch(bytes);
      for (std::int64_t i = first; i < last; ++i) {
        const std::int64_t begin = i % tiles * size;
        // The values of a text's parameters are not checked.
        program.loop.forward(made[static_cast<std::size_t>(i / tiles)]->launch, program.context, begin,
                             std::min(begin + size, neurons), scratch);
      }
    });
  }

  // Loads the initial states of the first segment, by a run of 0 steps, whose last states are the initial ones.
  void load_initial() {
    run_segments(1, [&](std::int64_t) {
      Made none = std::make_unique<Part>(launch_, 0, 0);
      none->states = starts_.rows(0, static_cast<std::size_t>(n_));
      none->launch.states = none->states;
      none->launch.store_states = false;
      none->launch.checkpoints = nullptr;
      return none;
    });
  }

  Made composed(std::int64_t k) {
    Made made = segment(k);
    const std::size_t numbers = composition_.states.size();
    made->initial.resize(numbers);
    made->outputs.resize(composition_.outputs.size());
    made->states = maps_.rows(k * static_cast<std::int64_t>(numbers), numbers);
    ForwardLaunch& launch = made->launch;
    launch.cell = &composition_;
    launch.initial = made->initial;
    launch.outputs = made->outputs;
    launch.states = made->states;
    launch.store_states = false;
    launch.checkpoints = nullptr;
    return made;
  }

  // Computes the initial states of each segment from those of the previous segment.
  template <class T> void join() {
    for (std::int64_t k = 0; k + 1 < count_; ++k)
      for (std::int64_t s = 0; s < n_; ++s) {
        const std::int64_t map = k * n_ * (n_ + 1);
        T* const next = static_cast<T*>(starts_.row((k + 1) * n_ + s));
        std::memcpy(next, maps_.row(map + n_ * n_ + s), static_cast<std::size_t>(launch_.neurons) * sizeof(T));
        for (std::int64_t j = 0; j < n_; ++j) {
          const T* const factor = static_cast<const T*>(maps_.row(map + s * n_ + j));
          const T* const state = static_cast<const T*>(starts_.row(k * n_ + j));
          // A state of 0 contributes 0, even if the product of a segment's factors is infinite.
          for (std::int64_t i = 0; i < launch_.neurons; ++i) next[i] += state[i] == T(0) ? T(0) : factor[i] * state[i];
        }
      }
  }

  Made walked(std::int64_t k) {
    Made made = segment(k);
    const std::size_t element = size_of(launch_.type), number = size_of(compute_type(launch_.type));
    const std::int64_t first = k * length_ * launch_.neurons;
    for (std::int64_t s = 0; s < n_; ++s)
      made->initial.push_back({starts_.row(k * n_ + s), compute_type(launch_.type)});
    for (void* const output : launch_.outputs) made->outputs.push_back(Part::moved(output, first, element));
    if (launch_.store_states) {
      for (void* const state : launch_.states) made->states.push_back(Part::moved(state, first, number));
    } else if (k + 1 < count_) {
      made->states = last_.rows(k * n_, static_cast<std::size_t>(n_));
    } else {
      made->states.assign(launch_.states.begin(), launch_.states.end());
    }
    ForwardLaunch& launch = made->launch;
    launch.initial = made->initial;
    launch.outputs = made->outputs;
    launch.states = made->states;
    // The initial state of a segment is the checkpoint before its first one.
    const std::int64_t before = k * length_ / launch_.checkpoint_length * n_;
    launch.checkpoints = Part::moved(launch_.checkpoints, before * launch_.neurons, number);
    if (launch_.checkpoints != nullptr && k > 0)
      std::memcpy(Part::moved(launch_.checkpoints, (before - n_) * launch_.neurons, number), starts_.row(k * n_),
                  static_cast<std::size_t>(n_ * launch_.neurons) * number);
    return made;
  }

  const ForwardLaunch& launch_;
  const TracedCell& composition_;
  const std::int64_t n_;       // states
  const std::int64_t length_;  // of a segment; a multiple of the checkpoint spacing
  const std::int64_t count_;   // the number of segments
  StateRows maps_;             // [count - 1][(n + 1) n]
  StateRows starts_;           // [count][n]
  StateRows last_;             // [count][n], not used
};

// Returns the number of segments, one for each thread that the loop would leave idle. Each segment runs twice: to
// compute its map, and to compute its steps.
std::int64_t segments_of(const ForwardLaunch& launch) {
  constexpr std::int64_t fewest = 3;
  constexpr std::int64_t least_share = 65536;  // neurons times steps, as in cpu_tiles.cpp
  const std::int64_t tiles = ops::tiles_of(launch.neurons, launch.steps, launch.neurons).count;
  if (tiles == 0) return 1;
  const std::int64_t segments =
      std::min<std::int64_t>(at::get_num_threads() / tiles, launch.neurons * launch.steps / least_share);
  return segments < fewest ? 1 : segments;
}

}  // namespace

bool scan_cpu(const ForwardLaunch& launch) {
  const std::int64_t segments = segments_of(launch);
  if (segments > 1) ScanOnCpu(launch, segments).run();
  return segments > 1;
}

}  // namespace spikeforge::ops
