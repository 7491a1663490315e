// Kernels of events: the properties that determine their code, and their source.
#pragma once

#include "csrc/jit/kernel_cache.h"
#include "csrc/kernels/event/product.h"

#include <cstdint>
#include <string>

namespace spikeforge::event {

enum class Kernel : std::uint8_t {
  pack,
  gather_bits,
  gather,
  gather_with_gradient,
  limits,
  scatter,
  finish,
  weight_gradient,
  plasticity,
  jit_gather,
  jit_scatter,
  linear,
  check,
  deliver,
  take
};

const char* name_of(Values values);
const char* name_of(Delays delays);
const char* name_of(Distribution distribution);

// The members after the kernel are template arguments of Spec in cuda/event/event.cuh, which documents them.
struct KernelSpec {
  Kernel kernel{};
  DType weight{};
  EntryType entry{};
  Values values{};
  bool homogeneous = false;
  std::uint8_t indptr_bytes = 0;
  Sums sums{};
  std::uint8_t lanes = 32;
  std::uint8_t columns = 1;
  std::uint8_t unroll = 4;
  bool in_shared_memory = false;
  bool transpose = false;
  Delays delays{};
  Distribution distribution{};  // for jit_gather and jit_scatter; constant weights are homogeneous
  bool packed = false;          // for linear: true if events are bits
  bool wide_indices = false;    // for check: true if they are int64

  bool operator==(const KernelSpec&) const = default;
};

// The launch bounds of a kernel: threads of a block, and blocks per multiprocessor.
struct Bounds {
  int threads, blocks;
};
Bounds bounds(const KernelSpec& spec);

// Prints the type Spec of cuda/event/event.cuh, for any kernel that reads such a matrix.
std::string print_type(const KernelSpec& spec);

jit::KernelSource print_source(const KernelSpec& spec);

}  // namespace spikeforge::event
