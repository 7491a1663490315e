// Views of the memory of a call for kernels: [T, N] sequences, states of N neurons, parameters.
#pragma once

#include "csrc/base/dtype.h"

#include <cstdint>

namespace spikeforge {

// A [T, N] sequence; strides in elements. The time stride may be 0; the neuron stride is 1, or 0 for one element per
// row.
struct SequenceView {
  const void* data = nullptr;
  std::int64_t time_stride = 0;
  std::int64_t neuron_stride = 1;
};

// The initial state of every neuron, or null for the initial state of the cell.
struct StateView {
  const void* data = nullptr;
  DType type = DType::f32;
};

// The value of neuron i is data[(i / inner) % count], or `number` if data is null.
struct ParamView {
  const void* data = nullptr;
  DType type = DType::f32;
  double number = 0;
  std::int64_t inner = 1;
  std::int64_t count = 1;
};

// The neurons of one sample, which share its length and starts: neuron i belongs to sample (i / inner) % count.
struct SamplesView {
  std::int64_t inner = 1;
  std::int64_t count = 1;
};

// The number of steps of each sample; null: all samples have all steps.
struct LengthsView : SamplesView {
  const std::int32_t* data = nullptr;  // [count], each between 0 and T
};

// The steps before which a sample restarts; null: none. Bools are read as bytes, since a view of memory of another type
// may have bytes other than 0 and 1.
struct StartView : SamplesView {
  const unsigned char* data = nullptr;  // [T, count]
  std::int64_t time_stride = 0;
};

}  // namespace spikeforge
