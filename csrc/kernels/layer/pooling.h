// Maxima and means over windows of images on a GPU, and their gradients.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/jit/device.h"
#include "csrc/jit/kernel_cache.h"
#include "csrc/kernels/layer/arguments.h"

#include <cstdint>
#include <vector>

namespace spikeforge::layers {

inline bool operator==(const Window& a, const Window& b) {
  return a.size == b.size && a.stride == b.stride && a.padding == b.padding && a.dilation == b.dilation;
}

// The sizes of images [count, height, width, channels], in this memory order, and of the results of their windows,
// [count, out_height, out_width, channels].
struct Images {
  std::int64_t count, height, width, channels, out_height, out_width;
};

// A maximum, or a mean. A `divisor` of 0 is the number of places of the window in the image and, if counts_padding, in
// its padding.
struct Pool {
  Window down, across;
  bool is_mean = false;
  double divisor = 0;
  bool counts_padding = true;
};

// The maximum number of places of a window for maxima: `which`, with the sizes of the result, has the place of each
// maximum in its window, counted from 0 row by row.
constexpr int most_places = 256;

enum class PoolPass : int { forward, backward };

// `from` and `to` are x and y, or in the backward pass the gradients of y and x.
struct PoolLaunch {
  Pool pool;
  Images images;
  DType type;
  PoolPass pass;
  const void* from = nullptr;
  void* to = nullptr;
  std::uint8_t* which = nullptr;  // may be null in the forward pass
  // For maxima before a normalisation, as in PoolArguments; null otherwise.
  struct Normalised {
    const void* weight = nullptr;                                                   // forward
    const void *x = nullptr, *mean = nullptr, *offset = nullptr, *slope = nullptr;  // backward
    std::int64_t cycle = 1;
  } normalised = {};

  bool is_normalised() const { return (pass == PoolPass::forward ? normalised.weight : normalised.x) != nullptr; }
};

// Launches on a stream of the device, whose context is current. Throws the errors of KernelCache. An image must have
// fewer than 2^31 elements.
void launch_pooling(const PoolLaunch& call, const jit::Device& device, void* stream);

// The parts of launch_pooling(): the kernel of a call, which packs contain, and its launches. There are several
// launches if the number of threads exceeds 31 bits.
jit::KernelSource source_of(const PoolLaunch& call);

constexpr unsigned pool_threads = 256;  // of a block
struct PoolPart {
  PoolArguments arguments;
  unsigned blocks;
};
std::vector<PoolPart> parts_of(const PoolLaunch& call);

}  // namespace spikeforge::layers
