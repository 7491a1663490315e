// Samples of a recurrent layer that differ in length or restart (samples.cuh): the state of a lane for its samples.
// Both passes run as many steps as the longest sample of a cluster has; results after the end of a sample are cleared.
//
// Short names: G samples of a lane.
#pragma once

#include "cuda/samples.cuh"

namespace spikeforge {

template <class Spec> struct LayerSamples {
  static constexpr bool has_lengths = SamplesOf<Spec>::has_lengths, has_start = SamplesOf<Spec>::has_start;
  static constexpr int tiles = Spec::geometry.tiles, G = Spec::geometry.lane_samples(), delay = Spec::geometry.delay;
  static constexpr int word = 32;  // steps whose starts are read at once
  static_assert(word % Spec::checkpoint == 0, "a segment's steps are those of one word");

  int steps;  // the length of the longest sample of the cluster
  int length[has_lengths ? tiles : 1][G];
  int place[has_start ? tiles : 1];           // in a row of starts, for sample lane % 8
  unsigned starts[has_start ? tiles : 1][G];  // bit t % word: true if the sample restarts before step t
  int blocked[has_start ? tiles : 1][G];      // the number of steps for which it receives nothing

  template <class Args, class Lane>
  __device__ __forceinline__ LayerSamples(const Args& a, const Lane& at) : steps(static_cast<int>(a.steps)) {
    if constexpr (has_lengths) find_lengths(static_cast<const WithSamples<Args>&>(a).samples, at);
    if constexpr (has_start) find_starts(static_cast<const WithSamples<Args>&>(a).samples, at);
  }

  // True if the sample has a step t.
  __device__ __forceinline__ bool has(int t, int n, int g) const {
    if constexpr (has_lengths)
      return t < length[n][g];
    else
      return true;
  }

  __device__ __forceinline__ bool starts_before(int t, int n, int g) const {
    if constexpr (has_start)
      return has(t, n, g) && (starts[n][g] >> (static_cast<unsigned>(t) % word) & 1u) != 0;
    else
      return false;
  }

  // Loads the word that contains step t. Each lane of the warp reads one step.
  template <class Args, class Lane> __device__ __forceinline__ void read_starts(const Args& a, const Lane& at, int t) {
    if constexpr (has_start) {
      const SampleArgs& samples = static_cast<const WithSamples<Args>&>(a).samples;
      const int step = t / word * word + at.lane;
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
        if (n > 0 && n >= at.count) break;
#pragma unroll
        for (int sample = 0; sample < 8; ++sample) {
          const int column = __shfl_sync(~0u, place[n], sample);
          const unsigned found =
              __ballot_sync(~0u, step < steps && samples.start[step * samples.start_stride + column] != 0);
#pragma unroll
          for (int g = 0; g < G; ++g)
            if (at.sample(g) == sample) starts[n][g] = found;
        }
      }
    }
  }

  // Steps at most `delay` apart on different sides of a restart do not exchange values.
  __device__ __forceinline__ void block_across_restart(int n, int g, bool at_start) {
    if constexpr (has_start)
      if (at_start) blocked[n][g] = delay;
  }
  __device__ __forceinline__ bool is_fed_back(int n, int g) {
    if constexpr (!has_start) return true;
    const bool nothing = blocked[n][g] > 0;
    if (nothing) --blocked[n][g];
    return !nothing;
  }

 private:
  template <class Lane> static __device__ __forceinline__ long long neuron_of(const Lane& at, int n) {
    const int b = ::min((at.first_tile + n) * 8 + at.lane % 8, at.batch - 1);
    return static_cast<long long>(b) * at.width;
  }

  template <class Lane> __device__ __forceinline__ void find_lengths(const SampleArgs& samples, const Lane& at) {
    int longest = 0;
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
      int found = 0;
      if (n < at.count) {
        found = samples.lengths[neuron_of(at, n) / samples.lengths_inner % samples.lengths_count];
        found = ::max(::min(found, steps), 0);
      }
      longest = ::max(longest, found);
#pragma unroll
      for (int g = 0; g < G; ++g) length[n][g] = __shfl_sync(~0u, found, at.sample(g));
    }
    steps = __reduce_max_sync(~0u, longest);
  }

  template <class Lane> __device__ __forceinline__ void find_starts(const SampleArgs& samples, const Lane& at) {
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
      place[n] = static_cast<int>(neuron_of(at, n) / samples.start_inner % samples.start_count);
#pragma unroll
      for (int g = 0; g < G; ++g) {
        starts[n][g] = 0;
        blocked[n][g] = 0;
      }
    }
  }
};

}  // namespace spikeforge
