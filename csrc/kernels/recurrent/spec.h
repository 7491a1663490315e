// The compile-time choices of a recurrent layer's kernel, and its CUDA source.
#pragma once

#include "csrc/kernels/multistep/spec.h"
#include "csrc/kernels/recurrent/geometry.h"
#include "csrc/kernels/recurrent/launch.h"

#include <cstddef>

namespace spikeforge::kernels {

struct RecurrentSpec {
  KernelSpec step;  // for the cell and the places of the call
  recurrent::Geometry geometry{};
  std::size_t into = 0;
  bool vectors = false;    // true if a lane's neurons are read in one access
  bool has_first = false;  // forward: true if outputs before the first step are given

  bool operator==(const RecurrentSpec& other) const;
};

// A hash of the specs of one cell.
struct HashOfRecurrentSpec {
  std::size_t operator()(const RecurrentSpec& spec) const;
};

RecurrentSpec spec_of(const RecurrentForwardLaunch& launch, const recurrent::Geometry& geometry);
RecurrentSpec spec_of(const RecurrentBackwardLaunch& launch, const recurrent::Geometry& geometry);

jit::KernelSource print_source(const RecurrentSpec& spec);

}  // namespace spikeforge::kernels
