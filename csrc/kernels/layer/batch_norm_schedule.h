// The schedule of a layer of batch norm and a neuron on a GPU: threads, tiles and their distribution over blocks.
#pragma once

#include "csrc/jit/device.h"
#include "csrc/kernels/layer/arguments.h"
#include "csrc/kernels/layer/batch_norm.h"
#include "csrc/kernels/multistep/schedule.h"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace spikeforge::layers {

// Returns the parameter with the layer's channels.
inline const ParamView& shift_of(const Launch& run) { return run.params.back(); }
// Returns the number of neurons after which the channels repeat.
inline std::int64_t period_of(const Launch& run) { return shift_of(run).inner * shift_of(run).count; }
inline const BackwardLaunch& first_loop(const BatchNormBackward& layer) { return layer.sums; }
inline const ForwardLaunch& first_loop(const BatchNormForward& layer) { return layer.run; }

// The threads of a block, and `slots`, the number of tiles in shared memory at any time; 0 without a ring.
struct Block {
  std::uint16_t threads = 256;
  std::uint8_t slots = 0;
  std::uint8_t ahead = 0;  // tiles in flight while one is computed
  std::uint8_t steps = 1;  // of a sequence in shared memory, a power of two
  std::uint8_t team = 1;   // neighbouring threads that copy their rows together
  bool is_exact = false;   // true if sequences have exactly this number of steps
  bool keeps = false;      // backward: stores x's gradient until the part of the statistics is known

  bool operator==(const Block&) const = default;
};

// The schedule of both passes of a layer.
struct LayerSchedule {
  kernels::Schedule loop;
  Block block;
  std::optional<RingTiles> ring;  // present if the block has slots
};

// Chooses a schedule. Both loops of a backward pass share it: a thread has the same neurons in both.
LayerSchedule schedule_of(const BatchNormForward& layer, const jit::Device& device);
LayerSchedule schedule_of(const BatchNormBackward& layer, const jit::Device& device);

// Returns the number of kinds of rows of a tile that the first pass reads.
std::size_t kinds_of_rows(const BatchNormForward& layer);
std::size_t kinds_of_rows(const BatchNormBackward& layer);

// Returns the tiles of at most `blocks` blocks, for a schedule without a ring.
ChannelTiles channel_tiles_of(const BatchNormForward& layer, int width, std::int64_t blocks);
ChannelTiles channel_tiles_of(const BatchNormBackward& layer, int width, std::int64_t blocks);

unsigned blocks_of(const ChannelTiles& tiles);
unsigned blocks_of(const RingTiles& tiles);

}  // namespace spikeforge::layers
