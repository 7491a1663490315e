// Samples that differ in length or restart: the arguments of a kernel, and the state of the sample of a thread's
// neurons.
#pragma once

namespace spikeforge {

// The lengths of samples, and the steps before which they restart. Neuron i belongs to sample (i / inner) % count.
struct SampleArgs {
  const int* lengths;
  long long lengths_inner, lengths_count;
  const unsigned char* start;  // nonzero: the sample restarts
  long long start_inner, start_count, start_stride;
};

template <class Args> struct WithSamples : Args { SampleArgs samples; };

// True if the Spec's kernels process samples.
template <class Spec, class = int> struct SamplesOf { static constexpr bool has_lengths = false, has_start = false; };
template <class Spec> struct SamplesOf<Spec, decltype(static_cast<int>(Spec::has_lengths))> {
  static constexpr bool has_lengths = Spec::has_lengths, has_start = Spec::has_start;
};

// The neurons of a thread, and the number of steps of their sample.
template <class Neurons> struct OfSample : Neurons {
  int steps = 0;
  const unsigned char* anew = nullptr;  // nonzero if the sample restarts before step 0
  long long anew_stride = 0;

  OfSample() = default;
  __device__ __forceinline__ OfSample(Neurons neurons) : Neurons(neurons) {}

  __device__ __forceinline__ OfSample further(long long neurons) const { return Neurons::further(neurons); }
};

}  // namespace spikeforge
